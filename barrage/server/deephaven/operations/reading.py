"""Whole tables and columns for operations that look at all rows: pinned on the engine thread, read
beside it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from barrage.engine.operators import derive
from barrage.engine.planning.derivation import check_copies
from barrage.errors import SchemaError
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    check_count,
    derive_on_engine,
    on_engine,
)
from barrage.server.presentation.deephaven_schema import deephaven_view
from barrage.server.presentation.presentation import lease_of
from barrage.server.tables.table_lease import TableLease
from barrage.supervision import in_thread

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.server.tables.table_service import TableService


async def read_table(
    tables: TableService, lease: TableLease, what: str, *, limits: Limits
) -> pa.Table:
    """The rows as they are now. LimitExceededError for more than one write may have."""
    held: list[Table] = []
    try:
        await on_engine(tables, partial(_pin, lease, held, what, limits=limits))
        return await in_thread(lambda: held[0].to_arrow())
    finally:
        tables.forget(held)


def _pin(lease: TableLease, held: list[Table], what: str, *, limits: Limits) -> None:
    table = lease_of(lease).table
    check_count(what, table.size, limits.ingest_batch_rows_max, unit="rows")
    check_copies([table], limits)
    held.append(table.pinned())


async def read_column(lease: TableLease, name: str, context: OperationContext) -> pa.ChunkedArray:
    """The cells of a column in a type clients read. SchemaError, LimitExceededError."""
    view = await derive_on_engine(context, partial(_column, lease, name, context))
    rows = await read_table(context.tables, view, "column", limits=context.limits)
    return rows.column(0)


def _column(lease: TableLease, name: str, context: OperationContext) -> TableLease:
    table = lease_of(lease).table
    if name not in table.schema.names:
        raise SchemaError(f"the table has no column {name!r}")
    check_count("column", table.size, context.limits.ingest_batch_rows_max, unit="rows")
    return TableLease(context.tables, deephaven_view(derive.select(table, name), context.types))
