"""What became of the bodies of one way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class BodyCounts:
    """Counted on the event loop. Bodies too small to leave their messages are not counted."""

    streams: int = 0
    """Open streams that have claimed this way."""

    bodies_out: int = 0
    bytes_out: int = 0
    bodies_inline: int = 0
    """Bodies that could have left the stream and did not."""
    bytes_inline: int = 0
    fallbacks: int = 0
    """Streams that went inline for good."""
    refusals: int = 0
    """Claims that were refused."""

    def outside(self, byte_count: int) -> None:
        self.bodies_out += 1
        self.bytes_out += byte_count

    def inline(self, byte_count: int) -> None:
        self.bodies_inline += 1
        self.bytes_inline += byte_count
