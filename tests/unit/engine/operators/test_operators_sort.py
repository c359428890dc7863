"""What the property tests cannot see: costs, keys and memory of operators, and their errors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage.engine import KeyedTable, ListTable, StaticTable, UpdateGraph
from barrage.engine.operators import derive
from barrage.engine.operators import sort as sort_module
from barrage.errors import EngineError, ExpressionError, SchemaError
from barrage.rowset import RowSet
from tests.helpers import model

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.float64()), ("s", pa.string())])


def keyed(count: int) -> tuple[UpdateGraph, KeyedTable]:
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key="k")
    table.stage_upsert(rows(np.arange(count), np.arange(count) * 10.0))
    graph.run_cycle()
    return graph, table


def rows(keys: np.ndarray, values: np.ndarray, text: str = "x") -> pa.Table:
    return pa.table(
        {"k": keys, "v": np.asarray(values, np.float64), "s": [text] * len(keys)}, schema=SCHEMA
    )


def test_a_moved_row_is_removed_and_added_and_others_are_untouched() -> None:
    graph, table = keyed(1000)
    view = derive.sort(table, "v")
    before = view.row_keys
    table.stage_upsert(rows(np.array([500]), np.array([15.0])))
    update = graph.run_cycle().updates[view]
    assert update.removed_keys_pre == before.slice(500, 501)
    assert len(update.added_keys_post) == 1
    assert update.shifts.is_empty
    assert all(keys.is_empty for keys in update.modified_keys_post)
    assert view.to_arrow()["k"].to_pylist()[:4] == [0, 1, 500, 2]


def test_a_row_that_keeps_its_place_is_modified() -> None:
    graph, table = keyed(1000)
    view = derive.sort(table, "v")
    before = view.row_keys
    table.stage_upsert(rows(np.array([500, 7]), np.array([5001.0, 71.0])))
    update = graph.run_cycle().updates[view]
    assert update.removed_keys_pre.is_empty
    assert update.added_keys_post.is_empty
    assert update.modified_keys_post[1] == before.keys_at(RowSet([7, 500]))
    assert view.row_keys == before


def test_rows_in_front_and_behind_move_nothing() -> None:
    graph, table = keyed(1000)
    view = derive.sort(table, "v")
    before = view.row_keys
    table.stage_upsert(rows(np.arange(1000, 1004), np.array([-1.0, -2.0, 1e9, 1e10])))
    update = graph.run_cycle().updates[view]
    assert update.shifts.is_empty
    assert view.row_keys.slice(2, 1002) == before
    assert view.to_arrow()["v"].to_pylist()[:2] == [-2.0, -1.0]


@pytest.mark.further
def test_filling_one_gap_shifts_only_its_neighbourhood() -> None:
    graph, table = keyed(5000)
    view = derive.sort(table, "v")
    touched = 0
    for turn in range(40):
        keys = np.arange(5000 + turn * 10, 5010 + turn * 10)
        before = model.content_of(view)
        table.stage_upsert(rows(keys, np.linspace(20_001, 20_002, 10)))
        update = graph.run_cycle().updates[view]
        model.check_update(before, update, model.content_of(view))
        touched += len(update.shifts)
    assert 0 < touched < 2000
    assert np.all(np.diff(view.to_arrow()["v"].to_numpy()) >= 0)


@pytest.mark.parametrize("count", [900, 6000])
def test_many_changes_give_the_same_as_few(count: int) -> None:
    graph, table = keyed(10_000)
    view = derive.sort(table, "-s", "v")
    generator = np.random.default_rng(count)
    for turn in range(3):
        before = model.content_of(view)
        keys = generator.choice(10_500, count, replace=False)
        table.stage_upsert(rows(keys, generator.integers(0, 50, count), text="xyz"[turn]))
        table.stage_remove(pa.table({"k": generator.choice(10_000, 300)}))
        update = graph.run_cycle().updates[view]
        model.check_update(before, update, model.content_of(view))
        expected = model.sort_rows(model.rows_of(table), [("s", True, False), ("v", False, False)])
        assert model.rows_of(view) == expected
    assert count < sort_module.FULL_SORT_ROWS_MIN or count * sort_module.FULL_SORT_FRACTION > 10_000


def test_static_tables_sort_to_flat_keys() -> None:
    table = StaticTable(UpdateGraph(), pa.table({"a": [3, 1, None, 2], "b": [1, 1, 1, 1]}))
    view = derive.sort(table, "a")
    assert view.is_flat
    assert view.is_static
    assert view.row_keys == RowSet.of_span(0, 4)
    assert view.to_arrow()["a"].to_pylist() == [1, 2, 3, None]
    first = derive.sort(table, sort_module.SortKey(column="a", has_nulls_first=True))
    assert first.to_arrow()["a"].to_pylist() == [None, 1, 2, 3]
    assert derive.sort(table, ("a", "desc")).to_arrow()["a"].to_pylist() == [3, 2, 1, None]
    assert derive.sort(table, "b").to_arrow()["a"].to_pylist() == [3, 1, None, 2]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([b"b", None, b"a"]),
        pa.array([b"bb", None, b"aa"], pa.binary(2)),
        pa.array([2, None, 1], pa.timestamp("us")),
        pa.array([2, None, 1], pa.date32()),
        pa.array([2, None, 1], pa.time64("ns")),
        pa.array([2, None, 1], pa.duration("s")),
        pa.array([2, None, 1], pa.uint64()),
        pa.array([True, None, False]),
        pa.array([2, None, 1]).cast(pa.decimal128(20, 0)),
        pa.array(["b", None, "a"]).dictionary_encode(),
        pa.array(["b", None, "a"], pa.large_string()),
    ],
    ids=lambda values: str(values.type),
)
def test_every_ordered_type_sorts_incrementally(values: pa.Array) -> None:
    graph = UpdateGraph()
    table = ListTable(graph, pa.schema([("v", values.type)]))
    table.stage_add(pa.table({"v": values}))
    graph.run_cycle()
    view, back = derive.sort(table, "v"), derive.sort(table, "-v")
    table.stage_insert(0, pa.table({"v": values}))
    graph.run_cycle()
    low, high = values[2].as_py(), values[0].as_py()
    assert view.to_arrow()["v"].to_pylist() == [low, low, high, high, None, None]
    assert back.to_arrow()["v"].to_pylist() == [high, high, low, low, None, None]


def test_wrong_sorts_are_refused() -> None:
    schema = pa.schema([("price", pa.float64()), ("l", pa.list_(pa.int64()))])
    table = ListTable(UpdateGraph(), schema)
    with pytest.raises(ExpressionError, match="'prize'; did you mean 'price'"):
        derive.sort(table, "prize")
    with pytest.raises(ExpressionError, match="has no order"):
        derive.sort(table, "l")
    with pytest.raises(ExpressionError, match="unknown sort direction 'up'"):
        derive.sort(table, ("price", "up"))
    with pytest.raises(ExpressionError, match="at least one column"):
        derive.sort(table)
    with pytest.raises(SchemaError, match="'prize'"):
        derive.select(table, "prize")
    with pytest.raises(SchemaError, match="'prize'"):
        derive.drop(table, "prize")
    with pytest.raises(SchemaError, match="selected twice"):
        derive.select(table, "price", price="price + 1")
    with pytest.raises(EngineError, match="cannot show -1 rows"):
        derive.head(table, -1)
    with pytest.raises(SchemaError, match="cannot be a key"):
        derive.last_by(table, "l")


def test_last_by_modifies_in_place_and_names_changed_cells() -> None:
    graph = UpdateGraph()
    table = ListTable(graph, SCHEMA)
    table.stage_add(rows(np.array([1, 2]), np.array([1.0, 2.0])))
    graph.run_cycle()
    view = derive.last_by(table, "k")
    table.stage_add(rows(np.array([1, 2]), np.array([1.0, 5.0])))
    update = graph.run_cycle().updates[view]
    assert update.modified_keys_post == (RowSet.empty(), RowSet([1]), RowSet.empty())
    assert update.added_keys_post.is_empty
    assert view.to_arrow()["v"].to_pylist() == [1.0, 5.0]


def test_last_by_renumbers_when_most_groups_are_gone() -> None:
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key="k")
    count = 10_000
    table.stage_upsert(rows(np.arange(count), np.arange(count)))
    graph.run_cycle()
    view = derive.last_by(table, "v")
    before = model.content_of(view)
    keys = np.arange(count)
    table.stage_remove(pa.table({"k": keys[keys % 50 != 7]}))
    table.stage_upsert(rows(np.array([count, 57]), np.array([7.0, 57.0]), text="new"))
    update = graph.run_cycle().updates[view]
    after = model.content_of(view)
    assert not update.shifts.is_empty
    assert view.row_keys == RowSet.of_span(0, 200)
    model.check_update(before, update, after)
    table.stage_upsert(rows(np.array([107]), np.array([7.0])))
    update = graph.run_cycle().updates[view]
    model.check_update(after, update, model.content_of(view))
    expected = model.last_rows(model.rows_of(table), ["v"])
    assert sorted(model.shown(model.rows_of(view))) == sorted(model.shown(expected))
