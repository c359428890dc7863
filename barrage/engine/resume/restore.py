"""A source as it was: the same row keys, the same rows, and the same keys for later rows.

What a source hands out later follows from the rows it has: an append-only, a keyed and a ring table
give the next row the key behind their last one, a list numbers its rows by position. So row keys
and cells are all there is to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.tables.coercion import coerce_rows
from barrage.engine.tables.keyed import KeyedTable
from barrage.engine.tables.list_table import ListTable
from barrage.engine.tables.ring import BlinkTable, RingTable
from barrage.engine.tables.source import (
    AppendOnlyTable,
    SourceTable,
    StaticTable,
    check_keys,
    is_dense,
)
from barrage.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.tables.table import Graph
    from barrage.rowset import RowSet


def restore_source(
    graph: Graph,
    kind: str,
    schema: pa.Schema,
    *,
    key: Sequence[str],
    capacity: int | None,
    keys: RowSet,
    rows: pa.Table,
    changed_step: int | None = None,
) -> SourceTable:
    """The source of ``kind`` with exactly these rows under these row keys.

    ``rows`` are in key order; ``changed_step`` is the step that led to them (default: the graph's).
    EngineError when no table of that kind can have such keys, SchemaError or RowError when
    the rows do not fit the schema.
    """
    table = _made(graph, kind.replace("_", "-"), schema, key=key, capacity=capacity, rows=rows)
    if isinstance(table, StaticTable):
        check_keys(table.kind, keys, rows, is_possible=is_dense(keys))
    else:
        table.restore(keys, rows)
    if changed_step is not None:
        table.changed_step = changed_step
    return table


def _made(
    graph: Graph,
    kind: str,
    schema: pa.Schema,
    *,
    key: Sequence[str],
    capacity: int | None,
    rows: pa.Table,
) -> SourceTable:
    if kind == KeyedTable.kind:
        return KeyedTable(graph, schema, key=key)
    if kind == RingTable.kind:
        if capacity is None:
            raise EngineError("a ring table needs a capacity")
        return RingTable(graph, schema, capacity=capacity)
    if kind == StaticTable.kind:
        return StaticTable(graph, coerce_rows(schema, rows))
    for plain in (AppendOnlyTable, ListTable, BlinkTable):
        if kind == plain.kind:
            return plain(graph, schema)
    raise EngineError(f"there is no source of kind {kind!r}")
