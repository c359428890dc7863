"""The asyncio side of one HTTP/2 connection: its socket, its timers, its calls."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import TYPE_CHECKING, Any, cast

from barrage.errors import StatusCode
from barrage.transport.base import NOBODY
from barrage.transport.over_http2.grpc_headers import (
    RequestRefusal,
    is_grpc_web,
    read_request,
)
from barrage.transport.over_http2.http2_call import Http2Call
from barrage.transport.over_http2.http2_connection import Http2Connection
from barrage.transport.over_http2.http2_events import (
    CallCut,
    CallOpened,
    CallReadable,
    CallRefused,
    MessageTaken,
)
from barrage.transport.over_http2.http2_frames import joined
from barrage.transport.peer_identity import identity_of_connection, peer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Protocol

    from barrage.transport.base import ListenOptions
    from barrage.transport.call_running import CallRunner
    from barrage.transport.over_http2.http2_events import Headers, Http2Event
    from barrage.transport.over_http2.http2_stream import Http2Stream

    class ConnectionOwner(Protocol):
        """Who listens."""

        def connected(self, protocol: Http2Protocol) -> bool:
            """One has come; whether it may stay."""
            ...

        def disconnected(self, protocol: Http2Protocol) -> None:
            """It has gone."""
            ...


_FLUSH_BYTES = 128 * 1024
"""What is made in one turn of the loop before it is written ahead of the turn's end."""

_GATHERED_BYTES_MIN = 64 * 1024
_GATHERED_PARTS_MAX = 64
"""What is as long as this, in no more parts, is written by the system from where the parts are:
putting them together would take longer."""

_SOCKET_BYTES_HIGH = 64 * 1024
_SOCKET_BYTES_LOW = 16 * 1024
"""Bytes the socket has not taken, past which and below which messages wait and go on."""

_LAST_WORDS_SECONDS = 5.0
"""How long a connection that is closed tries to say what it has to say."""

_PING_PAYLOAD = b"barrage?"

log = logging.getLogger(__name__)


