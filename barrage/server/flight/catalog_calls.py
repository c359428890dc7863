"""ListFlights, GetFlightInfo, GetSchema and the actions: what tables there are."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.engine.tables.keyed import KeyedTable
from barrage.errors import (
    ActionNotFoundError,
    LimitExceededError,
    PermissionDeniedError,
    TableAwaitedError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.server.access.call_guard import SessionUse
from barrage.server.access.method_table import Action, CallAction, MethodEntry
from barrage.server.flight.described import described, description_of
from barrage.server.flight.dissociated_calls import PACKED, is_dissociated_request
from barrage.server.flight.relay_calls import RelayCalls
from barrage.server.flight.result_calls import is_poll_command
from barrage.server.flight.stage_calls import STAGE_ABORT, STAGE_COMMIT
from barrage.server.flight.writes_elsewhere import acted_on
from barrage.server.history.journal_tickets import is_journal_request
from barrage.server.identity.credentials import header_value
from barrage.server.identity.current_call import note_action, note_table
from barrage.server.pages.row_edits import ADD_ROW, REMOVE_ROW, SET_CELLS
from barrage.server.policy.catalog_view import CatalogView
from barrage.server.policy.restricted_tables import UnfitRuleError
from barrage.server.policy.rules import Operation
from barrage.server.presentation.presentation import lease_schema
from barrage.server.settings.json_fields import Fields
from barrage.server.tables.table_lease import TableLease
from barrage.server.tables.table_service import VIEW, TableFacts, TableRecipe, kind_of
from barrage.server.tables.tickets import ticket_of
from barrage.transport import flight_messages
from barrage.transport.base import ENDPOINTS_HEADER, ENDPOINTS_ONE
from barrage.transport.flight_messages import (
    FLIGHT,
    Descriptor,
    Endpoint,
    FlightInfo,
    PollInfo,
)
from barrage.wire.dissociated.negotiation import ACTION as BODIES_ACTION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.engine.tables.table import Table
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import ClientSession
    from barrage.server.bodies.body_service import BodyService
    from barrage.server.flight.dissociated_calls import DissociatedCalls
    from barrage.server.flight.journals_and_stages import JournalServices
    from barrage.server.flight.result_calls import ResultCalls
    from barrage.server.flight.session_calls import SessionOptionCalls
    from barrage.server.flight.writes_elsewhere import WritesElsewhere
    from barrage.server.policy.access_gate import AccessGate, Tables
    from barrage.server.runtime.catalog import Catalog, Publication
    from barrage.server.tables.table_lease import TableSource
    from barrage.server.tables.table_service import TableService
    from barrage.transport.base import CallContext


UNKNOWN_BYTES = -1
"""``FlightInfo.total_bytes`` of a table that is not measured."""

UNKNOWN_ROWS = -1
"""``FlightInfo.total_records`` of a ticking table, as sessions are told (deephaven-clients.md
section 4.1). Without a session it is the number of rows at that moment."""

TABLES = "barrage.tables"

LISTED_DESCRIPTION_LENGTH_MAX = 500
"""Of a longer description a list has the beginning: it is asked for again and again."""

DESCRIBE = "barrage.describe"
DROP_TABLE = "barrage.drop_table"
CREATE_TABLE = "barrage.create_table"

_OPERATIONS_OF = {
    DROP_TABLE: (Operation.DROP,),
    CREATE_TABLE: (Operation.CREATE,),
    STAGE_COMMIT: (Operation.WRITE,),
    STAGE_ABORT: (Operation.WRITE, Operation.CREATE),
    SET_CELLS: (Operation.WRITE,),
    ADD_ROW: (Operation.WRITE,),
    REMOVE_ROW: (Operation.WRITE,),
}

ROW_EDITS = frozenset({SET_CELLS, ADD_ROW, REMOVE_ROW})
"""Whose refusals tell what rows hold."""

WRITES = frozenset(_OPERATIONS_OF)
"""Actions that belong to the server that owns their table."""


class CatalogCalls:
    """The behaviors; each request is the bytes of its message."""

    def __init__(
        self,
        resolver: TicketResolver,
        catalog: Catalog,
        tables: TableService,
        *,
        journals: JournalServices,
        bodies: BodyService,
        dissociated: DissociatedCalls,
        results: ResultCalls,
        options: SessionOptionCalls,
        gate: AccessGate,
        epoch_of: Callable[[Table], str | None],
        elsewhere: WritesElsewhere | None = None,
        further: Mapping[str, Action] = MappingProxyType({}),
    ) -> None:
        """``elsewhere`` has the tables that other servers own; ``epoch_of`` knows, on the engine
        thread, which history a table has; ``further`` actions are about something else."""
        self._elsewhere = elsewhere
        self._results = results
        self._options = options
        self._epoch_of = epoch_of
        self._gate = gate
        self._resolver = resolver
        self._dissociated = dissociated
        self._journals = journals.calls
        self._catalog = catalog
        self._bodies = bodies
        self._tables = tables
        self._actions: Mapping[str, Action | CallAction] = {
            **self.actions(),
            **results.actions(),
            **options.actions(),
            **journals.actions,
            **bodies.actions,
            **RelayCalls(tables, catalog, gate).actions,
            **further,
        }

    def methods(self) -> dict[str, MethodEntry]:
        use = SessionUse.OPTIONAL
        return {
            "ListFlights": MethodEntry("server_stream", self.list_flights, use),
            "GetFlightInfo": MethodEntry("unary", self.get_flight_info, use),
            "PollFlightInfo": MethodEntry("unary", self.poll_flight_info, use),
            "GetSchema": MethodEntry("unary", self.get_schema, use),
            "DoAction": MethodEntry("server_stream", self.do_action, use),
            "ListActions": MethodEntry("server_stream", self.list_actions, use),
        }

    def actions(self) -> Mapping[str, Action]:
        """Those about tables themselves."""
        return {
            TABLES: Action(
                "The published tables. No body. Result: JSON list of objects with name, kind, key, "
                "is_ticking, rows, step, columns, description.",
                self._list_tables,
            ),
            DESCRIBE: Action(
                'A table, or what a query gives. Body: JSON {"table"} or {"ticket": base64}. '
                "Result: JSON with name, kind, key, is_ticking, rows, step, description, columns: "
                "a list of objects with name, type, is_nullable and description, and schema: "
                "base64 of an encapsulated Arrow IPC schema message.",
                self._describe,
            ),
            DROP_TABLE: Action(
                'Take a table out of the catalog and end its subscriptions. Body: JSON {"table"}.',
                self._drop_table,
            ),
            CREATE_TABLE: Action(
                'Create an empty table. Body: JSON {"table", "schema": base64 of an encapsulated '
                'Arrow IPC schema message, "key": [...], "kind", "capacity", "journal"}.',
                self._create_table,
            ),
        }

    async def list_flights(
        self, request: bytes, context: CallContext, session: ClientSession | None
    ) -> None:
        """One FlightInfo per published table; a criteria expression is a prefix of the name."""
        prefix = flight_messages.decode_criteria(request)
        all_facts = await asyncio.wrap_future(
            self._tables.run(
                partial(self._published_facts, self._gate.tables(self._catalog), session)
            )
        )
        for facts in all_facts:
            if facts.name.encode().startswith(prefix):
                descriptor = Descriptor(path=(facts.name,))
                info = flight_info(facts, descriptor, ticket_of(facts.name), session=session)
                await context.write(info.encode())

    async def get_flight_info(
        self, request: bytes, context: CallContext, session: ClientSession | None
    ) -> bytes:
        """What a descriptor names, and where it is to be had. The rows of a large table are kept
        for a while and come in several endpoints, unless the caller wants one of the table as it
        is then, as sessions do."""
        descriptor = Descriptor.decode(request)
        planned = await self._planned(descriptor, session, context)
        if planned is not None:
            return planned.encode()
        ticket = self._resolver.ticket_of_descriptor(descriptor)
        try:
            facts = await self._facts(ticket, session)
        except (TableNotFoundError, TableAwaitedError) as error:
            return await self._described("GetFlightInfo", request, error, session=session)
        kept = await self._kept(facts, ticket, descriptor, context=context, session=session)
        told = flight_info(facts, descriptor, ticket, session=session)
        return (told if kept is None else _with_facts(kept, facts)).encode()

    async def poll_flight_info(
        self, request: bytes, context: CallContext, session: ClientSession | None
    ) -> bytes:
        """Begin a query whose result is kept, or tell how far it has got."""
        descriptor = Descriptor.decode(request)
        if is_poll_command(descriptor.command):
            return (await self._results.poll(descriptor.command or b"")).encode()
        planned = await self._planned(descriptor, session, context)
        if planned is not None:
            return PollInfo(info=planned, descriptor=None, progress=1.0).encode()
        ticket = self._resolver.ticket_of_descriptor(descriptor)
        wanted = self._options.wanted(context, session)
        begun = await self._results.begin(ticket, descriptor, session, options=wanted)
        return begun.encode()

    async def _planned(
        self, descriptor: Descriptor, session: ClientSession | None, context: CallContext
    ) -> FlightInfo | None:
        """For commands that are no query: reads of journals, and clients that read over UCX."""
        if is_journal_request(descriptor.command):
            return await self._journals.flight_info(descriptor)
        if is_dissociated_request(descriptor.command):
            return await self._dissociated_info(descriptor, session, context.peer())
        return None

    async def _kept(
        self,
        facts: TableFacts,
        ticket: bytes,
        descriptor: Descriptor,
        *,
        context: CallContext,
        session: ClientSession | None,
    ) -> FlightInfo | None:
        """The rows of a large table, kept; None where the table itself will do."""
        metadata = context.invocation_metadata() or ()
        wanted = self._options.wanted(context, session)
        if (
            session is not None
            or facts.row_count <= wanted.endpoint_rows
            or header_value(metadata, ENDPOINTS_HEADER) == ENDPOINTS_ONE
        ):
            return None
        try:
            return await self._results.kept(ticket, descriptor, session, options=wanted)
        except LimitExceededError:
            return None

    async def _dissociated_info(
        self, descriptor: Descriptor, session: ClientSession | None, peer: str
    ) -> FlightInfo:
        """For clients that read over UCX: locations and a ticket for one snapshot."""
        request = self._dissociated.request(descriptor.command or b"")
        if request.place != PACKED:
            self._gate.check_keeper("bodies in memory that clients read are")
        facts = await self._facts(request.ticket, session)
        told = flight_info(facts, descriptor, request.ticket, session=session)
        return self._dissociated.flight_info(
            request, told, facts.schema, session=session, peer=peer
        )

    async def get_schema(
        self, request: bytes, _: CallContext, session: ClientSession | None
    ) -> bytes:
        descriptor = Descriptor.decode(request)
        if is_journal_request(descriptor.command):
            return await self._journals.get_schema(descriptor)
        if is_dissociated_request(descriptor.command):
            wanted = self._dissociated.request(descriptor.command or b"")
            schema = self._dissociated.schema((await self._facts(wanted.ticket, session)).schema)
            return flight_messages.encode_schema_result(schema.serialize().to_pybytes())
        ticket = self._resolver.ticket_of_descriptor(descriptor)
        try:
            facts = await self._facts(ticket, session)
        except (TableNotFoundError, TableAwaitedError) as error:
            return await self._described("GetSchema", request, error, session=session)
        return flight_messages.encode_schema_result(facts.schema.serialize().to_pybytes())

    async def _described(
        self,
        method: str,
        request: bytes,
        missing: TableNotFoundError | TableAwaitedError,
        *,
        session: ClientSession | None,
    ) -> bytes:
        """What the owner of a table says that is not here yet: a writer must not take it for one
        that nobody has written to. Within a session tables look different, so its answer is of no
        use there."""
        decision = self._gate.decision(missing.name)
        is_whole = decision.may_read and decision.restriction is None
        if self._elsewhere is not None and session is None and is_whole:
            told = await self._elsewhere.describe(FLIGHT + method, request, missing.name)
            if told is not None:
                return told
        raise missing

    async def list_actions(
        self, _request: bytes, context: CallContext, _session: ClientSession | None
    ) -> None:
        for name, action in self._actions.items():
            await context.write(flight_messages.encode_action_type(name, action.description))

    async def do_action(
        self, request: bytes, context: CallContext, session: ClientSession | None
    ) -> None:
        name, body = flight_messages.decode_action(request)
        act = self._actions.get(name)
        if act is not None:
            note_action(name)
        if act is None:
            known = ", ".join(self._actions)
            raise ActionNotFoundError(f"unknown action {name!r}; this server has {known}")
        passed_on = await self._passed_on(name, body)
        if passed_on is not None:
            answer = passed_on
        elif name == BODIES_ACTION:
            # Who asks for a body channel is let in from where it asks.
            answer = await self._bodies.offer(body, context.peer(), sees_all=self._sees_all())
        elif isinstance(act, CallAction):
            answer = await act.run(body, context, session)
        else:
            answer = await act.run(body)
        await context.write(flight_messages.encode_result(answer))

    def _sees_all(self) -> bool:
        """Whether the caller may see whatever lies in the server's memory."""
        try:
            self._gate.check_keeper("bodies that lie beside those of others are")
        except PermissionDeniedError:
            return False
        return True

    async def _passed_on(self, action: str, body: bytes) -> bytes | None:
        """The answer of the server that owns the table; None when that is this one."""
        elsewhere = self._elsewhere
        table = acted_on(body) if elsewhere is not None and action in WRITES else None
        if elsewhere is None or table is None or not await elsewhere.takes(table.name):
            return None
        note_table(table.name)
        self._gate.check(table.name, *_OPERATIONS_OF[action])
        if action in ROW_EDITS:
            self._gate.check(table.name, Operation.READ)
        if action == STAGE_COMMIT and table.is_made:
            self._gate.check(table.name, Operation.CREATE)
        return await elsewhere.act(action, body, table.name)

    async def _facts(self, ticket: bytes, session: ClientSession | None) -> TableFacts:
        source = await self._resolver.source(ticket, session)
        return await asyncio.wrap_future(self._tables.run(partial(self._facts_of, source, session)))

    def _facts_of(self, source: TableSource, session: ClientSession | None) -> TableFacts:
        """Engine thread: what is told about a table, also when it has failed."""
        lease = source if isinstance(source, TableLease) else source()
        table = lease.table
        return TableFacts(
            name=lease.name or "",
            schema=lease_schema(lease, None if session is None else session.types),
            kind=kind_of(table),
            key=tuple(table.key_columns),
            is_ticking=not table.is_static,
            row_count=table.size,
            step=table.present_step,
            epoch=self._epoch_of(table),
            is_writable=isinstance(lease.input_target, KeyedTable),
        )

    def _published_facts(self, tables: Tables, session: ClientSession | None) -> list[TableFacts]:
        """Engine thread: of what the caller may read. A table it sees a part of is not derived for
        that, so nothing is told of its rows."""
        told = []
        for publication in tables:
            if isinstance(tables, CatalogView) and tables.is_restricted(publication.name):
                told.append(_facts_of_part(tables, publication))
            else:
                told.append(
                    self._facts_of(self._resolver.lease_of_publication(publication), session)
                )
        return told

    async def _list_tables(self, _body: bytes) -> bytes:
        tables = self._gate.tables(self._catalog)
        work = partial(self._published_facts, tables, None)
        listed = await asyncio.wrap_future(self._tables.run(work))
        return json.dumps([_listed(facts) for facts in listed]).encode()

    async def _describe(self, body: bytes) -> bytes:
        fields = Fields.parse(body, "action body")
        table, ticket = fields.get("table", str, None), fields.get("ticket", bytes, None)
        fields.finish()
        if (table is None) == (ticket is None):
            raise fields.fail("table", "there, or 'ticket', and not both")
        named = ticket_of(table) if ticket is None else ticket
        facts = await self._facts(named, None)
        if await self._is_edited_elsewhere(facts):
            facts = replace(facts, is_writable=True)
        return json.dumps(described(facts)).encode()

    async def _is_edited_elsewhere(self, facts: TableFacts) -> bool:
        """Whether rows of the table are changed by way of this server, at the one that owns it."""
        if self._elsewhere is None or not facts.name or facts.kind != "keyed":
            return False
        decision = self._gate.decision(facts.name)
        if Operation.WRITE not in decision.allow or decision.restriction is not None:
            return False
        try:
            return await self._elsewhere.takes(facts.name)
        except UnsupportedError:
            return False

    async def _drop_table(self, body: bytes) -> bytes:
        fields = Fields.parse(body, "action body")
        table = fields.get("table", str)
        note_table(table)
        self._gate.check(table, Operation.DROP)
        await asyncio.wrap_future(self._tables.drop(table))
        return b"{}"

    async def _create_table(self, body: bytes) -> bytes:
        fields = Fields.parse(body, "action body")
        schema = fields.schema("schema")
        if schema is None:
            raise fields.fail("schema", "there")
        recipe = TableRecipe.checked(
            fields.get("table", str),
            schema,
            key=fields.texts("key") or (),
            kind=fields.value("kind"),
            capacity=fields.value("capacity"),
            journal=fields.value("journal"),
        )
        note_table(recipe.name)
        self._gate.check(recipe.name, Operation.CREATE)
        await asyncio.wrap_future(self._tables.create(recipe, None))
        return b"{}"


