"""Large messages of uploads, and those of many columns, are checked, decompressed and converted
beside the event loop, one at a time: they share the processors with everybody else's updates.

What is small is done at once, which costs less than a thread does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.server.ingest.upload import UploadReader
    from barrage.wire.frame import FlightFrame

T = TypeVar("T")

ON_LOOP_BYTES_MAX = 256 * 1024
"""Bytes of a message, or of rows, that are looked at on the event loop: about a millisecond."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


HEADER_WEIGHT = 8
"""How many bytes of a body a byte of a header is worth: it describes columns, of which each takes
as long as many values."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A record batch of an upload."""

    batch: pa.RecordBatch
    nbytes: int
    """Of its cells, which takes a look at every column."""
    weight: int
    """What :func:`aside` is told by who goes through all of it once more."""


async def unpacked(batches: UploadReader, frame: FlightFrame) -> Unpacked | None:
    """The batch that :meth:`UploadReader.read` gives for a frame, if any; the same errors."""

    def work() -> Unpacked | None:
        batch = batches.read(frame)
        return None if batch is None else Unpacked(batch, batch.nbytes, weight)

    weight = batches.unpacked_bytes(frame) + HEADER_WEIGHT * len(frame.header or b"")
    return await aside(weight, work)


async def aside(size: int, work: Callable[[], T]) -> T:
    """Do ``work``, which looks at so many bytes, here or beside the loop."""
    if size <= ON_LOOP_BYTES_MAX:
        return work()
    async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock()):
        return await in_thread(work)
