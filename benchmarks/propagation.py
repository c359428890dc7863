"""Propagation: what one cycle costs the engine for many viewport subscribers of one table.

The baseline computes every subscriber on its own, with the same table and the same update: its
window before and after, the rows it keeps, and one read of the values it lacks.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from barrage.engine import AppendOnlyTable, KeyedTable, Table, UpdateGraph
from barrage.engine.changelog.present import Present
from barrage.engine.changelog.reader import Stamp, TableReader
from barrage.engine.changelog.subscription import Shape, SubscriptionSpec
from barrage.engine.changelog.view_messages import view_message
from barrage.engine.changelog.viewport_plan import PositionDelta
from barrage.engine.operators import derive
from barrage.engine.propagation.producer import Producer
from barrage.limits import DEFAULT_LIMITS
from barrage.model.viewport import Viewport
from benchmarks import shapes
from benchmarks.report import Measurement, compared, result

ROWS_SHOWN = 50
INTERVAL_NS = DEFAULT_LIMITS.interval_ns_min
BASELINE = "every subscriber on its own"
BASELINE_VIEWS = 100


@dataclass
class Load:
    """One table, its subscribers' viewports, and what changes in every cycle."""

    line: str
    graph: UpdateGraph
    table: Table
    viewports: list[Viewport]
    stage: Callable[[int], None]
    per_view: bool = False
    at_most: float = 0.1


def measure(load: Load, rounds: int) -> tuple[float, float, dict[str, Any]]:
    """Seconds per propagation, seconds of the baseline, details."""
    producer = Producer(load.table)
    for number, viewport in enumerate(load.viewports):
        producer.add(number, spec_of(viewport), 0)
    started = time.perf_counter()
    producer.propagate(0)
    first_state = time.perf_counter() - started
    spent: list[float] = []
    alone: list[float] = []
    messages = deliveries = 0
    for number in range(1, rounds + 1):
        before = load.table.row_keys
        load.stage(number)
        update = load.graph.run_cycle().updates[load.table]
        started = time.perf_counter()
        producer.record(update, number)
        sent = producer.propagate(number * 10 * INTERVAL_NS)
        spent.append(time.perf_counter() - started)
        deliveries += len(sent)
        messages += sum(len(each.subscription_ids) for each in sent)
        alone.append(each_alone(load, update, before))
    assert messages == rounds * len(load.viewports)
    return (
        float(np.median(spent)),
        float(np.median(alone)),
        {
            "subscribers": len(load.viewports),
            "distinct_messages": deliveries / rounds,
            "first_state_ms": first_state * 1e3,
            "rounds": rounds,
        },
    )


def spec_of(viewport: Viewport) -> SubscriptionSpec:
    return SubscriptionSpec(
        columns=None,
        viewport=viewport,
        interval_ns=INTERVAL_NS,
        is_key_space=False,
        encoding="plain",
    )


