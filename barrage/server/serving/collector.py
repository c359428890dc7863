"""How often Python's garbage collector looks at everything.

A full collection stops every thread and goes through all objects: 140 ms for 2,000 streams, which
have some hundred each. With the thresholds of the interpreter, made for small programs, a busy
server has one every second, and finds nothing: what streams and ticks leave behind is freed by
reference counts. So while a server runs, collections are rarer: what cycles of garbage there are
cost some megabytes more until then. A program that has set thresholds of its own keeps them.
"""

from __future__ import annotations

import gc
import threading
from typing import Final

INTERPRETER_THRESHOLDS: Final = frozenset({(700, 10, 10), (2000, 10, 10), (2000, 10, 0)})
"""What the versions of CPython begin with."""

SERVER_THRESHOLDS: Final = (10_000, 5, 40)
"""More objects made than freed between two collections of the youngest ones, and how many of those
there are for each collection of older ones: up to 4 ms for the youngest, 15 ms for the next."""

_lock = threading.Lock()
_servers = 0
_before: tuple[int, int, int] | None = None


def begin_serving() -> None:
    """A server of this process starts. Any thread."""
    global _servers, _before
    with _lock:
        _servers += 1
        found = gc.get_threshold()
        if _servers == 1 and found in INTERPRETER_THRESHOLDS:
            _before = found
            gc.set_threshold(*SERVER_THRESHOLDS)


def end_serving() -> None:
    """It has stopped. Any thread; once for each :func:`begin_serving`."""
    global _servers, _before
    with _lock:
        _servers -= 1
        if not _servers and _before is not None:
            if gc.get_threshold() == SERVER_THRESHOLDS:
                gc.set_threshold(*_before)
            _before = None
