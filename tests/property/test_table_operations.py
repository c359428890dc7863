"""Operations of TableService made of several operators, over tables that change: after every cycle
their rows are those a plain computation finds."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine import AppendOnlyTable, KeyedTable, Table, UpdateGraph
from barrage.limits import DEFAULT_LIMITS
from barrage.server.deephaven.operations.column_operations import update_view, view
from barrage.server.deephaven.operations.join_operations import natural_join, where_in
from barrage.server.deephaven.operations.row_operations import sort, unstructured_filter
from barrage.transport.deephaven_messages import MESSAGES

SCHEMA = pa.schema([("id", pa.int64()), ("key", pa.string()), ("x", pa.float64())])

CONTEXT: Any = SimpleNamespace(limits=DEFAULT_LIMITS)

Row = tuple[Any, ...]

cells = st.tuples(
    st.integers(0, 9),
    st.sampled_from(["a", "b", "c", None]),
    st.sampled_from([-2.0, 0.5, 1.0, -1.0, math.nan, None]),
)
batches = st.lists(st.lists(cells, max_size=5, unique_by=lambda row: row[0]), max_size=6)


def table_of(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.table(arrays, schema=SCHEMA)


def rows_of(table: Table) -> list[Row]:
    """Rows in order; NaN as text, so that it equals itself."""
    found = [tuple(row.values()) for row in table.to_arrow().to_pylist()]
    return [plain(row) for row in found]


def plain(row: Row) -> Row:
    return tuple("nan" if isinstance(c, float) and math.isnan(c) else c for c in row)


class Growing:
    """An append-only table and the rows it should have."""

    def __init__(self) -> None:
        self.graph = UpdateGraph()
        self.table = AppendOnlyTable(self.graph, SCHEMA)
        self.rows: list[Row] = []

    def add(self, rows: list[Row]) -> None:
        self.table.stage_add(table_of(rows))
        self.graph.run_cycle()
        self.rows += [plain(row) for row in rows]


def sort_request(column: str, direction: int, *, is_absolute: bool = False) -> Any:
    descriptor = MESSAGES.new(
        "SortDescriptor", column_name=column, direction=direction, is_absolute=is_absolute
    )
    return MESSAGES.new("SortTableRequest", sorts=[descriptor])


def order(cell: Any) -> tuple[int, float]:
    """Null before every number, NaN behind all of them."""
    if cell is None:
        return (0, 0.0)
    return (2, 0.0) if cell == "nan" else (1, cell)


def magnitude(cell: Any) -> Any:
    return abs(cell) if isinstance(cell, float) else cell


@given(batches)
def test_growing_tables(added: list[list[Row]]) -> None:
    source = Growing()
    texts = MESSAGES.new("SelectOrUpdateRequest", column_specs=["x = ii", "again = i + 1"])
    chosen = MESSAGES.new("SelectOrUpdateRequest", column_specs=["place = ii", "key"])
    filters = MESSAGES.new("UnstructuredFilterTableRequest", filters=["ii % 2 == 1"])
    tables = [source.table]
    updated = update_view(texts, tables, CONTEXT)
    viewed = view(chosen, tables, CONTEXT)
    filtered = unstructured_filter(filters, tables, CONTEXT)
    turned = sort(sort_request("key", 2), tables, CONTEXT)
    ascending = sort(sort_request("x", 1), tables, CONTEXT)
    descending = sort(sort_request("x", -1), tables, CONTEXT)
    absolute = sort(sort_request("x", 1, is_absolute=True), tables, CONTEXT)
    for rows in added:
        source.add(rows)
        expected = source.rows
        numbered = list(enumerate(expected))
        assert rows_of(updated) == [(a, b, i, i + 1) for i, (a, b, _) in numbered]
        assert rows_of(viewed) == [(i, key) for i, (_, key, _) in numbered]
        assert rows_of(filtered) == [row for i, row in numbered if i % 2]
        assert rows_of(turned) == expected[::-1]
        assert rows_of(ascending) == sorted(expected, key=lambda row: order(row[2]))
        assert rows_of(descending) == sorted(
            expected, key=lambda row: tuple(-part for part in order(row[2]))
        )
        assert rows_of(absolute) == sorted(expected, key=lambda row: order(magnitude(row[2])))


changes = st.lists(
    st.tuples(
        st.sampled_from(["left", "right"]),
        st.one_of(st.lists(cells, max_size=4, unique_by=lambda row: row[0]), st.integers(0, 9)),
    ),
    max_size=12,
)


class Changing:
    """A keyed table and the rows it should have."""

    def __init__(self, graph: UpdateGraph) -> None:
        self.table = KeyedTable(graph, SCHEMA, key=["id"])
        self.rows: dict[int, Row] = {}

    def change(self, what: list[Row] | int) -> None:
        """Write rows, or remove the one of that id."""
        if isinstance(what, int):
            self.table.stage_remove(pa.table({"id": [what]}))
            self.rows.pop(what, None)
        else:
            self.table.stage_upsert(table_of(what))
            self.rows |= {row[0]: plain(row) for row in what}


@given(changes)
def test_lookups_in_a_changing_table(steps: list[tuple[str, Any]]) -> None:
    graph = UpdateGraph()
    sides = {"left": Changing(graph), "right": Changing(graph)}
    left, right = sides["left"], sides["right"]
    tables = [left.table, right.table]
    pairs = ["key", "x"]
    found = where_in(MESSAGES.new("WhereInRequest", columns_to_match=pairs), tables, CONTEXT)
    others = where_in(
        MESSAGES.new("WhereInRequest", columns_to_match=["key = key"], inverted=True),
        tables,
        CONTEXT,
    )
    joined = [
        natural_join(
            MESSAGES.new(
                "NaturalJoinTablesRequest",
                columns_to_match=["key"],
                columns_to_add=["other = id", "same = key"],
                join_type=join_type,
            ),
            tables,
            CONTEXT,
        )
        for join_type in (2, 3)
    ]
    for side, what in steps:
        sides[side].change(what)
        graph.run_cycle()
        pairs_right = {row[1:] for row in right.rows.values()}
        keys_right = {row[1] for row in right.rows.values()}
        wanted = list(left.rows.values())
        assert by_id(found) == by_id_of(row for row in wanted if row[1:] in pairs_right)
        assert by_id(others) == by_id_of(row for row in wanted if row[1] not in keys_right)
        in_order = [plain(row) for row in rows_of(right.table)]
        for table, rows in zip(joined, (in_order[::-1], in_order), strict=True):
            chosen = {row[1]: (row[0], row[1]) for row in rows}
            assert by_id(table) == by_id_of(
                (*row, *chosen.get(row[1], (None, None))) for row in wanted
            )


def by_id(table: Table) -> dict[int, Row]:
    return by_id_of(rows_of(table))


def by_id_of(rows: Any) -> dict[int, Row]:
    found = list(rows)
    result = {row[0]: row for row in found}
    assert len(result) == len(found)
    return result
