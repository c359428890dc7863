"""``barrage-flight.v1``: calls of Flight on the socket of a page (docs/web-protocol.md).

A binary message is a stream's number and one message of its call, as the call's handler wrote it:
what ``DoExchange`` would carry. Text messages begin and end calls and say who calls. Beyond what
the socket takes, each stream has a window: messages that were sent and the page has not
acknowledged. What the window has no room for waits in its call, as with any transport.

The caller is a call, too: one that lasts as long as the socket, and whose end ends it.
"""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import msgspec

from barrage.errors import RemoteProtocolError, StatusCode
from barrage.transport import flight_messages
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.over_websocket import control_messages
from barrage.transport.over_websocket.call_socket import CallSocket
from barrage.transport.over_websocket.control_messages import told
from barrage.transport.over_websocket.page_calls import (
    ActionCall,
    CallerCall,
    PageCall,
    read_varint,
)
from barrage.transport.over_websocket.web_socket import CloseReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from barrage.limits import Limits
    from barrage.transport.call_running import CallRunner
    from barrage.transport.over_websocket.call_socket import MessageSocket
    from barrage.transport.over_websocket.http_messages import WebRequest
    from barrage.transport.over_websocket.socket_call import Metadata, SocketCall

PROTOCOL = "barrage-flight.v1"

COOKIE = "barrage-session"
"""What holds a page's token; scripts cannot read it."""

CALLER_METHOD = "/barrage.web.Page/Caller"
"""The call that says who calls, and ends when that holds no more."""

HEADERS = frozenset(
    {"x-barrage-cursor", "x-barrage-resume", "x-barrage-extensions", "x-barrage-revision"}
)
"""Headers a page may give a call."""

_HELLO_BYTES_MAX = 32 * 1024
"""Longest message of somebody who has not said who it is."""


class _State(Enum):
    """Of a socket."""

    EXPECTING_HELLO = auto()
    OPEN = auto()
    DRAINING = auto()
    OVER = auto()


