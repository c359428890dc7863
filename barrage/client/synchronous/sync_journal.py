"""Reads of journals for synchronous callers: :class:`JournalBatches`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from barrage.client.synchronous.sync_loop import CLOSE_TIMEOUT_SECONDS, ClosedByWith
from barrage.errors import SubscriptionClosedError
from barrage.supervision import start_awaited

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pyarrow as pa

    from barrage.client.bodies.bodies import BodyStats
    from barrage.client.synchronous.sync_loop import LoopThread
    from barrage.client.tables.journal_read import JournalRead


class JournalBatches(ClosedByWith):
    """The record batches of one read, as an iterator and a context manager. One batch is read ahead
    of the caller. Batches may be views of memory the server lends: it has them back when they are
    gone."""

    def __init__(self, read: JournalRead, thread: LoopThread, timeout: float | None) -> None:
        """``timeout``: seconds one batch may take to come."""
        self._read = read
        self._thread = thread
        self._timeout = timeout
        self._batches: AsyncGenerator[pa.RecordBatch, None] | None = None
        self._coming: asyncio.Task[pa.RecordBatch | None] | None = None

    @property
    def bodies(self) -> BodyStats:
        """Bodies that came so far, by the way each of them came."""
        return self._read.counter.read()

    def __iter__(self) -> JournalBatches:
        return self

    def __next__(self) -> pa.RecordBatch:
        """The next batch; TimeoutError when it does not come in time."""
        batch = self._thread.call(self._next(), self._timeout)
        if batch is None:
            raise StopIteration
        return batch

    async def _next(self) -> pa.RecordBatch | None:
        if self._batches is None:
            self._batches = (await self._read.__aenter__()).batches()
        coming = self._coming or start_awaited(anext(self._batches, None))
        self._coming = None
        batch = await coming
        if batch is not None:
            self._coming = start_awaited(anext(self._batches, None))
        return batch

    def close(self) -> None:
        """End the read. What was handed out stays valid. Idempotent."""
        with suppress(TimeoutError, SubscriptionClosedError):
            self._thread.call(self._close(), CLOSE_TIMEOUT_SECONDS)

    async def _close(self) -> None:
        coming, self._coming = self._coming, None
        if coming is not None:
            coming.cancel()
            await asyncio.wait([coming])
            if not coming.cancelled():
                coming.exception()
        if self._batches is not None:
            await self._batches.aclose()
        self._read.close()
