"""The engine alone: cycles of sources and operators, each against the plain way to the same result.

``python -m benchmarks engine_ops`` runs it with the others; no server and no encoding take part.
Sizes are those of the lines in the performance notes: ten columns, a keyed table of 10^6 rows,
sorted views.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine import AppendOnlyTable, KeyedTable, Table, UpdateGraph
from barrage.engine.operators import derive
from barrage.rowset import RowSet
from benchmarks.report import Measurement, compared, result

CYCLES_PER_SECOND = 10
SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("time", pa.timestamp("ns", "UTC")),
        *((f"n{index}", pa.int64()) for index in range(2)),
        *((f"x{index}", pa.float64()) for index in range(4)),
        ("symbol", pa.string()),
        ("venue", pa.string()),
    ]
)
SYMBOLS = pa.array([f"SYM{number}" for number in range(1000)])


def rows(keys: np.ndarray, generator: np.random.Generator) -> pa.Table:
    """Random rows of the ten-column table; the symbol depends on the key alone."""
    count = len(keys)
    columns = [
        pa.array(keys),
        pa.array(generator.integers(0, 1 << 60, count)).cast(pa.timestamp("ns", "UTC")),
        *(pa.array(generator.integers(0, 1 << 40, count)) for _ in range(2)),
        *(pa.array(generator.random(count)) for _ in range(4)),
        SYMBOLS.take(pa.array(keys % 1000)),
        SYMBOLS.take(pa.array(generator.integers(0, 20, count))),
    ]
    return pa.table(columns, schema=SCHEMA)


def milliseconds(work: Callable[[], Any], repeats: int = 1) -> float:
    """The fastest of ``repeats`` runs."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best * 1e3


def median_ms(works: list[Callable[[], Any]]) -> float:
    """The median of one run of each."""
    return float(np.median([milliseconds(work) for work in works]))


