"""Aggregations: their text and types, Deephaven's results for special cells, exact updates,
failures that stay with one table, and cost."""

from __future__ import annotations

import datetime as dt
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, BlinkTable, KeyedTable, StaticTable, UpdateGraph
from barrage.engine.aggregation import grouping as grouping_module
from barrage.engine.aggregation.aggregation import Aggregation, parse_aggregation
from barrage.engine.operators import derive
from barrage.engine.operators.agg_by import aggregated
from barrage.errors import EngineError, ExpressionError, SchemaError
from barrage.model.storage import encoded
from barrage.rowset import RowSet
from tests.helpers import model

NAN, INF = math.nan, math.inf

SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("sym", pa.string()),
        ("price", pa.float64()),
        ("size", pa.int32()),
        ("flags", pa.list_(pa.int64())),
    ]
)


def keyed(rows: list[tuple[int, Any, Any, Any]]) -> tuple[UpdateGraph, KeyedTable]:
    graph = UpdateGraph()
    table = KeyedTable(graph, SCHEMA, key="key")
    table.stage_upsert(rows_of(rows))
    graph.run_cycle()
    return graph, table


def rows_of(rows: list[tuple[int, Any, Any, Any]]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    flags = [[row[0]] for row in rows]
    arrays = [pa.array(c, f.type) for c, f in zip((*columns, flags), SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


def removed(*keys: int) -> pa.Table:
    return pa.table({"key": pa.array(keys, pa.int64())})


def shown(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_arrow().to_pylist()
    return rows


# --- text and types -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("count()", Aggregation("n", "count")),
        (" sum( price ) ", Aggregation("n", "sum", "price")),
        ("wavg(price,size)", Aggregation("n", "wavg", "price", "size")),
        ("max(`a, (b)`)", Aggregation("n", "max", "a, (b)")),
        ("first(bid price)", Aggregation("n", "first", "bid price")),
    ],
)
def test_text_and_aggregation_are_the_same(text: str, expected: Aggregation) -> None:
    parsed = parse_aggregation("n", text)
    assert parsed == expected
    assert parse_aggregation("n", parsed.text) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("price", "'price' is no aggregation; write n='sum(column)' or n='count()'"),
        ("summ(price)", "unknown aggregation function 'summ' for 'n'; did you mean 'sum'?"),
        ("quantile(price)", "there are count, sum, abs_sum"),
        ("sum()", "sum takes one column, but 'n' names 0"),
        ("wavg(price)", "wavg takes a column and a weight, but 'n' names 1"),
        ("sum(price, size, size)", "sum takes one column, but 'n' names 3"),
        ("sum((price))", "does not name a column at position 1"),
        ("x" * 20_000, "has 20000 characters, the limit is 16384"),
    ],
)
def test_text_that_is_no_aggregation(text: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_aggregation("n", text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("by", "aggregations", "message"),
    [
        (["sym"], {"n": "sum(sym)"}, "sum takes numbers and booleans, but column 'sym' is string"),
        (["sym"], {"n": "avg(flags)"}, "avg takes numbers, but column 'flags' is list"),
        (["sym"], {"n": "min(flags)"}, "min takes numbers, booleans, texts, dates and times"),
        (["sym"], {"n": "wavg(price, sym)"}, "wavg takes numbers, but column 'sym' is string"),
        (["sym"], {"n": "sum(prise)"}, "sum: unknown column 'prise'; did you mean 'price'?"),
        (["sym"], {"sym": "count()"}, "the result would have two columns 'sym'"),
        ([], {}, "without key columns at least one aggregation is needed"),
        (["symm"], {"n": "count()"}, "key column 'symm' does not exist; did you mean 'sym'?"),
        (["flags"], {"n": "count()"}, "column 'flags' of type list<item: int64> cannot be a key"),
    ],
)
def test_columns_that_do_not_fit(by: list[str], aggregations: dict[str, str], message: str) -> None:
    _, table = keyed([(1, "A", 1.0, 1)])
    with pytest.raises(SchemaError) as caught:
        derive.agg_by(table, *by, **aggregations)
    assert message in str(caught.value)


def test_an_aggregation_made_by_hand_is_checked_as_well() -> None:
    _, table = keyed([(1, "A", 1.0, 1)])
    with pytest.raises(ExpressionError, match="abs_sum takes one column, but 'n' names 0"):
        aggregated(table, ("sym",), (Aggregation("n", "abs_sum"),))
    with pytest.raises(ExpressionError, match="unknown aggregation function 'median'"):
        aggregated(table, ("sym",), (Aggregation("n", "median", "price"),))


def test_result_types() -> None:
    graph = UpdateGraph()
    types = {"b": pa.bool_(), "u": pa.uint64(), "h": pa.int16(), "g": pa.float32()}
    table = StaticTable(graph, pa.table({name: pa.array([1]).cast(t) for name, t in types.items()}))
    texts = ["sum(b)", "sum(u)", "sum(h)", "sum(g)", "avg(h)", "std(g)", "min(h)", "last(b)"]
    result = derive.agg_by(table, **{f"c{i}": text for i, text in enumerate(texts)}, n="count(b)")
    assert [str(field.type) for field in result.schema] == [
        *("int64", "int64", "int64", "float", "double", "double", "int16", "bool", "int64")
    ]


def test_equal_aggregations_are_one_table() -> None:
    _, table = keyed([(1, "A", 1.0, 1)])
    view = derive.agg_by(table, "sym", n="sum( price )")
    assert derive.agg_by(table, "sym", n="sum(price)") is view
    assert derive.agg_by(table, "sym", n="avg(price)") is not view
    assert view.key_columns == ("sym",)
    assert view.schema.names == ["sym", "n"]


# --- results (what a Deephaven server gives for the same cells) -----------------------------------

GROUPS: dict[str, list[float | None]] = {
    "mixed": [1.0, NAN, 2.0],
    "infinite": [INF, -INF],
    "null": [None],
    "zeros": [0.0, -0.0],
    "single": [5.0],
    "gap": [NAN, None],
    "endless": [NAN, INF],
    "plain": [1.0, None, 4.0],
}
EXPECTED: dict[str, list[float | None]] = {
    "sum": [NAN, NAN, None, 0.0, 5.0, NAN, NAN, 5.0],
    "abs_sum": [NAN, INF, None, 0.0, 5.0, NAN, NAN, 5.0],
    "min": [NAN, -INF, None, 0.0, 5.0, NAN, NAN, 1.0],
    "max": [NAN, INF, None, 0.0, 5.0, NAN, NAN, 4.0],
    "avg": [NAN, NAN, None, 0.0, 5.0, NAN, NAN, 2.5],
    "var": [NAN, NAN, None, 0.0, NAN, NAN, NAN, 4.5],
    "count": [3, 2, 0, 2, 1, 1, 2, 2],
    "first": [1.0, INF, None, 0.0, 5.0, NAN, NAN, 1.0],
    "last": [2.0, -INF, None, 0.0, 5.0, None, INF, 4.0],
}


@pytest.mark.parametrize("function", sorted(EXPECTED))
def test_special_cells(function: str) -> None:
    rows = [(name, cell) for name, group in GROUPS.items() for cell in group]
    graph = UpdateGraph()
    data = pa.table({"g": [name for name, _ in rows], "x": pa.array([c for _, c in rows])})
    result = derive.agg_by(StaticTable(graph, data), "g", r=f"{function}(x)").to_arrow()
    assert result["g"].to_pylist() == list(GROUPS)
    for cell, expected in zip(result["r"].to_pylist(), EXPECTED[function], strict=True):
        assert (cell is None) == (expected is None)
        assert cell is None or cell == pytest.approx(expected, nan_ok=True, abs=0)


@pytest.mark.parametrize("scale", [1e-140, 1.0, 1e144])
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e9])
def test_a_mean_far_from_zero_costs_no_digits(offset: float, scale: float) -> None:
    cells = [(offset + step) * scale for step in (1.0, 2.0, 4.0, 8.5)]
    mean = sum(map(Fraction, cells)) / 4
    exact = float(sum((Fraction(cell) - mean) ** 2 for cell in cells) / 3)
    table = StaticTable(UpdateGraph(), pa.table({"x": cells}))
    assert shown(derive.agg_by(table, v="var(x)")) == [{"v": pytest.approx(exact, rel=1e-13)}]


