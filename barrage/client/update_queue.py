"""Updates between the loop that receives them and whoever consumes them, in either world.

Bounded: :meth:`UpdateQueue.wait_for_room` holds the receiving loop, so it stops reading, the
stream's window fills and the server coalesces. Nothing is dropped and nothing grows.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from barrage.client.update import Update
    from barrage.errors import BarrageError


class UpdateQueue:
    """One consumer's updates. Made on the loop that receives; ``put``, ``end`` and
    ``wait_for_room`` belong to the loop, the rest to anybody."""

    def __init__(self, updates_max: int) -> None:
        self._updates_max = updates_max
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._updates: deque[Update] = deque()
        self._condition = threading.Condition()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_ended = False
        self.is_abandoned = False
        self._error: BarrageError | None = None

    def __len__(self) -> int:
        return len(self._updates)

    # --- the receiving loop ---------------------------------------------------------------------

    def put(self, update: Update) -> None:
        """Add one update; one more than the bound may stand, the loop waits afterwards."""
        with self._condition:
            if self._is_ended:
                return
            if update.is_replacement:
                # What came before it means nothing any more.
                self._updates.clear()
            self._updates.append(update)
            if len(self._updates) >= self._updates_max:
                self._room.clear()
            self._condition.notify_all()
        self._arrived.set()

    def end(self, error: BarrageError | None) -> None:
        """No more updates come. What is queued is still handed out, then ``error`` is raised, or
        the end told."""
        with self._condition:
            if self._is_ended:
                return
            self._is_ended = True
            self._error = error
            self._condition.notify_all()
        self._arrived.set()
        self._room.set()

    async def wait_for_room(self) -> None:
        """Until the consumer took enough."""
        await self._room.wait()

    # --- the consumer ---------------------------------------------------------------------------

    async def next_async(self) -> Update | None:
        """The next update; None at the end. On the queue's own loop."""
        while True:
            with self._condition:
                if self._updates:
                    return self._take()
                if self._is_ended:
                    return self._finish()
                self._arrived.clear()
            await self._arrived.wait()

    def next_blocking(self, timeout: float | None) -> Update | None:
        """The next update; None at the end. TimeoutError when none comes for ``timeout``
        seconds."""
        with self._condition:
            if not self._condition.wait_for(lambda: self._updates or self._is_ended, timeout):
                raise TimeoutError(f"no update for {timeout} seconds")
            return self._take() if self._updates else self._finish()

    def abandon(self) -> None:
        """The consumer is gone; nothing is kept for it and nobody waits for it."""
        with self._condition:
            self._is_ended = True
            self.is_abandoned = True
            self._updates.clear()
            self._condition.notify_all()
        self._wake_loop()

    def _take(self) -> Update:
        update = self._updates.popleft()
        if len(self._updates) < self._updates_max and not self._room.is_set():
            self._wake_loop()
        return update

    def _finish(self) -> Update | None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def _wake_loop(self) -> None:
        if threading.get_ident() == self._loop_thread:
            self._room.set()
            self._arrived.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._room.set)
            self._loop.call_soon_threadsafe(self._arrived.set)
