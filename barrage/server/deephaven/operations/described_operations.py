"""Operations whose result describes a table: meta_table, column_statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.engine.tables.source import StaticTable
from barrage.server.deephaven.operations.column_statistics import statistics_of
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    OperationError,
    TableOperation,
    derived,
)
from barrage.server.deephaven.operations.reading import read_column
from barrage.server.presentation.deephaven_schema import announced_schema, view_schema
from barrage.server.tables.static_tables import static_table
from barrage.server.tables.table_lease import TableLease
from barrage.supervision import in_thread
from barrage.wire.wire_schema import FIELD_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.table import Table

META_SCHEMA = pa.schema(
    [
        ("Name", pa.string()),
        ("DataType", pa.string()),
        ("ColumnType", pa.string()),
        ("IsPartitioning", pa.bool_()),
    ]
)

_NORMAL = "Normal"
"""The kind of every column here; Deephaven has grouping and partitioning ones besides."""


def meta_table(_request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """One row per column: its name and the Java type a client sees."""
    [source] = sources
    schema = announced_schema(
        view_schema(source.schema, context.types), is_blink=source.is_blink, input_keys=None
    )
    types = [(field.metadata or {}).get(FIELD_TYPE, b"").decode() for field in schema]
    columns = [schema.names, types, [_NORMAL] * len(types), [False] * len(types)]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, META_SCHEMA, strict=True)]
    return StaticTable(source.graph, pa.table(arrays, schema=META_SCHEMA))


async def column_statistics(
    request: Any, sources: Sequence[TableLease], context: OperationContext
) -> TableLease:
    """One row of figures about the column as it is now. The work is done off the engine thread."""
    limit = request.unique_value_limit if request.HasField("unique_value_limit") else None
    if limit is not None and limit < 0:
        raise OperationError(f"column_statistics: cannot list {limit} values")
    cells = await read_column(sources[0], request.column_name, context)
    found = await in_thread(statistics_of, cells, limit)
    return TableLease(context.tables, await static_table(context.tables, found))


OPERATIONS = (
    TableOperation(
        name="meta_table",
        method="MetaTable",
        request="MetaTableRequest",
        perform=derived(meta_table),
    ),
    TableOperation(
        name="column_statistics",
        method="ComputeColumnStatistics",
        request="ColumnStatisticsRequest",
        perform=column_statistics,
    ),
)