def test_extremes_of_every_ordered_type() -> None:
    day, noon = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
    columns = {
        "b": pa.array([True, None, False]),
        "s": pa.array(["b", "ab", None]),
        "d": pa.array(["z", None, "y"]).dictionary_encode(),
        "t": pa.array([noon, None, noon + dt.timedelta(1)], pa.timestamp("ns", "UTC")),
        "day": pa.array([day, day + dt.timedelta(1), None]),
        "u": pa.array([1, 2**64 - 1, None], pa.uint64()),
        "f": pa.array([None, -1.5, 1.5], pa.float32()),
        "dec": pa.array([None, 2, 10]).cast(pa.decimal128(21, 2)),
    }
    table = StaticTable(UpdateGraph(), pa.table(columns))
    row = shown(
        derive.agg_by(table, **{f"{n}_{f}": f"{f}({n})" for n in columns for f in ("min", "max")})
    )
    assert len(row) == 1
    for name, values in columns.items():
        present = [value for value in values.to_pylist() if value is not None]
        assert row[0][f"{name}_min"] == min(present)
        assert row[0][f"{name}_max"] == max(present)


def test_null_is_a_key_and_the_whole_table_is_one_group_or_none() -> None:
    graph, table = keyed([(1, None, 1.0, 1), (2, "A", 2.0, 2), (3, None, 3.0, None)])
    by_sym, whole = (
        derive.agg_by(table, "sym", s="sum(size)", n="count()"),
        derive.agg_by(table, s="sum(price)"),
    )
    assert shown(by_sym) == [{"sym": None, "s": 1, "n": 2}, {"sym": "A", "s": 2, "n": 1}]
    assert shown(whole) == [{"s": 6.0}]
    table.stage_remove(removed(1, 2, 3))
    graph.run_cycle()
    assert shown(by_sym) == shown(whole) == []
    table.stage_upsert(rows_of([(7, "B", 0.5, 5)]))
    graph.run_cycle()
    assert shown(by_sym) == [{"sym": "B", "s": 5, "n": 1}]
    assert shown(whole) == [{"s": 0.5}]


