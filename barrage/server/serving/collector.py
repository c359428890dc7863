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


class CollectorTuning:
    """The thresholds of one process, held for as long as any server of it runs. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers = 0
        self._before: tuple[int, int, int] | None = None

    def begin_serving(self) -> None:
        """A server starts."""
        with self._lock:
            self._servers += 1
            found = gc.get_threshold()
            if self._servers == 1 and found in INTERPRETER_THRESHOLDS:
                self._before = found
                gc.set_threshold(*SERVER_THRESHOLDS)

    def end_serving(self) -> None:
        """It has stopped; once for each :meth:`begin_serving`."""
        with self._lock:
            self._servers -= 1
            if not self._servers and self._before is not None:
                if gc.get_threshold() == SERVER_THRESHOLDS:
                    gc.set_threshold(*self._before)
                self._before = None


OF_THIS_PROCESS: Final = CollectorTuning()
