"""The unary messages of Arrow Flight, both ways: descriptors, tickets, infos, actions.

Field numbers and types: ``proto_schemas/flight.proto``. FlightData is in :mod:`barrage.wire`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from barrage.errors import RemoteProtocolError
from barrage.transport._proto.flight_descriptor import FILE_DESCRIPTOR
from barrage.transport.protobuf import MessageSet

SERVICE_NAME = "arrow.flight.protocol.FlightService"

FLIGHT = f"/{SERVICE_NAME}/"
"""What the full names of its methods begin with."""

_MESSAGES = MessageSet(FILE_DESCRIPTOR)
_PATH = 1
_CMD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A FlightDescriptor: a path, or the bytes of a command."""

    path: tuple[str, ...] = ()
    command: bytes | None = None

    @classmethod
    def decode(cls, buffer: bytes | memoryview) -> Descriptor:
        """Read the message; RemoteProtocolError when it is malformed or names nothing."""
        found = cls._of(_MESSAGES.decode("FlightDescriptor", buffer))
        if found is None:
            raise RemoteProtocolError("flight descriptor has neither a path nor a command")
        return found

    @classmethod
    def _of(cls, message: Any) -> Descriptor | None:
        if message.type == _PATH:
            return cls(path=tuple(message.path))
        if message.type == _CMD:
            return cls(command=bytes(message.cmd))
        return None

    def _to_message(self) -> Any:
        if self.command is not None:
            return _MESSAGES.new("FlightDescriptor", type=_CMD, cmd=self.command)
        return _MESSAGES.new("FlightDescriptor", type=_PATH, path=list(self.path))

    def encode(self) -> bytes:
        return bytes(self._to_message().SerializeToString())


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightInfo:
    """What ListFlights and GetFlightInfo tell about one table, or one plan of reading it.

    ``schema_message`` is an encapsulated IPC message, ``ticket`` that of the first endpoint and
    ``more_tickets`` those of the others, each of which has further rows; totals of -1 are not
    known.
    """

    schema_message: bytes
    descriptor: Descriptor
    ticket: bytes
    total_records: int
    total_bytes: int
    metadata: bytes
    more_tickets: tuple[bytes, ...] = ()
    locations: tuple[str, ...] = ()
    """Where the first endpoint is to be had; nothing says: where this came from."""

    def encode(self) -> bytes:
        endpoints = [
            _MESSAGES.new("FlightEndpoint", ticket=_MESSAGES.new("Ticket", ticket=ticket))
            for ticket in (self.ticket, *self.more_tickets)
        ]
        endpoints[0].location.extend(_MESSAGES.new("Location", uri=uri) for uri in self.locations)
        return _MESSAGES.encode(
            "FlightInfo",
            schema=self.schema_message,
            flight_descriptor=self.descriptor._to_message(),
            endpoint=endpoints,
            total_records=self.total_records,
            total_bytes=self.total_bytes,
            app_metadata=self.metadata,
            ordered=True,
        )

    @classmethod
    def decode(cls, buffer: bytes) -> FlightInfo:
        """Read the message of any Flight server; RemoteProtocolError when it is malformed."""
        info = _MESSAGES.decode("FlightInfo", buffer)
        return cls(
            schema_message=bytes(info.schema),
            descriptor=Descriptor._of(info.flight_descriptor) or Descriptor(),
            ticket=bytes(info.endpoint[0].ticket.ticket) if info.endpoint else b"",
            total_records=int(info.total_records),
            total_bytes=int(info.total_bytes),
            metadata=bytes(info.app_metadata),
            more_tickets=tuple(bytes(end.ticket.ticket) for end in info.endpoint[1:]),
            locations=tuple(str(at.uri) for end in info.endpoint[:1] for at in end.location),
        )


def encode_ticket(ticket: bytes) -> bytes:
    return _MESSAGES.encode("Ticket", ticket=ticket)


def decode_ticket(buffer: bytes) -> bytes:
    """The bytes inside a Ticket message."""
    return bytes(_MESSAGES.decode("Ticket", buffer).ticket)


def decode_criteria(buffer: bytes) -> bytes:
    """The expression of a Criteria message."""
    return bytes(_MESSAGES.decode("Criteria", buffer).expression)


def encode_action(kind: str, body: bytes) -> bytes:
    return _MESSAGES.encode("Action", type=kind, body=body)


def decode_action(buffer: bytes) -> tuple[str, bytes]:
    """Type and body of an Action."""
    action = _MESSAGES.decode("Action", buffer)
    return str(action.type), bytes(action.body)


def encode_action_type(name: str, description: str) -> bytes:
    return _MESSAGES.encode("ActionType", type=name, description=description)


def decode_action_type(buffer: bytes) -> str:
    """The name of an action, as ListActions tells it."""
    return str(_MESSAGES.decode("ActionType", buffer).type)


def encode_result(body: bytes) -> bytes:
    return _MESSAGES.encode("Result", body=body)


def decode_result(buffer: bytes) -> bytes:
    """The body of an action's Result."""
    return bytes(_MESSAGES.decode("Result", buffer).body)


def decode_handshake(buffer: bytes) -> tuple[int, bytes]:
    """Protocol version and payload of a HandshakeRequest."""
    request = _MESSAGES.decode("HandshakeRequest", buffer)
    return int(request.protocol_version), bytes(request.payload)


def decode_basic_auth(buffer: bytes) -> tuple[str, str]:
    """User name and password of a BasicAuth payload."""
    auth = _MESSAGES.decode("BasicAuth", buffer)
    return str(auth.username), str(auth.password)


def encode_handshake_response(payload: bytes) -> bytes:
    return _MESSAGES.encode("HandshakeResponse", payload=payload)


def encode_schema_result(schema_message: bytes) -> bytes:
    return _MESSAGES.encode("SchemaResult", schema=schema_message)


def encode_put_result(metadata: bytes) -> bytes:
    return _MESSAGES.encode("PutResult", app_metadata=metadata)


def decode_put_result(buffer: bytes) -> bytes:
    """The app_metadata of a PutResult."""
    return bytes(_MESSAGES.decode("PutResult", buffer).app_metadata)
