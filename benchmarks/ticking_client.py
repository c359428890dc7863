"""Deephaven's ticking client (C++ core) on our server against the same client on a real Deephaven
server: time to the first state of 10^6 rows, the highest sustained append rate, server CPU seconds.

Both servers get the same ten-column table, the same appends ten times a second and an update
interval of 100 ms. The packages are looked for in this interpreter, or in the one named by
``BARRAGE_DEEPHAVEN_PYTHON``; without them the benchmark reports nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import statistics
import sys
import time
from glob import glob
from typing import Any

from benchmarks.peers.process import Peer, peer
from benchmarks.report import Measurement, compared, result

FIRST_STATE_ROWS = 1_000_000
FIRST_STATE_RUNS = 5
CYCLES_PER_SECOND = 10
LAG_SECONDS_MAX = 1.0
RATES = (250_000, 500_000, 1_000_000, 1_500_000, 2_000_000, 3_000_000)
COMMON_RATE = 250_000
"""The rate whose CPU seconds are compared; both servers sustain it."""


def deephaven_python() -> str | None:
    """The interpreter that has Deephaven's packages; None when there is none."""
    named = os.environ.get("BARRAGE_DEEPHAVEN_PYTHON")
    if named:
        return named
    has_all = all(
        importlib.util.find_spec(name) for name in ("deephaven_server", "pydeephaven_ticking")
    )
    return sys.executable if has_all else None


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    homes = sorted(glob("/usr/lib/jvm/*17*"))
    if "JAVA_HOME" not in environment and homes:
        environment["JAVA_HOME"] = homes[0]
    return environment


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measure(server: Peer, python: str, *, quick: bool) -> dict[str, Any]:
    """All figures of one server; the client is a fresh process."""
    port = server.hear()["port"]
    with peer(python, "ticking_reader", str(port), environment=_environment()) as reader:
        reader.hear()
        rows = 100_000 if quick else FIRST_STATE_ROWS
        first = _first_state(server, reader, rows, 2 if quick else FIRST_STATE_RUNS)
        rates = []
        for rate in RATES[:2] if quick else RATES:
            rates.append(_one_rate(server, reader, rate, 3 if quick else 8))
            if not rates[-1]["kept_up"]:
                break
    return {**first, "rates": rates}


def _first_state(server: Peer, reader: Peer, rows: int, runs: int) -> dict[str, Any]:
    server.ask("static", "first_state", rows)
    seconds, cpu = [], []
    for _ in range(runs):
        before = server.cpu_seconds()
        seconds.append(reader.ask("first_state", rows, rows, 120)["first_seconds"])
        reader.hear()
        cpu.append(server.cpu_seconds() - before)
    return {
        "first_seconds": statistics.median(seconds),
        "first_seconds_all": seconds,
        "first_cpu_seconds": statistics.median(cpu),
    }


def _one_rate(server: Peer, reader: Peer, rate: int, seconds: int) -> dict[str, Any]:
    name, cycles = f"rate_{rate}", seconds * CYCLES_PER_SECOND
    rows_per_cycle = rate // CYCLES_PER_SECOND
    server.ask("append", name, rows_per_cycle, cycles)
    reader.ask(name, 0, rows_per_cycle * cycles, seconds + 30)
    before = server.cpu_seconds()
    server.tell("go")
    late = server.hear()["late"]
    finished = time.time()
    seen = reader.hear()
    cpu = server.cpu_seconds() - before
    lag = seen["at"] - finished
    server.ask("drop", name)
    kept_up = (
        seen["rows"] >= rows_per_cycle * cycles and lag < LAG_SECONDS_MAX and late < LAG_SECONDS_MAX
    )
    return {"rate": rate, "lag": lag, "late": late, "cpu_seconds": cpu, "kept_up": kept_up, **seen}


def run(*, quick: bool = False) -> dict[str, Any]:
    python = deephaven_python()
    if python is None:
        print(
            "  no Deephaven packages: pip install 'barrage[interop]' (needs Java 17)",
            file=sys.stderr,
        )
        return result("ticking_client", [])
    environment = _environment()
    with peer(sys.executable, "our_server", environment=environment) as server:
        ours = measure(server, python, quick=quick)
    arguments = ("deephaven_server_script", str(_free_port()))
    with peer(python, *arguments, environment=environment) as server:
        theirs = measure(server, python, quick=quick)
    return result("ticking_client", _lines(ours, theirs))


def _lines(ours: dict[str, Any], theirs: dict[str, Any]) -> list[Measurement]:
    baseline = "a real Deephaven server"
    kept = [
        max((r["rate"] for r in one["rates"] if r["kept_up"]), default=0) for one in (ours, theirs)
    ]
    cpu = [
        next(r["cpu_seconds"] for r in one["rates"] if r["rate"] == COMMON_RATE)
        for one in (ours, theirs)
    ]
    return [
        compared(
            "ticking client: first state of 10^6 rows",
            ours["first_seconds"],
            "s",
            baseline=baseline,
            baseline_value=theirs["first_seconds"],
            at_most=1.0,
            detail={"ours": ours, "deephaven": theirs},
        ),
        compared(
            "the same: CPU seconds of the server",
            ours["first_cpu_seconds"],
            "s",
            baseline=baseline,
            baseline_value=theirs["first_cpu_seconds"],
            at_most=1.0,
        ),
        compared(
            "ticking client: highest append rate kept up with",
            kept[0],
            "rows/s",
            baseline=baseline,
            baseline_value=kept[1],
            at_least=1.0,
        ),
        compared(
            f"CPU seconds of the server at {COMMON_RATE:,} rows/s",
            cpu[0],
            "s",
            baseline=baseline,
            baseline_value=cpu[1],
            at_most=1.0,
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
