"""How Python itself runs while servers do: its garbage collector, and whose turn it is.

**Collector.** A full collection stops every thread and goes through all objects: 140 ms for 2,000
streams, which have some hundred each. With the thresholds of the interpreter, made for small
programs, a busy server has one every second, and finds nothing: what streams and ticks leave behind
is freed by reference counts. So while a server runs, collections are rarer: what cycles of garbage
there are cost some megabytes more until then.

**Turns.** A thread that wants the interpreter waits for it as long as the switch interval says.
The engine gives it away wherever it calls Arrow, some forty times in a cycle; beside an event loop
that is busy, as when thousands of clients come together, a cycle of 15 ms took 200.

A program that has settings of its own keeps them.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger(__name__)

INTERPRETER_THRESHOLDS: Final = ((700, 10, 10), (2000, 10, 10), (2000, 10, 0))
"""What the versions of CPython begin with."""

SERVER_THRESHOLDS: Final = (10_000, 5, 40)
"""More objects made than freed between two collections of the youngest ones, and how many of those
there are for each collection of older ones: up to 4 ms for the youngest, 15 ms for the next."""

INTERPRETER_SWITCH_SECONDS: Final = 0.005
SERVER_SWITCH_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True)
class _Setting:
    read: Callable[[], Any]
    write: Callable[[Any], object]
    plain: tuple[Any, ...]
    """What it is when nobody has set it."""
    served: Any


_SETTINGS: Final = (
    _Setting(
        gc.get_threshold,
        lambda thresholds: gc.set_threshold(*thresholds),
        plain=INTERPRETER_THRESHOLDS,
        served=SERVER_THRESHOLDS,
    ),
    _Setting(
        sys.getswitchinterval,
        sys.setswitchinterval,
        plain=(INTERPRETER_SWITCH_SECONDS,),
        served=SERVER_SWITCH_SECONDS,
    ),
)


class InterpreterTuning:
    """The settings of one process, changed for as long as any server of it runs. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._servers = 0
        self._before: list[tuple[_Setting, Any]] = []

    def begin_serving(self) -> None:
        """A server starts."""
        with self._lock:
            self._servers += 1
            if self._servers > 1:
                return
            for setting in _SETTINGS:
                found = setting.read()
                if found in setting.plain:
                    self._before.append((setting, found))
                    setting.write(setting.served)

    def end_serving(self) -> None:
        """It has stopped; once for each :meth:`begin_serving`."""
        with self._lock:
            self._servers -= 1
            if self._servers:
                return
            for setting, before in self._before:
                if setting.read() == setting.served:
                    setting.write(before)
            self._before.clear()


OF_THIS_PROCESS: Final = InterpreterTuning()


def import_for_arrow() -> None:
    """Have Arrow import now what it imports to make its first array of Python's values: pandas,
    where that is installed, 0.2 s. The event loop or the engine would stand still for it."""
    try:
        pa.array(())
    except Exception as error:
        # It tries once, and does without from then on.
        log.warning("pandas is installed and cannot be imported: %s", error)