def appends(generator: np.random.Generator) -> list[Measurement]:
    """A cycle that appends 10^5 rows, in one batch and in a hundred, as part of a tenth of a
    second."""
    lines = []
    for batches in (1, 100):
        graph = UpdateGraph()
        table = AppendOnlyTable(graph, SCHEMA)
        part = rows(np.arange(100_000 // batches), generator)

        def cycle(
            table: AppendOnlyTable = table,
            part: pa.Table = part,
            batches: int = batches,
            graph: UpdateGraph = graph,
        ) -> None:
            for _ in range(batches):
                table.stage_add(part)
            graph.run_cycle()

        lines.append(
            compared(
                f"append 10^6 rows/s, {batches} batches a cycle: CPU",
                median_ms([cycle] * 20) / 1000 * CYCLES_PER_SECOND,
                "cores",
                baseline="one core",
                baseline_value=1.0,
                at_most=0.5,
            )
        )
    return lines


def deep_reads(row_count: int, generator: np.random.Generator) -> list[Measurement]:
    """50 rows anywhere in a large append-only table, and what it weighs."""
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, pa.schema([("n", pa.int64()), ("x", pa.float64())]))
    part = 1_000_000
    arrow_bytes = 0
    for start in range(0, row_count, part):
        batch = pa.table({"n": np.arange(start, start + part), "x": generator.random(part)})
        arrow_bytes += batch.nbytes
        table.stage_add(batch)
        graph.run_cycle()
    starts = generator.integers(0, row_count - 50, 2000).tolist()
    spans = [RowSet.of_span(start, start + 50) for start in starts]
    elapsed = milliseconds(lambda: [table.read(span) for span in spans], 3) / len(spans)
    return [
        compared(
            f"read 50 rows of {row_count:.0e}",
            elapsed * 1000,
            "µs",
            baseline="0.1 ms",
            baseline_value=100.0,
            at_most=1.0,
        ),
        compared(
            f"memory of {row_count:.0e} appended rows",
            table.storage.nbytes / 1e6,
            "MB",
            baseline="Arrow",
            baseline_value=arrow_bytes / 1e6,
            at_most=1.5,
        ),
    ]


def upserts(table: KeyedTable, row_count: int, generator: np.random.Generator) -> list[Measurement]:
    """5*10^4 modified rows per cycle, against pyarrow finding and replacing the same rows."""
    count = 50_000
    batches = [rows(generator.choice(row_count, count, replace=False), generator) for _ in range(8)]

    def cycle(batch: pa.Table) -> None:
        table.stage_upsert(batch)
        table.graph.run_cycle()

    cycle(batches[0])
    ours = median_ms([lambda b=batch: cycle(b) for batch in batches[1:]])
    content = table.to_arrow()

    def plain() -> None:
        found = pc.index_in(content["key"], value_set=batches[1]["key"])
        untouched = content.filter(found.is_null())
        pa.concat_tables([untouched, batches[1]])

    return [
        compared(
            f"upsert {count} of {row_count} rows",
            ours,
            "ms",
            baseline="pyarrow index_in, filter and concatenate",
            baseline_value=milliseconds(plain, 2),
            at_most=1.0,
            detail={"cores_at_10_per_second": ours / 1000 * CYCLES_PER_SECOND},
        )
    ]


def by_symbol(content: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The rows in order of their symbols, and where another symbol begins."""
    symbols = content["symbol"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.argsort(symbols, kind="stable")
    return order, np.flatnonzero(np.diff(symbols[order], prepend=-1))


def ends_of_groups(content: pa.Table, count: int) -> pa.Table:
    """The first rows of each symbol, or the last ones, in row order."""
    order, starts = by_symbol(content)
    if count < 0:
        starts = np.append(starts[1:], len(order)) + count
    return content.take(pa.array(np.sort(order[(starts[:, None] + np.arange(abs(count))).ravel()])))


def running_sums(content: pa.Table) -> np.ndarray:
    """The cumulative sums of a column for each symbol, in row order."""
    order, starts = by_symbol(content)
    sums = np.cumsum(content["n0"].to_numpy()[order])
    bases = np.concatenate(([0], sums))[starts]
    shown = np.empty_like(sums)
    shown[order] = sums - np.repeat(bases, np.diff(starts, append=len(order)))
    return shown


def lists(row_count: int, generator: np.random.Generator) -> list[Measurement]:
    """1000 changed rows per cycle of a table of lists whose cells are rows."""
    schema = pa.schema([("key", pa.int64()), ("cells", pa.list_(pa.float64()))])
    table = KeyedTable(UpdateGraph(), schema, key="key")

    def part(keys: np.ndarray) -> pa.Table:
        offsets = np.concatenate(([0], np.cumsum(generator.integers(0, 5, len(keys)))))
        cells = pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), generator.random(offsets[-1])
        )
        return pa.table({"key": keys, "cells": cells}, schema=schema)

    table.stage_upsert(part(np.arange(row_count)))
    table.graph.run_cycle()
    view = derive.ungroup(table)
    times = []
    for _ in range(9):
        table.stage_upsert(part(np.sort(generator.choice(row_count, 1000, replace=False))))
        times.append(milliseconds(table.graph.run_cycle))
    del view
    content = table.to_arrow()

    def plain() -> pa.Table:
        cells = content["cells"].combine_chunks()
        parents = pc.list_parent_indices(cells)
        return pa.table({"key": content["key"].take(parents), "cells": pc.list_flatten(cells)})

    return [
        compared(
            f"ungroup: 1000 of {row_count} rows changed",
            float(np.median(times)),
            "ms",
            baseline="pyarrow on the whole table",
            baseline_value=milliseconds(plain, 2),
            at_most=1.0,
        )
    ]


def continued(row_count: int, generator: np.random.Generator) -> list[Measurement]:
    """1000 rows appended per cycle, whose running values go on from those of before."""
    table = AppendOnlyTable(UpdateGraph(), SCHEMA)
    table.stage_add(rows(np.arange(row_count), generator))
    table.graph.run_cycle()
    view = derive.update_by(table, "symbol", total="cum_sum(n0)", smooth="ema_tick(x0, 10)")
    times = []
    for start in range(row_count, row_count + 9000, 1000):
        table.stage_add(rows(np.arange(start, start + 1000), generator))
        times.append(milliseconds(table.graph.run_cycle))
    del view
    content = table.to_arrow()
    return [
        compared(
            f"update_by symbol, cum_sum and ema_tick: 1000 rows appended to {row_count}",
            float(np.median(times)),
            "ms",
            baseline="numpy, one sum of the whole table",
            baseline_value=milliseconds(lambda: running_sums(content), 2),
            at_most=1.0,
        )
    ]


def computed_again(row_count: int, generator: np.random.Generator) -> list[Measurement]:
    """The first row of one group changed per cycle: a sum computes all others again, an average
    those until the change has faded."""
    schema = pa.schema([("key", pa.int64()), ("n", pa.int64()), ("x", pa.float64())])
    table = KeyedTable(UpdateGraph(), schema, key="key")

    def part(count: int) -> pa.Table:
        cells = {"n": generator.integers(0, 1000, count), "x": generator.random(count)}
        return pa.table({"key": np.arange(count), **cells}, schema=schema)

    table.stage_upsert(part(row_count))
    table.graph.run_cycle()
    numbers = table.to_arrow()["n"].to_numpy()
    found = []
    for formulas in ({"total": "cum_sum(n)"}, {"smooth": "ema_tick(x, 10)"}):
        view = derive.update_by(table, **formulas)
        times = []
        for _ in range(9):
            table.stage_upsert(part(1))
            times.append(milliseconds(table.graph.run_cycle))
        del view
        found.append(
            compared(
                f"update_by, {formulas.popitem()[1]}: row 0 of {row_count} in one group changed",
                float(np.median(times)),
                "ms",
                baseline="numpy.cumsum of the whole table",
                baseline_value=milliseconds(lambda: np.cumsum(numbers), 5),
            )
        )
    return found


def operators(
    table: KeyedTable, row_count: int, generator: np.random.Generator
) -> list[Measurement]:
    """1000 changed rows per cycle: each operator against computing its whole result anew."""
    changed = 1000
    content = table.to_arrow()
    cases: dict[str, tuple[Callable[[], Table], Callable[[], Any]]] = {
        "sort by a double": (
            lambda: derive.sort(table, "x0"),
            lambda: content.sort_by([("x0", "ascending")]),
        ),
        "sort by string and double": (
            lambda: derive.sort(table, "symbol", "-x1"),
            lambda: content.sort_by([("symbol", "ascending"), ("x1", "descending")]),
        ),
        "where x2 > 0.5": (
            lambda: derive.where(table, "x2 > 0.5"),
            lambda: content.filter(pc.field("x2") > 0.5),
        ),
        "last_by symbol": (
            lambda: derive.last_by(table, "symbol"),
            lambda: content.group_by("symbol", use_threads=False).aggregate([("x0", "last")]),
        ),
        "agg_by symbol, count sum avg": (
            lambda: derive.agg_by(table, "symbol", n="count()", s="sum(x0)", a="avg(n0)"),
            lambda: content.group_by("symbol", use_threads=False).aggregate(
                [([], "count_all"), ("x0", "sum"), ("n0", "mean")]
            ),
        ),
        "agg_by symbol, min max std last": (
            lambda: derive.agg_by(
                table, "symbol", low="min(x0)", high="max(x0)", dev="std(x1)", end="last(x2)"
            ),
            lambda: content.group_by("symbol", use_threads=False).aggregate(
                [("x0", "min"), ("x0", "max"), ("x1", "stddev"), ("x2", "last")]
            ),
        ),
        "head_by 3 of symbol": (
            lambda: derive.head_by(table, 3, "symbol"),
            lambda: ends_of_groups(content, 3),
        ),
        "tail_by 3 of symbol": (
            lambda: derive.tail_by(table, 3, "symbol"),
            lambda: ends_of_groups(content, -3),
        ),
    }
    lines = []
    for name, (make, plain) in cases.items():
        view = make()
        times = []
        for _ in range(9):
            keys = generator.choice(row_count, changed, replace=False)
            table.stage_upsert(rows(keys, generator))
            times.append(milliseconds(table.graph.run_cycle))
        del view
        lines.append(
            compared(
                f"{name}: {changed} of {row_count} rows changed",
                float(np.median(times)),
                "ms",
                baseline="pyarrow on the whole table",
                baseline_value=milliseconds(plain, 2),
                at_most=0.5,
            )
        )
    return lines


def run(*, quick: bool = False) -> dict[str, Any]:
    """All lines; ``quick`` uses a tenth of the rows."""
    generator = np.random.default_rng(20240)
    scale = 10 if quick else 1
    row_count = 1_000_000 // scale
    lines = appends(generator) + deep_reads(100_000_000 // scale, generator)
    table = KeyedTable(UpdateGraph(), SCHEMA, key="key")
    table.stage_upsert(rows(np.arange(row_count), generator))
    table.graph.run_cycle()
    lines += upserts(table, row_count, generator)
    lines += operators(table, row_count, generator)
    lines += lists(row_count, generator)
    lines += continued(row_count, generator)
    lines += computed_again(row_count, generator)
    return result("engine_ops", lines)
