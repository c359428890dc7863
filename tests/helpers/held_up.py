"""The watchdog made strict, and a guard against file IO on the engine thread.

Every server made while :func:`strict` is in force is watched by the CPU time of its threads, so
that other load on the machine does not matter, and every violation is collected: a stretch above
its bound, or a file call on the engine thread. Not counted are what tests bring about themselves:
passes of the garbage collector, which walk the heap of the whole test process, and first imports,
which are done before.

``watch_process`` does the same for the life of a process that may be killed at any moment: each
violation, and each stretch that is longer than any before it, goes into a file as a line of JSON.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from barrage.journal.disk import storage as storage_module
from barrage.server.runtime import watchdog
from barrage.server.runtime.watchdog import BOUNDS_NS, LOOP, Stretch, ThreadWatch, Watchdog
from barrage.server.serving import serving

SAMPLE_NS = 4_000_000
ENGINE_THREAD = "barrage-engine"
LOADED_LATE = ("pandas", "pyarrow.compute", "pyarrow.dataset", "pyarrow.flight", "pyarrow.parquet")

FILE_EVENTS = {
    "open",
    *("os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "os.truncate"),
    "shutil.rmtree",
}
FILE_CALLS = (
    "fdatasync",
    "fsync",
    "ftruncate",
    "posix_fallocate",
    "pwrite",
    "stat",
    "statvfs",
    "writev",
)
KERNEL_FILES = ("/dev/shm/", "/proc/", "/sys/")
"""Files that are no disk's: opening one waits for nobody."""

TOLD_BY = ("/linecache.py", "/logging/__init__.py", "/tokenize.py", "/traceback.py")
"""Who may read files on the engine thread: what writes a traceback into the log."""


@dataclass
class Findings:
    """What was found while something was watched."""

    breaches: list[Stretch] = field(default_factory=list)
    file_calls: list[str] = field(default_factory=list)
    watches: list[weakref.ref[ThreadWatch]] = field(default_factory=list)
    longest: dict[str, Stretch] = field(default_factory=dict)

    def gather(self) -> None:
        """Take the longest stretches of everything watched."""
        for reference in self.watches:
            watch = reference()
            stretch = None if watch is None else watch.longest
            if stretch is not None:
                known = self.longest.get(stretch.thread)
                if known is None or known.took_ns < stretch.took_ns:
                    self.longest[stretch.thread] = stretch

    def violations(self) -> list[str]:
        """What must not be, in words."""
        return [*map(str, self.breaches), *(f"file IO: {call}" for call in self.file_calls)]


_current: list[Callable[[str], None]] = []
"""Who is told of file calls on the engine thread; the last one counts."""


def _is_telling() -> bool:
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith(TOLD_BY):
            return True
        frame = frame.f_back
    return False


def _look(call: str) -> None:
    if _current and threading.current_thread().name == ENGINE_THREAD and not _is_telling():
        stack = "".join(traceback.format_stack(sys._getframe(2), limit=8))
        _current[-1](f"{call} on the engine thread\n{stack}")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _current and event in FILE_EVENTS and not _is_kernels(arguments[0]):
        _look(f"{event}{arguments[:1]}")


def _is_kernels(file: object) -> bool:
    if isinstance(file, int):
        with contextlib.suppress(OSError):
            file = os.readlink(f"/proc/self/fd/{file}")
    return f"{file}/".startswith(KERNEL_FILES)  # The directories themselves, too.


def _looked(function: Any, name: str) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        if _current and not _is_kernels(arguments[0]):
            _look(name)
        return function(*arguments, **named)

    return call


_installed = threading.Event()


def install() -> None:
    """Once per process: see file calls, and load what is loaded late."""
    if _installed.is_set():
        return
    _installed.set()
    sys.addaudithook(_audit)
    for name in FILE_CALLS:
        setattr(os, name, _looked(getattr(os, name), f"os.{name}"))
    for kind in (storage_module.LocalStorage, storage_module.LocalAppendFile):
        for name, member in list(vars(kind).items()):
            if callable(member) and not name.startswith("_"):
                setattr(kind, name, _looked(member, f"{kind.__name__}.{name}"))
    load_everything()


def load_everything() -> None:
    """Import what the product would import when it is first used."""
    import barrage

    names = [m.name for m in pkgutil.walk_packages(barrage.__path__, "barrage.")]
    for name in [*names, *LOADED_LATE]:
        if "__main__" not in name:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


