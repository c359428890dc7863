"""The private event loop of a synchronous session, on a thread of its own, and what ``with`` does
for everything that is to be closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from abc import ABC, abstractmethod
from concurrent.futures import CancelledError, Future, InvalidStateError
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from barrage.client.connection.opening import Closable
from barrage.client.updates.waiting import wait_in_turns
from barrage.errors import LocalProtocolError, SubscriptionClosedError, WorkerDiedError
from barrage.supervision import Role, start_thread
from barrage.transport.event_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Self

    from barrage.client.connection.opening import Opening
    from barrage.client.synchronous.callbacks import CallbackThreads


T = TypeVar("T")
C = TypeVar("C", bound=Closable)

SESSION_LOOP = Role("barrage-session-loop", "every call on the session, waiting or to come")

CLOSE_TIMEOUT_SECONDS = 5.0


class LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self, name: str) -> None:
        self.callbacks: weakref.WeakSet[CallbackThreads] = weakref.WeakSet()
        """Threads of the session's tables, which end with it."""
        self.on_death: Callable[[WorkerDiedError], object] | None = None
        """Told on the loop when something nobody expected has ended it."""
        self._lock = threading.Lock()
        self._is_ending = False
        self._loop = EventLoop()
        self._died: WorkerDiedError | None = None
        self._waiting: set[Future[Any]] = set()
        self._thread = start_thread(SESSION_LOOP, self._serve, on_death=self._note_death, name=name)

    def _note_death(self, error: WorkerDiedError) -> None:
        """Tell whoever waits and has not been told by the end of the loop's tasks."""
        with self._lock:
            self._is_ending = True
            self._died = error
            waiting = list(self._waiting)
        for future in waiting:
            if not future.done():
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(error)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except BaseException:
            # Before anything is cancelled: that is how callers and tables learn of it.
            died = WorkerDiedError(SESSION_LOOP.name, "the log says of what")
            with self._lock:
                self._is_ending, self._died = True, died
            if self.on_death is not None:
                self._loop.call_soon(self.on_death, died)
            raise
        finally:
            self._loop.run_until_complete(_end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T:
        """Run ``work`` on the loop and wait for it. TimeoutError; an interrupt cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise LocalProtocolError("the session's own thread would wait for itself here")
        with self._lock:
            # What is passed on before the end is ended with the loop; nothing comes after it, for
            # its caller would wait for ever.
            if self._is_ending:
                work.close()
                raise self._died or SubscriptionClosedError("the session is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._waiting.add(future)
        try:
            wait_in_turns(partial(_is_done, future), timeout)
            return future.result(0)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TimeoutError(f"no answer for {timeout} seconds") from None
        except CancelledError:
            closed = SubscriptionClosedError("the session was closed meanwhile")
            raise self._died or closed from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._waiting.discard(future)

    def close(self) -> None:
        """End what still runs on the loop, stop it and wait for the thread. Idempotent."""
        with self._lock:
            is_first, self._is_ending = not self._is_ending, True
        if is_first:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_SECONDS)


def _is_done(future: Future[Any], seconds: float | None) -> bool:
    with contextlib.suppress(TimeoutError, CancelledError):
        future.exception(seconds)
    return future.done()


async def opened(opening: Opening[C]) -> C:
    """What is opened, for :meth:`LoopThread.call`."""
    return await opening


async def _end_tasks() -> None:
    """Cancel all other tasks of this loop and wait until they are done. Those that are being
    cancelled already may be waiting for something they began."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_SECONDS)


class ClosedByWith(ABC):
    """A context manager that gives itself and calls :meth:`close`, whatever happened."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
