"""Waiting: for a state of something that belongs to one event loop, and on the main thread in a way
that Ctrl+C ends, whoever the kernel gives the signal to.

A signal is given to any thread of the process. Python runs its handler on the main thread, and a
main thread that sleeps in a lock learns of it only when the signal was its own: given to another
thread (one of gRPC, of Arrow), Ctrl+C would do nothing until what is waited for comes.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Changes:
    """A condition without a lock. Whoever changes the state says so with :meth:`tell`, which does
    not wait, so nothing can be cancelled between a change and its news. One loop only."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """The state may have changed; everybody who waits looks again."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, is_reached: Callable[[], object]) -> None:
        """Until ``is_reached``, which is asked at once and after every change. It holds when this
        returns if nobody else has been woken by the same change and acted upon it."""
        while not is_reached():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)


SECONDS_IN_ONE_GO = 0.5
"""How long the main thread sleeps before it sees whether a signal came."""


def wait_in_turns(wait: Callable[[float | None], bool], timeout: float | None) -> bool:
    """Whether what is waited for came within ``timeout`` seconds (None: however long it takes).

    ``wait`` sleeps for at most the seconds it is given and tells whether it came. On other threads,
    which run no handlers, it sleeps in one go.
    """
    if threading.current_thread() is not threading.main_thread():
        return wait(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= SECONDS_IN_ONE_GO:
            return wait(max(left, 0))
        if wait(SECONDS_IN_ONE_GO):
            return True