# --- updates --------------------------------------------------------------------------------------


def test_only_cells_that_changed_are_modified() -> None:
    graph, table = keyed([(i, "AB"[i % 2], float(i), i) for i in range(10)])
    view = derive.agg_by(
        table, "sym", low="min(price)", total="sum(price)", n="count()", big="max(size)"
    )
    before = model.content_of(view)
    table.stage_upsert(rows_of([(4, "A", 4.5, 4), (5, "B", 5.0, 5)]))
    update = graph.run_cycle().updates[view]
    model.check_exact(before, update, model.content_of(view))
    assert [len(keys) for keys in update.modified_keys_post] == [0, 0, 1, 0, 0]
    # Two changes that cancel out change nothing.
    table.stage_upsert(rows_of([(2, "A", 3.0, 2), (4, "A", 3.5, 4)]))
    assert view not in graph.run_cycle().updates


def test_a_group_that_disappears_and_returns_is_a_new_row() -> None:
    graph, table = keyed([(1, "A", 1.0, 1), (2, "B", 2.0, 2)])
    view = derive.agg_by(table, "sym", s="sum(size)")
    table.stage_upsert(rows_of([(1, "B", 1.0, 1)]))
    update = graph.run_cycle().updates[view]
    assert update.removed_keys_pre == RowSet([0])
    assert update.modified_keys_post[1] == RowSet([1])
    table.stage_upsert(rows_of([(1, "A", 1.0, 1)]))
    update = graph.run_cycle().updates[view]
    assert update.added_keys_post == RowSet([2])
    assert shown(view) == [{"sym": "B", "s": 2}, {"sym": "A", "s": 1}]


def test_groups_that_swap_their_rows_take_back_nothing_twice() -> None:
    graph, table = keyed([(1, "A", 1.0, 1), (2, "B", 2.0, 2)])
    view = derive.agg_by(table, "sym", s="sum(size)", n="count(price)", m="min(price)")
    table.stage_upsert(rows_of([(1, "B", 10.0, 10), (2, "A", 20.0, 20)]))
    graph.run_cycle()
    assert shown(view) == [
        {"sym": "A", "s": 20, "n": 1, "m": 20.0},
        {"sym": "B", "s": 10, "n": 1, "m": 10.0},
    ]
    table.stage_remove(removed(1))
    table.stage_upsert(rows_of([(3, "B", 30.0, 30)]))
    graph.run_cycle()
    assert shown(view)[1] == {"sym": "B", "s": 30, "n": 1, "m": 30.0}


