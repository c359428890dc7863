"""Uploads in pieces: what a page sends on a stream comes as calls of their own
(deephaven-clients.md section 6).

Browsers cannot stream requests, so the JavaScript API opens an upload with its first message, whose
answers stream, and sends each further message by a call. Headers say which stream they are of and
which number they have, for they may overtake each other and the one that opens it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from barrage.errors import LimitExceededError, RemoteProtocolError
from barrage.server.access.call_guard import SessionUse
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.access.method_table import MethodEntry
from barrage.server.identity.credentials import header_value

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.server.access.call_guard import SessionCall
    from barrage.server.access.method_table import SessionBehavior
    from barrage.server.access.session_store import ClientSession

TICKET_HEADER = "x-deephaven-stream-ticket"
SEQUENCE_HEADER = "x-deephaven-stream-sequence"
HALF_CLOSE_HEADER = "x-deephaven-stream-halfclose"

STREAMS_MAX = 100
"""Streams of one session at a time, those included that nobody has opened yet."""

AHEAD_MAX = 1_000
"""Messages of one stream that wait for one before them."""

_NUMBER_MAX = 2**31 - 1


class BrowserStreams:
    """Those of one server. On its event loop."""

    def __init__(self, do_put: SessionBehavior, limits: Limits) -> None:
        """``do_put``: the behavior of an upload whose messages come on its own call."""
        self._do_put = do_put
        self._limits = limits
        self._streams: dict[ClientSession, dict[int, _Stream]] = {}

    def methods(self) -> dict[str, MethodEntry]:
        return {
            "OpenDoPut": MethodEntry("server_stream", self.open_put, SessionUse.REQUIRED),
            "NextDoPut": MethodEntry("unary", self.next_put, SessionUse.REQUIRED),
        }

    async def open_put(self, request: bytes, context: SessionCall, session: ClientSession) -> None:
        """The first message; the answers to all of them."""
        ticket, stream = self._stream(context, session)
        try:
            stream.take(*_place(context), request)
            await self._do_put((), _PiecedCall(context, stream), session)
        finally:
            self._forget(session, ticket)

    async def next_put(self, request: bytes, context: SessionCall, session: ClientSession) -> bytes:
        """A further message."""
        _, stream = self._stream(context, session)
        stream.take(*_place(context), request)
        return b""

    def _stream(self, context: SessionCall, session: ClientSession) -> tuple[int, _Stream]:
        ticket = _number(context, TICKET_HEADER)
        streams = self._streams.get(session)
        if streams is None:
            streams = self._streams[session] = {}
            session.on_close(lambda _: self._end(session))
        stream = streams.get(ticket)
        if stream is None:
            if len(streams) >= STREAMS_MAX:
                raise LimitExceededError(
                    "uploads of a session", actual=STREAMS_MAX + 1, maximum=STREAMS_MAX, unit=""
                )
            stream = streams[ticket] = _Stream(self._limits.web_upload_bytes_max)
        return ticket, stream

    def _end(self, session: ClientSession) -> None:
        self._streams.pop(session, None)

    def _forget(self, session: ClientSession, ticket: int) -> None:
        streams = self._streams.get(session)
        if streams is not None:
            streams.pop(ticket, None)


class _Stream:
    """The messages of one stream, put in order."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._ahead: dict[int, bytes | None] = {}
        """Those whose turn has not come, None standing for the end."""
        self._ready: deque[bytes | None] = deque()
        self._next = 0
        self._bytes = 0
        self._arrived = asyncio.Event()

    def take(self, sequence: int, is_end: bool, message: bytes) -> None:
        """A message has come. RemoteProtocolError, LimitExceededError."""
        if sequence < self._next or sequence in self._ahead:
            raise RemoteProtocolError(f"message {sequence} of an upload has come twice")
        if len(self._ahead) >= AHEAD_MAX or self._bytes + len(message) > self._bytes_max:
            raise LimitExceededError(
                "bytes of an upload that nobody has read",
                actual=self._bytes + len(message),
                maximum=self._bytes_max,
                unit="bytes",
            )
        self._ahead[sequence] = None if is_end else message
        self._bytes += len(message)
        while self._next in self._ahead:
            self._ready.append(self._ahead.pop(self._next))
            self._next += 1
        self._arrived.set()

    async def read(self) -> Any:
        """The next message, or the end."""
        while not self._ready:
            self._arrived.clear()
            await self._arrived.wait()
        message = self._ready.popleft()
        if message is None:
            return END_OF_STREAM
        self._bytes -= len(message)
        return message


class _PiecedCall:
    """The call that opened a stream, whose messages come otherwise."""

    def __init__(self, context: SessionCall, stream: _Stream) -> None:
        self.read = stream.read
        self.write = context.write
        self.open = context.open
        self.invocation_metadata = context.invocation_metadata
        self.raw = context.raw


def _place(context: SessionCall) -> tuple[int, bool]:
    """Which message of its stream a call brings, and whether it is only the end."""
    metadata = context.invocation_metadata() or ()
    is_end = header_value(metadata, HALF_CLOSE_HEADER) == "true"
    return _number(context, SEQUENCE_HEADER), is_end


def _number(context: SessionCall, name: str) -> int:
    text = header_value(context.invocation_metadata() or (), name) or ""
    if not (text.isascii() and text.isdigit() and int(text) <= _NUMBER_MAX):
        raise RemoteProtocolError(f"the header {name} is a whole number, not {text[:40]!r}")
    return int(text)
