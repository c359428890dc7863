"""Large messages of uploads are checked, decompressed and converted beside the event loop, one at a
time: they share the processors with everybody else's updates.

What is small is done at once, which costs less than a thread does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.server.flight.upload import UploadReader
    from barrage.wire.frame import FlightFrame

T = TypeVar("T")

ON_LOOP_BYTES_MAX = 256 * 1024
"""Bytes of a message, or of rows, that are looked at on the event loop: about a millisecond."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def unpacked(batches: UploadReader, frame: FlightFrame) -> pa.RecordBatch | None:
    """What :meth:`UploadReader.read` gives for a frame; the same errors."""
    return await aside(batches.unpacked_bytes(frame), lambda: batches.read(frame))


async def aside(size: int, work: Callable[[], T]) -> T:
    """Do ``work``, which looks at so many bytes, here or beside the loop."""
    if size <= ON_LOOP_BYTES_MAX:
        return work()
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await in_thread(work)