def each_alone(load: Load, update: Any, before: Any) -> float:
    """Seconds the baseline would take for all subscribers, from a sample of them."""
    sample = load.viewports[:: max(1, len(load.viewports) // BASELINE_VIEWS)]
    column_count = len(load.table.schema)
    stamp = Stamp(first_step=1, last_step=1, table_size=load.table.size, source_time_ns=None)
    started = time.perf_counter()
    for viewport in sample:
        delta = PositionDelta(update, before, load.table.row_keys)
        shape = Shape.of(None, viewport, column_count=column_count, is_key_space=False)
        view_message(TableReader(load.table), delta, shape, stamp=stamp)
    return (time.perf_counter() - started) / len(sample) * len(load.viewports)


def spread(count: int, rows: int) -> list[Viewport]:
    """``count`` different viewports, evenly over the table, none at its very end."""
    starts = np.linspace(0, rows - 2 * ROWS_SHOWN, count).astype(int).tolist()
    return [Viewport.of(start, start + ROWS_SHOWN) for start in starts]


def appended(rows: int) -> tuple[UpdateGraph, AppendOnlyTable]:
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, shapes.SCHEMA)
    part = shapes.batch(0, min(rows, 1_000_000))
    for _ in range(max(1, rows // 1_000_000)):
        table.stage_add(part)
    graph.run_cycle()
    return graph, table


def append_load(rows: int, views: int) -> Load:
    graph, table = appended(rows)
    return Load(
        line=f"{views} different 50-row viewports, append to {rows:,} rows, no view changes",
        graph=graph,
        table=table,
        viewports=spread(views, rows),
        stage=lambda number: table.stage_add(shapes.batch(number, 100)),
    )


def tail_load(rows: int, views: int) -> Load:
    graph, table = appended(rows)
    return Load(
        line=f"{views} subscribers to the same tail of {rows:,} appended rows",
        graph=graph,
        table=table,
        viewports=[Viewport.of(0, ROWS_SHOWN, is_reverse=True)] * views,
        stage=lambda number: table.stage_add(shapes.batch(number, 20)),
    )


def keyed_table(rows: int) -> tuple[UpdateGraph, KeyedTable]:
    graph = UpdateGraph()
    table = KeyedTable(graph, shapes.SCHEMA, key="id")
    table.stage_upsert(shapes.batch(0, rows))
    graph.run_cycle()
    return graph, table


def changed_rows(rows: int, count: int, number: int) -> pa.Table:
    """``count`` random rows with new values in all columns but the key."""
    ids = np.sort(np.random.default_rng(number).choice(rows, count, replace=False))
    fresh = shapes.batch(0, count, seed=number)
    return fresh.set_column(0, "id", pa.array(ids))


def keyed_load(rows: int, changes: int, views: int) -> Load:
    graph, table = keyed_table(rows)
    return Load(
        line=f"{views} different viewports, {changes:,} of {rows:,} keyed rows modified",
        graph=graph,
        table=table,
        viewports=spread(views, rows),
        stage=lambda number: table.stage_upsert(changed_rows(rows, changes, number)),
        per_view=True,
        at_most=0.5,
    )


def sorted_load(rows: int, changes: int, views: int) -> Load:
    graph, table = keyed_table(rows)
    return Load(
        line=f"{views} different viewports, {changes:,} rows move in a sorted {rows:,}",
        graph=graph,
        table=derive.sort(table, "-last"),
        viewports=spread(views, rows),
        stage=lambda number: table.stage_upsert(changed_rows(rows, changes, number)),
        per_view=True,
        at_most=0.5,
    )


def measure_jumps(rows: int, views: int, rounds: int) -> Measurement:
    """Viewports that all go elsewhere in one turn, bookkeeping of subscriptions included, against
    the bare snapshots alone; what it saves is in encoding them together."""
    _, table = keyed_table(rows)
    producer = Producer(table)
    places = spread(views, rows)
    for number, viewport in enumerate(places):
        producer.add(number, spec_of(viewport), 0)
    producer.propagate(0)
    spent: list[float] = []
    alone: list[float] = []
    wide = [
        Shape.of(None, each, column_count=len(table.schema), is_key_space=False) for each in places
    ]
    present = Present(table, step=1, source_time_ns=None)
    for number in range(1, rounds + 1):
        started = time.perf_counter()
        # None of the rows a view shows is among those it shows next.
        wanted = places[number % 7 + 1 :] + places[: number % 7 + 1]
        for view, viewport in enumerate(wanted):
            producer.change(view, None, viewport, now_ns=number)
        sent = producer.propagate(number * 10 * INTERVAL_NS)
        spent.append(time.perf_counter() - started)
        assert sum(len(each.subscription_ids) for each in sent) == views
        started = time.perf_counter()
        for old, new in itertools.pairwise(wide):
            present.jump(new, old, rows)
        alone.append((time.perf_counter() - started) / (views - 1) * views)
    return compared(
        f"{views} different viewports that jump in one turn, {rows:,} keyed rows",
        float(np.median(spent)) * 1e6 / views,
        "us/view",
        baseline=BASELINE,
        baseline_value=float(np.median(alone)) * 1e6 / views,
        at_most=2.0,
    )


def run(*, quick: bool = False) -> dict[str, Any]:
    scale = 10 if quick else 1
    loads = [
        lambda: append_load(10_000_000 // scale, 2000 // scale),
        lambda: tail_load(1_000_000 // scale, 1000 // scale),
        lambda: keyed_load(1_000_000 // scale, 50_000 // scale, 500 // scale),
        lambda: sorted_load(100_000 // scale, 1000 // scale, 500 // scale),
    ]
    measurements = []
    for make in loads:
        load = make()
        spent, alone, detail = measure(load, 5 if quick else 20)
        factor = 1e6 / len(load.viewports) if load.per_view else 1e3
        measurements.append(
            compared(
                load.line,
                spent * factor,
                "us/view" if load.per_view else "ms",
                baseline=BASELINE,
                baseline_value=alone * factor,
                at_most=load.at_most,
                detail=detail,
            )
        )
    measurements.append(measure_jumps(1_000_000 // scale, 2000 // scale, 5 if quick else 20))
    return result("propagation", measurements)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
