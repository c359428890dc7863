"""What takes a night: ``python -m tests.chaos.night [--kills N] [--cuts N] [--calls N] [--inputs N]
[--seeds N] [--interleavings N] [--soak MINUTES] [--out DIR] [--update docs/reliability.md]``.

Each machine that is asked for runs, one after the other, and leaves a JSON file in the directory;
``--update`` puts a table of all files that are there into the page. The exit code says whether
every machine that ran was content.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from barrage.errors import BarrageError

Report = dict[str, Any]
TABLE_BEGIN, TABLE_END = "<!-- table: begin -->", "<!-- table: end -->"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.night", description=__doc__)
    parser.add_argument("--kills", type=int, default=0, help="kills of a server under load")
    parser.add_argument("--cuts", type=int, default=0, help="power-cut states per recorded scene")
    parser.add_argument("--calls", type=int, default=0, help="cases per script and kind of trouble")
    parser.add_argument("--inputs", type=int, default=0, help="mutated inputs per decoder")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the simulator")
    parser.add_argument("--interleavings", type=int, default=0, help="seeds of each object")
    parser.add_argument("--soak", type=float, default=0, metavar="MINUTES")
    parser.add_argument("--seed", type=int, default=1, help="of all chances but the simulator's")
    parser.add_argument("--out", type=Path, default=Path("build/night"))
    parser.add_argument("--update", type=Path, metavar="PAGE")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    machines: list[tuple[float, str, Callable[[argparse.Namespace], Report]]] = [
        (chosen.kills, "kills", kill),
        (chosen.cuts, "cuts", cut),
        (chosen.calls, "calls", disturb),
        (chosen.seeds, "simulator", simulate),
    ]
    is_good = True
    for amount, name, run in machines:
        if amount:
            began = time.monotonic()
            report = run(chosen) | {"seconds": round(time.monotonic() - began)}
            (chosen.out / f"{name}.json").write_text(json.dumps(report, indent=1))
            is_good = is_good and not report["failures"]
    if chosen.inputs:
        out, wanted = str(chosen.out / "fuzz.json"), ["--inputs", str(chosen.inputs)]
        is_good &= _ran("tests.fuzz", *wanted, "--seed", str(chosen.seed), "--json", out)
    if chosen.interleavings:
        out, wanted = str(chosen.out / "interleavings.json"), str(chosen.interleavings)
        is_good &= _ran("tests.interleaving", "--seeds", wanted, "--json", out)
    if chosen.soak:
        out = str(chosen.out / "soak.json")
        is_good &= _ran("tests.chaos.soak", "--minutes", str(chosen.soak), "--out", out)
    lines = table(chosen.out)
    print("\n".join(lines))
    if chosen.update is not None:
        update(chosen.update, lines)
    return 0 if is_good else 1


def _ran(module: str, *arguments: str) -> bool:
    return subprocess.run([sys.executable, "-m", module, *arguments], check=False).returncode == 0


def kill(chosen: argparse.Namespace) -> Report:
    """Each scenario of the kills with its share of them."""
    from tests.chaos.test_server_kills import SCENARIOS, killed

    total = sum(scenario.kills for scenario in SCENARIOS.values())
    report: Report = {"kills": 0, "acknowledged": 0, "resent": 0, "failures": []}
    for number, (name, scenario) in enumerate(SCENARIOS.items()):
        share = max(1, round(chosen.kills * scenario.kills / total))
        seed = scenario.seed + 1000 * chosen.seed + number
        with tempfile.TemporaryDirectory() as where:
            try:
                told = killed(replace(scenario, kills=share, seed=seed), Path(where))
            except AssertionError as error:
                report["failures"].append(f"{name}: {error}")
                continue
        report["kills"] += told["kills"]
        report["resent"] += told["resent"]
        report["acknowledged"] += sum(told["acknowledged"].values())
        print(f"{name}: {told}", flush=True)
    return report


def cut(chosen: argparse.Namespace) -> Report:
    """Every scene of the black box, with many states each."""
    from tests.chaos.power.black_box import verdict_of
    from tests.chaos.power.scenes import SCENES

    report: Report = {"scenes": {}, "states": 0, "failed": 0, "acknowledged": 0, "failures": []}
    for name, scene in SCENES.items():
        with tempfile.TemporaryDirectory() as where:
            verdict = verdict_of(scene, Path(where), states=chosen.cuts, seed=chosen.seed)
        report["scenes"][name] = {"states": verdict.states, "failed": verdict.failed_states}
        report["states"] += verdict.states
        report["failed"] += verdict.failed_states
        report["acknowledged"] += verdict.acknowledged
        report["failures"] += [f"{name}: {each}" for each in verdict.failures[:20]]
        print(f"{name}: {report['scenes'][name]}", flush=True)
    return report


def disturb(chosen: argparse.Namespace) -> Report:
    """Short lives of a journal, ended at calls to the disk or with calls that fail."""
    from tests.helpers.every_call import SCRIPTS, all_kinds

    report: Report = {"lives": 0, "failures": []}
    for script in SCRIPTS:
        for case in all_kinds(script, chosen.calls, seed=chosen.seed):
            report["lives"] += 1
            try:
                lives = case.run()
                assert not lives.untold, f"{lives.failed} was not told"
            except (AssertionError, BarrageError) as error:
                report["failures"].append(f"{case}: {error}")
        print(f"{script}: {report['lives']}, {len(report['failures'])} failed", flush=True)
    return report


def simulate(chosen: argparse.Namespace) -> Report:
    command = [sys.executable, "-m", "tests.sim", "--seeds", str(chosen.seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    failures = [line for line in done.stderr.splitlines() if line.startswith("FAILED")]
    if done.returncode and not failures:
        failures = [done.stderr[-500:]]
    return {"seeds": chosen.seeds, "told": done.stdout.splitlines()[-3:], "failures": failures}


# --- the table ------------------------------------------------------------------------------------


def table(out: Path) -> list[str]:
    """One line for each machine whose file is there."""
    lines = ["| machine | amount | failures | command |", "|---|---|---|---|"]
    for name, line in (
        ("simulator", _simulator_line),
        ("kills", _kills_line),
        ("cuts", _cuts_line),
        ("calls", _calls_line),
        ("fuzz", _fuzz_line),
        ("soak", _soak_line),
    ):
        path = out / f"{name}.json"
        if path.exists():
            lines.append(line(json.loads(path.read_text())))
    path = out / "interleavings.json"
    if path.exists():
        lines += _interleaving_lines(json.loads(path.read_text()))
    return lines


def _interleaving_lines(report: Report) -> list[str]:
    """One for each object."""
    return [
        _row(
            f"interleavings: {name.replace('_', ' ')}",
            f"{facts['seeds']:,} orders, {facts['steps']:,} steps, {facts['switches']:,} switches",
            len(facts["failed"]),
            f"--interleavings {facts['seeds']}",
        )
        for name, facts in report["objects"].items()
    ]


def _row(machine: str, amount: str, failures: object, command: str) -> str:
    return f"| {machine} | {amount} | {failures} | `python -m tests.chaos.night {command}` |"


def _simulator_line(report: Report) -> str:
    amount = f"{report['seeds']:,} seeds"
    return _row("simulator", amount, len(report["failures"]), f"--seeds {report['seeds']}")


def _kills_line(report: Report) -> str:
    amount = (
        f"{report['kills']:,} kills; {report['acknowledged']:,} writes acknowledged, "
        f"{report['resent']:,} sent again"
    )
    failures = f"{len(report['failures'])}"
    return _row("kills of a server under load", amount, failures, f"--kills {report['kills']}")


def _cuts_line(report: Report) -> str:
    amount = f"{report['states']:,} states of {len(report['scenes'])} recorded servers"
    return _row("power cuts", amount, report["failed"], "--cuts N")


def _calls_line(report: Report) -> str:
    amount = f"{report['lives']:,} runs of short lives, ended or disturbed at a call to the disk"
    return _row("calls to the disk", amount, len(report["failures"]), "--calls N")


def _fuzz_line(report: Report) -> str:
    found = report["decoders"]
    least = min(each["inputs"] for each in found.values())
    amount = (
        f"{sum(each['inputs'] for each in found.values()):,} inputs for {len(found)} decoders, "
        f"{least:,} and more each"
    )
    failures = sum(bool(each["failure"]) for each in found.values())
    return _row("mutated inputs", amount, failures, f"--inputs {least}")


def _soak_line(report: Report) -> str:
    verdict = report["verdict"]
    seen = ", ".join(
        f"{name.replace('_', ' ')} {_shown(name, facts['middle'])} → {_shown(name, facts['last'])}"
        for name, facts in verdict.items()
        if name != "blocks"
    )
    minutes = round(report["seconds"] / 60)
    growing = sum(not facts["is_flat"] for facts in verdict.values()) + len(report["problems"])
    return _row(
        "soak",
        f"{minutes} minutes; medians of the middle and the last third: {seen}",
        growing,
        f"--soak {minutes}",
    )


def _shown(name: str, value: float) -> str:
    return f"{value / 2**20:.1f} MiB" if name.endswith("_bytes") else f"{value:g}"


def update(page: Path, lines: list[str]) -> None:
    """Put the lines between the marks of a page."""
    before, _, rest = page.read_text().partition(TABLE_BEGIN)
    _, found, after = rest.partition(TABLE_END)
    if not found:
        raise ValueError(f"{page} has no marks {TABLE_BEGIN} and {TABLE_END}")
    facts = f"Measured on {os.cpu_count()} cores beside other work."
    middle = "\n".join([TABLE_BEGIN, *lines, "", facts, TABLE_END])
    page.write_text(f"{before}{middle}{after}")


if __name__ == "__main__":
    sys.exit(main())
