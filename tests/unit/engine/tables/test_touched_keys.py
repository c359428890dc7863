"""Rows that staged writes may touch: never fewer than those that the cycle then changes."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    StaticTable,
    UpdateGraph,
)
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
DRAWN = np.random.default_rng(11)


def rows(keys: list[int]) -> pa.Table:
    return pa.table({"k": keys, "v": DRAWN.integers(0, 9, len(keys))}, schema=SCHEMA)


def some(count: int, below: int) -> list[int]:
    return DRAWN.choice(below, min(count, below), replace=False).tolist()


def write_keyed(table: KeyedTable) -> None:
    match DRAWN.integers(0, 10):
        case 0:
            table.stage_replace(rows(some(5, 30)))
        case 1 | 2 | 3:
            table.stage_remove(pa.table({"k": some(3, 30)}))
        case _:
            table.stage_upsert(rows(some(4, 30)))


def write_list(table: ListTable) -> None:
    size = table.staged_size
    start = int(DRAWN.integers(0, size + 1))
    count = int(DRAWN.integers(0, size - start + 1))
    match DRAWN.integers(0, 10):
        case 0:
            table.stage_replace(rows(some(8, 30)))
        case 1 | 2 | 3:
            table.stage_delete(start, start + min(count, 3))
        case 4 | 5:
            table.stage_overwrite(start, rows(some(count, 30)))
        case _:
            table.stage_insert(start, rows(some(3, 30)))


def write_added(table: AppendOnlyTable | RingTable | BlinkTable) -> None:
    table.stage_add(rows(some(int(DRAWN.integers(1, 7)), 30)))


def changed(update: TableUpdate | None) -> RowSet:
    """Rows of before that are gone or have other cells."""
    if update is None:
        return RowSet.empty()
    modified = RowSet.empty()
    for keys in update.modified_keys_post:
        modified |= keys
    return update.removed_keys_pre | update.shifts.unapply(modified)


CASES = [
    (lambda graph: KeyedTable(graph, SCHEMA, key=["k"]), write_keyed),
    (lambda graph: ListTable(graph, SCHEMA), write_list),
    (lambda graph: RingTable(graph, SCHEMA, capacity=10), write_added),
    (lambda graph: AppendOnlyTable(graph, SCHEMA), write_added),
]


@pytest.mark.parametrize(("make", "write"), CASES, ids=["keyed", "list", "ring", "append only"])
def test_what_a_cycle_changes_was_touched(make, write) -> None:
    graph = UpdateGraph()
    table = make(graph)
    for _ in range(60):
        marks = [table.staged_mark()]
        for _ in range(int(DRAWN.integers(1, 5))):
            write(table)
            marks.append(table.staged_mark())
        touched = table.touched_keys()
        assert table.row_keys.contains_all(touched)
        for earlier, later in itertools.pairwise(marks):
            assert table.touched_keys(earlier).contains_all(table.touched_keys(later))
        assert table.touched_keys(marks[-1]).is_empty
        update = graph.run_cycle().updates.get(table)
        assert (changed(update) - touched).is_empty


def test_of_a_table_that_never_changes_it_is_every_row() -> None:
    table = StaticTable(UpdateGraph(), rows([1, 2, 3]))
    assert table.touched_keys() == RowSet.of_span(0, 3)
