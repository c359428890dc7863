"""Operations that begin with nothing or keep a table as it is: fetch_table, apply_preview_columns,
empty_table, time_table, create_input_table."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.engine.operators.convert import ColumnConversion, convert
from barrage.errors import SchemaError
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    OperationError,
    TableOperation,
    check_count,
    check_not_negative,
    check_texts,
    checked_lease,
    on_engine,
)
from barrage.server.deephaven.operations.time_tables import period_of, start_of
from barrage.server.presentation.deephaven_input_schema import read_schema, stored_schema
from barrage.server.presentation.deephaven_schema import announced_schema, deephaven_view
from barrage.server.presentation.presentation import lease_of
from barrage.server.presentation.text_forms import text_of
from barrage.server.tables.table_lease import TableLease
from barrage.wire.wire_schema import FIELD_TYPE

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


async def fetch_table(
    _request: Any, sources: Sequence[TableLease], context: OperationContext
) -> TableLease:
    """The table itself: what can be written through its ticket can be written through the result.
    TableFailedError."""
    lease: TableLease = await on_engine(context.tables, partial(lease_of, sources[0]))
    return lease


async def apply_preview_columns(
    request: Any, sources: Sequence[TableLease], context: OperationContext
) -> TableLease:
    """The table with columns of other Java types than those listed as text; without a list, or when
    all columns are of listed types, the table itself. Lists become text only on request."""
    wanted = list(request.unpreviewed_types)
    check_texts("types", wanted, context.limits)
    if not wanted:
        if request.convert_arrays:
            raise OperationError("apply_preview_columns: convert_arrays without types")
        return await fetch_table(request, sources, context)
    work = partial(_preview, sources[0], frozenset(wanted), request.convert_arrays, context=context)
    lease: TableLease = await on_engine(context.tables, work)
    return lease


def _preview(
    lease: TableLease, wanted: frozenset[str], converts_arrays: bool, *, context: OperationContext
) -> TableLease:
    view = deephaven_view(lease_of(lease).table, context.types)
    told = announced_schema(view.schema, is_blink=False, input_keys=None)
    indices = [
        index
        for index, field in enumerate(told)
        if not _stays(field, wanted, converts_arrays=converts_arrays)
    ]
    if not indices:
        return lease
    fields = list(view.schema)
    for index in indices:
        fields[index] = pa.field(fields[index].name, pa.string())
    schema = pa.schema(fields, metadata=view.schema.metadata)
    conversion = ColumnConversion(apply=text_of, may_fail=False)
    return checked_lease(
        convert(
            view,
            schema,
            ("preview", tuple(indices)),
            conversions=dict.fromkeys(indices, conversion),
        ),
        context,
    )


def _stays(field: pa.Field, wanted: Collection[str], *, converts_arrays: bool) -> bool:
    if pa.types.is_list(field.type) and not converts_arrays:
        return True
    return (field.metadata or {}).get(FIELD_TYPE, b"").decode() in wanted


async def empty_table(
    request: Any, _sources: Sequence[TableLease], context: OperationContext
) -> TableLease:
    """Rows without columns."""
    check_not_negative("empty_table: the size", request.size)
    check_count("empty_table", request.size, context.limits.created_rows_max, unit="rows")
    table = await asyncio.wrap_future(context.tables.create_blank(request.size))
    return TableLease(context.tables, table)


async def time_table(
    request: Any, _sources: Sequence[TableLease], context: OperationContext
) -> TableLease:
    """A column of timestamps that grows with time. A start of 0 is now."""
    if request.WhichOneof("period") == "period_string":
        period_ns = period_of(request.period_string)
    else:
        period_ns = request.period_nanos
    if request.WhichOneof("start_time") == "start_time_string":
        start_ns: int | None = start_of(request.start_time_string)
    else:
        start_ns = request.start_time_nanos or None
    return await context.time_tables.create(
        start_ns=start_ns, period_ns=period_ns, is_blink=request.blink_table
    )


async def create_input_table(
    request: Any, sources: Sequence[TableLease], context: OperationContext
) -> TableLease:
    """An empty table the client may write, with the columns of another table or of a schema."""
    kind = _INPUT_KINDS.get(request.kind.WhichOneof("kind"))
    if kind is None:
        raise OperationError("create_input_table: unrecognized kind of table")
    keys = list(request.kind.in_memory_key_backed.key_columns)
    check_texts("key columns", keys, context.limits)
    if kind == "keyed" and not keys:
        raise OperationError("create_input_table: a keyed table needs key columns")
    if sources:
        schema = stored_schema(sources[0].schema, context.limits)
    else:
        schema = read_schema(request.schema, context.limits)
    if len(set(schema.names)) < len(schema.names):
        raise SchemaError("create_input_table: a column name occurs twice")
    future = context.tables.create_input(kind, schema, keys)
    table = await asyncio.wrap_future(future)
    return TableLease(context.tables, table, input_target=table)


_INPUT_KINDS = {
    "in_memory_append_only": "append_only",
    "in_memory_key_backed": "keyed",
    "blink": "blink",
}


def _no_source(_request: Any) -> Sequence[Any]:
    return ()


def _definition(request: Any) -> Sequence[Any]:
    """The table an input table is to be like, if the request names one."""
    definition = request.WhichOneof("definition")
    if definition is None:
        raise OperationError("create_input_table: needs a schema or a source table")
    return (request.source_table_id,) if definition == "source_table_id" else ()


OPERATIONS = (
    TableOperation(
        name="fetch_table",
        method="FetchTable",
        request="FetchTableRequest",
        perform=fetch_table,
    ),
    TableOperation(
        name="apply_preview_columns",
        method="ApplyPreviewColumns",
        request="ApplyPreviewColumnsRequest",
        perform=apply_preview_columns,
    ),
    TableOperation(
        name="empty_table",
        method="EmptyTable",
        request="EmptyTableRequest",
        perform=empty_table,
        references=_no_source,
    ),
    TableOperation(
        name="time_table",
        method="TimeTable",
        request="TimeTableRequest",
        perform=time_table,
        references=_no_source,
    ),
    TableOperation(
        name="create_input_table",
        method="CreateInputTable",
        request="CreateInputTableRequest",
        perform=create_input_table,
        references=_definition,
    ),
)