class _Collector:
    """Leaves passes of the garbage collector out of the stretches they fall into."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._begun: dict[int, int] = {}

    def __call__(self, phase: str, _: object) -> None:
        thread_id = threading.get_ident()
        if phase == "start":
            self._begun[thread_id] = time.thread_time_ns()
            return
        took_ns = time.thread_time_ns() - self._begun.pop(thread_id, time.thread_time_ns())
        for reference in self._findings.watches:
            watch = reference()
            if watch is not None and watch.thread_id == thread_id:
                watch.excluded_ns += took_ns


class _TellingWatch(ThreadWatch):
    """Tells of each stretch that is longer than any before it."""

    def __init__(self, name: str, dog: Watchdog, tell: Callable[[Stretch], object]) -> None:
        super().__init__(name, dog)
        self._tell = tell

    def _finish(self, now_ns: int) -> None:
        before = self._longest
        super()._finish(now_ns)
        if self._longest is not None and self._longest is not before:
            self._tell(self._longest)


@contextlib.contextmanager
def strict(
    on_violation: Callable[[str], None] | None = None,
    bounds_ns: dict[str, int] | None = None,
    on_longest: Callable[[Stretch], object] | None = None,
) -> Iterator[Findings]:
    """Watch every server made from now on."""
    install()
    findings = Findings()
    bounds = bounds_ns or BOUNDS_NS

    def breached(stretch: Stretch) -> None:
        if stretch.took_ns < bounds[stretch.thread]:
            return
        findings.breaches.append(stretch)
        if on_violation is not None:
            on_violation(str(stretch))

    def called(call: str) -> None:
        findings.file_calls.append(call)
        if on_violation is not None:
            on_violation(call)

    class StrictWatchdog(Watchdog):
        def __init__(self) -> None:
            super().__init__(clock=time.thread_time_ns, sample_ns=SAMPLE_NS, on_breach=breached)
            if on_longest is not None:
                names = list(self.watches)
                self.watches = {name: _TellingWatch(name, self, on_longest) for name in names}
            findings.watches += [weakref.ref(watch) for watch in self.watches.values()]

    before = serving.Watchdog
    collector = _Collector(findings)
    serving.Watchdog = StrictWatchdog  # type: ignore[misc]
    gc.callbacks.append(collector)
    _current.append(called)
    try:
        yield findings
    finally:
        _current.remove(called)
        gc.callbacks.remove(collector)
        serving.Watchdog = before  # type: ignore[misc]
        findings.gather()


def watch_process(path: str) -> None:
    """Watch the servers of this process until it ends, however it does. What is found is added to
    the file of that name, in the page cache of which it outlives the process."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(**facts: object) -> None:
        os.write(file, f"{json.dumps(facts)}\n".encode())

    watching = strict(
        lambda text: write(violation=text),
        tolerated(),
        lambda stretch: write(thread=stretch.thread, took_ns=stretch.took_ns, longest=str(stretch)),
    )
    watching.__enter__()
    _kept.append(watching)


_kept: list[object] = []


# --- pytest ---------------------------------------------------------------------------------------

TOLERANCE = int(os.environ.get("BARRAGE_HELD_UP_TOLERANCE", "5"))
"""How many times its bound a stretch may take in a test: CPU time grows, too, on a machine that is
busy or slow, where two threads share a core and its caches. The longest ones are told against the
bounds themselves; 1 makes them count."""


def tolerated() -> dict[str, int]:
    """What a test fails above."""
    return {name: TOLERANCE * bound for name, bound in BOUNDS_NS.items()}


LONGEST = pytest.StashKey[dict[str, tuple[str, Stretch]]]()


@pytest.fixture(autouse=True)
def nothing_is_held_up(request: pytest.FixtureRequest) -> Iterator[Findings]:
    """Fails a test in which the engine thread or the event loop of a server was held up for longer
    than its bound, or the engine thread touched a file. ``@pytest.mark.held_up("reason")`` says
    why a test may."""
    longest = request.config.stash.setdefault(LONGEST, {})
    with strict(bounds_ns=tolerated()) as findings:
        yield findings
    for name, stretch in findings.longest.items():
        if name not in longest or longest[name][1].took_ns < stretch.took_ns:
            longest[name] = request.node.nodeid, stretch
    may = request.node.get_closest_marker("held_up")
    if may is None and (found := findings.violations()):
        pytest.fail("\n\n".join(["something was held up:", *found]), pytrace=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Tell the longest stretches of the run."""
    for node, stretch in config.stash.get(LONGEST, {}).values():
        bound_ms = BOUNDS_NS[stretch.thread] / 1e6
        terminalreporter.write_line(f"longest, of at most {bound_ms:g} ms, in {node}: {stretch}")


__all__ = ["LOOP", "Findings", "nothing_is_held_up", "strict", "watch_process", "watchdog"]
