"""Who follows a ticking table: queues of updates and callbacks, with back-pressure towards the
stream."""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from barrage.client.state import State, StatsRecorder
    from barrage.client.update import Update
    from barrage.client.update_queue import UpdateQueue
    from barrage.errors import BarrageError

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
        self._on_update: list[OnUpdate] = []
        self._on_state: list[OnState] = []
        self._on_error: list[OnError] = []

    @property
    def follow_updates(self) -> bool:
        """Whether anybody wants updates."""
        return bool(self._queues or self._on_update)

    def on_update(self, callback: OnUpdate, first: Update | None) -> Callable[[], None]:
        """Call ``callback`` with ``first``, the state it starts from, and every update that
        follows."""
        self._on_update.append(callback)
        if first is not None:
            self._start_call(callback, first)
        return lambda: _discard(self._on_update, callback)

    def on_state(self, callback: OnState) -> Callable[[], None]:
        self._on_state.append(callback)
        return lambda: _discard(self._on_state, callback)

    def on_error(self, callback: OnError) -> Callable[[], None]:
        self._on_error.append(callback)
        return lambda: _discard(self._on_error, callback)

    def add_queue(self, queue: UpdateQueue) -> None:
        self._queues.append(queue)

    async def publish(self, update: Update) -> None:
        """Hand out an update and wait until every queue has room."""
        self._queues = [queue for queue in self._queues if not queue.is_abandoned]
        for queue in self._queues:
            queue.put(update)
        for callback in list(self._on_update):
            await self._call(callback, update)
        for queue in list(self._queues):
            await queue.wait_for_room()

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

    def _start_call(self, callback: OnUpdate, update: Update) -> None:
        try:
            result = callback(update)
        except Exception as error:
            self.note_callback_error(error)
            return
        if inspect.isawaitable(result):
            self._spawn(self._await_quietly(result))

    async def _await_quietly(self, result: Awaitable[None]) -> None:
        try:
            await result
        except Exception as error:
            self.note_callback_error(error)

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
