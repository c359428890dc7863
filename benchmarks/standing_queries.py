"""What operators that clients keep cost in every cycle that changes their table.

Each of a hundred different operators stands upon one table of 10^5 rows, to which a cycle adds one
row. The baseline is the same cycle without any of them. Figures are CPU time of the thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from barrage.engine import AppendOnlyTable, Table, UpdateGraph, derive
from benchmarks.report import Measurement, compared, result

STANDING = 100
CYCLES = 9

QUERIES: dict[str, Callable[[Table, int], Table]] = {
    "a filter": lambda table, number: derive.where(table, f"x > {number}"),
    "a filter of 400 terms": lambda table, number: derive.where(table, f"x{'+x' * 399} > {number}"),
    "agg_by of a filter": lambda table, number: derive.agg_by(
        derive.where(table, f"x > {number}"), "k", total="sum(x)"
    ),
    "a sort of a filter": lambda table, number: derive.sort(
        derive.where(table, f"x > {number}"), "-x"
    ),
}


def cycle_ms(make: Callable[[Table, int], Table] | None, rows: int) -> float:
    """Of a cycle that adds a row, with a hundred tables that ``make`` derives."""
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, pa.schema([("x", pa.int64()), ("k", pa.int64())]))
    numbers = np.arange(rows)
    table.stage_add(pa.table({"x": numbers, "k": numbers % 100}))
    graph.run_cycle()
    kept = [] if make is None else [make(table, number) for number in range(STANDING)]
    took = []
    for _ in range(CYCLES):
        table.stage_add(pa.table({"x": [rows], "k": [1]}))
        started_ns = time.thread_time_ns()
        graph.run_cycle()
        took.append((time.thread_time_ns() - started_ns) / 1e6)
    del kept
    return median(took)


def run(*, quick: bool = False) -> dict[str, Any]:
    rows = 10_000 if quick else 100_000
    alone = cycle_ms(None, rows)
    measurements: list[Measurement] = [
        compared(
            f"{name}: a cycle with {STANDING} of them",
            cycle_ms(make, rows),
            "ms",
            baseline="the cycle without them",
            baseline_value=alone,
        )
        for name, make in QUERIES.items()
    ]
    return result("standing_queries", measurements)
