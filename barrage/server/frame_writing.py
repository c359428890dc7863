"""Writing many frames to one call: the next one is encoded while gRPC sends the one before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import grpc.aio

    Context = grpc.aio.ServicerContext[Any, Any]


async def write_frames(
    context: Context, frames: Iterable[bytes], *, on_frame: Callable[[int], None] | None = None
) -> None:
    """Write ``frames`` in order, one ahead of the encoder; ``on_frame`` gets the count written."""
    sending: asyncio.Task[None] | None = None
    try:
        for count, frame in enumerate(frames):
            if sending is not None:
                await sending
                if on_frame is not None:
                    on_frame(count)
            sending = asyncio.create_task(_write(context, frame))
            await asyncio.sleep(0)  # lets the write start before the next frame is encoded
        if sending is not None:
            await sending
    finally:
        if sending is not None:
            sending.cancel()


async def _write(context: Context, frame: bytes) -> None:
    await context.write(frame)
