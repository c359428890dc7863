"""Waiting on the main thread in a way that Ctrl+C ends, whoever the kernel gives the signal to.

A signal is given to any thread of the process. Python runs its handler on the main thread, and a
main thread that sleeps in a lock learns of it only when the signal was its own: given to another
thread (one of gRPC, of Arrow), Ctrl+C would do nothing until what is waited for comes.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
