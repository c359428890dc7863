"""What an author of a source writes: a subclass with a name and a way to read from a position."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Generator
from typing import TYPE_CHECKING

from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from barrage.connector.messages import MessageBatch


class Source(ABC):
    """One stream of numbered messages that can be read again from any position.

    The position is kept for the source: where its messages go remembers the last id with the rows.
    """

    name: str
    """Of the stream; its identity, so it stays the same for ever."""

    @abstractmethod
    def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        """Messages with ids above ``after``, from the first one when that is None. Called again
        after a lost connection, with the position as it is then; the iteration before is closed.
        Its end is that of the stream. Waiting for room is the caller's: it asks for the next batch
        when there is some."""
        ...

    async def acknowledged(self, last: int) -> None:
        """Everything up to ``last`` is safe: forget it, tell whoever it came from."""
        return


class SyncSource(Source):
    """The same for code that blocks: it is run on a thread, one call at a time."""

    is_stopping: bool = False
    """Set when nobody reads any more; an iteration that waits must look at it every second or so,
    and end."""

    @abstractmethod
    def read_blocking(self, after: int | None) -> Iterator[MessageBatch]:
        """See :meth:`Source.read`."""
        ...

    def acknowledged_blocking(self, last: int) -> None:
        """See :meth:`Source.acknowledged`; on another thread than the iteration."""
        return

    async def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        """See :meth:`Source.read`."""
        self.is_stopping = False
        batches = self.read_blocking(after)
        upcoming: asyncio.Future[MessageBatch | None] | None = None
        try:
            while True:
                upcoming = asyncio.ensure_future(in_thread(next, batches, None))
                batch = await asyncio.shield(upcoming)
                if batch is None:
                    return
                yield batch
        finally:
            self.is_stopping = True
            if upcoming is not None and not upcoming.done():
                await asyncio.wait([upcoming])
            if isinstance(batches, Generator):
                await in_thread(batches.close)

    async def acknowledged(self, last: int) -> None:
        """See :meth:`Source.acknowledged`."""
        await in_thread(self.acknowledged_blocking, last)
