"""Frames whose bodies can leave the stream, as the encoder of each way yields them.

An encoder is made for one way, so subscribers of one way share its frames and their memory. Each
stream still decides for itself, frame by frame: any of these can be written inline as well. Small
bodies, and those the arena has no room for, are ordinary bytes from the beginning.

Cost: a placed body is copied once, from the columns' own buffers into shared memory; a loose one
not at all until it is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from barrage.server.access.frame_writing import write_parts
from barrage.wire.dissociated.detached import DetachedFrame

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.transport.shared_memory import Region
    from barrage.wire.columns.base import BufferLike
    from barrage.wire.message_parts import MessageParts

    Place: TypeAlias = Callable[[Sequence[BufferLike], int], Region | None]


BodyFrame: TypeAlias = "PlacedFrame | LooseFrame"
"""A message with a body apart from its head. Its length is that of both."""

Frame: TypeAlias = "bytes | PlacedFrame | LooseFrame"
"""What streams write: complete messages, or messages with a body apart."""


class PlacedFrame:
    """A frame whose body stands in shared memory, as long as anybody refers to it."""

    __slots__ = ("_frame", "body_bytes", "region")

    def __init__(self, frame: DetachedFrame, region: Region) -> None:
        self.region = region
        self.body_bytes = frame.body_bytes
        # The parts are columns of the table, which need not live as long as the body.
        self._frame = DetachedFrame(frame.head, (region.view,), frame.body_bytes)

    def __len__(self) -> int:
        return len(self._frame.head) + self.body_bytes

    def inline(self) -> bytes:
        return self._frame.inline()

    def message(self) -> bytes:
        """The message without the body, which tells where that is."""
        return self._frame.message(self.region.reference().encode())


class LooseFrame:
    """A frame whose body is still in parts, to be sent by each stream under a number of its own."""

    __slots__ = ("body_bytes", "detached")

    def __init__(self, detached: DetachedFrame) -> None:
        self.detached = detached
        self.body_bytes = detached.body_bytes

    def __len__(self) -> int:
        return len(self.detached.head) + self.body_bytes

    def inline(self) -> bytes:
        return self.detached.inline()

    def in_parts(self) -> MessageParts:
        """The message with its body, of which nothing is copied."""
        return self.detached.in_parts()

    def message(self) -> bytes:
        """The message without the body, whose number is that of the message."""
        return self.detached.message(b"")


def placer(place: Place, inline_bytes_max: int) -> Callable[[DetachedFrame], Frame]:
    """The detaching half of an encoder for shared memory."""

    def detach(frame: DetachedFrame) -> Frame:
        if frame.body_bytes <= inline_bytes_max:
            return frame.inline()
        region = place(frame.parts, frame.body_bytes)
        return frame.inline() if region is None else PlacedFrame(frame, region)

    return detach


def loosener(inline_bytes_max: int) -> Callable[[DetachedFrame], Frame]:
    """The detaching half of an encoder for bodies that travel as messages of their own."""

    def detach(frame: DetachedFrame) -> Frame:
        return frame.inline() if frame.body_bytes <= inline_bytes_max else LooseFrame(frame)

    return detach


async def write_whole(call: Any, frame: Frame) -> None:
    """Write a frame with its body in the message; what is loose is not copied before."""
    if isinstance(frame, bytes):
        await call.write(frame)
    elif isinstance(frame, LooseFrame):
        await write_parts(call, frame.in_parts())
    else:
        await call.write(frame.inline())


__all__ = ["BodyFrame", "Frame", "LooseFrame", "PlacedFrame", "loosener", "placer", "write_whole"]