class Http2Protocol(asyncio.Protocol):
    """One connection from its first byte to its last."""

    def __init__(self, owner: ConnectionOwner, runner: CallRunner, options: ListenOptions) -> None:
        self.core = Http2Connection(options.limits, message_bytes_max=options.message_bytes_max)
        self.peer = ""
        self.identity = NOBODY
        self._owner = owner
        self._runner = runner
        self._options = options
        self._calls: dict[int, Http2Call] = {}
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._is_flush_due = False
        self._is_ending = False
        """Whether only whole answers are still sent."""
        self._is_closing = False
        self._can_gather = False
        """Whether bytes may go to the socket without asyncio: it has no TLS."""
        self._is_watched = False
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    # --- what asyncio says ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast("asyncio.Transport", transport)
        self.peer = peer_of(made)
        tls: Any = made.get_extra_info("ssl_object")
        socket = made.get_extra_info("socket")
        self.identity = identity_of_connection(tls, socket)
        if not self._owner.connected(self) or (
            tls is not None and tls.selected_alpn_protocol() != "h2"
        ):
            self._is_closing = True
            made.abort()
            return
        self._can_gather = tls is None and socket is not None and hasattr(os, "writev")
        made.set_write_buffer_limits(high=_SOCKET_BYTES_HIGH, low=_SOCKET_BYTES_LOW)
        self.core.begin()
        self.flush()
        self._timer = self._loop.call_later(
            self._options.limits.http2_preface_ns_max / 1e9, self._miss_preface
        )

    def data_received(self, data: bytes) -> None:
        self._heard_at = self._loop.time()
        self._receive(data)

    def _receive(self, data: bytes) -> None:
        events = self.core.receive(data, time.monotonic_ns())
        if events:
            self._handle(events)
        if not self._is_watched and self.core.is_open:
            self._watch()
        self.flush_soon()
        if self.core.is_behind and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Read on in what has come, a part in each turn of the loop; nothing once the end is near,
        as nothing that comes is looked at then."""
        if self._is_closing or self._transport is None:
            return
        self._receive(b"")
        if not self.core.is_behind:
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        self.core.is_paused = True

    def resume_writing(self) -> None:
        # Not at once: asyncio calls this in the middle of its own write, and a write from here that
        # finds the peer gone would have it lose the connection twice.
        self.core.is_paused = False
        self._flush_later()

    def connection_lost(self, _: Exception | None) -> None:
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._owner.disconnected(self)
        self.core.cut_all()
        self._handle(self.core.take_events())

    # --- sending ----------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write what there is at the end of this turn of the loop, or now if it is much."""
        if not self._is_flush_due:
            self._flush_later()
        elif self.core.out_bytes > _FLUSH_BYTES:
            self.flush()

    def _flush_later(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what there is, as far as the socket takes it."""
        self._is_flush_due = False
        transport = self._transport
        if transport is None or self._is_closing:
            return
        core = self.core
        while not core.is_paused:
            parts = core.parts_to_send()
            if not parts:
                break
            self._write(transport, parts)
        self._handle(core.take_events())
        if core.is_over or (self._is_ending and not core.has_whole_answers):
            self._end()

    def _write(self, transport: asyncio.Transport, parts: Sequence[bytes | memoryview]) -> None:
        """Hand parts to the socket: together where they are small, else each from where it is."""
        if (
            self._can_gather
            and len(parts) <= _GATHERED_PARTS_MAX
            and sum(map(len, parts)) >= _GATHERED_BYTES_MIN
            and not transport.get_write_buffer_size()
            and not transport.is_closing()
        ):
            parts = _gathered(transport.get_extra_info("socket"), parts)
        if parts:
            transport.write(joined(parts))

    def close(self) -> None:
        """End the connection once the answers that are whole have been sent, for which the peer may
        first have to make room. Idempotent."""
        if not self._is_ending:
            self._is_ending = True
            self._set_last_time()
            self.flush()

    def _end(self) -> None:
        """Nothing more is made or read."""
        if self._is_closing or self._transport is None:
            return
        self._is_closing = True
        data = self.core.bytes_to_send()
        if data:
            self._transport.write(data)
        self._transport.close()
        self._set_last_time()

    def _set_last_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LAST_WORDS_SECONDS, self.abort)

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()

    # --- calls ------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more calls."""
        self.core.drain()
        self.flush()

    def end_calls(self, code: StatusCode, details: str) -> None:
        """End those there are with this status."""
        for call in list(self._calls.values()):
            call.end_with(code, details)

    def forget(self, stream: Http2Stream) -> None:
        self._calls.pop(stream.stream_id, None)

    def _handle(self, events: Iterable[Http2Event]) -> None:
        for event in events:
            if isinstance(event, MessageTaken):
                cast("Callable[[], None]", event.ticket)()
            elif isinstance(event, CallOpened):
                # One that is closed was ended by what came after it.
                if not event.stream.is_closed:
                    self.requested(event.stream, event.headers)
            elif isinstance(event, CallCut):
                self.cut(event.stream)
            else:
                call = self._calls.get(event.stream.stream_id)
                if call is not None:
                    self._tell(call, event)

    def cut(self, stream: Http2Stream) -> None:
        """The stream is gone."""
        call = self._calls.pop(stream.stream_id, None)
        if call is not None:
            call.cut()

    def _tell(self, call: Http2Call, event: CallReadable | CallRefused) -> None:
        if isinstance(event, CallReadable):
            call.wake()
        else:
            code = StatusCode.RESOURCE_EXHAUSTED if event.is_too_long else StatusCode.INTERNAL
            call.end_with(code, event.text)

    def requested(self, stream: Http2Stream, headers: Headers) -> None:
        """A request has come. A page has no business here: it has a door of its own, where it is
        asked where it comes from. What a proxy has made of its call, for which that one answers,
        is a call of gRPC."""
        fields = dict(headers)
        if b"origin" in fields and is_grpc_web(fields.get(b"content-type", b"")):
            self.core.end(stream, [(b":status", b"403")])
        else:
            self.begin_call(stream, headers)

    def begin_call(
        self, stream: Http2Stream, headers: Headers, *, further: Headers | None = None
    ) -> None:
        """Run the call that is asked for, if there is one. ``further``: what its answer says beside
        what all answers do."""
        try:
            head = read_request(headers)
        except RequestRefusal as refusal:
            self.core.end(stream, [*refusal.answer, *(further or ())])
            return
        head.answer += further or ()
        call = Http2Call(self, stream, head)
        self._calls[stream.stream_id] = call
        call.runs_as(self._runner.run(call))

    # --- silence ----------------------------------------------------------------------------------

    def _miss_preface(self) -> None:
        log.info("%s does not speak HTTP/2", self.peer)
        self.abort()

    def _watch(self) -> None:
        """The peer speaks HTTP/2: see that it is there from now on."""
        self._is_watched = True
        if self._timer is not None and not (self._is_ending or self._is_closing):
            self._timer.cancel()
            if self._options.keepalive_ms:
                self._check_silence()

    def _check_silence(self) -> None:
        """Ask a peer that has been silent whether it is there."""
        left = self._options.keepalive_ms / 1e3 - (self._loop.time() - self._heard_at)
        if left > 0:
            self._timer = self._loop.call_later(left, self._check_silence)
            return
        self.core.ping(_PING_PAYLOAD)
        self.flush()
        self._timer = self._loop.call_later(
            max(self._options.keepalive_ms / 2e3, 1e-3), self._check_answer, self._heard_at
        )

    def _check_answer(self, heard_at: float) -> None:
        if self._heard_at == heard_at:
            log.info("%s does not answer any more", self.peer)
            self.abort()
        else:
            self._check_silence()


def _gathered(socket: Any, parts: Sequence[bytes | memoryview]) -> Sequence[bytes | memoryview]:
    """Write parts to the socket; what it has not taken. What is wrong with it asyncio finds at its
    next write."""
    try:
        count = os.writev(socket.fileno(), parts)
    except OSError:
        return parts
    for index, part in enumerate(parts):
        if count < len(part):
            return (memoryview(part)[count:], *parts[index + 1 :])
        count -= len(part)
    return ()
