"""Just enough Protocol Buffers for the Flight and session messages a client needs: varints and byte
fields.

Hand written because the messages are tiny and generated code would register global descriptors that
clash with other Flight libraries in the same process. Cost: O(bytes); nothing is copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import RemoteProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types (Protocol Buffers encoding)."""

_VARINT_BYTES_MAX = 10
_FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


def encode_varint(value: int) -> bytes:
    """Base 128, least significant group first; ``value`` >= 0."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_field(number: int, value: bytes | str) -> bytes:
    """A string, bytes or message field."""
    payload = value.encode() if isinstance(value, str) else value
    return encode_varint(number << 3 | BYTES) + encode_varint(len(payload)) + payload


def varint_field(number: int, value: int) -> bytes:
    """An int, bool or enum field; zero is the default and is left out."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def read_varint(buffer: bytes | memoryview, start: int) -> tuple[int, int]:
    """The value at ``start`` as an unsigned number, and the offset after it."""
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        if start + index >= len(buffer):
            break
        byte = buffer[start + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, start + index + 1
    raise RemoteProtocolError(f"protobuf: no valid varint at offset {start}")


def read_fields(buffer: bytes | memoryview) -> Iterator[tuple[int, int | bytes]]:
    """Fields of one message in order: number and value (int for numbers, bytes for the rest)."""
    offset = 0
    while offset < len(buffer):
        tag, offset = read_varint(buffer, offset)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == VARINT:
            value, offset = read_varint(buffer, offset)
            yield number, value
            continue
        if wire_type == BYTES:
            length, offset = read_varint(buffer, offset)
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        else:
            raise RemoteProtocolError(f"protobuf: wire type {wire_type} in field {number}")
        if length > len(buffer) - offset:
            raise RemoteProtocolError(
                f"protobuf: field {number} says {length} bytes, {len(buffer) - offset} are left"
            )
        payload = bytes(buffer[offset : offset + length])
        offset += length
        yield number, payload if wire_type == BYTES else int.from_bytes(payload, "little")


def signed64(value: int) -> int:
    """A varint as the int64 it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value
