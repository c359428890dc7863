"""From tickets to tables: what each kind of ticket stands for (see
:mod:`barrage.server.tables.tickets`).

Statuses: deephaven-clients.md section 2.4 and barrage-wire.md section 13. An export's ticket means
something in its own session only; the same number in another session is another export.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from barrage.errors import (
    CycleTooLongError,
    LimitExceededError,
    NoJournalError,
    StatusCode,
    TableFailedError,
    TicketError,
)
from barrage.model.query import Query, past_places
from barrage.server.access.query import QueryRun
from barrage.server.identity.current_call import current_caller, note_table
from barrage.server.presentation.presentation import lease_of, shown_table
from barrage.server.tables.table_lease import TableLease
from barrage.server.tables.tickets import (
    EXPORT_ROUTE,
    QUERY_ROUTE,
    Route,
    export_id_of_ticket,
    field_of_ticket,
    result_export_id,
    route_of,
    table_name_of_ticket,
    ticket_of_descriptor,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from barrage.limits import Limits
    from barrage.model.cursor import Cursor
    from barrage.server.access.exports import Export
    from barrage.server.access.query import QueryProgress
    from barrage.server.access.session_store import ClientSession
    from barrage.server.identity.caller import Caller
    from barrage.server.policy.access_gate import AccessGate, Tables
    from barrage.server.presentation.deephaven_types import SessionTypes
    from barrage.server.runtime.catalog import Catalog, Publication
    from barrage.server.tables.table_lease import TableSource
    from barrage.server.tables.table_service import TableService
    from barrage.transport.flight_messages import Descriptor


class SharedTicketTakenError(TicketError):
    """Another table is shared under this ticket."""

    status_code = StatusCode.ALREADY_EXISTS


class SharedTicketNotFoundError(TicketError):
    """Nothing is shared under this ticket, or not any more."""

    status_code = StatusCode.NOT_FOUND


async def _no_past(place: tuple[str, Cursor]) -> TableLease:
    raise NoJournalError(place[0])


class TicketResolver:
    """Finds the tables of tickets. Runs on the event loop, but for the sources it gives out."""

    def __init__(
        self, catalog: Catalog, tables: TableService, limits: Limits, *, gate: AccessGate
    ) -> None:
        self._catalog = catalog
        self._gate = gate
        self._tables = tables
        self._limits = limits
        self.on_demand: Mapping[str, Callable[[], Awaitable[None]]] = {}
        """Tables that are made when somebody asks for them."""
        self.past: Callable[[tuple[str, Cursor]], Awaitable[TableLease]] = _no_past
        """Gives tables as they were at a version."""
        self._shared: dict[bytes, tuple[Export, Caller]] = {}
        """What is shared, and by whom."""

    @property
    def shared_count(self) -> int:
        """Tickets under which something is shared now."""
        return len(self._shared)

    async def resolve(self, ticket: bytes | None, session: ClientSession | None) -> TableLease:
        """The table of a ticket. Waits for an export that is still to come.

        Raises TicketError (TableNotFoundError for names), TableFailedError, or the error of the
        export's producer.
        """
        source = await self.source(ticket, session)
        if isinstance(source, TableLease):
            return source
        return await asyncio.wrap_future(self._tables.run(source))

    async def source(
        self,
        ticket: bytes | None,
        session: ClientSession | None,
        *,
        progress: QueryProgress | None = None,
    ) -> TableSource:
        """Like :meth:`resolve`, without the visit to the engine thread that names need: for a
        caller who goes there anyway. A query is derived now, which may take a while; ``progress``
        is told how far it has got."""
        route = route_of(ticket, self._limits)
        assert ticket is not None
        await self._make_demanded(ticket)
        tables = self._gate.tables(self._catalog)
        if route is Route.EXPORT:
            return _lasting(await self._export(ticket, session).table_lease())
        if route is Route.SHARED:
            return _lasting(await self._shared_export(ticket, session).table_lease())
        if route is Route.QUERY:
            query = self._parsed(bytes(ticket[len(QUERY_ROUTE) :]))
            past = await self._past_of(query)
            run = QueryRun(tables, query, self._limits, progress=progress, past=past)
            work = partial(self._queried, run)
            return await asyncio.wrap_future(self._tables.derive(work, session))
        if route is Route.APPLICATION:
            name = field_of_ticket(ticket)
        else:
            name = table_name_of_ticket(ticket, self._limits)
        note_table(name)
        find = partial(self._published, tables, name)
        if self._gate.decision(name).restriction is None:
            return find
        # What is shown of it has to be derived, once for all who see the same.
        return await asyncio.wrap_future(self._tables.derive(find, session))

    def _parsed(self, text: bytes) -> Query | bytes:
        """Of a query that may begin with the past; others are parsed where they are derived."""
        # JSON may write the name with escapes, or in an encoding whose letters have zeros.
        may_be_past = b'"at"' in text or b"\\" in text or b"\0" in text
        return Query.parse(text, self._limits) if may_be_past else text

    async def _past_of(self, query: Query | bytes) -> dict[tuple[str, Cursor], TableLease]:
        if not isinstance(query, Query):
            return {}
        return {place: await self.past(place) for place in past_places(query)}

    async def _make_demanded(self, ticket: bytes) -> None:
        """Make the tables that a ticket may name, wherever in it: to have made one that was not
        meant costs little."""
        for name, make in self.on_demand.items():
            if name.encode() in ticket:
                await make()

    async def viewed(
        self, source: TableSource, session: ClientSession
    ) -> tuple[TableLease, TableLease]:
        """The table of a source, and the table the session sees in its place. That may be an
        operator which looks at all rows, so it is derived like a query."""
        work = partial(self._viewed, source, session.types)
        return await asyncio.wrap_future(self._tables.derive(work, session))

    def ticket_of_descriptor(self, descriptor: Descriptor) -> bytes:
        """The ticket a descriptor stands for. TicketError."""
        return ticket_of_descriptor(descriptor, self._limits)

    def result_export(self, ticket: bytes | None, session: ClientSession) -> Export:
        """Define the export a client wants a result under; to be fulfilled or failed."""
        return session.exports.define(result_export_id(ticket, self._limits))

    async def publish_shared(
        self, source_ticket: bytes | None, shared_ticket: bytes | None, session: ClientSession
    ) -> None:
        """Share an export with every session under a ticket of the client's choice, for as long as
        the export is kept.

        TicketError when the one is no export or the other no shared ticket,
        SharedTicketTakenError, LimitExceededError, or the error of the export's producer.
        """
        if route_of(shared_ticket, self._limits) is not Route.SHARED:
            raise TicketError("Could not publish: the result must be a shared ticket")
        assert shared_ticket is not None
        self._check_free(shared_ticket)
        export = self._export(source_ticket, session)
        await export.table_lease()
        self._check_free(shared_ticket)
        self._shared[shared_ticket] = export, session.caller
        export.on_release(partial(self._unshare, shared_ticket, export))

    def _check_free(self, shared_ticket: bytes) -> None:
        if shared_ticket in self._shared:
            raise SharedTicketTakenError("Could not publish: the shared ticket is taken")
        if len(self._shared) >= self._limits.shared_tickets_max:
            raise LimitExceededError(
                "number of shared tickets",
                actual=len(self._shared) + 1,
                maximum=self._limits.shared_tickets_max,
                unit="tickets",
            )

    def _unshare(self, shared_ticket: bytes, export: Export) -> None:
        if self._shared.get(shared_ticket, (None,))[0] is export:
            del self._shared[shared_ticket]

    def _export(self, ticket: bytes | None, session: ClientSession | None) -> Export:
        export_id = export_id_of_ticket(ticket, self._limits)
        if session is None:
            raise TicketError(
                f"Could not resolve ticket: no resolver for route '{EXPORT_ROUTE[0]}' (byte) on a "
                "call without a session"
            )
        return session.exports.find(export_id)

    def _shared_export(self, ticket: bytes, session: ClientSession | None) -> Export:
        """What is shared may show what the caller must not see, so under rules it is for callers
        of the same name, and for those who may do everything."""
        export, giver = self._shared.get(ticket, (None, None))
        taker = current_caller() if session is None else session.caller
        if export is None or giver is None or not self._gate.may_hand_on(giver, taker):
            raise SharedTicketNotFoundError("Could not resolve ticket: nothing is shared under it")
        return export

    # --- engine thread ---

    def lease_of_publication(self, publication: Publication) -> TableLease:
        """A published table."""
        return TableLease(
            self._tables,
            publication.table,
            name=publication.name,
            input_target=publication.input_target,
        )

    def _viewed(self, source: TableSource, types: SessionTypes) -> tuple[TableLease, TableLease]:
        lease = lease_of(source)
        return lease, TableLease(self._tables, shown_table(lease, types))

    def _published(self, tables: Tables, name: str) -> TableLease:
        return self.lease_of_publication(tables.live(name))

    def _queried(self, run: QueryRun) -> TableLease:
        table = run()
        self._tables.query_tables.note(table, run.names)
        return TableLease(self._tables, table)


def _lasting(lease: TableLease) -> TableLease:
    """The table of an export. Nobody makes it again when it was ended, so nobody is told to ask."""
    if isinstance(lease.failure, CycleTooLongError):
        raise TableFailedError(f"Table is already failed: {lease.failure}")
    return lease
