"""Threads that run one at a time and change places where a seed says.

:func:`run_threads` calls a function in a world in which ``threading``, ``queue``,
``concurrent.futures``, ``asyncio.new_event_loop`` and ``time`` are ours: real threads, of which
exactly one has the baton. It may be passed on at every *seam*: taking and giving back a lock, and
with that every wait and notification of conditions, events, semaphores, queues and futures, which
are made of locks; steps of an event loop; lines of the modules that are named. Time is virtual and
jumps when everybody waits.

When all wait and nobody has a deadline, that is a :class:`DeadlockError` with everybody's stack.

The code under test has to make its threads, locks and queues inside the world, through the modules
(``threading.Lock()``, not a name imported from there). Nothing may block outside Python's own
primitives (sockets, gRPC); files are fine, they are merely slow.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures.thread
import gc
import hashlib
import logging
import queue
import random
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FrameType, ModuleType
from typing import Any, TypeVar
from unittest import mock

from barrage.server.runtime.thread_frames import thread_frames
from tests.interleaving.counts import COUNTS
from tests.interleaving.failures import DeadlockError, HangError, InterleavingError
from tests.interleaving.seeded_loop import SeededLoop

T = TypeVar("T")

SEAMS_MAX = 1_000_000
SEAM_SECONDS = 1e-6
PREEMPT_CHANCES = (0.5, 0.2, 0.05, 0.01)
EARLY_TIMEOUT_SECONDS_MAX = 0.2
"""A wait no longer than this may time out although others could still run."""

REST_CHANCES = (0.0, 0.2, 0.6)
REST_SEAMS = (30, 300, 3000)
"""A thread that passes the baton on may be left aside for up to so many seams, as long as others
can run: what happens between two of its lines is then much, not one thing."""

PATIENCE_SECONDS = 60.0
"""Real time without a seam after which a thread must be blocked outside the world."""

_real_start = _thread.start_new_thread
_real_lock = _thread.allocate_lock


class _StoppedError(BaseException):
    """Ends a thread of a world that has failed."""


@dataclass(eq=False)
class _Worker:
    number: int
    name: str
    baton: Any = field(default_factory=_real_lock)
    is_ready: Callable[[], bool] | None = None
    """What it waits for; None while it could run."""
    deadline: float | None = None
    has_timed_out: bool = False
    is_finished: bool = False
    rests_until: int = 0
    """The seam before which others come first."""
    ident: int = 0


class Threads:
    """A world of threads. Made by :func:`run_threads`."""

    def __init__(self, seed: int, modules: Sequence[ModuleType], *, seams_max: int) -> None:
        self.random = random.Random(seed)
        self.preempt_chance = self.random.choice(PREEMPT_CHANCES)
        self.rest_chance = self.random.choice(REST_CHANCES)
        scale = self.random.choice((300, 1500, 6000))
        self.long_rests = {self.random.randrange(scale) for _ in range(self.random.choice((0, 3)))}
        self.now = 1000.0
        self.seams = 0
        self.switches = 0
        self.is_ended = False
        self.failure: InterleavingError | None = None
        self.uncaught: list[BaseException] = []
        self._seams_max = seams_max
        self._files = {module.__file__ for module in modules}
        self._main = _Worker(0, "main", ident=threading.get_ident())
        self._main.baton.acquire()
        self._workers = [self._main]
        self._by_ident = {self._main.ident: self._main}
        self._by_thread: dict[int, _Worker] = {}
        self._loops: list[SeededLoop] = []
        self._story: deque[str] = deque(maxlen=60)
        self._digest = hashlib.blake2b(digest_size=8)

    @property
    def trace_hash(self) -> str:
        """The same for two runs that passed the baton in the same places."""
        return self._digest.hexdigest()

    # --- seams ------------------------------------------------------------------------------------

    def seam(self) -> None:
        """Somebody else may go on here."""
        me = self._by_ident.get(threading.get_ident())
        if me is None or self.is_ended:
            return
        self._count()
        if self.seams in self.long_rests:
            me.rests_until = self.seams + REST_SEAMS[-1]
            self._pass_on(me)
        elif self.random.random() < self.preempt_chance:
            if self.random.random() < self.rest_chance:
                me.rests_until = self.seams + self.random.randrange(self.random.choice(REST_SEAMS))
            self._pass_on(me)

    def wait_until(self, is_ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let others run until ``is_ready``; False when ``timeout`` virtual seconds were over
        first."""
        me = self._by_ident.get(threading.get_ident())
        if me is None or self.is_ended:
            if self.is_ended and me is not None and not is_ready():
                raise _StoppedError
            if not is_ready():
                raise InterleavingError("a thread from outside the world would wait here")
            return True
        self._count()
        me.is_ready = is_ready
        me.deadline = None if timeout is None else self.now + timeout
        me.has_timed_out = False
        try:
            self._pass_on(me)
        finally:
            me.is_ready = None
            me.deadline = None
        return not me.has_timed_out

    def _count(self) -> None:
        self.seams += 1
        self.now += SEAM_SECONDS
        if self.seams > self._seams_max:
            self._fail(HangError(f"{self._seams_max} seams have not been enough\n{self._stacks()}"))

    def _pass_on(self, me: _Worker) -> None:
        chosen = self._choose()
        if chosen is None:
            self._fail(DeadlockError(f"everybody waits\n{self.describe()}"))
            return
        if chosen is me:
            return
        self._give(chosen)
        self._await_baton(me)
        if self.is_ended:
            if me is self._main and self.failure is not None:
                raise self.failure
            raise _StoppedError

    def _choose(self) -> _Worker | None:
        """Who goes on; time passes when that is somebody whose wait times out."""
        ready, waiting = [], []
        for worker in self._workers:
            if worker.is_finished:
                continue
            if worker.is_ready is None or worker.is_ready():
                ready.append(worker)
            elif worker.deadline is not None:
                waiting.append(worker)
        if ready and waiting:
            soon = self.now + EARLY_TIMEOUT_SECONDS_MAX
            waiting = [each for each in waiting if (each.deadline or 0.0) <= soon]
            if waiting and self.random.random() < 0.1:
                ready = []
        if ready:
            awake = [each for each in ready if each.rests_until <= self.seams]
            return self.random.choice(awake or ready)
        if not waiting:
            return None
        first = min(waiting, key=lambda worker: worker.deadline or 0.0)
        self.now = max(self.now, first.deadline or 0.0)
        first.has_timed_out = True
        return first

    def _give(self, worker: _Worker) -> None:
        self.switches += 1
        self._digest.update(f"{self.seams} {worker.number};".encode())
        self._story.append(f"{_place()} -> {worker.name}")
        worker.baton.release()

    def _await_baton(self, me: _Worker) -> None:
        while True:
            before = self.seams
            if me.baton.acquire(timeout=PATIENCE_SECONDS):
                return
            if self.seams == before and me is self._main and not self.is_ended:
                self._fail(HangError(f"a thread is blocked outside the world\n{self._stacks()}"))

    # --- threads ----------------------------------------------------------------------------------

    def start_new_thread(
        self, function: Callable[..., object], args: tuple[Any, ...] = (), *_: object
    ) -> int:
        """In place of ``_thread.start_new_thread``, which every thread is started with."""
        thread = getattr(function, "__self__", None)
        name = thread.name if isinstance(thread, threading.Thread) else "thread"
        worker = _Worker(len(self._workers), name)
        worker.baton.acquire()

        def entry() -> None:
            worker.ident = threading.get_ident()
            self._await_baton(worker)
            self._by_ident[worker.ident] = worker
            try:
                if not self.is_ended:
                    self._trace_on()
                    function(*args)
            except _StoppedError:
                pass
            finally:
                sys.settrace(None)
                self._finish(worker)

        self._workers.append(worker)
        if thread is not None:
            self._by_thread[id(thread)] = worker
        return _real_start(entry, ())

    def _finish(self, worker: _Worker) -> None:
        worker.is_finished = True
        self._by_ident.pop(worker.ident, None)
        if self.is_ended:
            return
        chosen = self._choose()
        if chosen is None:
            # The main worker has not finished, or it would have ended the world.
            self.failure = DeadlockError(f"everybody waits\n{self.describe()}")
            self._end()
            return
        self._give(chosen)

    def join(self, thread: threading.Thread, timeout: float | None = None) -> None:
        """In place of ``Thread.join``."""
        worker = self._by_thread.get(id(thread))
        if worker is None:
            raise RuntimeError("cannot join thread before it is started")
        # A thread that has finished may have left its number to this one.
        if worker.ident == threading.get_ident() and not worker.is_finished:
            raise RuntimeError("cannot join current thread")
        self.wait_until(lambda: worker.is_finished, timeout)

    def is_alive(self, thread: threading.Thread) -> bool:
        """In place of ``Thread.is_alive``."""
        worker = self._by_thread.get(id(thread))
        return worker is not None and not worker.is_finished

    def _trace_on(self) -> None:
        if self._files:
            sys.settrace(self._trace_call)

    def _trace_call(self, frame: FrameType, event: str, _: object) -> Any:
        code = frame.f_code
        if code.co_filename in self._files and code.co_name != "<module>":
            return self._trace_line
        return None

    def _trace_line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            self.seam()
        return self._trace_line

    # --- the end ----------------------------------------------------------------------------------

    def _fail(self, error: InterleavingError) -> None:
        """End the world; in its main thread this raises."""
        if self.failure is None:
            self.failure = error
        self._end()
        if threading.get_ident() == self._main.ident:
            raise self.failure
        raise _StoppedError

    def _end(self) -> None:
        self.is_ended = True
        mine = threading.get_ident()
        for worker in self._workers:
            if not worker.is_finished and worker.ident != mine and worker.baton.locked():
                worker.baton.release()

    def finish_others(self) -> None:
        """The main function has returned: let the others finish."""
        self._main.name = "the end"
        self.wait_until(
            lambda: all(each.is_finished for each in self._workers if each is not self._main)
        )

    def stop(self) -> None:
        """End what is left, whatever it does."""
        if not self.is_ended:
            self._end()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(not each.is_finished for each in self._workers if each is not self._main):
            if time.monotonic() > deadline:
                raise HangError(f"a thread does not end\n{self._stacks()}")
            time.sleep(0.001)

    def describe(self) -> str:
        """Who waits where, and how it came to that."""
        return f"{self._stacks()}\nthe last places where the baton was passed on:\n  " + (
            "\n  ".join(self._story)
        )

    def _stacks(self) -> str:
        frames = thread_frames()
        told = []
        for worker in self._workers:
            frame = frames.get(worker.ident)
            if worker.is_finished or frame is None:
                continue
            stack = [
                f"{each.filename.rsplit('/', 1)[-1]}:{each.lineno} {each.name}"
                for each in traceback.extract_stack(frame)
                if "interleaving/seeded" not in each.filename
            ]
            told.append(f"{worker.name}: " + " > ".join(stack[-8:]))
        return "\n".join(told)

    # --- the world --------------------------------------------------------------------------------

    def new_event_loop(self) -> SeededLoop:
        loop = _ThreadLoop(self)
        self._loops.append(loop)
        return loop

    def close_loops(self) -> None:
        """Those that a failure has left open."""
        for loop in self._loops:
            if not loop.is_closed():
                loop.set_exception_handler(lambda *_: None)
                loop.close()

    def sleep(self, seconds: float) -> None:
        """In place of ``time.sleep``."""
        if threading.get_ident() not in self._by_ident:
            _real_sleep(seconds)
            return
        self.wait_until(lambda: False, seconds)

    def monotonic(self) -> float:
        return self.now

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Python's threads, locks and clocks are those of this world."""

        def lock() -> SeamLock:
            return SeamLock(self)

        def note_uncaught(facts: Any) -> None:
            if not self.is_ended and facts.exc_value is not None:
                self.uncaught.append(facts.exc_value)

        patches: list[tuple[object, str, object]] = [
            (threading, "Lock", lock),
            (threading, "_allocate_lock", lock),
            (threading, "_CRLock", None),
            (threading, "_start_new_thread", self.start_new_thread),
            (threading, "_time", self.monotonic),
            (threading, "excepthook", note_uncaught),
            (threading.Thread, "join", lambda thread, timeout=None: self.join(thread, timeout)),
            (threading.Thread, "is_alive", self._is_alive_method()),
            (queue, "SimpleQueue", queue._PySimpleQueue),  # type: ignore[attr-defined]
            (queue, "time", self.monotonic),
            (concurrent.futures.thread, "_global_shutdown_lock", lock()),
            # Pools that a failure has left open are not waited for when Python ends.
            (concurrent.futures.thread, "_threads_queues", weakref.WeakKeyDictionary()),
            (asyncio, "new_event_loop", self.new_event_loop),
            (asyncio.events, "new_event_loop", self.new_event_loop),
            (time, "monotonic", self.monotonic),
            (time, "monotonic_ns", lambda: int(self.now * 1e9)),
            (time, "sleep", self.sleep),
        ]
        with ExitStack() as stack:
            for place, name, ours in patches:
                stack.enter_context(mock.patch.object(place, name, ours))
            yield

    def _is_alive_method(self) -> Callable[[threading.Thread], bool]:
        return lambda thread: self.is_alive(thread)


