"""One call between a client and a server of the same process, which may be on different event
loops.

Two pipes carry whole messages by reference, so a message costs no copy and no encoding. Each holds
at most a window of bytes: ``write`` waits while the other side does not read. The status is set
once, by whoever ends the call first; what was written before the server ended it can still be read,
as with gRPC.

Names are those of servers: ``inproc://name`` is found in a table of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

from barrage.errors import ConfigError, ConnectionLostError, StatusCode

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    Metadata = tuple[tuple[str, str], ...]
    Status = tuple[StatusCode | None, str]

    class Acceptor(Protocol):
        """What takes the calls for one name."""

        def accept(self, call: InprocCall) -> None:
            """From any thread; ConnectionLostError when it has ended."""
            ...


SCHEME = "inproc"

_Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]

_acceptors: dict[str, Acceptor] = {}
_acceptors_lock = threading.Lock()


def register(name: str, acceptor: Acceptor) -> None:
    """Let clients find ``acceptor``; ConfigError when the name is taken."""
    with _acceptors_lock:
        if name in _acceptors:
            raise ConfigError(f"cannot listen on {SCHEME}://{name}: the name is taken")
        _acceptors[name] = acceptor


def unregister(name: str, acceptor: Acceptor) -> None:
    """The opposite. Idempotent."""
    with _acceptors_lock:
        if _acceptors.get(name) is acceptor:
            del _acceptors[name]


def acceptor_of(name: str) -> Acceptor:
    """Who serves ``name`` now; ConnectionLostError when nobody does."""
    with _acceptors_lock:
        found = _acceptors.get(name)
    if found is None:
        raise ConnectionLostError(f"no server of this process serves {SCHEME}://{name}")
    return found


def _wake(waiters: list[_Waiter]) -> None:
    for loop, future in waiters:
        with contextlib.suppress(RuntimeError):  # Its loop was closed: nobody waits any more.
            loop.call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Pipe:
    """Messages in one direction. Any thread may call; reads and writes are awaited on the caller's
    loop.

    Both give way to the rest of their loop each time, for two sides that keep step would never wait
    for each other otherwise.
    """

    def __init__(self, window_bytes: int) -> None:
        self._window_bytes = window_bytes
        self._lock = threading.Lock()
        self._messages: deque[bytes] = deque()
        self._bytes = 0
        self._is_ended = False
        self._is_broken = False
        self._waiters: list[_Waiter] = []

    async def write(self, message: bytes) -> bool:
        """Put a message in as soon as there is room; one always fits into an empty pipe. False when
        nobody will read it."""
        await asyncio.sleep(0)
        while True:
            with self._lock:
                if self._is_broken or self._is_ended:
                    return False
                if not self._messages or self._bytes + len(message) <= self._window_bytes:
                    self._messages.append(message)
                    self._bytes += len(message)
                    waiters = self._take_waiters()
                    break
                waiting = self._wait()
            await waiting
        _wake(waiters)
        return True

    async def read(self) -> bytes | None:
        """The next message; None when no more will come."""
        await asyncio.sleep(0)
        while True:
            with self._lock:
                if self._messages:
                    message = self._messages.popleft()
                    self._bytes -= len(message)
                    waiters = self._take_waiters()
                    break
                if self._is_ended:
                    return None
                waiting = self._wait()
            await waiting
        _wake(waiters)
        return message

    def put_last(self, message: bytes) -> None:
        """The only message there will be."""
        with self._lock:
            if not self._is_ended:
                self._messages.append(message)
                self._bytes += len(message)
        self.end()

    def end(self) -> None:
        """No more will be written; what is in can still be read."""
        with self._lock:
            self._is_ended = True
            waiters = self._take_waiters()
        _wake(waiters)

    def discard(self) -> None:
        """Nobody will read what is in."""
        with self._lock:
            self._is_ended = self._is_broken = True
            self._messages.clear()
            self._bytes = 0
            waiters = self._take_waiters()
        _wake(waiters)

    def _wait(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiters.append((loop, future))
        return future

    def _take_waiters(self) -> list[_Waiter]:
        waiters, self._waiters = self._waiters, []
        return waiters


class InprocCall:
    """One call: what both sides know of it."""

    def __init__(self, method: str, metadata: Metadata, *, window_bytes: int) -> None:
        self.method = method
        self.metadata = metadata
        self.requests = Pipe(window_bytes)
        self.answers = Pipe(window_bytes)
        self._lock = threading.Lock()
        self._headers: Metadata | None = None
        self._status: Status | None = None
        self._is_cancelled = False
        self._waiters: list[_Waiter] = []
        self._on_cancel: Callable[[], None] | None = None

    @property
    def status(self) -> Status | None:
        """How it ended, None standing for OK; nothing while it goes on."""
        return self._status

    @property
    def is_cancelled(self) -> bool:
        """Whether the client ended it."""
        return self._is_cancelled

    def send_headers(self, headers: Metadata) -> bool:
        """Server: what goes ahead of the first answer; the first one counts."""
        with self._lock:
            if self._headers is not None or self._status is not None:
                return False
            self._headers = headers
            waiters, self._waiters = self._waiters, []
        _wake(waiters)
        return True

    async def headers(self) -> Metadata:
        """Client: the headers, or nothing when the call ended without any."""
        while True:
            with self._lock:
                if self._headers is not None:
                    return self._headers
                if self._status is not None:
                    return ()
                loop = asyncio.get_running_loop()
                waiting: asyncio.Future[None] = loop.create_future()
                self._waiters.append((loop, waiting))
            await waiting

    def finish(self, code: StatusCode | None, details: str = "") -> None:
        """Server: the call has ended; None is OK. What was answered before can still be read."""
        self._end(code, details, by_client=False)
        # Whoever reads the end finds that there is nobody to write to.
        self.requests.discard()
        self.answers.end()

    def cancel(self, code: StatusCode = StatusCode.CANCELLED, details: str = "") -> None:
        """Client: end the call now. From any thread; idempotent."""
        if not self._end(code, details, by_client=True):
            return
        self.answers.discard()
        self.requests.discard()
        with self._lock:
            on_cancel = self._on_cancel
        if on_cancel is not None:
            on_cancel()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Server: be told, on any thread, that the client has ended the call; at once if it has."""
        with self._lock:
            self._on_cancel = callback
            is_over = self._is_cancelled
        if is_over:
            callback()

    def _end(self, code: StatusCode | None, details: str, *, by_client: bool) -> bool:
        with self._lock:
            if self._status is not None:
                return False
            self._status = (code, details)
            self._is_cancelled = by_client
            waiters, self._waiters = self._waiters, []
        _wake(waiters)
        return True
