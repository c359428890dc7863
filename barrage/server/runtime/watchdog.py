"""How long the engine thread and the event loop are held up without a break, and by what.

A *stretch* is what nothing else on its thread can interrupt: one command, one cycle or one
propagation of the engine thread, one callback of the event loop. Each begins and ends with a look
at the clock, about a tenth of a microsecond; a sampler thread looks now and then, and when it finds
a stretch under way a second time it notes the stack. While nothing happens the sampler sleeps.

On an event loop that is not ours (an :class:`~barrage.server.AsyncServer` in somebody's program)
only whole iterations can be told apart: its stretches are all callbacks between two polls.
"""

from __future__ import annotations

import asyncio
import logging
import selectors
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from barrage.limits import NANOS_PER_MS
from barrage.server.runtime.thread_frames import thread_frames
from barrage.supervision import Role, start_thread
from barrage.transport.event_loop import EventLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from barrage.errors import WorkerDiedError

log = logging.getLogger(__name__)

SAMPLER: Final = Role("barrage-watchdog", "the stacks of long stretches")

ENGINE: Final = "engine"
LOOP: Final = "loop"

BOUNDS_NS: Final = {ENGINE: 250 * NANOS_PER_MS, LOOP: 20 * NANOS_PER_MS}
"""Longest stretch each thread is meant to have."""

FELT_NS: Final = 250 * NANOS_PER_MS
"""What subscribers are not meant to feel, whichever thread it is."""

SAMPLE_NS: Final = 20 * NANOS_PER_MS
"""How often the sampler looks."""

STACK_DEPTH_MAX: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One stretch of a thread."""

    thread: str
    """:data:`ENGINE` or :data:`LOOP`."""
    took_ns: int
    cpu_ns: int
    """How much of it, from the sampler's first look on, the thread computed; 0 when it was over
    before that."""
    what: str
    """The command or the callback."""
    stack: tuple[str, ...]
    """Where it was seen, innermost last; empty when it was over before the sampler looked."""

    @property
    def where(self) -> str:
        """The innermost line seen; what it was when none was."""
        return self.stack[-1] if self.stack else self.what

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.stack)
        return f"{self.thread}: {self.took_ns / 1e6:.1f} ms in {self.what}{lines}"


class Watch(Protocol):
    """What a thread tells about its stretches."""

    def begin(self, what: object) -> None:
        """A stretch begins, after none."""
        ...

    def end(self) -> None:
        """The stretch is over, and nothing follows at once."""
        ...


class NoWatch:
    """Measures nothing."""

    def begin(self, what: object) -> None:
        """Nothing is kept."""

    def end(self) -> None:
        """Nothing is kept."""


class ThreadWatch:
    """The stretches of one thread. ``begin``, ``turn`` and ``end`` are called by it alone."""

    def __init__(self, name: str, watchdog: Watchdog) -> None:
        self.name = name
        self.serial = 0
        """Counts stretches; the sampler tells by it whether it sees the same one again."""
        self.is_busy = False
        self.thread_id = 0
        self.excluded_ns = 0
        """Time of this stretch that is not counted."""
        self.above_count = 0
        """Stretches at or above the thread's bound."""
        self._bound_ns = BOUNDS_NS[name]
        self._watchdog = watchdog
        self._clock = watchdog.clock
        self._begun_ns = 0
        self._what: object = None
        self._longest_ns = 0
        self._longest: Stretch | None = None
        self._seen: tuple[int, int, tuple[str, ...]] = (0, 0, ())

    def begin(self, what: object) -> None:
        """A stretch begins, after none."""
        self.thread_id = threading.get_ident()
        self._go_on(what, self._clock())
        if self._watchdog.is_asleep:
            self._watchdog.wake()

    def end(self) -> None:
        """The stretch is over, and nothing follows at once."""
        if self.is_busy:
            self._finish(self._clock())
            self.is_busy = False
            self._what = None

    def turn(self, what: object) -> None:
        """The stretch is over, and the next one begins."""
        if not self.is_busy:
            self.begin(what)
            return
        now_ns = self._clock()
        self._finish(now_ns)
        self._go_on(what, now_ns)

    def _go_on(self, what: object, now_ns: int) -> None:
        self.serial += 1
        self._what = what
        self.excluded_ns = 0
        self._begun_ns = now_ns
        self.is_busy = True

    def _finish(self, now_ns: int) -> None:
        took_ns = now_ns - self._begun_ns - self.excluded_ns
        is_above = took_ns >= self._bound_ns
        if is_above:
            self.above_count += 1
        if took_ns > self._longest_ns:
            self._longest_ns = took_ns
            self._longest = stretch = self._told(took_ns)
            if is_above:
                self._watchdog.breached(stretch)

    def _told(self, took_ns: int) -> Stretch:
        serial, cpu_ns, stack = self._seen
        is_seen = serial == self.serial
        return Stretch(
            thread=self.name,
            took_ns=took_ns,
            cpu_ns=time.thread_time_ns() - cpu_ns if is_seen else 0,
            what=_name_of(self._what),
            stack=stack if is_seen else (),
        )

    def sample(self) -> None:
        """The sampler: note where the thread is."""
        serial = self.serial
        frame = thread_frames().get(self.thread_id)
        if frame is None:
            return
        stack = _lines_of(frame)
        del frame
        before = self._seen
        cpu_ns = before[1] if before[0] == serial else _cpu_ns(self.thread_id)
        if self.serial == serial and self.is_busy:
            self._seen = (serial, cpu_ns, stack)

    @property
    def longest(self) -> Stretch | None:
        """The longest stretch so far."""
        return self._longest


