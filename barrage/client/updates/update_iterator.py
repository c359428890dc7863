"""Following a table with ``async for``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barrage.client.updates.update import Update
    from barrage.client.updates.update_queue import UpdateQueue


class UpdateIterator:
    """Updates of one table, in order and without gaps. Ends when the subscription is closed, raises
    what it died of."""

    def __init__(self, queue: UpdateQueue) -> None:
        self._queue = queue

    def __aiter__(self) -> UpdateIterator:
        return self

    async def __anext__(self) -> Update:
        update = await self._queue.next_async()
        if update is None:
            raise StopAsyncIteration
        return update

    async def aclose(self) -> None:
        """Stop following; the subscription goes on without it."""
        self._queue.abandon()

    async def __aenter__(self) -> UpdateIterator:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        # A loop that was left with ``break`` must not hold the stream for ever.
        self._queue.abandon()
