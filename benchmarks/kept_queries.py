"""What operators that clients keep cost in every cycle that changes their table.

Each of a hundred different operators stands upon one table of 10^5 rows, to which a cycle adds one
row. The baseline is the same cycle without any of them. Then as many as one client may keep, and as
all clients together may (``cycle_work_max``). Figures are CPU time of the thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

from barrage.engine import AppendOnlyTable, Table, UpdateGraph
from barrage.engine.operators import derive
from barrage.engine.planning.cycle_work import CycleWork
from barrage.engine.planning.work_meter import HeavyPreparationError, TurnBudget, WorkMeter
from barrage.errors import LimitExceededError
from barrage.limits import DEFAULT_LIMITS
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


MOST = 5_000


def cycle_ms(
    make: Callable[[Table, int], Table] | None, rows: int, work_max: int | None = None
) -> tuple[float, int]:
    """Of a cycle that adds a row, with a hundred tables that ``make`` derives, or as many as are
    let in; and how many these are."""
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, pa.schema([("x", pa.int64()), ("k", pa.int64())]))
    numbers = np.arange(rows)
    table.stage_add(pa.table({"x": numbers, "k": numbers % 100}))
    graph.run_cycle()
    kept: list[Table] = []
    if make is not None and work_max is None:
        kept = [make(table, number) for number in range(STANDING)]
    elif make is not None and work_max is not None:
        kept = as_many_as_are_let_in(graph, table, make, work_max)
    took = []
    for _ in range(CYCLES):
        table.stage_add(pa.table({"x": [rows], "k": [1]}))
        started_ns = time.thread_time_ns()
        graph.run_cycle()
        took.append((time.thread_time_ns() - started_ns) / 1e6)
    return median(took), len(kept)


def as_many_as_are_let_in(
    graph: UpdateGraph, table: Table, make: Callable[[Table, int], Table], work_max: int
) -> list[Table]:
    limits = replace(DEFAULT_LIMITS, cycle_work_max=work_max, turn_work_max=2**62)
    standing = CycleWork(limits)
    kept: list[Table] = []
    with suppress(LimitExceededError):
        while len(kept) < MOST:
            meter = WorkMeter(limits, TurnBudget(), standing)
            try:
                with graph.metered(meter):
                    kept.append(make(table, len(kept)))
            except HeavyPreparationError as heavy:
                heavy.preparation.make()
                meter.know(heavy.preparation)
                with graph.metered(meter):
                    kept.append(make(table, len(kept)))
    return kept


def run(*, quick: bool = False) -> dict[str, Any]:
    rows = 10_000 if quick else 100_000
    alone, _ = cycle_ms(None, rows)
    measurements: list[Measurement] = []
    bounds = {
        "one client": DEFAULT_LIMITS.cycle_work_per_client_max,
        "all clients": DEFAULT_LIMITS.cycle_work_max,
    }
    for name, make in QUERIES.items():
        for who, work_max in ((None, None), *bounds.items()):
            took, count = cycle_ms(make, rows, work_max)
            most = "" if who is None else f", all that {who} may keep"
            measurements.append(
                compared(
                    f"{name}: a cycle with {count} of them{most}",
                    took,
                    "ms",
                    baseline="the cycle without them",
                    baseline_value=alone,
                )
            )
    return result("kept_queries", measurements)
