"""InputTableService: rows of one table added to another one, or deleted from it by key.

Source: deephaven-clients.md section 4.1, and trials against a real server: columns are matched by
name in any order; an unknown or missing one is INVALID_ARGUMENT; of rows with one key in a batch
the last counts. Unlike there, other types are cast where no value is lost, rows to delete may have
further columns, and a key must not be null. Answered once a cycle has committed the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from barrage.engine.tables.coercion import coerce_rows
from barrage.engine.tables.keyed import check_keys_of
from barrage.errors import BarrageError, LimitExceededError, SchemaError, StatusCode
from barrage.model.storage.hashing import hash_rows
from barrage.model.storage.key_index import first_duplicate
from barrage.server.access.call_guard import SessionUse
from barrage.server.access.method_table import MethodEntry
from barrage.server.deephaven.big_numbers import big_numbers, holds_big_numbers
from barrage.server.deephaven.operations.reading import read_table
from barrage.server.ingest.portions import change_in_portions
from barrage.server.ingest.rows import key_columns_of
from barrage.supervision import in_thread
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.engine.tables.source import SourceTable
    from barrage.limits import Limits
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import ClientSession
    from barrage.server.tables.table_lease import TableLease
    from barrage.server.tables.table_service import TableService
    from barrage.transport.base import CallContext


ROWS_ON_LOOP_MAX = 20_000
"""Rows made to fit on the event loop; more than that are worth a thread."""


class NotAnInputTableError(BarrageError):
    """The target of a write is no input table, or not one of the kind the write needs."""

    status_code = StatusCode.INVALID_ARGUMENT


class InputTableCalls:
    """The behaviors."""

    def __init__(self, resolver: TicketResolver, tables: TableService, limits: Limits) -> None:
        self._resolver = resolver
        self._tables = tables
        self._limits = limits

    def methods(self) -> dict[str, MethodEntry]:
        return {
            "AddTableToInputTable": MethodEntry("unary", self.add, SessionUse.REQUIRED),
            "DeleteTableFromInputTable": MethodEntry("unary", self.delete, SessionUse.REQUIRED),
        }

    async def add(self, request: bytes, _context: CallContext, session: ClientSession) -> bytes:
        """Add the rows; in a keyed table those whose key exists replace the row there."""
        message = MESSAGES.decode("AddTableRequest", request)
        target = await self._target(message, session)
        await self._write(
            target, message.table_to_add, session, prepare=rows_to_add, operation="stage_add"
        )
        return MESSAGES.encode("AddTableResponse")

    async def delete(self, request: bytes, _context: CallContext, session: ClientSession) -> bytes:
        """Delete the rows with these keys; keys that do not exist are ignored."""
        message = MESSAGES.decode("DeleteTableRequest", request)
        target = await self._target(message, session)
        if not input_table(target).key_columns:
            raise NotAnInputTableError(
                f"{_told(target)} has no key columns, so rows cannot be deleted from it"
            )
        await self._write(
            target,
            message.table_to_remove,
            session,
            prepare=keys_to_delete,
            operation="stage_remove",
        )
        return MESSAGES.encode("DeleteTableResponse")

    async def _target(self, message: Any, session: ClientSession) -> TableLease:
        lease = await self._resolver.resolve(_ticket(message, "input_table"), session)
        input_table(lease)
        return lease

    async def _write(
        self,
        target: TableLease,
        ticket: Any,
        session: ClientSession,
        *,
        prepare: Callable[[SourceTable, pa.Table], pa.Table],
        operation: str,
    ) -> None:
        source = input_table(target)
        lease = await self._resolver.resolve(bytes(ticket.ticket), session)
        rows = await read_table(self._tables, lease, "table of rows to write", limits=self._limits)
        check_size(
            "table of rows to write", rows.nbytes, self._limits.upload_bytes_max, unit="bytes"
        )
        if len(rows) > ROWS_ON_LOOP_MAX:
            fitting = await in_thread(prepare, source, rows)
        else:
            fitting = prepare(source, rows)
        await change_in_portions(self._tables, source, operation=operation, rows=fitting)


def check_size(what: str, actual: int, maximum: int, *, unit: str) -> None:
    """LimitExceededError past the maximum."""
    if actual > maximum:
        raise LimitExceededError(what, actual=actual, maximum=maximum, unit=unit)


def input_table(lease: TableLease) -> SourceTable:
    """The table peers may write through this lease; NotAnInputTableError when there is none."""
    target = lease.input_target
    if target is None:
        raise NotAnInputTableError(f"{_told(lease)} can't be used as an input table")
    return target


def rows_to_add(target: SourceTable, rows: pa.Table) -> pa.Table:
    """``rows`` in the target's columns and types; of rows with one key only the last.

    SchemaError, RowError.
    """
    fitting = fitting_rows(target.schema, rows)
    if not target.key_columns:
        return fitting
    check_keys_of(fitting, target.key_columns, is_each_once=False)
    return last_per_key(fitting, target.key_columns)


def keys_to_delete(target: SourceTable, rows: pa.Table) -> pa.Table:
    """The target's key columns out of ``rows``. SchemaError, RowError."""
    keys = pa.schema([target.schema.field(name) for name in target.key_columns])
    found = key_columns_of(rows, keys)
    if len(found.column_names) < len(keys):
        missing = next(name for name in keys.names if name not in found.column_names)
        raise SchemaError(f"key column {missing!r} is missing from the rows to delete")
    fitting = fitting_rows(keys, found)
    check_keys_of(fitting, target.key_columns, is_each_once=False)
    return fitting


def fitting_rows(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """``rows`` in the columns and types of ``schema``, also where they come in the form Deephaven
    gives them. SchemaError, RowError.

    BigInteger and BigDecimal bytes are decoded here: Arrow would read bytes as digits.
    """
    for index, name in enumerate(rows.column_names):
        wanted = schema.field(name) if schema.get_field_index(name) >= 0 else None
        if wanted is not None and holds_big_numbers(wanted.type, rows.field(index).type):
            rows = rows.set_column(index, wanted, big_numbers(rows.column(index), wanted))
    return coerce_rows(schema, rows)


def last_per_key(rows: pa.Table, key_columns: tuple[str, ...]) -> pa.Table:
    """``rows`` without those whose key occurs again further down; their order is kept."""
    keys = [rows.column(name).combine_chunks() for name in key_columns]
    if first_duplicate(keys, hash_rows(keys)) is None:
        return rows
    plain = [k.dictionary_decode() if pa.types.is_dictionary(k.type) else k for k in keys]
    names = [str(number) for number in range(len(plain))]
    numbered = pa.table([*plain, np.arange(len(rows))], names=[*names, "row"])
    last = numbered.group_by(names, use_threads=False).aggregate([("row", "max")])
    return rows.take(np.sort(last.column("row_max").to_numpy()))


def _ticket(message: Any, field: str) -> bytes:
    return bytes(getattr(message, field).ticket)


def _told(lease: TableLease) -> str:
    return "the table" if lease.name is None else f"table {lease.name!r}"
