"""Who follows a ticking table: queues of updates and callbacks. Nobody waits for any of them but
itself: each queue merges its updates while it is slow, each callback has its own calls."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from barrage.client.subscriptions.callback_calls import CallbackCalls
from barrage.errors import BarrageError, SlowIteratorError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barrage.client.subscriptions.callback_calls import SessionCallbacks
    from barrage.client.subscriptions.state import State, StatsRecorder
    from barrage.client.updates.update import Update
    from barrage.client.updates.update_queue import UpdateQueue

    OnUpdate = Callable[[Update], Awaitable[None] | None]
    OnState = Callable[[State], Awaitable[None] | None]
    OnError = Callable[[Exception], Awaitable[None] | None]

logger = logging.getLogger(__name__)


class Followers:
    """The consumers of one table. On its loop; nothing here waits."""

    def __init__(self, name: str, stats: StatsRecorder, callbacks: SessionCallbacks) -> None:
        """``stats`` counts what callbacks raise."""
        self._name = name
        self._stats = stats
        self._callbacks = callbacks
        self._queues: list[UpdateQueue] = []
        self._on_state: list[CallbackCalls] = []
        self._on_error: list[CallbackCalls] = []

    @property
    def follow_updates(self) -> bool:
        """Whether anybody wants updates."""
        return bool(self._queues)

    def on_update(self, callback: OnUpdate, queue: UpdateQueue) -> Callable[[], None]:
        """Call ``callback`` with every update of ``queue``, one after the other."""
        calls = self._calls(callback)
        self._callbacks.start(calls, self._call_with_updates(calls, queue), is_endless=True)
        return queue.abandon

    async def _call_with_updates(self, calls: CallbackCalls, queue: UpdateQueue) -> None:
        try:
            while (update := await queue.next_async()) is not None:
                await calls.call_through(update)
        except BarrageError as error:
            # Those who listen for errors have heard it from the table, or hear it now.
            logger.debug("table %s: updates ended: %s", self._name, error)
            if isinstance(error, SlowIteratorError):
                self.tell_error(error)
        finally:
            queue.abandon()

    def on_state(self, callback: OnState) -> Callable[[], None]:
        return self._listen(self._on_state, callback)

    def on_error(self, callback: OnError) -> Callable[[], None]:
        return self._listen(self._on_error, callback)

    def _listen(
        self, listeners: list[CallbackCalls], callback: Callable[[Any], Awaitable[None] | None]
    ) -> Callable[[], None]:
        calls = self._calls(callback)
        listeners.append(calls)

        def take_back() -> None:
            if calls in listeners:
                listeners.remove(calls)

        return take_back

    def _calls(self, callback: Callable[[Any], Awaitable[None] | None]) -> CallbackCalls:
        return CallbackCalls(callback, self._callbacks, self._raised)

    def add_queue(self, queue: UpdateQueue) -> None:
        self._queues.append(queue)

    def publish(self, update: Update) -> None:
        """Hand out the update that has just been applied. Does not wait, so that whoever begins to
        follow has either seen its effect or is handed it."""
        self._queues = [queue for queue in self._queues if not queue.is_ended]
        for queue in self._queues:
            queue.put(update)

    def tell_state(self, state: State) -> None:
        for calls in list(self._on_state):
            calls.call(state)

    def tell_error(self, error: Exception) -> None:
        for calls in list(self._on_error):
            calls.call(error)

    def end(self, error: BarrageError | None) -> None:
        """No more updates come."""
        for queue in self._queues:
            queue.end(error)
        self._queues.clear()

    def note_callback_error(self, error: Exception) -> None:
        """Count and log what a callback raised."""
        self._stats.callback_errors += 1
        logger.error("table %s: a callback raised", self._name, exc_info=error)

    def _raised(self, calls: CallbackCalls, error: Exception) -> None:
        self.note_callback_error(error)
        if calls not in self._on_error:
            self.tell_error(error)
