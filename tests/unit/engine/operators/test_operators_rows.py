"""Operators that choose and arrange rows: merge, flatten, slice, snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from barrage.engine import (
    AppendOnlyTable,
    BlinkTable,
    KeyedTable,
    ListTable,
    RingTable,
    StaticTable,
    Table,
    UpdateGraph,
)
from barrage.engine.operators import derive
from barrage.engine.operators import merge as merge_module
from barrage.engine.operators.snapshot import snapshot
from barrage.errors import EngineError, SchemaError, TableFailedError
from barrage.rowset import RowSet
from tests.helpers import model

if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])


def rows(k: Sequence[int]) -> pa.Table:
    return pa.table({"k": k, "s": [f"row {value}" for value in k]}, schema=SCHEMA)


def shown(table: Table) -> list[int]:
    return table.to_arrow()["k"].to_pylist()  # type: ignore[no-any-return]


def test_merged_rows_may_be_kept_as_bits() -> None:
    graph = UpdateGraph()
    first, second = KeyedTable(graph, SCHEMA, key="k"), KeyedTable(graph, SCHEMA, key="k")
    chosen = derive.where(first, "s == 'in'")
    merged = derive.merge(chosen, second)
    expected = [key for key in range(30_000) if key % 3 and key % 7 != 2]
    places = ["in" if key % 3 and key % 7 != 2 else "out" for key in range(30_000)]
    first.stage_upsert(pa.table({"k": range(30_000), "s": places}, schema=SCHEMA))
    second.stage_upsert(rows([5]))
    graph.run_cycle()
    assert chosen.row_keys.is_bits
    assert shown(merged) == [*expected, 5]
    first.stage_remove(rows([1]).select(["k"]))
    graph.run_cycle()
    assert shown(merged) == [*expected[1:], 5]


def test_merged_rows_keep_the_keys_of_their_parents_in_a_stretch_each() -> None:
    graph = UpdateGraph()
    first, second = KeyedTable(graph, SCHEMA, key="k"), RingTable(graph, SCHEMA, capacity=2)
    merged = derive.merge(first, second)
    first.stage_upsert(rows([1, 2]))
    second.stage_add(rows([3, 4, 5]))
    graph.run_cycle()
    room = merge_module.ROOM_MIN
    assert merged.row_keys.to_text() == f"0-1,{room + 1}-{room + 2}"
    assert shown(merged) == [1, 2, 4, 5]
    first.stage_remove(pa.table({"k": [1]}))
    second.stage_add(rows([6]))
    update = graph.run_cycle().updates[merged]
    assert update.removed_keys_pre.to_text() == f"0,{room + 1}"
    assert update.added_keys_post.to_text() == str(room + 3)
    assert update.shifts.is_empty


def test_a_parent_that_outgrows_its_stretch_pushes_the_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(merge_module, "ROOM_MIN", 4)
    graph = UpdateGraph()
    tables = [AppendOnlyTable(graph, SCHEMA) for _ in range(3)]
    merged = derive.merge(tables[0], *tables[1:])
    for number, table in enumerate(tables):
        table.stage_add(rows([10 * number, 10 * number + 1]))
    graph.run_cycle()
    assert merged.row_keys.to_text() == "0-1,4-5,8-9"
    before = model.content_of(merged)
    tables[0].stage_add(rows([2, 3]))
    tables[1].stage_add(rows([12, 13, 14]))
    update = graph.run_cycle().updates[merged]
    model.check_update(before, update, model.content_of(merged))
    assert [tuple(shift) for shift in update.shifts] == [(8, 9, 4)]
    assert merged.row_keys.to_text() == "0-8,12-13"
    assert shown(merged) == [0, 1, 2, 3, 10, 11, 12, 13, 14, 20, 21]


def test_a_merge_of_merges_reads_the_inner_parents() -> None:
    graph = UpdateGraph()
    tables = [StaticTable(graph, rows([number])) for number in range(40)]
    merged: Any = tables[0]
    for table in tables[1:]:
        merged = derive.merge(merged, table)
    assert merged.parents == tuple(tables)
    assert merged.depth == 1
    assert merged.is_static
    assert shown(merged) == list(range(40))


def test_merged_columns_must_agree_in_name_order_and_type() -> None:
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, SCHEMA)
    with pytest.raises(SchemaError, match=r"number 3 has \['s', 'k'\]"):
        derive.merge(table, table, derive.select(table, "s", "k"))
    other = AppendOnlyTable(graph, pa.schema([("k", pa.int32()), ("s", pa.string())]))
    with pytest.raises(SchemaError, match="'k' is int64 in the first, int32 in number 2"):
        derive.merge(table, other)
    annotated = SCHEMA.with_metadata({"of": "another source"})
    assert derive.merge(table, AppendOnlyTable(graph, annotated)).schema == SCHEMA


def test_keys_that_do_not_fit_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge_module, "ROOM_MIN", 1 << 62)
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, SCHEMA)
    with pytest.raises(EngineError, match="flatten them first"):
        derive.merge(table, table)


def test_merged_dictionaries_are_read_as_one() -> None:
    graph = UpdateGraph()
    parts = [
        StaticTable(graph, pa.table({"d": pa.array(values).dictionary_encode()}))
        for values in (["x", "y"], [None, "z"], ["y"])
    ]
    merged = derive.merge(parts[0], *parts[1:])
    (cells,) = merged.read(merged.row_keys)
    assert cells.to_pylist() == ["x", "y", None, "z", "y"]
    assert isinstance(cells, pa.DictionaryArray)
    ordered = derive.sort(merged, "-d")
    assert ordered.to_arrow()["d"].to_pylist() == ["z", "y", "y", "x", None]


def test_reading_nothing_from_a_merge_gives_empty_columns() -> None:
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, SCHEMA)
    merged = derive.merge(table, table)
    assert [len(cells) for cells in merged.read(RowSet.empty())] == [0, 0]
    assert derive.sort(merged, "k").size == 0


def test_what_a_merge_promises_holds_for_all_parents() -> None:
    graph = UpdateGraph()
    blink, growing = BlinkTable(graph, SCHEMA), AppendOnlyTable(graph, SCHEMA)
    assert derive.merge(blink, blink).is_blink
    assert not derive.merge(blink, growing).is_blink
    merged = derive.merge(growing, growing)
    assert not merged.is_append_only
    assert not merged.is_flat
    assert not merged.is_static
    assert derive.merge(KeyedTable(graph, SCHEMA, key="k"), growing).key_columns == ()


def test_flattened_rows_have_their_positions_as_keys() -> None:
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="k")
    source.stage_upsert(rows(range(10)))
    graph.run_cycle()
    flat = derive.flatten(derive.where(source, "k != 4"))
    assert flat.is_flat
    assert flat.row_keys.to_text() == "0-8"
    source.stage_remove(pa.table({"k": [2, 7]}))
    source.stage_upsert(rows([20]))
    source.stage_upsert(pa.table({"k": [8], "s": ["new"]}, schema=SCHEMA))
    update = graph.run_cycle().updates[flat]
    assert update.removed_keys_pre.to_text() == "2,6"
    assert [tuple(shift) for shift in update.shifts] == [(3, 5, -1), (7, 8, -2)]
    assert update.added_keys_post.to_text() == "7"
    assert [keys.to_text() for keys in update.modified_keys_post] == ["", "5"]
    assert shown(flat) == [0, 1, 3, 5, 6, 8, 9, 20]


def test_a_flat_table_is_its_own_flattened_form() -> None:
    graph = UpdateGraph()
    source = ListTable(graph, SCHEMA)
    assert derive.flatten(source) is source
    keyed = KeyedTable(graph, SCHEMA, key="k")
    assert derive.flatten(keyed) is derive.flatten(keyed)
    assert derive.flatten(derive.flatten(keyed)) is derive.flatten(keyed)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 3, [0, 1, 2]),
        (2, 2, []),
        (5, 100, [5, 6]),
        (1, -1, [1, 2, 3, 4, 5]),
        (4, -4, []),
        (-3, 0, [4, 5, 6]),
        (-100, 0, [0, 1, 2, 3, 4, 5, 6]),
        (-3, -1, [4, 5]),
        (-100, -5, [0, 1]),
        (0, 0, []),
    ],
)
def test_a_slice_counts_from_either_end(start: int, stop: int, expected: list[int]) -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    chosen = derive.slice(source, start, stop)
    source.stage_add(rows(range(7)))
    graph.run_cycle()
    assert shown(chosen) == expected
    assert chosen is derive.slice(source, start, stop)
    assert shown(derive.slice(StaticTable(graph, rows(range(7))), start, stop)) == expected


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (3, 2), (-1, -2)])
def test_a_slice_that_ends_before_it_starts_is_refused(start: int, stop: int) -> None:
    table = AppendOnlyTable(UpdateGraph(), SCHEMA)
    with pytest.raises(EngineError, match="a slice cannot"):
        derive.slice(table, start, stop)


def test_what_a_slice_promises_depends_on_where_it_starts() -> None:
    table = AppendOnlyTable(UpdateGraph(), SCHEMA)
    assert derive.slice(table, 0, 5).is_flat
    assert derive.slice(table, 2, 5).is_append_only
    assert not derive.slice(table, 2, 5).is_flat
    assert derive.slice(table, 0, -2).is_append_only
    assert not derive.slice(table, -2, 0).is_append_only


def test_a_snapshot_stays_as_it_was() -> None:
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="k")
    source.stage_upsert(rows([3, 1, 2]))
    graph.run_cycle()
    copy = snapshot(derive.sort(source, "k"))
    source.stage_upsert(pa.table({"k": [1], "s": ["changed"]}, schema=SCHEMA))
    source.stage_remove(pa.table({"k": [3]}))
    graph.run_cycle()
    assert copy.is_static
    assert copy.to_arrow()["s"].to_pylist() == ["row 1", "row 2", "row 3"]
    assert snapshot(copy) is copy
    assert not derive.sort(snapshot(source), "k").live_children()
    assert copy.row_keys.to_text() == "0-2"


def test_a_failed_table_has_no_snapshot() -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    failing = derive.select(source, t="k * 4611686018427387904")
    source.stage_add(rows([4]))
    graph.run_cycle()
    with pytest.raises(TableFailedError):
        snapshot(failing)
