"""One connection of a browser: requests of HTTP/1.1, until one of them makes it a WebSocket.

``h11`` keeps the protocol of the former. One request is answered at a time, and a call is one.
Other bodies are read and thrown away, since nothing else that is served wants one.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import h11
from websockets.utils import accept_key

from barrage.transport.base import NOBODY
from barrage.transport.over_http2.grpc_headers import RequestRefusal
from barrage.transport.over_websocket.fetched_call import FetchedCall, head_of
from barrage.transport.over_websocket.http_messages import WebAnswer, WebRequest
from barrage.transport.over_websocket.page_requests import early_answer, for_other_origin, is_call
from barrage.transport.over_websocket.web_socket import CloseReason, WebSocket
from barrage.transport.peer_identity import identity_of_connection, peer_of
from barrage.transport.sockets.keep_alive import keep_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from typing import Protocol

    from barrage.errors import StatusCode, WorkerDiedError
    from barrage.limits import Limits
    from barrage.supervision import OnDeath
    from barrage.transport.call_running import RunnableCall
    from barrage.transport.over_http2.http2_events import Headers
    from barrage.transport.over_websocket.http_messages import WebSite
    from barrage.transport.over_websocket.origins import OriginRule
    from barrage.transport.over_websocket.socket_call import SocketCall
    from barrage.transport.over_websocket.web_socket import SocketPeer, TurnEnd

    class SocketSpeaker(SocketPeer, Protocol):
        """What is spoken on a socket, as whoever listens sees it."""

        def end_calls(self, code: StatusCode, details: str) -> None:
            """The server stops now."""
            ...

    MakeSpeaker = Callable[[WebSocket, WebRequest], SocketSpeaker]

    class WebOwner(Protocol):
        """Who listens."""

        limits: Limits
        site: WebSite
        origins: OriginRule
        keepalive_ms: int
        turn_end: TurnEnd
        receive_buffer: memoryview
        """For one read at a time."""
        speakers: Mapping[str, MakeSpeaker]
        """By sub-protocol, those that are preferred first."""

        def run(self, call: RunnableCall) -> asyncio.Task[None]:
            """Serve a call."""
            ...

        def start_answer(
            self, answer: Coroutine[Any, Any, None], *, on_death: OnDeath
        ) -> asyncio.Task[None]:
            """Answer a request that is no call."""
            ...

        def connected(self, connection: WebConnection) -> bool:
            """One has come; whether it may stay."""
            ...

        def disconnected(self, connection: WebConnection) -> None:
            """It has gone."""
            ...


_BODY_BYTES_MAX = 64 * 1024
_LAST_WORDS_SECONDS = 5.0
"""How long a connection that is closed waits for some of what was sent to be taken."""

_COMING = (h11.IDLE, h11.SEND_BODY)
"""States of a peer whose request has not come, or not all of it."""

_VERSION = "13"
_KEY_BYTES = 16

log = logging.getLogger(__name__)


class WebConnection(asyncio.BufferedProtocol):
    """From its first byte to its last. What comes is read into one buffer of the listener and taken
    out of it at once: asyncio would get memory for the longest read each time, which costs more
    than all that is done with an acknowledgement."""

    def __init__(self, owner: WebOwner) -> None:
        self.speaker: SocketSpeaker | None = None
        """What is spoken on it, once it is a WebSocket."""
        self.is_clogged = False
        self.peer = ""
        self.identity = NOBODY
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket: WebSocket | None = None
        self._http = h11.Connection(
            h11.SERVER, max_incomplete_event_size=owner.limits.web_head_bytes_max
        )
        self._timer: asyncio.TimerHandle | None = None
        self._request: WebRequest | None = None
        """That which is no call."""
        self._answering: asyncio.Task[None] | None = None
        self._call: FetchedCall | None = None
        self._is_call = False
        """Whether the request that comes is a call, which may have ended already."""
        self._body_bytes = 0
        self._unread_bytes = 0
        """What the messages of the call have that nobody has read."""
        self._early_bytes = 0
        """What has come that is not looked at yet."""
        self._is_tls = False
        self._is_over = False
        self._is_draining = False

    # --- what asyncio says ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        if not self._owner.connected(self):
            self._is_over = True
            self._transport.abort()
            return
        self._await_request(self._owner.limits.http2_preface_ns_max)

    def get_buffer(self, _: int) -> memoryview:
        return self._owner.receive_buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._owner.receive_buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """What came with a TLS handshake, and everything else."""
        if self._socket is not None:
            self._socket.data_received(data)
        else:
            self._receive(data)

    def eof_received(self) -> bool:
        if self._socket is not None:
            self._socket.eof_received()
        elif self._call is not None:
            # A browser that ends its side has gone.
            self._cut_call()
            self._end()
        elif self._answering is None:
            self._end()
        # TLS has no half that stays open.
        return not self._is_tls

    def pause_writing(self) -> None:
        self.is_clogged = True
        if self._socket is not None:
            self._socket.pause_writing()

    def resume_writing(self) -> None:
        self.is_clogged = False
        if self._socket is not None:
            self._socket.resume_writing()
        elif self._call is not None:
            # Not at once: asyncio calls this in the middle of its own write.
            self._loop.call_soon(self._call.go_on)
        else:
            self._loop.call_soon(self._receive, None)

    def connection_lost(self, _: Exception | None) -> None:
        self._is_over = True
        self._cancel_timer()
        if self._answering is not None:
            self._answering.cancel()
        self._cut_call()
        if self._socket is not None:
            self._socket.connection_lost()
        self._owner.disconnected(self)

    # --- requests ---------------------------------------------------------------------------------

    def _receive(self, data: bytes | None) -> None:
        """Bytes have come; or a request is answered, and those that came meanwhile are looked
        at."""
        if self._is_over or self._socket is not None:
            return
        try:
            if data is not None:
                if self._is_busy or self._http.their_state not in _COMING:
                    self._early_bytes += len(data)
                    if self._early_bytes > _BODY_BYTES_MAX:
                        self.abort()
                        return
                self._http.receive_data(data)
            self._go_on()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint or HTTPStatus.BAD_REQUEST)
            self._refuse(WebAnswer.text(status, str(error)))

    @property
    def _is_busy(self) -> bool:
        """Whether the next request has to wait: one is answered, or answers are not taken."""
        return self._answering is not None or (self.is_clogged and self._call is None)

    def _go_on(self) -> None:
        """Look at what has come."""
        while not self._is_busy and not self._is_over:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._begin_request(event)
            elif isinstance(event, h11.Data):
                self._take_body(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._cancel_timer()
                if self._call is not None:
                    self._call.half_close()
                    # That the client goes is read, too.
                    self._resume_reading()
                elif self._is_call:
                    self._next()
                elif self._request is not None:
                    self._take(self._request)
            else:
                break

    def _begin_request(self, event: h11.Request) -> None:
        request = self._web_request(event)
        self._request = None
        self._is_call = is_call(request)
        self._body_bytes = self._early_bytes = 0
        if {"content-length", "transfer-encoding"} <= {name for name, _ in request.headers}:
            # Who passes it on to us may not go by the same one as we do (RFC 9112, 6.1).
            text = "a body has a length or an encoding, not both"
            self._refuse(WebAnswer.text(HTTPStatus.BAD_REQUEST, text))
        elif self._is_call:
            self._begin_call(request)
        else:
            self._request = request

    def _take_body(self, data: bytes) -> None:
        if not self._is_call:
            self._count_body(len(data))
            return
        self._await_request(self._owner.limits.web_idle_ns_max)
        most = self._owner.limits.web_upload_bytes_max
        if self._call is None:
            # It is read all the same: who is still writing would not see the answer.
            self._body_bytes += len(data)
            if self._body_bytes > most:
                self._end()
            return
        self._unread_bytes += self._call.feed_body(data, most)
        if self._unread_bytes > self._owner.limits.web_requests_bytes_max:
            assert self._transport is not None
            self._transport.pause_reading()

    def _count_body(self, size: int) -> None:
        self._body_bytes += size
        if self._body_bytes > _BODY_BYTES_MAX:
            text = f"bodies have at most {_BODY_BYTES_MAX} bytes"
            self._refuse(WebAnswer.text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text))

    def _web_request(self, event: h11.Request) -> WebRequest:
        assert self._transport is not None
        made = self._transport
        tls: Any = made.get_extra_info("ssl_object")
        return WebRequest(
            method=event.method.decode("ascii"),
            target=event.target.decode("ascii", "replace"),
            headers=tuple(
                (name.decode("ascii").lower(), value.decode("latin-1"))
                for name, value in event.headers
            ),
            peer=peer_of(made),
            identity=identity_of_connection(tls, made.get_extra_info("socket")),
            is_tls=tls is not None,
        )

    def _take(self, request: WebRequest) -> None:
        if "websocket" in [word.lower() for word in request.words("upgrade")]:
            self._upgrade(request)
            return
        early = early_answer(request, self._owner.origins, self._owner.site)
        if early is not None:
            self._send(early, request)
            return
        self._answering = self._owner.start_answer(
            self._answer(request), on_death=partial(self._failed, request)
        )

    async def _answer(self, request: WebRequest) -> None:
        answer = await self._owner.site.answer(request)
        self._answering = None
        self._send(answer, request)
        self._receive(None)

    def _failed(self, request: WebRequest, error: WorkerDiedError) -> None:
        log.error("%s %s could not be answered: %s", request.method, request.path, error)
        self._answering = None
        self._send(WebAnswer.failed(), request)
        self._receive(None)

    def _send(self, answer: WebAnswer, request: WebRequest | None) -> None:
        """An answer; then the next request is expected, or the connection ends."""
        if self._is_over or self._transport is None:
            return
        headers = [*answer.headers, ("content-length", str(len(answer.body)))]
        if self._is_draining or request is None:
            headers.append(("connection", "close"))
        head = h11.Response(status_code=answer.status, reason=answer.status.phrase, headers=headers)
        sent = [self._http.send(head)]
        if answer.body and not (request is not None and request.method == "HEAD"):
            sent.append(self._http.send(h11.Data(data=answer.body)))
        sent.append(self._http.send(h11.EndOfMessage()))
        self._transport.writelines([part for part in sent if part])
        self._next()

    def _next(self) -> None:
        """A request is answered."""
        is_whole = not self._is_draining and self._http.our_state is h11.DONE
        if is_whole and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._await_request(self._owner.limits.web_idle_ns_max)
        else:
            self._end()

    def _refuse(self, answer: WebAnswer) -> None:
        """Answer what is no request of HTTP, and end."""
        self._cut_call()
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(answer, None)
        self._end()

    # --- calls ------------------------------------------------------------------------------------

    def _begin_call(self, request: WebRequest) -> None:
        """Run the call that is asked for, whose messages are the body that comes."""
        owner = self._owner
        early = early_answer(request, owner.origins, owner.site)
        if early is not None:
            self._refuse(early)
            return
        further = [
            (name.encode("ascii"), value.encode("latin-1"))
            for name, value in for_other_origin(request, owner.origins)
        ]
        self.peer, self.identity = request.peer, request.identity
        try:
            head = head_of(request)
        except RequestRefusal as refusal:
            self.put_head([*refusal.answer, *further])
            self._transport_write(self._http.send(h11.EndOfMessage()))
            self._end()
            return
        head.answer += further
        if owner.keepalive_ms and self._transport is not None:
            keep_alive(self._transport.get_extra_info("socket"), owner.keepalive_ms)
        self._call = call = FetchedCall(self, head)
        call.runs_as(owner.run(call))

    def taken(self, size: int) -> None:
        self._unread_bytes -= size
        if self._unread_bytes <= self._owner.limits.web_requests_bytes_max // 2:
            self._resume_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_reading() and not self._is_over:
            self._transport.resume_reading()

    def blocked(self, _: SocketCall) -> None:
        """It goes on when writing does: there is no other call."""

    def put_head(self, headers: Headers) -> None:
        (_, status), *fields = headers
        self._transport_write(
            self._http.send(h11.Response(status_code=int(status), headers=fields))
        )

    def put_body(self, data: bytes) -> None:
        self._transport_write(self._http.send(h11.Data(data=data)))

    def put_last(self) -> None:
        self._transport_write(self._http.send(h11.EndOfMessage()))
        self._call = None
        # The behavior is still to be told that its answer is out.
        self._loop.call_soon(self._after_call)

    def _after_call(self) -> None:
        if self._is_over or self._call is not None:
            return
        is_answered = self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE)
        if is_answered and self._http.their_state not in _COMING:
            self._next()
        self._receive(None)

    def _transport_write(self, data: bytes | None) -> None:
        if data and self._transport is not None and not self._is_over:
            self._transport.write(data)

    def _cut_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cut()

    # --- WebSockets -------------------------------------------------------------------------------

    def _upgrade(self, request: WebRequest) -> None:
        wrong = _wrong_upgrade(request)
        offered = request.words("sec-websocket-protocol")
        protocol = next((each for each in self._owner.speakers if each in offered), None)
        if wrong is not None:
            self._send(WebAnswer.text(HTTPStatus.BAD_REQUEST, wrong), None)
            return
        if protocol is None:
            known = " or ".join(self._owner.speakers)
            text = f"offer {known} in Sec-WebSocket-Protocol"
            self._send(WebAnswer.text(HTTPStatus.BAD_REQUEST, text), None)
            return
        self._switch(request, protocol)

    def _switch(self, request: WebRequest, protocol: str) -> None:
        """It is a WebSocket from here on. One that is not let in is told so on it: browsers tell
        pages nothing else."""
        assert self._transport is not None
        key = request.header("sec-websocket-key") or ""
        self._transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + f"Sec-WebSocket-Accept: {accept_key(key)}\r\n".encode()
            + f"Sec-WebSocket-Protocol: {protocol}\r\n\r\n".encode()
        )
        limits = self._owner.limits
        self._socket = socket = WebSocket(
            self._transport,
            name=request.peer,
            limits=limits,
            turn_end=self._owner.turn_end,
            message_bytes_max=limits.web_message_bytes_max,
            keepalive_ms=self._owner.keepalive_ms,
        )
        refusal = self._owner.origins.refusal(request)
        if refusal is not None:
            log.info("%s: %s", request.peer, refusal)
            socket.close(CloseReason.ORIGIN, refusal)
            return
        self.speaker = speaker = self._owner.speakers[protocol](socket, request)
        socket.begin(speaker)
        if self._is_draining:
            speaker.drain()
        data = self._http.trailing_data[0]
        if data:
            socket.data_received(bytes(data))

    # --- how it ends ------------------------------------------------------------------------------

    def drain(self) -> None:
        """Take no more calls."""
        self._is_draining = True
        if self.speaker is not None:
            self.speaker.drain()
        elif self._answering is None and self._call is None:
            self._end()

    def end_calls(self, code: StatusCode, details: str) -> None:
        """End those there are with this status."""
        if self.speaker is not None:
            self.speaker.end_calls(code, details)
            return
        if self._call is not None:
            self._call.end_with(code, details)
        self._end()

    def close(self) -> None:
        """End the connection once what was made has been sent, unless it is a WebSocket, which says
        so itself."""
        if not self._is_over:
            self._end()

    def _await_request(self, time_ns: int) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(time_ns / 1e9, self._end)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        """Nothing more is read; what was sent still goes out, for a while. Idempotent."""
        if self._socket is None and self._transport is not None and not self._is_over:
            self._cut_call()
            self._is_over = True
            self._transport.close()
            self._await_taken(self._transport)

    def _await_taken(self, transport: asyncio.Transport, before: int | None = None) -> None:
        """Of what was sent at least some must be taken for the connection to stay."""
        left = transport.get_write_buffer_size()
        if before is not None and left >= before:
            transport.abort()
            return
        self._cancel_timer()
        self._timer = self._loop.call_later(_LAST_WORDS_SECONDS, self._await_taken, transport, left)

    def abort(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()


def _wrong_upgrade(request: WebRequest) -> str | None:
    """What is wrong with the handshake of a WebSocket."""
    if request.method != "GET":
        return "a WebSocket begins with GET"
    if request.header("sec-websocket-version") != _VERSION:
        return f"Sec-WebSocket-Version must be {_VERSION}"
    try:
        key = base64.b64decode(request.header("sec-websocket-key") or "", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    return None if len(key) == _KEY_BYTES else "Sec-WebSocket-Key must be 16 bytes in base64"
