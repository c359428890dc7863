"""Field 1001 of our FlightData when the body lies in shared memory: where it is.

24 bytes, three unsigned little-endian 64-bit numbers: address in the arena, length, and the
generation of the region, which tells a body from a later one in the same place.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from barrage.errors import RemoteProtocolError

_LAYOUT = struct.Struct("<QQQ")

REFERENCE_BYTES = _LAYOUT.size


class BodyReference(NamedTuple):
    """One packed body in an arena."""

    address: int
    length: int
    """In bytes."""
    generation: int

    def encode(self) -> bytes:
        """The 24 bytes of the field."""
        return _LAYOUT.pack(*self)

    @classmethod
    def decode(cls, buffer: bytes | memoryview) -> BodyReference:
        """Read the field. Whether the address is in the arena is for the arena to say."""
        if len(buffer) != REFERENCE_BYTES:
            raise RemoteProtocolError(
                f"a reference to a body has {len(buffer)} bytes instead of {REFERENCE_BYTES}"
            )
        return cls(*_LAYOUT.unpack(buffer))