def _facts_of_part(tables: CatalogView, publication: Publication) -> TableFacts:
    """Engine thread: what is told of a table the caller sees a part of."""
    table = publication.table
    try:
        schema = tables.schema_of(publication)
    except UnfitRuleError:
        schema = pa.schema([])
    return TableFacts(
        name=publication.name,
        schema=schema,
        kind=VIEW,
        key=(),
        is_ticking=not table.is_static,
        row_count=UNKNOWN_ROWS,
        step=table.present_step,
    )


def flight_info(
    facts: TableFacts, descriptor: Descriptor, ticket: bytes, *, session: ClientSession | None
) -> FlightInfo:
    """The FlightInfo of one table, as the answer to ``descriptor``."""
    is_counted = session is None or not facts.is_ticking
    row_count = facts.row_count if is_counted else UNKNOWN_ROWS
    return FlightInfo(
        schema_message=facts.schema.serialize().to_pybytes(),
        descriptor=descriptor,
        endpoints=(Endpoint(ticket=ticket),),
        total_records=row_count,
        total_bytes=_byte_count(facts.schema, row_count),
        metadata=json.dumps(_metadata(facts)).encode(),
    )


def _with_facts(kept: FlightInfo, facts: TableFacts) -> FlightInfo:
    """What is told of a table, about rows of it that are kept."""
    told = {**_metadata(facts), **json.loads(kept.metadata)}
    return replace(kept, metadata=json.dumps(told).encode())


def _byte_count(schema: pa.Schema, row_count: int) -> int:
    """Bytes of the values, where they have one width; otherwise nobody has measured them."""
    bits = 0
    for field in schema:
        try:
            bits += field.type.bit_width
        except ValueError:
            return UNKNOWN_BYTES
    return UNKNOWN_BYTES if row_count < 0 else bits * row_count // 8


def _listed(facts: TableFacts) -> dict[str, Any]:
    """Of one table among all."""
    return {
        "name": facts.name,
        **_metadata(facts),
        "rows": facts.row_count,
        "columns": facts.schema.names,
        "description": description_of(facts.schema.metadata)[:LISTED_DESCRIPTION_LENGTH_MAX],
    }


def _metadata(facts: TableFacts) -> dict[str, Any]:
    told = {
        "kind": facts.kind,
        "key": list(facts.key),
        "is_ticking": facts.is_ticking,
        "step": facts.step,
    }
    return told if facts.epoch is None else {**told, "epoch": facts.epoch}
