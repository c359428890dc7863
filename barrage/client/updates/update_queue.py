"""Updates between the loop that receives them and whoever consumes them, in either world.

Bounded, and nobody waits for a consumer: when more updates than the bound are there, the consumer
gets them merged into one; when they become many or large, they are merged while they wait, and
what is larger than the bound on bytes gives way to the whole state, which the table holds anyway.
Only the rows of a blink table are not in its state: a consumer that lets too many of them gather
is ended with an error of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.client.updates.update_merge import is_mergeable, is_of_blink_table, merged
from barrage.client.updates.waiting import wait_in_turns
from barrage.errors import SlowIteratorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.client.updates.update import Update
    from barrage.errors import BarrageError


GATHERED_MAX = 64
"""Updates that may gather beyond the bound before they are merged where they are."""


class UpdateQueue:
    """One consumer's updates. Made on the loop that receives; ``put`` and ``end`` belong to the
    loop, the rest to anybody."""

    def __init__(
        self,
        updates_max: int,
        *,
        bytes_max: int = 64 * 1024 * 1024,
        whole: Callable[[], Update | None] | None = None,
        trouble: Callable[[], BarrageError | None] = lambda: None,
    ) -> None:
        """``whole`` gives the state after the update that is being put, ``trouble`` why none comes,
        on any thread."""
        self._trouble = trouble
        self._updates_max = updates_max
        self._bytes_max = bytes_max
        self._whole = whole
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._updates: deque[Update] = deque()
        self._condition = threading.Condition()
        self._arrived = asyncio.Event()
        self._is_ended = False
        self.is_abandoned = False
        self._error: BarrageError | None = None

    @property
    def is_ended(self) -> bool:
        """Whether nothing more is taken."""
        return self._is_ended

    def __len__(self) -> int:
        return len(self._updates)

    # --- the receiving loop ---------------------------------------------------------------------

    def put(self, update: Update) -> None:
        """Add one update. Never waits."""
        with self._condition:
            if self._is_ended:
                return
            if update.is_replacement:
                # What came before it means nothing any more.
                self._updates.clear()
            self._updates.append(update)
            if len(self._updates) > self._updates_max + GATHERED_MAX:
                self._condense()
            self._condition.notify_all()
        self._arrived.set()

    def end(self, error: BarrageError | None) -> None:
        """No more updates come. What is queued is still handed out, then ``error`` is raised, or
        the end told."""
        with self._condition:
            self._end(error)
        self._arrived.set()

    def _end(self, error: BarrageError | None) -> None:
        if self._is_ended:
            return
        self._is_ended = True
        self._error = error
        self._condition.notify_all()

    def _condense(self) -> None:
        """Make one update of all that wait."""
        waiting, state = list(self._updates), []
        is_blink = is_of_blink_table(waiting[-1])
        if is_blink and waiting[0].is_replacement:
            # The rows which followed it are not in any state that could take its place.
            state.append(waiting.pop(0))
        one = None if waiting[0].is_replacement else _merged_if_possible(waiting)
        is_too_large = one is None or one.nbytes > self._bytes_max
        if is_too_large and is_blink:
            self._end(SlowIteratorError(bytes_max=self._bytes_max))
        elif is_too_large:
            one = None if self._whole is None else self._whole()
        if one is not None:
            self._updates = deque([*state, one])

    # --- the consumer ---------------------------------------------------------------------------

    async def next_async(self) -> Update | None:
        """The next update; None at the end. On the queue's own loop."""
        while True:
            with self._condition:
                taken = self._take()
                if not taken:
                    if self._is_ended:
                        return self._finish()
                    self._arrived.clear()
            if taken:
                return self._as_one(taken)
            await self._arrived.wait()

    def next_blocking(self, timeout: float | None) -> Update | None:
        """The next update; None at the end. TimeoutError when none comes for ``timeout``
        seconds."""
        with self._condition:
            if not wait_in_turns(self._wait, timeout):
                trouble = self._trouble()
                why = "" if trouble is None else f": {trouble}"
                raise TimeoutError(f"no update for {timeout} seconds{why}") from trouble
            taken = self._take()
            if not taken:
                return self._finish()
        return self._as_one(taken)

    def _wait(self, seconds: float | None) -> bool:
        return self._condition.wait_for(lambda: bool(self._updates) or self._is_ended, seconds)

    def abandon(self) -> None:
        """The consumer is gone; nothing is kept for it."""
        with self._condition:
            self._is_ended = True
            self.is_abandoned = True
            self._updates.clear()
            self._condition.notify_all()
        if threading.get_ident() == self._loop_thread:
            self._arrived.set()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived.set)

    def _take(self) -> list[Update]:
        """The next update; all of them when they are to become one, none when there are none."""
        if not self._updates:
            return []
        is_behind = len(self._updates) > self._updates_max
        if not is_behind or not is_mergeable(waiting := list(self._updates)):
            return [self._updates.popleft()]
        self._updates.clear()
        return waiting

    def _as_one(self, taken: list[Update]) -> Update:
        """Merged without the lock, which the receiving loop takes."""
        if len(taken) == 1:
            return taken[0]
        one = _merged_if_possible(taken)
        if one is not None:
            return one
        with self._condition:
            is_replaced = bool(self._updates) and self._updates[0].is_replacement
            if not is_replaced and not self.is_abandoned:
                self._updates.extendleft(reversed(taken[1:]))
        return taken[0]

    def _finish(self) -> Update | None:
        error, self._error = self._error, None
        if error is not None:
            raise error
        return None


def _merged_if_possible(updates: list[Update]) -> Update | None:
    if not is_mergeable(updates):
        return None
    try:
        return merged(updates)
    except pa.ArrowException:
        # Arrow cannot pick cells of every type.
        return None


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
