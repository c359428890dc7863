"""FlightData as protobuf bytes, written and read by hand.

Source: barrage-wire.md section 3.1 and the public Arrow Flight protocol. A protobuf library would
drop an empty body, which the Java client refuses, and would copy the body; this module does
neither. Fields are written in the order 1, 2, 3, 1000: some readers stop at field 1000.

Fields 1001 to 1003 are ours (docs/transports.md): where a body is that is not in the message, which
bodies the sender has done with, and why bodies come in their messages from now on. Nobody is sent
them who has not asked for them.

Cost: encoding copies each part once (one join); decoding copies header and metadata, never the
body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.frame import FlightFrame

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from barrage.limits import Limits

TAG_DESCRIPTOR = b"\x0a"
TAG_HEADER = b"\x12"
TAG_METADATA = b"\x1a"
TAG_BODY = b"\xc2\x3e"
TAG_BODY_REFERENCE = b"\xca\x3e"
TAG_RELEASED = b"\xd2\x3e"
TAG_INLINE_REASON = b"\xda\x3e"
_FIELD_DESCRIPTOR = 1
_FIELD_HEADER = 2
_FIELD_METADATA = 3
_FIELD_BODY = 1000
_FIELD_BODY_REFERENCE = 1001
_FIELD_RELEASED = 1002
_FIELD_INLINE_REASON = 1003

_WIRE_VARINT = 0
_WIRE_FIXED64 = 1
_WIRE_BYTES = 2
_WIRE_FIXED32 = 5


def encode_varint(value: int) -> bytes:
    """Protobuf base-128 form of a non-negative integer."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def encode_flight_data(frame: FlightFrame) -> bytes:
    """The message bytes of ``frame``; absent fields are left out, empty ones are written."""
    parts: list[bytes | memoryview | pa.Buffer] = []
    for tag, value in (
        (TAG_DESCRIPTOR, frame.descriptor),
        (TAG_HEADER, frame.header),
        (TAG_METADATA, frame.metadata),
        (TAG_BODY, frame.body),
        (TAG_BODY_REFERENCE, frame.body_reference),
        (TAG_RELEASED, frame.released),
        (TAG_INLINE_REASON, frame.inline_reason),
    ):
        if value is not None:
            parts += (tag, encode_varint(len(value)), value)
    return b"".join(parts)


def with_inline_reason(message: bytes, reason: str) -> bytes:
    """``message``, saying besides that its body and all later ones come in their messages."""
    text = reason.encode()
    return b"".join((message, TAG_INLINE_REASON, encode_varint(len(text)), text))


def decode_flight_data(
    buffer: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS
) -> FlightFrame:
    """Split a message into its fields; the body is a view of ``buffer``.

    Unknown fields are skipped, of repeated ones the last counts. Raises RemoteProtocolError for
    anything that is not a protobuf message or longer than ``limits.message_bytes_max``.
    """
    view = memoryview(buffer).cast("B") if not isinstance(buffer, bytes) else memoryview(buffer)
    if len(view) > limits.message_bytes_max:
        raise RemoteProtocolError(
            f"message has {len(view)} bytes, the limit is {limits.message_bytes_max} bytes"
        )
    fields = dict(_length_delimited_fields(view))
    descriptor = fields.get(_FIELD_DESCRIPTOR)
    header = fields.get(_FIELD_HEADER)
    metadata = fields.get(_FIELD_METADATA)
    body_reference = fields.get(_FIELD_BODY_REFERENCE)
    released = fields.get(_FIELD_RELEASED)
    inline_reason = fields.get(_FIELD_INLINE_REASON)
    return FlightFrame(
        descriptor=None if descriptor is None else bytes(descriptor),
        header=None if header is None else bytes(header),
        metadata=None if metadata is None else bytes(metadata),
        body=fields.get(_FIELD_BODY),
        body_reference=None if body_reference is None else bytes(body_reference),
        released=None if released is None else bytes(released),
        inline_reason=None if inline_reason is None else bytes(inline_reason),
    )


def _length_delimited_fields(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    for number, value in _fields(view):
        if not isinstance(value, int):
            yield number, value


def _fields(view: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of every field: integers for varints, views for length-delimited ones."""
    position = 0
    end = len(view)
    while position < end:
        tag, position = _read_varint(view, position)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise RemoteProtocolError("protobuf field number 0")
        if wire_type == _WIRE_BYTES:
            length, position = _read_varint(view, position)
            if length > end - position:
                raise RemoteProtocolError(
                    f"field {number} says {length} bytes, {end - position} are left"
                )
            yield number, view[position : position + length]
            position += length
        elif wire_type == _WIRE_VARINT:
            value, position = _read_varint(view, position)
            yield number, value
        elif wire_type in (_WIRE_FIXED64, _WIRE_FIXED32):
            position += 8 if wire_type == _WIRE_FIXED64 else 4
            if position > end:
                raise RemoteProtocolError(f"field {number} is cut off")
        else:
            raise RemoteProtocolError(f"field {number} has unknown wire type {wire_type}")


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """Value and the position after it; at most ten groups, as protobuf allows."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(view):
            raise RemoteProtocolError("message ends inside a varint")
        group = view[position]
        position += 1
        value |= (group & 0x7F) << shift
        if group < 0x80:
            return value, position
    raise RemoteProtocolError("varint is longer than 10 bytes")
