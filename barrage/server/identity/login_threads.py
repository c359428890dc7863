"""Threads for logins alone, few of them, and a bound of the logins that wait for one: whoever can
connect can make logins wait, and nothing else of the server waits with them."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from barrage.errors import LimitExceededError
from barrage.supervision import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class LoginThreads:
    """Those of one way. Used on one event loop."""

    def __init__(self, name: str, what: str, *, at_a_time: int, waiting_max: int) -> None:
        """``what`` too many wait for, as the error says."""
        self._what = what
        self._at_a_time = at_a_time
        self._waiting_max = waiting_max
        self._pool = WorkerPool(at_a_time, thread_name_prefix=name)
        self._under_way = 0

    async def run(self, work: Callable[..., T], /, *arguments: object) -> T:
        """What ``work`` gives. LimitExceededError when too many wait."""
        waiting = self._under_way - self._at_a_time + 1
        if waiting > self._waiting_max:
            raise LimitExceededError(
                f"number of logins that wait for {self._what}",
                actual=waiting,
                maximum=self._waiting_max,
                unit="logins",
            )
        working = self._pool.submit(copy_context().run, work, *arguments)
        self._under_way += 1
        # Whoever has given up waiting has not given back the thread.
        loop = asyncio.get_running_loop()
        working.add_done_callback(lambda _: _soon(loop, self._done))
        return await asyncio.wrap_future(working)

    def _done(self) -> None:
        """On the loop."""
        self._under_way -= 1

    def close(self) -> None:
        """End the threads after what they are at. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _soon(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # The loop has ended, and the count with it.
        loop.call_soon_threadsafe(work)