def _place() -> str:
    """The innermost line outside this file."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return "the end of a thread"
    return f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno}"


_real_sleep = time.sleep


class SeamLock:
    """A lock of a world; what everything that waits is made of."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_locked = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        threads = self._threads
        threads.seam()
        if self._is_locked and not threads.is_ended:
            if not blocking:
                return False
            limit = None if timeout < 0 else timeout
            if not threads.wait_until(lambda: not self._is_locked, limit):
                return False
        self._is_locked = True
        return True

    def release(self) -> None:
        if not self._is_locked and not self._threads.is_ended:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        self._threads.seam()

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._is_locked = False


class _ThreadLoop(SeededLoop):
    """A seeded loop on one of the threads: its steps are seams, and other threads may wake it."""

    def __init__(self, threads: Threads) -> None:
        super().__init__(threads.random)
        self._threads = threads

    def time(self) -> float:
        return self._threads.now

    def _pass_step(self) -> None:
        self._threads.seam()

    def _idle(self, until: float | None) -> None:
        timeout = None if until is None else max(until - self._threads.now, 0.0)
        self._threads.wait_until(lambda: bool(self._ready), timeout)

    def _write_to_self(self) -> None:
        self._threads.seam()

    run_in_executor = asyncio.BaseEventLoop.run_in_executor  # type: ignore[assignment]


def run_threads(
    main: Callable[[Threads], T],
    seed: int,
    *,
    modules: Sequence[ModuleType] = (),
    seams_max: int = SEAMS_MAX,
) -> T:
    """Call ``main`` in a world of this seed and let every thread it leaves finish. ``modules``:
    whose lines are seams, too.

    Raises what ``main`` raises, what a thread raised that nobody caught, DeadlockError and
    HangError. Log records are not handled meanwhile: handlers have real locks.
    """
    threads = Threads(seed, modules, seams_max=seams_max)
    tracer_before, disabled_before = sys.gettrace(), logging.root.manager.disable
    gc_was_enabled = gc.isenabled()
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        with threads.patched():
            try:
                threads._trace_on()
                result = main(threads)
                sys.settrace(None)
                threads.finish_others()
            finally:
                sys.settrace(tracer_before)
                with mock.patch.multiple(time, sleep=_real_sleep, monotonic=time.perf_counter):
                    threads.stop()
                threads.close_loops()
    finally:
        COUNTS.add(threads.seams, threads.switches)
        logging.disable(disabled_before)
        if gc_was_enabled:
            gc.enable()
    if threads.uncaught:
        raise threads.uncaught[0]
    return result
