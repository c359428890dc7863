"""Callbacks of the synchronous client, on one thread per table so that slow ones hold nobody else.

The thread is started with the first callback. Updates reach it through a bounded queue, in which
they are merged while the callback is slow, as for an iterator; state changes and errors are few
and are not bounded away.
"""

from __future__ import annotations

import logging
import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from barrage.supervision import Role, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from barrage.client.state import State
    from barrage.client.subscription import AsyncTickingTable
    from barrage.client.update import Update

logger = logging.getLogger(__name__)

CALLER = Role("barrage-callbacks", "the table's callbacks of state and errors")
FOLLOWER = Role("barrage-updates", "one callback of updates")

JOIN_TIMEOUT_SECONDS = 5.0


class CallbackThread:
    """Runs a table's callbacks."""

    def __init__(self, table: AsyncTickingTable) -> None:
        self._table = table
        self._work: queue.SimpleQueue[tuple[Callable[[Any], object], Any] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._followers: list[threading.Thread] = []
        self._iterators: list[Any] = []
        self._on_error: list[Callable[[Exception], object]] = []
        self._is_closed = False

    def on_state(self, callback: Callable[[State], object]) -> Callable[[], None]:
        return self._table.on_state(lambda state: self._post(callback, state))

    def on_error(self, callback: Callable[[Exception], object]) -> Callable[[], None]:
        self._on_error.append(callback)
        undo = self._table.on_error(lambda error: self._post(callback, error))

        def take_back() -> None:
            undo()
            if callback in self._on_error:
                self._on_error.remove(callback)

        return take_back

    def on_update(
        self, callback: Callable[[Update], object], follow: Callable[[], Any]
    ) -> Callable[[], None]:
        """``follow`` opens an iterator of updates."""
        iterator = follow()
        self._iterators.append(iterator)
        thread = start_thread(
            FOLLOWER,
            partial(self._run_updates, iterator, callback),
            on_death=self._table.note_callback_error,
            name=f"barrage updates of {self._table.name}",
        )
        self._followers.append(thread)
        return lambda: iterator.close()

    def close(self) -> None:
        """After the table was closed: no callback runs any more. Idempotent; may be called by a
        callback."""
        self._is_closed = True
        for iterator in self._iterators:
            iterator.close()
        if self._thread is not None:
            self._work.put(None)
        for thread in [*self._followers, self._thread]:
            if thread is not None and thread is not threading.current_thread():
                thread.join(JOIN_TIMEOUT_SECONDS)

    def _post(self, callback: Callable[[Any], object], value: Any) -> None:
        if self._is_closed:
            return
        if self._thread is None:
            self._thread = start_thread(
                CALLER,
                self._run_posted,
                on_death=self._table.note_callback_error,
                name=f"barrage callbacks of {self._table.name}",
            )
        self._work.put((callback, value))

    def _run_posted(self) -> None:
        while (work := self._work.get()) is not None:
            callback, value = work
            self._call(callback, value)

    def _run_updates(
        self, iterator: Iterable[Update], callback: Callable[[Update], object]
    ) -> None:
        try:
            for update in iterator:
                self._call(callback, update)
        except Exception as error:
            # on_error has heard it from the table.
            logger.debug("table %s: updates ended: %s", self._table.name, error)

    def _call(self, callback: Callable[[Any], object], value: Any) -> None:
        try:
            callback(value)
        except Exception as error:
            self._table.note_callback_error(error)
            if callback not in self._on_error:
                for handler in list(self._on_error):
                    self._call(handler, error)
