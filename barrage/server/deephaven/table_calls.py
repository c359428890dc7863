"""TableService: every call that makes one table, and the calls that ask about one.

Source: deephaven-clients.md sections 2.5, 2.6 and A.0, and trials against a real server. A call
defines its result as an export before it does anything, so a client may use the result at once; who
does so waits, and fails with this call's error if it fails. Its sources may be exports that are
still to come in the same way.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from barrage.errors import TicketError, UnsupportedError
from barrage.server.access.call_guard import SessionUse
from barrage.server.access.method_table import MethodEntry
from barrage.server.deephaven.batch_calls import BatchCalls
from barrage.server.deephaven.operations.creation_response import (
    creation_response,
    look_at,
    ticket_reference,
)
from barrage.server.deephaven.operations.operation_table import OPERATIONS, REFUSED
from barrage.server.deephaven.operations.operations import (
    OperationContext,
    OperationError,
    as_failure,
    check_count,
    on_engine,
)
from barrage.server.deephaven.operations.reading import read_column
from barrage.server.deephaven.operations.seek_row import find_row
from barrage.server.deephaven.operations.time_tables import TimeTables
from barrage.supervision import in_thread
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import ClientSession
    from barrage.server.deephaven.operations.operations import TableOperation
    from barrage.server.tables.table_lease import TableLease
    from barrage.server.tables.table_service import TableService


class TableCalls:
    """The behaviors."""

    def __init__(
        self, resolver: TicketResolver, tables: TableService, *, limits: Limits, clock: Clock
    ) -> None:
        self._resolver = resolver
        self._tables = tables
        self._limits = limits
        self._time_tables = TimeTables(tables, clock, limits)
        self._batches = BatchCalls(resolver, tables, self._time_tables, limits=limits)

    def methods(self) -> dict[str, MethodEntry]:
        """All methods of TableService but ExportedTableUpdates."""
        behaviors: dict[str, Any] = {
            operation.method: partial(self._operate, operation) for operation in OPERATIONS.values()
        }
        behaviors |= {method: partial(_refuse, name) for name, method in REFUSED.items()}
        behaviors |= {
            "GetExportedTableCreationResponse": self.get_creation_response,
            "SeekRow": self.seek_row,
        }
        entries = {
            method: MethodEntry("unary", behavior, SessionUse.REQUIRED)
            for method, behavior in behaviors.items()
        }
        entries["Batch"] = MethodEntry("server_stream", self._batches.batch, SessionUse.REQUIRED)
        return entries

    def close(self) -> None:
        """End what works on its own."""
        self._time_tables.close()

    async def _operate(
        self, operation: TableOperation, request: bytes, _context: object, session: ClientSession
    ) -> bytes:
        """Do one operation."""
        message = MESSAGES.decode(operation.request, request)
        ticket = bytes(message.result_id.ticket)
        if not ticket:
            raise TicketError(f"{operation.name}: no result ticket supplied")
        sources = source_tickets(operation, message, self._limits)
        if ticket in sources:
            raise OperationError(f"{operation.name}: the result cannot be its own source")
        export = self._resolver.result_export(ticket, session)
        try:
            leases = [await self._resolver.resolve(source, session) for source in sources]
            lease = await operation.perform(message, leases, self._context(session))
            created = await on_engine(self._tables, partial(look_at, lease, session.types))
        except BaseException as error:
            export.fail(as_failure(error))
            raise
        export.fulfil(lease)
        return creation_response(ticket_reference(ticket), created)

    def _context(self, session: ClientSession) -> OperationContext:
        return OperationContext(
            tables=self._tables,
            time_tables=self._time_tables,
            limits=self._limits,
            types=session.types,
            owner=session,
        )

    async def get_creation_response(
        self, request: bytes, _context: object, session: ClientSession
    ) -> bytes:
        """What a table is like, under the very ticket it was asked for with."""
        ticket = bytes(MESSAGES.decode("Ticket", request).ticket)
        lease = await self._resolver.resolve(ticket, session)
        created = await on_engine(self._tables, partial(look_at, lease, session.types))
        return creation_response(ticket_reference(ticket), created)

    async def seek_row(self, request: bytes, _context: object, session: ClientSession) -> bytes:
        """The next row with a value. The search is done off the engine thread."""
        message = MESSAGES.decode("SeekRowRequest", request)
        ticket = bytes(message.source_id.ticket)
        lease: TableLease = await self._resolver.resolve(ticket, session)
        cells = await read_column(lease, message.column_name, self._context(session))
        row = await in_thread(find_row, cells, message)
        return MESSAGES.encode("SeekRowResponse", result_row=row)


def source_tickets(operation: TableOperation, message: Any, limits: Limits) -> Sequence[bytes]:
    """The tickets of an operation done alone. TicketError for anything but tickets,
    LimitExceededError."""
    references = operation.references(message)
    check_count(operation.name, len(references), limits.operations_max, unit="tables")
    for reference in references:
        if reference.WhichOneof("ref") != "ticket":
            raise TicketError(f"{operation.name}: one-shot operations must use ticket references")
    return [bytes(reference.ticket.ticket) for reference in references]


async def _refuse(name: str, _request: bytes, _context: object, _session: ClientSession) -> bytes:
    raise UnsupportedError(f"the operation {name} is not supported")
