"""Who follows a ticking table: queues of updates and callbacks. Nobody waits for any of them but
itself: each has a queue, in which updates are merged while it is slow."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

from barrage.errors import BarrageError, SlowIteratorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from barrage.client.state import State, StatsRecorder
    from barrage.client.update import Update
    from barrage.client.update_queue import UpdateQueue

    OnUpdate = Callable[[Update], Awaitable[None] | None]
    OnState = Callable[[State], Awaitable[None] | None]
    OnError = Callable[[Exception], Awaitable[None] | None]

logger = logging.getLogger(__name__)


class Followers:
    """The consumers of one table. On its loop."""

    def __init__(
        self,
        name: str,
        stats: StatsRecorder,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``spawn`` runs what a callback left to be awaited; ``stats`` counts what they raise."""
        self._name = name
        self._stats = stats
        self._spawn = spawn
        self._queues: list[UpdateQueue] = []
        self._on_state: list[OnState] = []
        self._on_error: list[OnError] = []

    @property
    def follow_updates(self) -> bool:
        """Whether anybody wants updates."""
        return bool(self._queues)

    def on_update(self, callback: OnUpdate, queue: UpdateQueue) -> Callable[[], None]:
        """Call ``callback`` with every update of ``queue``, one after the other."""
        self._spawn(self._call_with_updates(callback, queue))
        return queue.abandon

    async def _call_with_updates(self, callback: OnUpdate, queue: UpdateQueue) -> None:
        try:
            while (update := await queue.next_async()) is not None:
                await self._call(callback, update)
        except BarrageError as error:
            # Those who listen for errors have heard it from the table, or hear it now.
            logger.debug("table %s: updates ended: %s", self._name, error)
            if isinstance(error, SlowIteratorError):
                await self.tell_error(error)
        finally:
            queue.abandon()

    def on_state(self, callback: OnState) -> Callable[[], None]:
        self._on_state.append(callback)
        return lambda: _discard(self._on_state, callback)

    def on_error(self, callback: OnError) -> Callable[[], None]:
        self._on_error.append(callback)
        return lambda: _discard(self._on_error, callback)

    def add_queue(self, queue: UpdateQueue) -> None:
        self._queues.append(queue)

    def publish(self, update: Update) -> None:
        """Hand out the update that has just been applied. Does not wait, so that whoever begins to
        follow has either seen its effect or is handed it."""
        self._queues = [queue for queue in self._queues if not queue.is_ended]
        for queue in self._queues:
            queue.put(update)

    async def tell_state(self, state: State) -> None:
        await self._tell(self._on_state, state)

    async def tell_error(self, error: Exception) -> None:
        await self._tell(self._on_error, error)

    def end(self, error: BarrageError | None) -> None:
        """No more updates come."""
        for queue in self._queues:
            queue.end(error)
        self._queues.clear()

    def note_callback_error(self, error: Exception) -> None:
        """Count and log what a callback raised."""
        self._stats.callback_errors += 1
        logger.error("table %s: a callback raised", self._name, exc_info=error)

    async def _call(self, callback: Callable[[Any], Awaitable[None] | None], value: Any) -> None:
        try:
            result = callback(value)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            self.note_callback_error(error)
            if callback not in self._on_error:
                await self._tell(self._on_error, error)

    async def _tell(
        self, callbacks: Sequence[Callable[[Any], Awaitable[None] | None]], value: Any
    ) -> None:
        for callback in list(callbacks):
            await self._call(callback, value)


def _discard(items: list[Any], item: Any) -> None:
    if item in items:
        items.remove(item)