class Watchdog:
    """The watches of one server, and the thread that samples them."""

    def __init__(
        self,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        sample_ns: int = SAMPLE_NS,
        on_breach: Callable[[Stretch], object] | None = None,
    ) -> None:
        """``on_breach`` is called with each stretch that is longer than its thread's bound and any
        before it, on that thread, and must not raise."""
        self.clock = clock
        self.is_asleep = True
        """Whether a watch that begins a stretch has to call :meth:`wake`."""
        self._sample_s = sample_ns / 1e9
        self._on_breach = on_breach or _log
        self.watches = {name: ThreadWatch(name, self) for name in BOUNDS_NS}
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def engine(self) -> ThreadWatch:
        return self.watches[ENGINE]

    @property
    def loop(self) -> ThreadWatch:
        return self.watches[LOOP]

    def breached(self, stretch: Stretch) -> None:
        """A stretch was too long."""
        self._on_breach(stretch)

    def wake(self) -> None:
        """Have the sampler look from now on; starts it if need be."""
        self.is_asleep = False
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._closing.is_set():
                    self._thread = start_thread(SAMPLER, self._run, on_death=self._blinded)
        self._wake.set()

    def _blinded(self, _: WorkerDiedError) -> None:
        """Stretches are still measured, without their stacks."""
        self.is_asleep = False

    def _run(self) -> None:
        serials: dict[str, int] = {}
        while not self._closing.wait(self._sample_s):
            is_quiet = True
            for name, watch in self.watches.items():
                if watch.serial != serials.get(name):
                    serials[name] = watch.serial
                    is_quiet = False
                elif watch.is_busy:
                    watch.sample()
                    is_quiet = False
            if is_quiet:
                self._rest()

    def _rest(self) -> None:
        """Sleep until something begins. A stretch that begins before the flag is set is seen by the
        next look."""
        self._wake.clear()
        self.is_asleep = True
        is_busy = any(watch.is_busy for watch in self.watches.values())
        if not is_busy and not self._closing.is_set():
            self._wake.wait()
        self.is_asleep = False

    def close(self) -> None:
        """End the sampler. Idempotent."""
        with self._lock:
            self._closing.set()
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()


def _log(stretch: Stretch) -> None:
    is_felt = stretch.took_ns >= FELT_NS
    log.log(logging.INFO if is_felt else logging.DEBUG, "held up by one thing: %s", stretch)


def _name_of(what: object) -> str:
    """A command by its function's name, a callback by its description."""
    while isinstance(what, partial):
        what = what.func
    if isinstance(what, asyncio.Handle):
        return repr(what)
    return getattr(what, "__qualname__", None) or str(what)


def _lines_of(frame: FrameType) -> tuple[str, ...]:
    """The innermost frames as lines, innermost last."""
    walked = traceback.walk_stack(frame)
    found = [f"{f.f_code.co_filename}:{line} in {f.f_code.co_qualname}" for f, line in walked]
    return tuple(reversed(found[:STACK_DEPTH_MAX]))


def _cpu_ns(thread_id: int) -> int:
    try:
        return time.clock_gettime_ns(time.pthread_getcpuclockid(thread_id))
    except OSError:  # The thread has ended.
        return 0


# --- event loops ----------------------------------------------------------------------------------


class WatchedLoop(EventLoop):
    """An event loop each of whose callbacks is a stretch."""

    def __init__(self, watch: ThreadWatch) -> None:
        super().__init__(_Selector(watch))
        self._ready = _Ready(watch)
        self._watch = watch

    def run_forever(self) -> None:
        try:
            super().run_forever()
        finally:
            self._watch.end()


class _Selector(selectors.DefaultSelector):
    """Polling is where a loop waits: nothing is held up."""

    def __init__(self, watch: ThreadWatch) -> None:
        super().__init__()
        self._watch = watch

    def select(self, timeout: float | None = None) -> Any:
        self._watch.end()
        try:
            return super().select(timeout)
        finally:
            self._watch.begin("what a poll brought")


class _Ready(deque[asyncio.Handle]):
    """The callbacks a loop is about to run: it takes one when it is done with the one before."""

    def __init__(self, watch: ThreadWatch) -> None:
        super().__init__()
        self._watch = watch

    def popleft(self) -> asyncio.Handle:
        handle = super().popleft()
        self._watch.turn(handle)
        return handle


def watch_iterations(loop: asyncio.AbstractEventLoop, watch: ThreadWatch) -> Callable[[], None]:
    """Watch a loop that is not ours, from one of its callbacks, where it polls by a selector;
    answers how to stop. A loop that is watched already is left as it is."""
    selector = getattr(loop, "_selector", None)
    if selector is None or isinstance(loop, WatchedLoop):
        return lambda: None
    poll = selector.select

    def select(timeout: float | None = None) -> Any:
        watch.end()
        try:
            return poll(timeout)
        finally:
            watch.begin("one iteration of the loop")

    selector.select = select

    def stop() -> None:
        selector.select = poll
        watch.end()

    return stop
