"""Large messages to subscribers are read and encoded here, beside the engine thread
(:mod:`barrage.engine.changelog.making`), one after the other: the worker's thread shares the
interpreter and the processors with the engine's.

Threads: ``_work`` and what it calls runs on the thread of the worker, everything else on the engine
thread, but for ``close``.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from barrage.errors import BarrageError
from barrage.server.runtime.failure import unexpected_failure, without_frames
from barrage.supervision import Role, start_thread

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Sequence

    from barrage.engine.changelog.making import Delivery, Making
    from barrage.engine.propagation.producer import Producer

    Convert: TypeAlias = Callable[[Delivery], Iterable[object]]
    """Makes hand-over items of a message; on any thread."""

    _Job: TypeAlias = tuple[Making, Convert]

log = logging.getLogger(__name__)

MAKINGS = Role("barrage-makings", "large messages under way; a new thread begins with the next one")


class MessageWorker:
    """What is being made for the subscribers of one server."""

    def __init__(
        self,
        post: Callable[[Callable[[], None]], None],
        deliver: Callable[[Producer, Making, Sequence[object], BarrageError | None], None],
    ) -> None:
        """``post`` has something done on the engine thread; ``deliver`` takes there what has been
        made, or why it was not."""
        self._post = post
        self._deliver = deliver
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._under_way: dict[Making, Producer] = {}
        self._waiters: list[Future[None]] = []
        self._thread: threading.Thread | None = None

    def put(self, producer: Producer, making: Making, convert: Convert) -> None:
        """Have something made. It is delivered later, whatever becomes of it."""
        self._under_way[making] = producer
        self._queue.put((making, convert))
        if self._thread is None:
            work = partial(self._work, self._queue)
            self._thread = start_thread(MAKINGS, work, on_death=self._died)

    def next_one(self) -> Future[None] | None:
        """Resolves when something that is under way has been delivered; None when nothing is."""
        if not self._under_way:
            return None
        waiter: Future[None] = Future()
        self._waiters.append(waiter)
        return waiter

    def close(self) -> None:
        """End the thread after what it is at. When the engine has ended, or on its thread."""
        thread = self._thread
        if thread is not None:
            self._queue.put(None)
            thread.join()

    def _end(self, making: Making, items: Sequence[object], error: BarrageError | None) -> None:
        producer = self._under_way.pop(making, None)
        if producer is None:
            return
        self._deliver(producer, making, items, error)
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            with suppress(InvalidStateError):  # Whoever waited has given up.
                waiter.set_result(None)

    def _died(self, error: BarrageError) -> None:
        self._post(partial(self._end_all, error))

    def _end_all(self, error: BarrageError) -> None:
        """The thread has died: nothing of what was under way comes. The next one gets another."""
        self._queue, self._thread = SimpleQueue(), None
        for making in list(self._under_way):
            self._end(making, (), error)

    # --- the worker's own thread ---

    def _work(self, queue: SimpleQueue[_Job | None]) -> None:
        while (job := queue.get()) is not None:
            making, convert = job
            items, error = _made(making, convert)
            self._post(partial(self._end, making, items, error))
            del job, making, items  # While waiting for the next one, nothing is kept.


def _made(making: Making, convert: Convert) -> tuple[Sequence[object], BarrageError | None]:
    try:
        return [item for each in making.deliveries() for item in convert(each)], None
    except BarrageError as error:
        return (), without_frames(error)
    except Exception:
        return (), unexpected_failure(log, "a large message could not be made")
