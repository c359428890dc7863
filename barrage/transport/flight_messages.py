"""The messages of ``arrow.flight.protocol`` a client sends and reads, except FlightData
(barrage.wire.flight_data).

Field numbers: Flight.proto of Apache Arrow. Also the one Deephaven message a client needs to log in
(deephaven-clients notes, appendix A.1: ConfigurationConstantsResponse).
"""

from __future__ import annotations

from dataclasses import dataclass

from barrage.errors import RemoteProtocolError
from barrage.transport.protobuf import bytes_field, read_fields, signed64, varint_field

DESCRIPTOR_PATH, DESCRIPTOR_CMD = 1, 2
"""FlightDescriptor.DescriptorType."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightInfo:
    """What a server says about one flight. ``schema`` is an encapsulated IPC message; -1 means not
    known."""

    schema: bytes = b""
    path: tuple[str, ...] = ()
    tickets: tuple[bytes, ...] = ()
    total_records: int = -1
    total_bytes: int = -1
    app_metadata: bytes = b""


def encode_ticket(ticket: bytes) -> bytes:
    """Ticket: 1 ticket."""
    return bytes_field(1, ticket)


def encode_path_descriptor(*path: str) -> bytes:
    """FlightDescriptor: 1 type, 3 path."""
    return varint_field(1, DESCRIPTOR_PATH) + b"".join(bytes_field(3, part) for part in path)


def encode_cmd_descriptor(command: bytes) -> bytes:
    """FlightDescriptor: 1 type, 2 cmd."""
    return varint_field(1, DESCRIPTOR_CMD) + bytes_field(2, command)


def encode_action(kind: str, body: bytes) -> bytes:
    """Action: 1 type, 2 body."""
    return bytes_field(1, kind) + bytes_field(2, body)


def decode_result(message: bytes) -> bytes:
    """Result: 1 body."""
    return _only_bytes(message, 1)


def decode_put_result(message: bytes) -> bytes:
    """PutResult: 1 app_metadata."""
    return _only_bytes(message, 1)


def decode_schema_result(message: bytes) -> bytes:
    """SchemaResult: 1 schema, an encapsulated IPC message."""
    return _only_bytes(message, 1)


def decode_flight_info(message: bytes) -> FlightInfo:
    """FlightInfo: 1 schema, 2 descriptor, 3 endpoints, 4 total_records, 5 total_bytes, 7
    app_metadata."""
    found: dict[int, bytes | int] = {}
    tickets: list[bytes] = []
    for number, value in read_fields(message):
        if number == 3:
            tickets.append(_endpoint_ticket(_as_bytes(value)))
        else:
            found[number] = value
    return FlightInfo(
        schema=_as_bytes(found.get(1, b"")),
        path=_descriptor_path(_as_bytes(found.get(2, b""))),
        tickets=tuple(tickets),
        total_records=signed64(_as_int(found.get(4, 0))),
        total_bytes=signed64(_as_int(found.get(5, 0))),
        app_metadata=_as_bytes(found.get(7, b"")),
    )


def decode_configuration(message: bytes) -> dict[str, str]:
    """ConfigurationConstantsResponse: 1 map entries of 1 key, 2 ConfigValue (3 string_value)."""
    constants: dict[str, str] = {}
    for number, entry in read_fields(message):
        if number != 1:
            continue
        key, value = "", b""
        for part, payload in read_fields(_as_bytes(entry)):
            if part == 1:
                key = _as_text(payload)
            elif part == 2:
                value = _only_bytes(_as_bytes(payload), 3)
        constants[key] = _as_text(value)
    return constants


def _endpoint_ticket(message: bytes) -> bytes:
    """FlightEndpoint: 1 ticket."""
    return _only_bytes(_only_bytes(message, 1), 1)


def _descriptor_path(message: bytes) -> tuple[str, ...]:
    return tuple(_as_text(value) for number, value in read_fields(message) if number == 3)


def _only_bytes(message: bytes, wanted: int) -> bytes:
    """The last value of one bytes field; empty when absent, as Protocol Buffers define it."""
    result = b""
    for number, value in read_fields(message):
        if number == wanted:
            result = _as_bytes(value)
    return result


def _as_bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise RemoteProtocolError("protobuf: a number stands where bytes belong")
    return value


def _as_int(value: bytes | int) -> int:
    if isinstance(value, bytes):
        raise RemoteProtocolError("protobuf: bytes stand where a number belongs")
    return value


def _as_text(value: bytes | int) -> str:
    try:
        return _as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"protobuf: text is not UTF-8: {error}") from error
