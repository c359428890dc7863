"""How every benchmark reports: lines with a value, a named baseline from the same run, and their
ratio."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD = (
    "| benchmark | line | value | baseline | ratio | goal | met |",
    "|---|---|---|---|---|---|---|",
)
TABLE_BEGIN, TABLE_END = "<!-- table: begin -->", "<!-- table: end -->"
PACKAGES = ("pyarrow", "numpy", "grpcio", "pyroaring")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One line of the table. ``ratio`` is value / baseline_value; ``goal`` bounds the ratio or the
    value."""

    line: str
    value: float
    unit: str
    baseline: str = ""
    baseline_value: float | None = None
    ratio: float | None = None
    goal: str = ""
    met: bool | None = None
    detail: dict[str, Any] = field(default_factory=dict)


def compared(
    line: str,
    value: float,
    unit: str,
    *,
    baseline: str,
    baseline_value: float,
    at_least: float | None = None,
    at_most: float | None = None,
    detail: dict[str, Any] | None = None,
) -> Measurement:
    """A line whose goal is a bound on its ratio to the baseline."""
    ratio = value / baseline_value if baseline_value else float("inf")
    goal, met = "", None
    if at_least is not None:
        goal, met = f"≥ {at_least:g}×", ratio >= at_least
    if at_most is not None:
        goal, met = f"≤ {at_most:g}×", ratio <= at_most
    return Measurement(
        line=line,
        value=value,
        unit=unit,
        baseline=baseline,
        baseline_value=baseline_value,
        ratio=ratio,
        goal=goal,
        met=met,
        detail=detail or {},
    )


def skipped(reason: str) -> Measurement:
    """The line of what cannot be measured here."""
    return Measurement(line=f"skipped: {reason}", value=0, unit="")


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        **{name: version(name) for name in PACKAGES},
    }


def result(name: str, measurements: list[Measurement]) -> dict[str, Any]:
    """The JSON form of one benchmark's answer."""
    return {
        "benchmark": name,
        "machine": machine(),
        "measurements": [asdict(measurement) for measurement in measurements],
    }


def save(answer: dict[str, Any], directory: Path) -> Path:
    """Write one answer to ``directory/<benchmark>.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{answer['benchmark']}.json"
    path.write_text(json.dumps(answer, indent=2, ensure_ascii=False) + "\n")
    return path


def number(value: float | None) -> str:
    """Three significant digits, with thousands separated."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(answers: list[dict[str, Any]]) -> str:
    """The table of docs/performance.md."""
    return "\n".join([*HEAD, *(line for answer in answers for line in _lines(answer))])


def _lines(answer: dict[str, Any]) -> list[str]:
    lines = []
    for row in answer["measurements"]:
        met = "" if row["met"] is None else ("yes" if row["met"] else "**no**")
        baseline = row["baseline"]
        if row["baseline_value"] is not None:
            baseline += f": {number(row['baseline_value'])} {row['unit']}"
        ratio = "" if row["ratio"] is None else f"{number(row['ratio'])}×"
        lines.append(
            f"| {answer['benchmark']} | {row['line']} | {number(row['value'])} {row['unit']} "
            f"| {baseline} | {ratio} | {row['goal']} | {met} |"
        )
    return lines


def update_table(page: Path, answers: list[dict[str, Any]], names: Sequence[str]) -> None:
    """Put ``answers`` and what they were measured on between the marks of ``page``, in the order of
    ``names``. Lines of benchmarks that have no answer stay as they are, also of those that have no
    place in that order: they come last."""
    before, _, rest = page.read_text().partition(TABLE_BEGIN)
    there, found, after = rest.partition(TABLE_END)
    if not found:
        raise ValueError(f"{page} has no marks {TABLE_BEGIN} and {TABLE_END}")
    lines: dict[str, list[str]] = {}
    for line in there.splitlines():
        if line.startswith("| ") and line not in HEAD:
            lines.setdefault(line.split(" ")[1], []).append(line)
    lines |= {answer["benchmark"]: _lines(answer) for answer in answers}
    order = dict.fromkeys([*names, *lines])
    table = "\n".join([*HEAD, *(line for name in order for line in lines.get(name, ()))])
    facts = ", ".join(f"{name} {value}" for name, value in answers[-1]["machine"].items())
    text = f"{TABLE_BEGIN}\n{table}\n\nMeasured on, the newest lines: {facts}.\n{TABLE_END}"
    page.write_text(f"{before}{text}{after}")
