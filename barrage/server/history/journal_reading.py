"""Feeds on their way out: journals are read and encoded on worker threads, written by the loop.

One frame is made while the one before it is being written, so a call holds two frames and the batch
they come from; a reader that is slow keeps no thread. Reads under way are bounded in number, which
bounds what all of them hold together.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from barrage.errors import LimitExceededError
from barrage.supervision import WorkerPool
from barrage.wire.updates.update_codec import EncodeOptions, Sent, UpdateEncoder

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    import pyarrow as pa

    from barrage.limits import Limits
    from barrage.server.bodies.body_frames import Frame
    from barrage.wire.dissociated.detached import DetachedFrame

MESSAGE_BYTES_TARGET = 11 << 18
"""A batch of a feed, 2 MiB of cells with what the feed adds, goes into one message: a second one
costs another way to a worker thread and back."""

OUTSIDE_BYTES_TARGET = 8 << 20
"""The same where bodies leave the stream: what they cost there is their number, and readers then
have no need to join them."""


Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameSink:
    """Where the frames of one read go, and in which form they are wanted."""

    write: Callable[[Any], Awaitable[None]]
    """Writes one frame: bytes, or whatever ``detach`` makes."""
    detach: Callable[[DetachedFrame], Frame] | None = None
    """Makes frames whose bodies are apart; None where all of them are inline."""


class JournalReaders:
    """The worker threads of one server, and how many reads use them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.pool = WorkerPool(
            limits.journal_threads_max, thread_name_prefix="barrage-journal-reader"
        )
        self.read_count = 0
        """Reads under way."""

    async def close(self) -> None:
        """End the threads; what they have begun is finished."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, lambda: self.pool.shutdown(cancel_futures=True))

    async def run(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` on a worker thread."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def write(
        self,
        write: Callable[[Frame], Awaitable[None]],
        make_frames: Callable[[], Iterator[Frame]],
    ) -> None:
        """Write all frames of an iterator that is made and advanced on worker threads.
        LimitExceededError when too many reads are under way."""
        if self.read_count >= self._limits.journal_reads_max:
            raise LimitExceededError(
                "number of journal reads under way",
                actual=self.read_count + 1,
                maximum=self._limits.journal_reads_max,
                unit="reads",
            )
        self.read_count += 1
        frames = _Frames(make_frames)
        try:
            await self._write(write, frames)
        finally:
            self.read_count -= 1

    async def _write(self, write: Callable[[Frame], Awaitable[None]], frames: _Frames) -> None:
        loop = asyncio.get_running_loop()
        coming = loop.run_in_executor(self.pool, frames.next)
        try:
            while (frame := await asyncio.shield(coming)) is not None:
                coming = loop.run_in_executor(self.pool, frames.next)
                await write(frame)
        finally:
            # The thread may be in the middle of a frame; the iterator is closed after it.
            coming.add_done_callback(lambda done: self._close(done, frames))

    def _close(self, done: asyncio.Future[Frame | None], frames: _Frames) -> None:
        if not done.cancelled() and done.exception() is None and done.result() is None:
            return
        try:
            self.pool.submit(frames.close)
        except RuntimeError:
            frames.close()  # The server has stopped.


class _Frames:
    """An iterator that is used by one worker thread at a time."""

    def __init__(self, make: Callable[[], Iterator[Frame]]) -> None:
        self._make = make
        self._frames: Iterator[Frame] | None = None

    def next(self) -> Frame | None:
        """The next frame; None at the end."""
        if self._frames is None:
            self._frames = self._make()
        return next(self._frames, None)

    def close(self) -> None:
        """Let go of what the iterator holds, wherever it stands."""
        close = getattr(self._frames, "close", None)
        if close is not None:
            close()


class FeedEncoder(Generic[Sent]):
    """Turns batches of one feed into the messages of one stream, or into what ``detach`` makes of
    those that have a body."""

    def __init__(
        self,
        schema: pa.Schema,
        limits: Limits,
        detach: Callable[[DetachedFrame], Sent] | None = None,
    ) -> None:
        options = EncodeOptions(message_bytes_max=limits.message_bytes_max)
        target = MESSAGE_BYTES_TARGET if detach is None else OUTSIDE_BYTES_TARGET
        sized = replace(limits, message_bytes_target=target)
        self._encoder: UpdateEncoder[Sent] = UpdateEncoder(schema, options, sized, detach)
        self.schema = self._encoder.wire_schema
        """What the reader gets: types that do not travel have become their nearest."""

    def frames(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes | Sent]:
        """The schema, then the rows, in messages of at most about
        :data:`MESSAGE_BYTES_TARGET` or :data:`OUTSIDE_BYTES_TARGET`."""
        yield self._encoder.schema_frame()
        yield from self.rows(batches)

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes | Sent]:
        """The rows alone."""
        sent: dict[int, pa.Array] = {}
        for batch in batches:
            yield from self._encoder.encode_rows(batch.columns, batch.num_rows, sent)

    def schema_frame(self) -> bytes:
        """The schema alone."""
        return self._encoder.schema_frame()