def test_groups_are_renumbered_once_most_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping_module, "FREE_GROUPS_MIN", 10)
    graph, table = keyed([(i, f"S{i}", float(i), i) for i in range(100)])
    view = derive.agg_by(table, "sym", s="sum(price)", m="max(size)", v="var(price)")
    before = model.content_of(view)
    table.stage_remove(removed(*range(80)))
    update = graph.run_cycle().updates[view]
    assert view.row_keys == RowSet.of_span(0, 20)
    model.check_update(before, update, model.content_of(view))
    table.stage_upsert(rows_of([(90, "S90", 1.0, 7)]))
    graph.run_cycle()
    assert shown(view)[10] == {"sym": "S90", "s": 1.0, "m": 7, "v": pytest.approx(NAN, nan_ok=True)}


def test_many_groups_are_packed_a_few_in_each_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping_module, "FREE_GROUPS_MIN", 10)
    monkeypatch.setattr(grouping_module, "PACKED_TOGETHER", 20)
    graph, table = keyed([(i, f"S{i}", float(i), i) for i in range(100)])
    view = derive.agg_by(table, "sym", s="sum(price)", m="max(size)", v="var(price)")
    last = derive.last_by(table, "sym")
    table.stage_remove(removed(*(i for i in range(100) if i % 5)))
    for turn in range(5):
        before = model.content_of(view), model.content_of(last)
        table.stage_upsert(rows_of([(200 + turn, f"T{turn}", 1.0, 1), (50, "S50", 5.0, turn)]))
        updates = graph.run_cycle().updates
        for shown_before, each in zip(before, (view, last), strict=True):
            model.check_update(shown_before, updates[each], model.content_of(each))
        # Each looks at twenty and as many as came; those of the end are last.
        assert (view.row_keys.last > 95) is (turn < 4)
        expected = [row["sym"] for row in model.rows_of(table)]
        assert [row["sym"] for row in shown(view)] == expected
        assert [row["sym"] for row in model.rows_of(last)] == expected
    # Of the last twenty numbers some were new groups that came meanwhile.
    table.stage_upsert(rows_of([(50, "S50", 5.0, 9)]))
    graph.run_cycle()
    assert view.row_keys == last.row_keys == RowSet.of_span(0, 25)


def test_dictionaries_of_groups_that_are_gone_are_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grouping_module, "FREE_GROUPS_MIN", 10)
    monkeypatch.setattr(encoded, "WHOLE_VALUES", 50)
    graph = UpdateGraph()
    schema = pa.schema([("d", pa.dictionary(pa.int32(), pa.string())), ("x", pa.int64())])
    table = BlinkTable(graph, schema)
    by_text = derive.agg_by(table, "d", n="count()")
    by_number = derive.agg_by(table, "x", d="last(d)")
    for start in range(0, 2000, 20):
        numbers = np.arange(start, start + 20)
        texts = pa.array([f"text {number}" for number in numbers])
        table.stage_add(pa.table([texts.dictionary_encode(), numbers], schema=schema))
        graph.run_cycle()
        pin = by_text.pinned()
        assert sorted(by_text.to_arrow()["d"].to_pylist()) == sorted(texts.to_pylist())
        assert sorted(by_number.to_arrow()["d"].to_pylist()) == sorted(texts.to_pylist())
    (texts_kept,) = by_text._groups._numbers._cells
    assert texts_kept._cells._value_count < 300
    assert by_number._stores[0]._cells._value_count < 300
    graph.run_cycle()
    assert sorted(pin.to_arrow()["d"].to_pylist()) == sorted(texts.to_pylist())


def test_a_blink_table_is_aggregated_cycle_by_cycle() -> None:
    graph = UpdateGraph()
    table = BlinkTable(graph, SCHEMA)
    total, last = derive.agg_by(table, "sym", s="sum(size)"), derive.last_by(table, "sym")
    assert not total.is_blink
    assert not last.is_blink
    for size in (3, 4):
        table.stage_add(rows_of([(1, "A", 1.0, size), (2, "A", 1.0, size)]))
        graph.run_cycle()
        assert shown(total) == [{"sym": "A", "s": 2 * size}]
        assert last.to_arrow()["size"].to_pylist() == [size]
    graph.run_cycle()
    assert shown(total) == []
    assert last.size == 0


def test_select_distinct_keeps_the_order_of_appearance() -> None:
    graph, table = keyed([(1, "B", 1.0, 1), (2, "A", 1.0, 2), (3, "B", 1.0, 1)])
    view = derive.select_distinct(table, "sym", "size")
    assert shown(view) == [{"sym": "B", "size": 1}, {"sym": "A", "size": 2}]
    assert view.schema.names == ["sym", "size"]
    table.stage_upsert(rows_of([(0, "A", 1.0, None), (3, "B", 9.0, 1)]))
    graph.run_cycle()
    assert shown(view)[-1] == {"sym": "A", "size": None}
    with pytest.raises(SchemaError, match="column 'flags' of type"):
        derive.select_distinct(table)