class FlightSocket(CallSocket):
    """One page. On the loop of its socket."""

    def __init__(
        self, socket: MessageSocket, request: WebRequest, *, runner: CallRunner, limits: Limits
    ) -> None:
        super().__init__(socket, request, runner=runner, limits=limits)
        self._request = request
        self._loop = asyncio.get_running_loop()
        self._state = _State.EXPECTING_HELLO
        self._metadata: Metadata = ()
        self._caller: CallerCall | None = None
        self._calls: dict[int, PageCall] = {}
        self._actions: dict[int, ActionCall] = {}
        self._highest_stream = 0
        self._is_paused = False
        """Whether streams that are opened now are paused."""
        self._patience: asyncio.TimerHandle | None = None
        self._patience_s = limits.stall_ns_max / 4e9
        """How often those who hold something for a paused stream are told that it is there."""
        self._hello_timer = self._loop.call_later(
            limits.http2_preface_ns_max / 1e9, self._miss_hello
        )
        socket.allow(_HELLO_BYTES_MAX)

    # --- what comes -------------------------------------------------------------------------------

    def text_received(self, text: str) -> None:
        try:
            self._take(control_messages.read_message(text))
        except control_messages.UnreadableCallError as error:
            self._refuse_call(error)
        except RemoteProtocolError as error:
            self.socket.close(CloseReason.BAD_MESSAGE, str(error))

    def _take(self, message: control_messages.PageMessage) -> None:
        is_hello = isinstance(message, control_messages.PageHello)
        if (self._state is _State.EXPECTING_HELLO) != is_hello:
            raise RemoteProtocolError("hello is the first message, and comes once")
        _HANDLERS[type(message)](self, message)

    def binary_received(self, data: bytes) -> None:
        try:
            if self._state is _State.EXPECTING_HELLO:
                raise RemoteProtocolError("hello is the first message, and comes once")
            stream, start = read_varint(data)
            call = self._known(stream)
            if call is not None:
                self.feed(call, data[start:])
        except RemoteProtocolError as error:
            self.socket.close(CloseReason.BAD_MESSAGE, str(error))

    def _known(self, stream: int) -> PageCall | None:
        """The call of a stream; None when it has ended. RemoteProtocolError when it never was."""
        if stream > self._highest_stream:
            raise RemoteProtocolError(f"stream {stream} was never opened")
        return self._calls.get(stream)

    # --- who calls --------------------------------------------------------------------------------

    def _hello(self, message: control_messages.PageHello) -> None:
        self._hello_timer.cancel()
        self._state = _State.OPEN
        self.socket.allow(self.limits.web_message_bytes_max)
        shown = message.authorization
        if shown is None:
            token = self._request.cookie(COOKIE)
            shown = None if token is None else f"Bearer {token}"
        self._metadata = () if shown is None else (("authorization", shown),)
        self._caller = caller = CallerCall(self, method=CALLER_METHOD, metadata=self._metadata)
        caller.ask(b"")
        caller.runs_as(self.runner.run(caller))

    def let_in(self, caller: bytes) -> None:
        """The page is somebody: a caller in JSON."""
        limits = self.limits
        self.socket.send_text(
            told(
                "welcome",
                protocol=PROTOCOL,
                caller=msgspec.Raw(caller),
                limits={
                    "streams_max": limits.web_streams_max,
                    "message_bytes_max": limits.web_message_bytes_max,
                    "window_messages": control_messages.WINDOW_DEFAULT,
                    "window_bytes": limits.web_window_bytes,
                },
            )
        )

    def turn_out(self, code: StatusCode, details: str) -> None:
        """It is nobody, or nobody any more; or the server has no place for it."""
        self._end_calls(code, details)
        self.socket.close(_CLOSES.get(code, CloseReason.INTERNAL), details)

    def _miss_hello(self) -> None:
        if self._state is _State.EXPECTING_HELLO:
            self.socket.close(CloseReason.SILENT, "no hello in time")

    # --- streams ----------------------------------------------------------------------------------

    def _open(self, message: control_messages.Open) -> None:
        stream = message.stream
        if stream <= self._highest_stream:
            raise RemoteProtocolError(
                f"stream {stream} is not above {self._highest_stream}, the last one opened"
            )
        self._highest_stream = stream
        refusal = self._refusal(message)
        if refusal is not None:
            self._tell_end(stream, *refusal)
            return
        headers = tuple(message.headers.items())
        call = PageCall(
            self,
            stream,
            method=FLIGHT + message.method,
            metadata=(*self._metadata, *headers),
            window=message.window,
            window_bytes=self.limits.web_window_bytes,
        )
        call.is_paused = self._is_paused
        self._calls[stream] = call
        call.runs_as(self.runner.run(call))

    def _refusal(self, message: control_messages.Open) -> tuple[StatusCode, str] | None:
        if self._state is _State.DRAINING:
            return StatusCode.UNAVAILABLE, "the server is shutting down; connect again"
        if len(self._calls) >= self.limits.web_streams_max:
            most = self.limits.web_streams_max
            return StatusCode.RESOURCE_EXHAUSTED, f"there are {most} streams, the most of a socket"
        for name, value in message.headers.items():
            if name not in HEADERS:
                known = ", ".join(sorted(HEADERS))
                return StatusCode.INVALID_ARGUMENT, f"header {name!r} is none of {known}"
            if not (value.isascii() and value.isprintable()):
                return StatusCode.INVALID_ARGUMENT, f"header {name!r} is not printable ASCII"
        return None

    def _half_close(self, message: control_messages.HalfClose) -> None:
        call = self._known(message.stream)
        if call is not None:
            call.half_close()

    def _cancel(self, message: control_messages.Cancel) -> None:
        call = self._known(message.stream)
        if call is not None:
            self._forget(call)
            call.cut()

    # --- flow -------------------------------------------------------------------------------------

    def _acknowledge(self, message: control_messages.Acknowledge) -> None:
        for stream, count in message.streams.items():
            call = self._known(stream)
            if call is not None:
                call.acknowledge(count)
                self.go_on(call)

    def _pause(self, message: control_messages.Pause) -> None:
        for call in self._meant(message.streams):
            call.is_paused = True
        if message.streams is None:
            self._is_paused = True
        if self._patience is None:
            self._be_patient()

    def _resume(self, message: control_messages.Resume) -> None:
        if message.streams is None:
            self._is_paused = False
        for call in self._meant(message.streams):
            call.is_paused = False
            self.go_on(call)

    def _meant(self, streams: Iterable[int] | None) -> list[PageCall]:
        if streams is None:
            return list(self._calls.values())
        found = map(self._known, set(streams))  # However often one is named.
        return [call for call in found if call is not None]

    def _be_patient(self) -> None:
        """Whoever holds something for a paused stream goes on holding it."""
        paused = [call for call in self._calls.values() if call.is_paused]
        for call in paused:
            call.be_patient()
        is_needed = (paused or self._is_paused) and self._state is not _State.OVER
        self._patience = (
            self._loop.call_later(self._patience_s, self._be_patient) if is_needed else None
        )

    # --- actions ----------------------------------------------------------------------------------

    def _call(self, message: control_messages.RunAction) -> None:
        number = message.call
        if number in self._actions:
            raise RemoteProtocolError(f"call {number} has not been answered yet")
        if len(self._actions) >= self.limits.web_calls_max:
            most = self.limits.web_calls_max
            self.fail_action(
                number, StatusCode.RESOURCE_EXHAUSTED, f"{most} calls wait for their answers"
            )
            return
        call = ActionCall(self, number, method=f"{FLIGHT}DoAction", metadata=self._metadata)
        self._actions[number] = call
        body = bytes(message.body)
        call.ask(flight_messages.encode_action(message.action, body))
        call.runs_as(self.runner.run(call))

    def _refuse_call(self, error: control_messages.UnreadableCallError) -> None:
        """A message names an action, and what it says of it cannot be read."""
        if self._state is _State.EXPECTING_HELLO or error.call in self._actions:
            self.socket.close(CloseReason.BAD_MESSAGE, str(error))
        else:
            self.fail_action(error.call, error.status_code, str(error))

    def send_result(self, number: int, body: bytes) -> None:
        """The answer to an action."""
        try:
            self.socket.send_text(control_messages.told_result(number, body))
        except RemoteProtocolError as error:
            self.fail_action(number, StatusCode.INTERNAL, str(error))

    def fail_action(self, number: int, code: StatusCode, details: str) -> None:
        """It has none."""
        self.socket.send_text(told("error", call=number, code=code.name, message=details))

    def end_action(self, number: int) -> None:
        """Nothing more is for it."""
        self._actions.pop(number, None)
        self._end_if_drained()

    # --- how calls end ----------------------------------------------------------------------------

    def ended(self, call: PageCall, code: StatusCode | None, details: str) -> None:
        """A stream has ended."""
        self._forget(call)
        self._tell_end(call.stream, code, details)
        self._end_if_drained()

    def _tell_end(self, stream: int, code: StatusCode | None, details: str) -> None:
        if code is None:
            self.socket.send_text(told("end", stream=stream))
        else:
            self.socket.send_text(told("error", stream=stream, code=code.name, message=details))

    def _forget(self, call: PageCall) -> None:
        self._calls.pop(call.stream, None)
        self.unblock(call)

    # --- how it ends ------------------------------------------------------------------------------

    def lost(self) -> None:
        self._state = _State.OVER
        self._hello_timer.cancel()
        if self._patience is not None:
            self._patience.cancel()
        self.cut_all(self._all_calls())
        self._calls.clear()
        self._actions.clear()

    def _all_calls(self) -> list[SocketCall]:
        caller = () if self._caller is None else (self._caller,)
        return [*self._calls.values(), *self._actions.values(), *caller]

    def drain(self) -> None:
        if self._state is _State.OVER:
            return
        self._state = _State.DRAINING
        if self._caller is not None:
            self._caller.cut()
        self._end_if_drained()

    def _end_calls(self, code: StatusCode, details: str) -> None:
        for call in [*self._calls.values(), *self._actions.values()]:
            call.end_with(code, details)

    def end_calls(self, code: StatusCode, details: str) -> None:
        """The server stops now."""
        self._end_calls(code, details)
        self.socket.close(CloseReason.GOING_AWAY, details)

    def _end_if_drained(self) -> None:
        if self._state is _State.DRAINING and not self._calls and not self._actions:
            self.socket.close(CloseReason.GOING_AWAY, "the server is shutting down")


_HANDLERS: Mapping[type, Callable[[FlightSocket, Any], None]] = {
    control_messages.PageHello: FlightSocket._hello,
    control_messages.Open: FlightSocket._open,
    control_messages.HalfClose: FlightSocket._half_close,
    control_messages.Cancel: FlightSocket._cancel,
    control_messages.Acknowledge: FlightSocket._acknowledge,
    control_messages.Pause: FlightSocket._pause,
    control_messages.Resume: FlightSocket._resume,
    control_messages.RunAction: FlightSocket._call,
}

_CLOSES = {
    StatusCode.UNAUTHENTICATED: CloseReason.NOT_LET_IN,
    StatusCode.PERMISSION_DENIED: CloseReason.NOT_LET_IN,
    StatusCode.RESOURCE_EXHAUSTED: CloseReason.TRY_LATER,
    StatusCode.UNAVAILABLE: CloseReason.GOING_AWAY,
    StatusCode.CANCELLED: CloseReason.GOING_AWAY,
}
"""How the socket ends with the call that says who calls."""
