"""Callbacks of the synchronous client, each on a thread of its own, so that slow ones, and those
that never return, hold up nobody else.

The thread is started with the first call. Updates reach it through a bounded queue, in which they
are merged while the callback is slow, as for an iterator; state changes and errors are few.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from barrage.client.subscriptions.callback_calls import PENDING_MAX
from barrage.errors import BarrageError
from barrage.supervision import Role, contained, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from barrage.client.subscriptions.state import State
    from barrage.client.subscriptions.subscription import AsyncTickingTable
    from barrage.client.updates.update import Update

logger = logging.getLogger(__name__)

CALLER = Role("barrage-callbacks", "one callback of states or errors: the table goes on")
FOLLOWER = Role("barrage-updates", "one callback of updates: the table goes on")

JOIN_TIMEOUT_SECONDS = 5.0
"""How long all callbacks that are still running hold up the end of their table or session."""


class CallbackThreads:
    """Runs a table's callbacks."""

    def __init__(self, table: AsyncTickingTable) -> None:
        self._table = table
        self._lock = threading.Lock()
        """What is begun before the end is ended with it; nothing begins after it."""
        self._callers: list[_Caller] = []
        self._followers: list[threading.Thread] = []
        self._iterators: list[Any] = []
        self._on_error: list[_Caller] = []
        self._is_closed = False

    def on_state(self, callback: Callable[[State], object]) -> Callable[[], None]:
        return self._table.on_state(self._caller(callback).put)

    def on_error(self, callback: Callable[[Exception], object]) -> Callable[[], None]:
        caller = self._caller(callback)
        self._on_error.append(caller)
        undo = self._table.on_error(caller.put)

        def take_back() -> None:
            undo()
            if caller in self._on_error:
                self._on_error.remove(caller)

        return take_back

    def _caller(self, callback: Callable[[Any], object]) -> _Caller:
        caller = _Caller(callback, self._table.name, self._raised)
        with self._lock:
            if self._is_closed:
                caller.close()
            self._callers.append(caller)
        return caller

    def on_update(
        self, callback: Callable[[Update], object], follow: Callable[[], Any]
    ) -> Callable[[], None]:
        """``follow`` opens an iterator of updates."""
        iterator = follow()
        with self._lock:
            if self._is_closed:
                iterator.close()
            else:
                thread = start_thread(
                    FOLLOWER,
                    partial(self._run_updates, iterator, callback),
                    on_death=partial(self._raised, None),
                    name=f"barrage updates of {self._table.name}",
                )
                self._iterators.append(iterator)
                self._followers.append(thread)
        return lambda: iterator.close()

    def begin_close(self) -> list[threading.Thread]:
        """After the table was closed: what has been told is still called, nothing comes after it.
        The threads to wait for. Idempotent."""
        with self._lock:
            self._is_closed = True
        for iterator in self._iterators:
            iterator.close()
        callers = [caller for caller in self._callers if caller not in self._on_error]
        return [*self._followers, *_closed(callers)]

    def close_handlers(self) -> list[threading.Thread]:
        """After the callbacks that may raise: their errors have been told. As above."""
        return _closed(self._callers)

    def _run_updates(
        self, iterator: Iterable[Update], callback: Callable[[Update], object]
    ) -> None:
        try:
            for update in iterator:
                try:
                    contained(callback, update)
                except Exception as error:
                    self._raised(None, error)
        except BarrageError as error:
            # on_error has heard it from the table.
            logger.debug("table %s: updates ended: %s", self._table.name, error)

    def _raised(self, caller: _Caller | None, error: Exception) -> None:
        """A callback has raised; ``caller`` is its own when it is one of states or errors."""
        self._table.note_callback_error(error)
        if caller is None or caller not in self._on_error:
            for handler in list(self._on_error):
                handler.put(error)


class _Caller:
    """One callback of states or errors, and its thread."""

    def __init__(
        self,
        callback: Callable[[Any], object],
        table: str,
        on_raised: Callable[[_Caller, Exception], object],
    ) -> None:
        self.thread: threading.Thread | None = None
        self._callback = callback
        self._table = table
        self._on_raised = on_raised
        self._waiting: deque[Any] = deque(maxlen=PENDING_MAX)
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, value: Any) -> None:
        """Have the callback called with ``value``, after the calls before. Any thread; never
        waits."""
        with self._changed:
            if self._is_closed:
                return
            self._waiting.append(value)
            self._changed.notify()
            if self.thread is None:
                self._start()

    def _start(self) -> None:
        name = f"barrage callbacks of {self._table}"
        self.thread = start_thread(CALLER, self._run, on_death=self._died, name=name)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                value = self._waiting.popleft()
            try:
                contained(self._callback, value)
            except Exception as error:
                self._on_raised(self, error)

    def _died(self, error: Exception) -> None:
        """What is still to be told is told by another thread."""
        with self._changed:
            self.thread = None
            if self._waiting:
                self._start()
        self._on_raised(self, error)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()


def _closed(callers: list[_Caller]) -> list[threading.Thread]:
    for caller in callers:
        caller.close()
    return [caller.thread for caller in callers if caller.thread is not None]


def close_all(tables: Sequence[CallbackThreads]) -> None:
    """After the tables were closed: no callback runs any more, but for those that have not
    returned in time. Idempotent; may be called by a callback, which is not waited for."""
    until = time.monotonic() + JOIN_TIMEOUT_SECONDS
    for close in (CallbackThreads.begin_close, CallbackThreads.close_handlers):
        for thread in [thread for table in tables for thread in close(table)]:
            if thread is not threading.current_thread():
                thread.join(max(until - time.monotonic(), 0.0))
                if thread.is_alive():
                    logger.warning("the %s have not returned", thread.name)
