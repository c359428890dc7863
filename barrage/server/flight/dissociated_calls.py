"""GetFlightInfo for clients of Arrow's Dissociated IPC Protocol, which read over UCX.

The command is JSON: ``{"dissociated": {"table": "quotes"}}``, with ``"bodies"`` one of ``packed``
(the default: type 0), ``shm`` and ``rma`` (type 1). The answer has one endpoint with a ticket of
use once and two ``ucx://`` locations, headers first and bodies second. Elsewhere in Flight several
locations of an endpoint are alternatives; that is why this shape is given only to who asks for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from barrage.errors import UnsupportedError
from barrage.server.identity.current_call import current_call, within_call
from barrage.server.settings.json_fields import Fields
from barrage.server.tables.tickets import check_table_name, ticket_of
from barrage.wire.messages import SnapshotOptions
from barrage.wire.updates.update_codec import EncodeOptions
from barrage.wire.wire_schema import wire_schema

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.server.access.session_store import ClientSession
    from barrage.server.bodies.body_service import BodyService
    from barrage.server.exchange.exchange_driver import ExchangeHub
    from barrage.transport.bodies import Snapshot
    from barrage.transport.flight_messages import FlightInfo

COMMAND = "dissociated"
PACKED = "packed"
Place = Literal["packed", "shm", "rma"]

_FIRST_BYTE = b"{"


def is_dissociated_request(command: bytes | None) -> bool:
    """Whether the command of a descriptor is one of these; no ticket begins like it."""
    return command is not None and command.startswith(_FIRST_BYTE)


class DissociatedRequest(NamedTuple):
    """What a command asks for."""

    ticket: bytes
    """Of the table."""
    place: str

    @classmethod
    def parse(cls, command: bytes, limits: Limits) -> DissociatedRequest:
        """RemoteProtocolError, LimitExceededError, SchemaError (the table's name)."""
        outer = Fields.parse(command, "command", bytes_max=limits.ticket_bytes_max)
        fields = outer.part(COMMAND, "command")
        outer.finish()
        table = check_table_name(fields.value("table"))
        place = fields.get("bodies", Place, PACKED)
        fields.finish()
        return cls(ticket_of(table), place)


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
        schema: Any,
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

        offered = tables.offer(take_snapshot, request.place, peer)
        travelling = wire_schema(schema, self._limits, keeps_index_types=True)
        return replace(
            told,
            schema_message=travelling.serialize().to_pybytes(),
            ticket=offered.ticket,
            locations=offered.locations,
        )
