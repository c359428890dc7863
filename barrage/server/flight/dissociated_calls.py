"""GetFlightInfo for clients of Arrow's Dissociated IPC Protocol, which read over UCX.

The command is JSON: ``{"dissociated": {"table": "quotes"}}``, or ``"query"`` with a query in place
of the table; ``"bodies"`` is one of ``packed`` (the default: type 0), ``shm`` and ``rma`` (type 1).
The answer has one endpoint with a ticket of use once and two ``ucx://`` locations, headers first
and bodies second; with ``"locations": 1`` both come from one. Elsewhere in Flight several locations
of an endpoint are alternatives; that is why this shape is given only to who asks for it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from msgspec import Meta

from barrage.errors import RemoteProtocolError, UnsupportedError
from barrage.server.identity.current_call import current_call, within_call
from barrage.server.settings.json_fields import Fields
from barrage.server.tables.tickets import QUERY_ROUTE, check_table_name, ticket_of
from barrage.transport.flight_messages import Endpoint
from barrage.wire.messages import SnapshotOptions
from barrage.wire.updates.update_codec import EncodeOptions
from barrage.wire.wire_schema import wire_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.limits import Limits
    from barrage.server.access.session_store import ClientSession
    from barrage.server.bodies.body_service import BodyService
    from barrage.server.exchange.exchange_driver import ExchangeHub
    from barrage.transport.bodies import Snapshot
    from barrage.transport.flight_messages import FlightInfo

COMMAND = "dissociated"
PACKED = "packed"
Place = Literal["packed", "shm", "rma"]

Count = Annotated[int, Meta(ge=1, le=2, description="1 or 2")]

_FIRST_BYTE = b"{"

UNDERSTOOD = (
    'commands in JSON are {"dissociated": ...} (GetFlightInfo, PollFlightInfo, GetSchema) and '
    '{"transform": ...} (DoExchange); others are s/<name>, q/<query> and j/<journal request>'
)


def is_dissociated_request(command: bytes | None) -> bool:
    """Whether the command of a descriptor is one of these, or in JSON and nothing we know; no
    ticket begins like it."""
    return command is not None and command.startswith(_FIRST_BYTE)


class DissociatedRequest(NamedTuple):
    """What a command asks for."""

    ticket: bytes
    """Of the table, or of the query."""
    place: str
    is_one_location: bool = False

    @classmethod
    def parse(cls, command: bytes, limits: Limits) -> DissociatedRequest:
        """RemoteProtocolError, LimitExceededError, SchemaError (the table's name)."""
        outer = Fields.parse(command, "command", bytes_max=limits.ticket_bytes_max)
        if outer.value(COMMAND) is None:
            raise RemoteProtocolError(f"the command is not understood: {UNDERSTOOD}")
        fields = outer.part(COMMAND, "command")
        outer.finish()
        query = fields.get("query", dict, None)
        if query is None:
            ticket = ticket_of(check_table_name(fields.value("table")))
        else:
            ticket = QUERY_ROUTE + json.dumps(query).encode()
        place = fields.get("bodies", Place, PACKED)
        count = fields.get("locations", Count, 2)
        fields.finish()
        return cls(ticket, place, count == 1)


class DissociatedCalls:
    """Answers such commands."""

    def __init__(self, bodies: BodyService, hub: ExchangeHub, limits: Limits) -> None:
        self._bodies = bodies
        self._hub = hub
        self._limits = limits

    def request(self, command: bytes) -> DissociatedRequest:
        """Read a command. Errors of :meth:`DissociatedRequest.parse`; UnsupportedError when UCX
        is not switched on."""
        request = DissociatedRequest.parse(command, self._limits)
        if self._bodies.tables is None:
            raise UnsupportedError("UCX is not switched on; start the server with --bodies ucx")
        return request

    def flight_info(
        self,
        request: DissociatedRequest,
        told: FlightInfo,
        schema: pa.Schema,
        *,
        session: ClientSession | None,
        peer: str,
    ) -> FlightInfo:
        """``told``, the information on the table, with locations and a ticket for one snapshot of
        it by the caller ``peer``. ``schema`` is that of the table."""
        tables = self._bodies.tables
        assert tables is not None

        call = current_call()

        async def take_snapshot() -> Snapshot:
            options = EncodeOptions.for_snapshot(SnapshotOptions(), self._limits)
            # It is another connection that comes for it, and this caller to whom it is shown.
            with within_call(call):
                encoder, updates = await self._hub.snapshot(request.ticket, session, options)
            return encoder.schema, updates

        offered = tables.offer(
            take_snapshot, request.place, peer, is_one_location=request.is_one_location
        )
        return replace(
            told,
            schema_message=self.schema(schema).serialize().to_pybytes(),
            endpoints=(Endpoint(ticket=offered.ticket, locations=offered.locations),),
        )

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """That of a table as it travels."""
        return wire_schema(schema, self._limits, keeps_index_types=True)
