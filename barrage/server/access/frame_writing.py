"""Writing many frames to one call: the next one is encoded while the one before is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from barrage.wire.message_parts import MessageParts

FrameT = TypeVar("FrameT")


async def write_frames(
    write: Callable[[FrameT], Awaitable[None]],
    frames: Iterable[FrameT],
    *,
    on_frame: Callable[[int], None] | None = None,
) -> None:
    """Write ``frames`` in order, one ahead of the encoder; ``on_frame`` gets the count written."""
    sending: asyncio.Task[None] | None = None
    try:
        for count, frame in enumerate(frames):
            if sending is not None:
                await sending
                if on_frame is not None:
                    on_frame(count)
            sending = asyncio.create_task(_written(write, frame))
            await asyncio.sleep(0)  # lets the write start before the next frame is encoded
        if sending is not None:
            await sending
    finally:
        if sending is not None:
            sending.cancel()


async def write_parts(call: Any, message: MessageParts) -> None:
    """Write a message that is in parts: as it is where the transport can, in one piece
    elsewhere."""
    write = getattr(call, "write_parts", None)
    if write is None:
        await call.write(bytes(message))
    else:
        await write(message)


async def _written(write: Callable[[FrameT], Awaitable[None]], frame: FrameT) -> None:
    await write(frame)