# --- failures -------------------------------------------------------------------------------------


def test_a_sum_too_large_for_its_type_fails_its_table_only() -> None:
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, pa.schema([("g", pa.string()), ("x", pa.int64())]))
    total, mean = derive.agg_by(table, "g", s="sum(x)"), derive.agg_by(table, "g", a="avg(x)")
    table.stage_add(pa.table({"g": ["A", "A"], "x": [2**62, 2**62 - 1]}))
    graph.run_cycle()
    assert shown(total) == [{"g": "A", "s": 2**63 - 1}]
    table.stage_add(pa.table({"g": ["A"], "x": [1]}))
    failed = graph.run_cycle().failed
    assert isinstance(failed[total], EngineError)
    assert str(failed[total]) == "s=sum(x) is too large for int64 in the group 'A'"
    assert shown(mean) == [{"g": "A", "a": 2.0**63 / 3}]
    with pytest.raises(EngineError, match=r"s=sum\(x\) is too large for int64"):
        derive.agg_by(table, s="sum(x)")


def test_sums_come_back_from_beyond_the_type() -> None:
    """Only what is shown must fit: rows of one cycle may cancel out."""
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, pa.schema([("x", pa.int64())]))
    view = derive.agg_by(table, s="sum(x)", a="abs_sum(x)")
    table.stage_add(pa.table({"x": [2**63 - 1, 2**63 - 1, -(2**63) + 1, -(2**63) + 1]}))
    assert "a=abs_sum(x)" in str(graph.run_cycle().failed[view])
    assert shown(derive.agg_by(table, s="sum(x)")) == [{"s": 0}]


@pytest.mark.parametrize("intruder", [NAN, INF, 1e300, 1e16])
def test_a_cell_that_leaves_leaves_nothing_behind(intruder: float) -> None:
    rows = [(i, "A", 0.1 * i, i) for i in range(10)]
    graph, table = keyed(rows)
    texts = {"s": "sum(price)", "a": "avg(price)", "v": "var(price)", "w": "wavg(price, size)"}
    view = derive.agg_by(table, **texts, m="max(price)")
    expected = shown(view)
    for start in range(10):
        table.stage_upsert(rows_of([(start, "A", intruder, 3)]))
        graph.run_cycle()
        table.stage_upsert(rows_of([rows[start]]))
        graph.run_cycle()
    for name, cell in shown(view)[0].items():
        assert cell == pytest.approx(expected[0][name], rel=1e-15)


@pytest.mark.parametrize("intruder", [1e8, 1e11, 1e14])
def test_a_variance_forgets_what_left(intruder: float) -> None:
    rows = [(i, "A", 1000.0 + 1e-3 * i, i) for i in range(5)]
    graph, table = keyed(rows)
    view = derive.agg_by(table, v="var(price)")
    expected = shown(view)[0]["v"]
    for cell in (intruder, -intruder, 1000.003):
        table.stage_upsert(rows_of([(3, "A", cell, 3)]))
        graph.run_cycle()
    assert shown(view)[0]["v"] == pytest.approx(expected, rel=1e-12)


# --- cost -----------------------------------------------------------------------------------------


def test_sums_read_changed_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, table = keyed([(i, f"S{i % 7}", float(i), i) for i in range(5000)])
    view = derive.agg_by(table, "sym", s="sum(price)", n="count()", a="avg(size)", v="std(price)")
    least = derive.agg_by(table, "sym", m="min(price)", x="max(price)")
    read: list[int] = []
    take = table.take_cells

    def counted(keys: np.ndarray, columns: Any) -> Any:
        read.append(len(keys))
        return take(keys, columns)

    monkeypatch.setattr(table, "take_cells", counted)
    table.stage_upsert(rows_of([(4000, "S3", 15.5, 4), (9999, "S1", 25.5, 9)]))
    updates = graph.run_cycle().updates
    assert view in updates
    assert least not in updates
    assert sum(read) < 60
    read.clear()
    # The least row of one group goes: only that group is searched.
    table.stage_remove(removed(3))
    assert least in graph.run_cycle().updates
    assert 5000 / 7 < sum(read) < 3 * 5000 / 7
