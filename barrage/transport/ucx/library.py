"""Finding and opening libucp, once per process.

Two copies of UCX in one process end in crashes, so the first choice is final. Nothing here runs
before somebody asks for UCX: neither cffi is imported nor the library opened.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import threading
from pathlib import Path
from typing import Any, Final, Protocol

from barrage.errors import ConfigError, TransportError, TransportUnavailableError
from barrage.transport.ucx import declarations as d
from barrage.transport.ucx.settings import library_choice, library_environment

WHEEL, SYSTEM = "wheel", "system"
_FILE: Final = "libucp.so.0"
_HOW_TO_INSTALL: Final = (
    "install one with `pip install 'barrage[ucx]'`, or libucx0 of the system and cffi"
)
_ASSERTING_BEFORE: Final = (1, 16, 0)
_KNOWN_FAULTS: Final = (
    ((0, 0), (1, 15), "ends the process when a peer sends malformed bytes to its port"),
    ((1, 16), (1, 21), "crashes, or calls bodies sent, when a peer dies while they are under way"),
    ((1, 20), (1, 20), "cannot connect over the loopback device"),
)
"""First and last release, and what is wrong with them."""
_MAPS = Path("/proc/self/maps")

_loaded: UcxLibrary | None = None
_loading: Final = threading.Lock()
"""Sessions have threads of their own, and two may ask for the library at once."""


class CalledWorker(Protocol):
    """What the library's callbacks leave their marks on."""

    failure: int
    """Status of the first error of its endpoint."""
    requests_to_connect: list[Any]

    def untagged_came(self, data: Any, length: int, is_rendezvous: bool) -> int:
        """Take an untagged message, or note that it is to be fetched; the status to return."""
        ...


class CalledOperation(Protocol):
    """One request under way."""

    def completed(self, status: int, came: tuple[int, int] | None) -> None:
        """It is done; ``came``: tag and length of what was received."""
        ...


class ForkedContext(Protocol):
    """What is of no use in a child of its process."""

    def poison(self) -> None:
        """Refuse everything from now on, without touching the library."""
        ...


class UcxLibrary:
    """An open libucp. ``ffi`` and ``functions`` are cffi's; callbacks find their worker by a number
    that travels as their argument, so one that comes late finds nothing."""

    def __init__(self, ffi: Any, functions: Any, path: str) -> None:
        self.ffi = ffi
        self.functions = functions
        self.path = path
        numbers = [ffi.new("unsigned *") for _ in range(3)]
        functions.ucp_get_version(*numbers)
        self.version: tuple[int, int, int] = tuple(int(number[0]) for number in numbers)  # type: ignore[assignment]
        self.release = ".".join(str(number) for number in self.version)
        self.warnings = release_warnings(self.version)
        self.is_asserting = self.version < _ASSERTING_BEFORE
        """Whether it is of the releases that end the process where others return an error."""
        self.workers: dict[int, CalledWorker] = {}
        self.contexts: set[ForkedContext] = set()
        self.is_spoiled = False
        """Forked while a context was alive: nothing of UCX works in this process any more."""
        self._numbers = itertools.count(1)
        self._make_callbacks()
        os.register_at_fork(after_in_child=self._forked)

    def next_number(self) -> int:
        """A number no other callback argument has."""
        return next(self._numbers)

    def check(self, what: str, status: int) -> None:
        """TransportError when ``status`` is one of failure."""
        if status < 0:
            raise TransportError(f"UCX cannot {what}: {d.describe(status)}")

    def _forked(self) -> None:
        if self.contexts:
            self.is_spoiled = True
            for context in self.contexts:
                context.poison()

    def _make_callbacks(self) -> None:
        """One C function per kind of callback, for the life of the process."""
        ffi = self.ffi
        workers = self.workers
        number = ffi.typeof("uintptr_t")

        def untagged(  # noqa: PLR0917  (called from C)
            argument: Any, _header: Any, _size: int, data: Any, length: int, param: Any
        ) -> int:
            worker = workers.get(int(ffi.cast(number, argument)))
            if worker is None:
                return int(d.Status.OK)
            return worker.untagged_came(data, length, bool(param.recv_attr & d.AM_IS_RENDEZVOUS))

        def failed(argument: Any, _endpoint: Any, status: int) -> None:
            worker = workers.get(int(ffi.cast(number, argument)))
            if worker is not None:
                worker.failure = worker.failure or status

        def connected(request: Any, argument: Any) -> None:
            worker = workers.get(int(ffi.cast(number, argument)))
            if worker is not None:
                worker.requests_to_connect.append(request)

        def sent(_request: Any, status: int, argument: Any) -> None:
            self._completed(int(ffi.cast(number, argument)), status, None)

        def received(_request: Any, status: int, info: Any, argument: Any) -> None:
            came = (info.sender_tag, info.length) if status == d.Status.OK else None
            self._completed(int(ffi.cast(number, argument)), status, came)

        def fetched(_request: Any, status: int, _length: int, argument: Any) -> None:
            self._completed(int(ffi.cast(number, argument)), status, None)

        self.on_untagged = ffi.callback(d.AM_CALLBACK, untagged)
        self.on_failed = ffi.callback(d.ERROR_CALLBACK, failed)
        self.on_connected = ffi.callback(d.CONNECTION_CALLBACK, connected)
        self.on_sent = ffi.callback(d.SENT_CALLBACK, sent)
        self.on_received = ffi.callback(d.RECEIVED_CALLBACK, received)
        self.on_fetched = ffi.callback(d.FETCHED_CALLBACK, fetched)
        self.operations: dict[int, CalledOperation] = {}

    def _completed(self, number: int, status: int, came: tuple[int, int] | None) -> None:
        operation = self.operations.get(number)
        if operation is not None:
            operation.completed(status, came)


