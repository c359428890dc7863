"""Streams in pieces: what a page sends on a stream comes as calls of their own
(deephaven-clients.md section 6).

Browsers cannot stream requests, so the JavaScript API opens a stream with its first message, whose
answers stream, and sends each further message by a call. Headers say which stream they are of and
which number they have, for they may overtake each other and the one that opens it. A stream is its
session's: nobody else's messages get into it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from barrage.errors import ConnectionLostError, LimitExceededError, RemoteProtocolError
from barrage.server.access.call_guard import SessionUse
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.access.method_table import MethodEntry
from barrage.server.identity.credentials import header_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.server.access.call_guard import SessionCall
    from barrage.server.access.method_table import SessionBehavior
    from barrage.server.access.session_store import ClientSession

TICKET_HEADER = "x-deephaven-stream-ticket"
SEQUENCE_HEADER = "x-deephaven-stream-sequence"
HALF_CLOSE_HEADER = "x-deephaven-stream-halfclose"

_NUMBER_MAX = 2**31 - 1


class BrowserStreams:
    """Those of one server. On its event loop."""

    def __init__(self, behaviors: Mapping[str, SessionBehavior], limits: Limits) -> None:
        """``behaviors``: by the names of methods, those whose messages come on their own calls."""
        self._behaviors = behaviors
        self._limits = limits
        self._streams: dict[ClientSession, _SessionStreams] = {}

    def methods(self) -> dict[str, MethodEntry]:
        found = {}
        for name, behavior in self._behaviors.items():
            method = _PiecedMethod(self, name, behavior)
            found[f"Open{name}"] = MethodEntry("server_stream", method.open, SessionUse.REQUIRED)
            found[f"Next{name}"] = MethodEntry("unary", method.next, SessionUse.REQUIRED)
        return found

    def stream(self, key: tuple[str, int], session: ClientSession) -> _PiecedStream:
        """The stream a message is of. One that nobody opens is forgotten after a while."""
        streams = self._streams.get(session)
        if streams is None:
            streams = self._streams[session] = _SessionStreams()
            session.on_close(partial(self._end, session))
        stream = streams.by_key.get(key)
        if stream is None:
            most = self._limits.browser_streams_max
            if len(streams.by_key) >= most:
                raise LimitExceededError(
                    "streams of a session", actual=most + 1, maximum=most, unit="streams"
                )
            stream = streams.by_key[key] = _PiecedStream(key, self._limits, streams)
            stream.expires(partial(self.forget, key, session))
        return stream

    def _end(self, session: ClientSession, error: BarrageError) -> None:
        streams = self._streams.pop(session, None)
        for stream in () if streams is None else streams.by_key.values():
            stream.close(error)

    def forget(self, key: tuple[str, int], session: ClientSession) -> None:
        """Take no more messages of it. Idempotent."""
        streams = self._streams.get(session)
        stream = None if streams is None else streams.by_key.pop(key, None)
        if stream is not None:
            stream.close(ConnectionLostError("the call that opened the stream has ended"))


@dataclass(slots=True)
class _SessionStreams:
    """Those of one session."""

    by_key: dict[tuple[str, int], _PiecedStream] = field(default_factory=dict)
    held_bytes: int = 0
    """What nobody has read of all of them."""


class _PiecedMethod:
    """The calls that stand for one that streams both ways."""

    def __init__(self, streams: BrowserStreams, name: str, behavior: SessionBehavior) -> None:
        self._streams = streams
        self._name = name
        self._behavior = behavior

    async def open(self, request: bytes, context: SessionCall, session: ClientSession) -> None:
        """The first message; the answers to all of them."""
        key = self._key(context)
        place = _place(context)
        stream = self._streams.stream(key, session)
        stream.open()
        try:
            stream.take(*place, request)
            context.read_from(stream.read)
            await self._behavior((), context, session)
        finally:
            self._streams.forget(key, session)

    async def next(self, request: bytes, context: SessionCall, session: ClientSession) -> bytes:
        """A further message."""
        place = _place(context)
        self._streams.stream(self._key(context), session).take(*place, request)
        return b""

    def _key(self, context: SessionCall) -> tuple[str, int]:
        return self._name, _number(context, TICKET_HEADER)


class _PiecedStream:
    """The messages of one stream, put in order."""

    def __init__(self, key: tuple[str, int], limits: Limits, of: _SessionStreams) -> None:
        self._name = f"stream {key[1]} of {key[0]}"
        self._limits = limits
        self._of = of
        self._ahead: dict[int, bytes | None] = {}
        """Those whose turn has not come, None standing for the end."""
        self._ready: deque[bytes | None] = deque()
        self._next = 0
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._is_open = False
        self._ended: BarrageError | None = None
        self._expiry: asyncio.TimerHandle | None = None

    def expires(self, forget: Callable[[], None]) -> None:
        """Have ``forget`` called unless it is opened in time."""
        seconds = self._limits.browser_stream_wait_ns_max / 1e9
        self._expiry = asyncio.get_running_loop().call_later(seconds, forget)

    def open(self) -> None:
        """Somebody reads it from now on. RemoteProtocolError when somebody does already."""
        if self._is_open:
            raise RemoteProtocolError(f"{self._name} is open already")
        self._is_open = True
        self._forget_expiry()

    def close(self, error: BarrageError) -> None:
        """Nothing more comes, what has come is of no use, and who still reads gets ``error``.
        Idempotent."""
        self._forget_expiry()
        self._ended = error
        self._hold(-self._bytes)
        self._ahead.clear()
        self._ready.clear()
        self._arrived.set()

    def _forget_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def take(self, sequence: int, is_end: bool, message: bytes) -> None:
        """A message has come. RemoteProtocolError, LimitExceededError."""
        limits = self._limits
        if sequence < self._next or sequence in self._ahead:
            raise RemoteProtocolError(f"message {sequence} of {self._name} has come twice")
        waiting = len(self._ahead) + len(self._ready)
        if waiting >= limits.browser_stream_messages_max:
            raise LimitExceededError(
                f"messages of {self._name} that nobody has read",
                actual=waiting + 1,
                maximum=limits.browser_stream_messages_max,
                unit="messages",
            )
        if self._bytes + len(message) > limits.web_upload_bytes_max:
            raise LimitExceededError(
                f"what nobody has read of {self._name}",
                actual=self._bytes + len(message),
                maximum=limits.web_upload_bytes_max,
                unit="bytes",
            )
        held = self._of.held_bytes + len(message)
        if held > limits.browser_session_bytes_max:
            raise LimitExceededError(
                "what nobody has read of all streams of a session",
                actual=held,
                maximum=limits.browser_session_bytes_max,
                unit="bytes",
            )
        self._ahead[sequence] = None if is_end else message
        self._hold(0 if is_end else len(message))
        while self._next in self._ahead:
            self._ready.append(self._ahead.pop(self._next))
            self._next += 1
        self._arrived.set()

    def _hold(self, more: int) -> None:
        self._bytes += more
        self._of.held_bytes += more

    async def read(self) -> Any:
        """The next message, or the end. RemoteProtocolError when one is missing that others were
        sent after; the error the stream was closed with."""
        while not self._ready:
            if self._ended is not None:
                raise self._ended
            self._arrived.clear()
            seconds = self._limits.browser_stream_wait_ns_max / 1e9
            try:
                async with asyncio.timeout(seconds if self._ahead else None):
                    await self._arrived.wait()
            except TimeoutError:
                raise RemoteProtocolError(
                    f"message {self._next} of {self._name} is missing; "
                    f"message {min(self._ahead)} has come"
                ) from None
        message = self._ready.popleft()
        if message is None:
            return END_OF_STREAM
        self._hold(-len(message))
        return message


def _place(context: SessionCall) -> tuple[int, bool]:
    """Which message of its stream a call brings, and whether it is only the end."""
    metadata = context.invocation_metadata() or ()
    is_end = header_value(metadata, HALF_CLOSE_HEADER) == "true"
    return _number(context, SEQUENCE_HEADER), is_end


def _number(context: SessionCall, name: str) -> int:
    text = header_value(context.invocation_metadata() or (), name) or ""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _NUMBER_MAX):
        raise RemoteProtocolError(f"the header {name} is a whole number, not {text[:40]!r}")
    return int(text)
