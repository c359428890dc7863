"""Operations that choose, order and gather rows: filters, sort, slice, merge, snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.engine.expressions.expression import Expression
from barrage.engine.expressions.expression_text import Call, Column
from barrage.engine.operators import derive
from barrage.engine.operators.row_numbers import has_fixed_positions, numbered
from barrage.engine.operators.sort_order import SortKey
from barrage.engine.planning.operator_plan import prepared
from barrage.errors import RemoteProtocolError, SchemaError, UnsupportedError
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    OperationError,
    TableOperation,
    check_count,
    derived,
)
from barrage.server.deephaven.operations.reading import read_table
from barrage.server.deephaven.operations.row_variables import read_texts
from barrage.server.deephaven.text.conditions import check_conditions, filter_expression
from barrage.server.deephaven.text.filter_text import parse_filters
from barrage.server.tables.static_tables import static_table
from barrage.server.tables.table_lease import TableLease

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.table import Table

SCOPE = "table service"


def unstructured_filter(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """The rows for which every text holds."""
    [source] = sources
    texts = tuple(request.filters)
    if not texts:
        return source
    shown, condition = read_texts(source, texts, parse_filters, limits=context.limits)
    found = derive.where(shown, condition)
    return found if shown is source else derive.select(found, *source.schema.names)


def structured_filter(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """The rows for which every condition holds."""
    [source] = sources
    check_count("filter", len(request.filters), context.limits.operations_max, unit="conditions")
    if not request.filters:
        return source
    filters, schema, limits = request.filters, source.schema, context.limits
    check_conditions(filters)
    messages = tuple(each.SerializeToString(deterministic=True) for each in filters)
    condition = prepared(
        source,
        *("conditions", messages),
        prepare=lambda: filter_expression(filters, schema, limits),
    )
    return derive.where(source, condition)


def sort(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """Rows in the order of the descriptors, the first one deciding most."""
    [source] = sources
    descriptors = list(request.sorts)
    check_count("sort", len(descriptors), context.limits.columns_max, unit="columns")
    if not descriptors:
        return source
    if [each.direction for each in descriptors] == [descriptors[0].SortDirection.REVERSE]:
        return _reversed(source)
    if not any(descriptor.is_absolute for descriptor in descriptors):
        return derive.sort(source, *(_sort_key(each, each.column_name) for each in descriptors))
    return _sorted_by_absolutes(source, descriptors)


def _sort_key(descriptor: Any, column: str) -> SortKey:
    """Deephaven takes null for the smallest value and NaN for the largest number."""
    directions = descriptor.SortDirection
    if descriptor.direction == directions.REVERSE:
        raise UnsupportedError("sort: the direction REVERSE cannot be combined with others")
    if descriptor.direction not in (directions.ASCENDING, directions.DESCENDING):
        raise RemoteProtocolError(f"sort: unexpected direction {descriptor.direction}")
    is_descending = descriptor.direction == directions.DESCENDING
    return SortKey(
        column=column,
        is_descending=is_descending,
        has_nulls_first=not is_descending,
        has_nan_opposite=True,
    )


def _reversed(source: Table) -> Table:
    """The last row first; the column of the descriptor does not matter."""
    if not has_fixed_positions(source):
        raise UnsupportedError("sort: REVERSE needs a table that is static or only grows")
    place = free_name(source.schema, "place")
    by_place = derive.sort(
        numbered(source, {place: pa.int64()}), SortKey(column=place, is_descending=True)
    )
    return derive.select(by_place, *source.schema.names)


def _sorted_by_absolutes(source: Table, descriptors: Sequence[Any]) -> Table:
    """The absolute values as columns of their own, which are taken away again."""
    names = source.schema.names
    keys = []
    absolutes: dict[str, Expression] = {}
    for number, descriptor in enumerate(descriptors):
        column = descriptor.column_name
        if descriptor.is_absolute:
            column = free_name(source.schema, f"absolute_{number}")
            call = Call(0, "abs", (Column(0, descriptor.column_name),))
            absolutes[column] = Expression(f"abs of {descriptor.column_name}", call, SCOPE)
        keys.append(_sort_key(descriptor, column))
    with_absolutes = derive.select(source, *names, **absolutes)
    return derive.select(derive.sort(with_absolutes, *keys), *names)


def free_name(schema: pa.Schema, wanted: str) -> str:
    """A name no column of ``schema`` has."""
    while wanted in schema.names:
        wanted += "_"
    return wanted


def slice_rows(request: Any, sources: Sequence[Table], _context: OperationContext) -> Table:
    """Rows between two positions; negative ones count from the end, and so does an end of 0 after a
    negative start."""
    start, stop = request.first_position_inclusive, request.last_position_exclusive
    if start < 0 < stop:
        raise UnsupportedError("slice: a start from the end with a stop from the start")
    if stop < start and (start < 0) == (stop < 0):
        raise OperationError(f"slice: cannot start at {start} and stop at {stop}")
    return derive.slice(sources[0], start, stop)


async def snapshot(
    _request: Any, sources: Sequence[TableLease], context: OperationContext
) -> TableLease:
    """The rows as they are now, in a table that does not keep the source alive."""
    [source] = sources
    if source.is_static:
        return source
    rows = await read_table(context.tables, source, "snapshot", limits=context.limits)
    return TableLease(context.tables, await static_table(context.tables, rows))


def merge(request: Any, sources: Sequence[Table], context: OperationContext) -> Table:
    """The rows of all tables, one table after another; a key column groups them by its values."""
    if not sources:
        raise OperationError("merge: cannot merge zero tables")
    check_count("merge", len(sources), context.limits.operations_max, unit="tables")
    first = sources[0]
    names = first.schema.names
    merged = derive.merge(first, *(_in_order(other, names) for other in sources[1:]))
    if not request.key_column:
        return merged
    raise UnsupportedError("merge: a key column is not supported")


def _in_order(table: Table, names: list[str]) -> Table:
    """Deephaven merges columns by name, whatever their order."""
    if table.schema.names == names or set(table.schema.names) != set(names):
        return table
    if len(table.schema.names) != len(names):
        raise SchemaError("merge: a column name occurs twice")
    return derive.select(table, *names)


OPERATIONS = (
    TableOperation(
        name="unstructured_filter",
        method="UnstructuredFilter",
        request="UnstructuredFilterTableRequest",
        perform=derived(unstructured_filter),
    ),
    TableOperation(
        name="filter",
        method="Filter",
        request="FilterTableRequest",
        perform=derived(structured_filter),
    ),
    TableOperation(name="sort", method="Sort", request="SortTableRequest", perform=derived(sort)),
    TableOperation(
        name="slice", method="Slice", request="SliceRequest", perform=derived(slice_rows)
    ),
    TableOperation(
        name="snapshot",
        method="Snapshot",
        request="SnapshotTableRequest",
        perform=snapshot,
    ),
    TableOperation(
        name="merge",
        method="MergeTables",
        request="MergeTablesRequest",
        perform=derived(merge),
        references=lambda request: request.source_ids,
    ),
)
