"""Row positions as columns, rows without columns, and where NaN stands in a sort."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from barrage.engine import AppendOnlyTable, KeyedTable, StaticTable, UpdateGraph
from barrage.engine.operators import derive
from barrage.engine.operators.row_numbers import numbered
from barrage.engine.operators.sort_order import SortKey
from barrage.engine.tables.source import BlankTable
from barrage.errors import SchemaError
from barrage.rowset import RowSet

SCHEMA = pa.schema([("a", pa.int64())])
PLACES = {"p": pa.int32(), "q": pa.int64()}


def test_positions_follow_a_growing_table() -> None:
    graph = UpdateGraph()
    source = AppendOnlyTable(graph, SCHEMA)
    source.stage_add(pa.table({"a": [5, 6, 7, 8]}))
    graph.run_cycle()
    table = numbered(derive.where(source, "a > 5"), PLACES)
    assert table.schema.types == [pa.int64(), pa.int32(), pa.int64()]
    assert table.to_arrow().to_pydict() == {"a": [6, 7, 8], "p": [0, 1, 2], "q": [0, 1, 2]}
    source.stage_add(pa.table({"a": [1, 9]}))
    result = graph.run_cycle()
    update = result.updates[table]
    assert update.added_keys_post == RowSet.of_span(3, 4)
    assert len(update.modified_keys_post) == 3
    assert all(keys.is_empty for keys in update.modified_keys_post)
    [places, values] = table.read(update.added_keys_post, frozenset({0, 2}))[::-1]
    assert (places.to_pylist(), values.to_pylist()) == ([3], [9])


def test_equal_numberings_are_one_table() -> None:
    source = StaticTable(UpdateGraph(), pa.table({"a": [1]}))
    assert numbered(source, PLACES) is numbered(source, PLACES)
    assert numbered(source, PLACES) is not numbered(source, {"p": pa.int64()})


def test_what_cannot_be_numbered() -> None:
    graph = UpdateGraph()
    with pytest.raises(SchemaError, match="only grows"):
        numbered(KeyedTable(graph, SCHEMA, key=["a"]), PLACES)
    with pytest.raises(SchemaError, match="'a' already"):
        numbered(AppendOnlyTable(graph, SCHEMA), {"a": pa.int64()})


def test_rows_without_columns() -> None:
    blank = BlankTable(UpdateGraph(), 3)
    assert (blank.size, blank.is_static, blank.is_flat) == (3, True, True)
    assert blank.read(blank.row_keys) == ()
    counted = derive.head(derive.select(numbered(blank, PLACES), double="q * 2"), 2)
    assert counted.to_arrow().to_pydict() == {"double": [0, 2]}
    assert BlankTable(UpdateGraph(), 0).size == 0


@pytest.mark.parametrize(
    ("is_descending", "has_nulls_first", "expected"),
    [
        (False, True, [None, -1.0, 2.0, "nan"]),
        (True, False, ["nan", 2.0, -1.0, None]),
        (False, False, ["nan", -1.0, 2.0, None]),
    ],
)
def test_nan_opposite_to_the_nulls(
    is_descending: bool, has_nulls_first: bool, expected: list[object]
) -> None:
    table = StaticTable(UpdateGraph(), pa.table({"x": [2.0, math.nan, None, -1.0]}))
    key = SortKey(
        column="x",
        is_descending=is_descending,
        has_nulls_first=has_nulls_first,
        has_nan_opposite=True,
    )
    found = derive.sort(table, key).to_arrow().column("x").to_pylist()
    assert ["nan" if x is not None and math.isnan(x) else x for x in found] == expected