def load_library(choice: str | None = None) -> UcxLibrary:
    """The library of this process; opens it at the first call.

    ``choice`` (or ``BARRAGE_UCX_LIBRARY``) is ``wheel``, ``system`` or a path; by default the wheel
    is tried, then the system. TransportUnavailableError when there is none or cffi is missing,
    ConfigError when another one is open already.
    """
    global _loaded
    choice = choice or library_choice()
    with _loading:
        if _loaded is None:
            _loaded = _load(choice)
        else:
            _check_same(_loaded, choice)
        return _loaded


def _load(choice: str | None) -> UcxLibrary:
    try:
        import cffi
    except ImportError as error:
        raise TransportUnavailableError(f"UCX needs cffi; {_HOW_TO_INSTALL}") from error
    ffi = cffi.FFI()
    ffi.cdef(d.DECLARATIONS)
    return UcxLibrary(ffi, *_open_one(ffi, choice))


def candidates(choice: str | None = None) -> list[str]:
    """What to open for ``choice``, in order: absolute paths, or a name for the system's loader."""
    wheel = _wheel_path()
    if choice == SYSTEM:
        return [_FILE]
    if choice == WHEEL:
        if wheel is None:
            raise TransportUnavailableError(f"no libucx wheel here; {_HOW_TO_INSTALL}")
        return [wheel]
    if choice is not None:
        if "/" not in choice:
            raise ConfigError(
                f"unknown UCX library {choice!r}; use {WHEEL!r}, {SYSTEM!r} or a path of libucp.so"
            )
        return [choice]
    return [_FILE] if wheel is None else [wheel, _FILE]


def mapped_libraries() -> list[str]:
    """Files of UCX that are in this process already, ours or brought by another package."""
    pattern = re.compile(r"(/\S*/lib(?:ucp|uct|ucs)(?:-\w+)?\.so[.\d]*)$", re.MULTILINE)
    try:
        return sorted(set(pattern.findall(_MAPS.read_text())))
    except OSError:
        return []


def release_warnings(version: tuple[int, int, int]) -> list[str]:
    """What is known against a release: each was run with peers that send nonsense and die."""
    release = ".".join(str(part) for part in version)
    remedy = "use 1.22 (`pip install -U 'barrage[ucx]'`), or let only trusted hosts reach it"
    return [
        f"UCX {release} {fault}; {remedy}"
        for first, last, fault in _KNOWN_FAULTS
        if first <= version[:2] <= last
    ]


def _wheel_path() -> str | None:
    spec = importlib.util.find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(next(iter(spec.submodule_search_locations))) / "lib" / _FILE
    return str(path) if path.exists() else None


def _open_one(ffi: Any, choice: str | None) -> tuple[Any, str]:
    foreign = [path for path in mapped_libraries() if "/libucp" in path]
    if foreign and choice is None:
        # Another package brought one; a second copy beside it would crash.
        return ffi.dlopen(foreign[0]), foreign[0]
    reasons = []
    for candidate in candidates(choice):
        if foreign and not _is_same_file(candidate, foreign[0]):
            raise TransportUnavailableError(
                f"another UCX is in this process already: {foreign[0]}; two would crash"
            )
        try:
            with library_environment():
                functions = ffi.dlopen(candidate)
        except OSError as error:
            reasons.append(str(error).partition(".  Additionally")[0])
            continue
        opened = [path for path in mapped_libraries() if "/libucp" in path]
        return functions, opened[0] if opened else candidate
    raise TransportUnavailableError(f"no UCX library: {'; '.join(reasons)}; {_HOW_TO_INSTALL}")


def _check_same(loaded: UcxLibrary, choice: str | None) -> None:
    if choice is None:
        return
    wanted = candidates(choice)[0]
    if wanted == _FILE:
        is_same = loaded.path != _wheel_path()
    else:
        is_same = _is_same_file(wanted, loaded.path)
    if not is_same:
        raise ConfigError(
            f"this process has opened {loaded.path} as its UCX library; {choice!r} cannot join it"
        )


def _is_same_file(path: str, other: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(other)
