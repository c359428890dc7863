"""Tags of body messages and the order of their sequence numbers.

Source: Arrow's Dissociated IPC Protocol. A tag has 64 bits: the sequence number in the lower 32,
24 reserved bits of zero, the type of the body in the upper 8. The document's text puts the type
there; its diagrams, and the example that follows them, shift by 55. We write what the text says and
read both.

Sequence numbers roll over at 2^32, so they are compared by serial arithmetic: one is before
another when it is less than half of the way round behind it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from barrage.errors import RemoteProtocolError

SEQUENCE_MASK = 0xFFFFFFFF

_TYPE_SHIFT = 56
_DIAGRAM_RANGES = 1 << 55
"""The tag bits of type 1 in the diagrams of the document."""


class BodyType(IntEnum):
    """What the message under a tag holds."""

    PACKED = 0
    """The bytes of the body."""
    RANGES = 1
    """Addresses and lengths of the body's buffers."""


class BodyTag(NamedTuple):
    """A tag taken apart."""

    body_type: BodyType
    sequence: int


def encode_tag(body_type: BodyType, sequence: int) -> int:
    """The tag of the body with number ``sequence`` (modulo 2^32)."""
    return body_type << _TYPE_SHIFT | sequence & SEQUENCE_MASK


def decode_tag(tag: int) -> BodyTag:
    """Take a peer's tag apart; RemoteProtocolError when reserved bits or an unknown type are
    set."""
    sequence = tag & SEQUENCE_MASK
    upper = tag ^ sequence
    if upper == 0:
        return BodyTag(BodyType.PACKED, sequence)
    if upper in (BodyType.RANGES << _TYPE_SHIFT, _DIAGRAM_RANGES):
        return BodyTag(BodyType.RANGES, sequence)
    raise RemoteProtocolError(f"tag {tag:#018x} has reserved bits or an unknown type of body")


def next_sequence(sequence: int) -> int:
    """The number after ``sequence``."""
    return (sequence + 1) & SEQUENCE_MASK


def distance(start: int, stop: int) -> int:
    """How many numbers lie from ``start`` up to ``stop``, modulo 2^32."""
    return (stop - start) & SEQUENCE_MASK
