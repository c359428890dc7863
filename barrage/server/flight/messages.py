"""The unary messages of Arrow Flight: descriptors, tickets, infos, actions.

FlightData is not here: it is on the hot path and has its own codec in :mod:`barrage.wire`. The
classes are made in a descriptor pool of our own, because another copy of Arrow Flight in the same
process (a client library's stubs) would otherwise collide with ours in the process-wide pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from barrage.errors import RemoteProtocolError
from barrage.server._proto.flight_descriptor import FILE_DESCRIPTOR

SERVICE_NAME = "arrow.flight.protocol.FlightService"


def _make_pool() -> descriptor_pool.DescriptorPool:
    """A pool with every service we offer, so that reflection can describe all of them."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(FILE_DESCRIPTOR)
    for other in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        file = descriptor_pb2.FileDescriptorProto()
        other.CopyToProto(file)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _make_pool()
_CLASSES: dict[str, Any] = message_factory.GetMessageClassesForFiles(["flight.proto"], POOL)
_PREFIX = "arrow.flight.protocol."

_PATH = 1
_CMD = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """A FlightDescriptor: a path, or the bytes of a command."""

    path: tuple[str, ...] = ()
    command: bytes | None = None

    @classmethod
    def parse(cls, buffer: bytes | memoryview) -> Descriptor:
        """Read the protobuf message; RemoteProtocolError when it is malformed or names nothing."""
        parsed = _parse("FlightDescriptor", buffer)
        if parsed.type == _PATH:
            return cls(path=tuple(parsed.path))
        if parsed.type == _CMD:
            return cls(command=bytes(parsed.cmd))
        raise RemoteProtocolError("flight descriptor has neither a path nor a command")

    def _to_message(self) -> Any:
        if self.command is not None:
            return _new("FlightDescriptor", type=_CMD, cmd=self.command)
        return _new("FlightDescriptor", type=_PATH, path=list(self.path))

    def serialize(self) -> bytes:
        return _bytes(self._to_message())


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightInfo:
    """What ListFlights and GetFlightInfo tell about one table; ``schema_message`` is an
    encapsulated IPC message."""

    schema_message: bytes
    descriptor: Descriptor
    ticket: bytes
    total_records: int
    total_bytes: int
    metadata: bytes

    def serialize(self) -> bytes:
        return _bytes(
            _new(
                "FlightInfo",
                schema=self.schema_message,
                flight_descriptor=self.descriptor._to_message(),
                endpoint=[_new("FlightEndpoint", ticket=_new("Ticket", ticket=self.ticket))],
                total_records=self.total_records,
                total_bytes=self.total_bytes,
                app_metadata=self.metadata,
                ordered=True,
            )
        )


def parse_ticket(buffer: bytes) -> bytes:
    """The bytes inside a Ticket message."""
    return bytes(_parse("Ticket", buffer).ticket)


def parse_criteria(buffer: bytes) -> bytes:
    """The expression of a Criteria message."""
    return bytes(_parse("Criteria", buffer).expression)


def parse_action(buffer: bytes) -> tuple[str, bytes]:
    """Type and body of an Action."""
    action = _parse("Action", buffer)
    return str(action.type), bytes(action.body)


def parse_handshake(buffer: bytes) -> tuple[int, bytes]:
    """Protocol version and payload of a HandshakeRequest."""
    request = _parse("HandshakeRequest", buffer)
    return int(request.protocol_version), bytes(request.payload)


def parse_basic_auth(buffer: bytes) -> tuple[str, str]:
    """User name and password of a BasicAuth payload."""
    auth = _parse("BasicAuth", buffer)
    return str(auth.username), str(auth.password)


def handshake_response(payload: bytes) -> bytes:
    return _bytes(_new("HandshakeResponse", payload=payload))


def schema_result(schema_message: bytes) -> bytes:
    return _bytes(_new("SchemaResult", schema=schema_message))


def action_result(body: bytes) -> bytes:
    return _bytes(_new("Result", body=body))


def action_type(name: str, description: str) -> bytes:
    return _bytes(_new("ActionType", type=name, description=description))


def put_result(metadata: bytes) -> bytes:
    return _bytes(_new("PutResult", app_metadata=metadata))


def _new(name: str, **fields: Any) -> Any:
    return _CLASSES[_PREFIX + name](**fields)


def _bytes(built: Any) -> bytes:
    return bytes(built.SerializeToString())


def _parse(name: str, buffer: bytes | memoryview) -> Any:
    try:
        return _CLASSES[_PREFIX + name].FromString(bytes(buffer))
    except message.DecodeError as error:
        raise RemoteProtocolError(f"malformed {name} message") from error
