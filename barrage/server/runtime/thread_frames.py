"""Where every thread is, without the risk that asking for it stops the process.

``sys._current_frames`` of Python 3.11 holds a lock of the interpreter while it makes objects, which
may begin a pass of the garbage collector. What that runs can hand the interpreter to another
thread, and when that one begins or ends a thread it waits for the lock, with the interpreter: both
wait for ever (python/cpython#106883). Later versions collect garbage between instructions only.
"""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

COLLECTS_WITHIN = sys.version_info < (3, 12)

_one_at_a_time = threading.Lock()
"""Two threads that put the collector off would not know whether it was on."""


def thread_frames() -> dict[int, FrameType]:
    """The frame in which each thread is, by the thread's identifier."""
    if not COLLECTS_WITHIN:
        return sys._current_frames()
    with _one_at_a_time:
        if not gc.isenabled():
            return sys._current_frames()
        gc.disable()
        try:
            return sys._current_frames()
        finally:
            gc.enable()
