"""Untagged messages: Arrow headers and the end of a stream, apart from the bodies.

Source: Arrow's Dissociated IPC Protocol. One byte of type, four of sequence number (unsigned,
little endian), then the bare Arrow message of a header; the end is these five bytes alone and
carries the number after the last header. It may overtake headers, so it says where the stream
stops, not that everything is there.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.dissociated.tags import SEQUENCE_MASK

if TYPE_CHECKING:
    from barrage.limits import Limits

_PREFIX = struct.Struct("<BI")
_END = 0
_HEADER = 1

PREFIX_BYTES = _PREFIX.size


class HeaderMessage(NamedTuple):
    """One bare Arrow message and its place in the stream."""

    sequence: int
    header: bytes


class EndMessage(NamedTuple):
    """No header has ``sequence`` or a later number."""

    sequence: int


UntaggedMessage: TypeAlias = HeaderMessage | EndMessage


def encode_header_message(sequence: int, header: bytes) -> bytes:
    """The message of one header."""
    return _PREFIX.pack(_HEADER, sequence & SEQUENCE_MASK) + header


def encode_end_message(sequence: int) -> bytes:
    """The message of the end; ``sequence`` is the number no header has any more."""
    return _PREFIX.pack(_END, sequence & SEQUENCE_MASK)


def decode_untagged(
    buffer: bytes | bytearray | memoryview, limits: Limits = DEFAULT_LIMITS
) -> UntaggedMessage:
    """Read either; the header inside is not looked at. Raises RemoteProtocolError."""
    size = len(buffer)
    if size < PREFIX_BYTES:
        raise RemoteProtocolError(f"untagged message has {size} bytes, fewer than {PREFIX_BYTES}")
    if size > limits.message_bytes_max:
        raise RemoteProtocolError(
            f"untagged message has {size} bytes, the limit is {limits.message_bytes_max} bytes"
        )
    kind, sequence = _PREFIX.unpack_from(buffer)
    if kind == _HEADER and size > PREFIX_BYTES:
        return HeaderMessage(sequence, bytes(memoryview(buffer)[PREFIX_BYTES:]))
    if kind == _END and size == PREFIX_BYTES:
        return EndMessage(sequence)
    raise RemoteProtocolError(f"untagged message of type {kind} with {size} bytes")
