"""One encoded message whose body is still in pieces, so that it can be put somewhere else.

The encoder hands these to whoever decides where a body goes; nothing is copied until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from barrage.errors import LocalProtocolError
from barrage.wire.flight_data import (
    TAG_BODY,
    TAG_BODY_REFERENCE,
    decode_flight_data,
    encode_varint,
)
from barrage.wire.message_parts import MessageParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.wire.columns.base import BufferLike


class DetachedFrame(NamedTuple):
    """A record or dictionary batch. ``parts`` joined are the body of ``body_bytes`` bytes; they
    refer to the memory of the columns, which must not change before they are used."""

    head: bytes
    """The fields before the body, encoded: Arrow header and, on the first message of an update,
    metadata."""
    parts: Sequence[BufferLike]
    body_bytes: int

    def inline(self) -> bytes:
        """The complete FlightData, as if nothing had been detached."""
        return b"".join(self._whole())

    def in_parts(self) -> MessageParts:
        """The same, with nothing copied yet."""
        return MessageParts(self._whole())

    def _whole(self) -> tuple[BufferLike, ...]:
        return (self.head, TAG_BODY, encode_varint(self.body_bytes), *self.parts)

    def message(self, reference: bytes) -> bytes:
        """The FlightData without its body; ``reference`` tells where that is (nothing: it comes
        under the number of this message)."""
        return b"".join((self.head, TAG_BODY_REFERENCE, encode_varint(len(reference)), reference))

    def header(self) -> bytes:
        """The bare Arrow message, for streams that send it by itself. It may end with padding."""
        header = decode_flight_data(self.head).header
        if header is None:
            raise LocalProtocolError("a detached message has no Arrow header")
        return header
