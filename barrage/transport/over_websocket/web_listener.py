"""Listens for browsers: HTTP/2 under TLS and HTTP/1.1 for what they read and for calls of gRPC-web,
WebSockets for the calls of pages."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from barrage.errors import StatusCode
from barrage.supervision import Role, start_task
from barrage.transport.call_running import CallRunner
from barrage.transport.host_names import with_port
from barrage.transport.over_http2.grpc_web import PREFIX_BYTES
from barrage.transport.over_websocket import flight_socket, multiplexed_grpc
from barrage.transport.over_websocket.flight_socket import FlightSocket
from barrage.transport.over_websocket.multiplexed_grpc import MultiplexedGrpc
from barrage.transport.over_websocket.page_http2 import PageHttp2
from barrage.transport.over_websocket.web_connection import WebConnection
from barrage.transport.over_websocket.web_socket import TurnEnd
from barrage.transport.sockets.listening_sockets import BACKLOG, ListeningSockets
from barrage.transport.sockets.servers import close_servers
from barrage.transport.tls.handshakes import TlsHandshakes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine, Mapping
    from typing import TypeAlias

    from barrage.limits import Limits
    from barrage.supervision import OnDeath
    from barrage.transport.base import ListenOptions
    from barrage.transport.over_http2.http2_protocol import Http2Protocol
    from barrage.transport.over_websocket.http_messages import WebSite
    from barrage.transport.over_websocket.origins import OriginRule
    from barrage.transport.over_websocket.web_connection import MakeSpeaker

    Connection: TypeAlias = WebConnection | Http2Protocol

REQUEST = Role("barrage-web-request", "the request, which is not answered")

_LAST_WORDS_SECONDS = 1.0
"""How long a listener that stops waits for its connections to say what they have to say."""


_RECEIVE_BYTES = 64 * 1024
"""What is read from a connection at a time."""


class WebListener(CallRunner):
    """A server on one port, at all addresses of its host."""

    def __init__(
        self, host: str, options: ListenOptions, *, site: WebSite, origins: OriginRule
    ) -> None:
        """``site`` answers what is no WebSocket."""
        super().__init__()
        self.limits = options.limits
        self.site = site
        self.origins = origins
        self.keepalive_ms = options.keepalive_ms
        self.turn_end = TurnEnd()
        self.receive_buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self.speakers: Mapping[str, MakeSpeaker] = {
            flight_socket.PROTOCOL: partial(FlightSocket, runner=self, limits=options.limits),
            multiplexed_grpc.PROTOCOL: partial(MultiplexedGrpc, runner=self, limits=options.limits),
        }
        self._host = host
        self._options = options
        self._http2_options = replace(options, limits=_page_limits(options.limits))
        self._sockets = ListeningSockets(host, options.port)
        self._servers: list[asyncio.Server] = []
        self._connections: dict[Connection, asyncio.Future[None]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._handshakes: TlsHandshakes | None = None

    @property
    def port(self) -> int:
        """Known once it is bound."""
        return self._sockets.port

    @property
    def address(self) -> str:
        """``host:port``."""
        return with_port(self._host, self.port)

    @property
    def uri(self) -> str:
        """What people open; the unspecified address is this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}.get(self._host, self._host)
        scheme = "http" if self._options.tls is None else "https"
        return f"{scheme}://{with_port(host, self.port)}/"

    @property
    def connections_count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    def bind(self) -> None:
        """Listens already; the system keeps who comes until :meth:`start`. ConfigError."""
        self._sockets.bind()

    async def start(self) -> None:
        """Take calls."""
        loop = asyncio.get_running_loop()
        made: Callable[[], asyncio.BaseProtocol] = self._made
        if self._options.tls is not None:
            self._handshakes = TlsHandshakes(
                self._context, self.limits, made=partial(_Secured, self), room=self._room
            )
            made = self._handshakes.protocol
        for each in self._sockets:
            self._servers.append(await loop.create_server(made, sock=each, backlog=BACKLOG))

    def _context(self) -> ssl.SSLContext:
        assert self._options.tls is not None
        return self._options.tls.web_context

    def _room(self) -> int:
        """How many more connections there may be."""
        taken = len(self._connections)
        return 0 if self._is_stopped else self.limits.web_connections_max - taken

    def _made(self) -> WebConnection:
        return WebConnection(self)

    def made_for(self, protocol: str | None) -> WebConnection | PageHttp2:
        """A connection on which this was agreed to be spoken (ALPN)."""
        return PageHttp2(self, self, self._http2_options) if protocol == "h2" else self._made()

    async def stop(self, grace_s: float | None) -> None:
        """Take no more calls, wait for those there are, cut what is left after ``grace_s``.
        Idempotent, also without :meth:`start`."""
        self._is_stopped = True
        await close_servers(self._servers)
        self._sockets.close()
        if self._handshakes is not None:
            await self._handshakes.stop()
        for each in list(self._connections):
            each.drain()
        await asyncio.gather(self.wait_for_calls(grace_s), self._wait_for_answers(grace_s))
        for each in list(self._connections):
            each.end_calls(StatusCode.UNAVAILABLE, "the server has stopped")
        await self.cancel_calls()
        for each in list(self._connections):
            each.close()
        if self._connections:
            await asyncio.wait(list(self._connections.values()), timeout=_LAST_WORDS_SECONDS)
        for each in list(self._connections):
            each.abort()

    def start_answer(
        self, answer: Coroutine[Any, Any, None], *, on_death: OnDeath
    ) -> asyncio.Task[None]:
        """Answer a request that is no call. Who cancels the task ends it."""
        task = start_task(REQUEST, answer, on_death=on_death)
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)
        return task

    async def _wait_for_answers(self, grace_s: float | None) -> None:
        """Return when the requests that are no calls are answered, or ``grace_s`` is over."""
        if self._answers:
            await asyncio.wait(self._answers, timeout=grace_s or 0)

    def connected(self, connection: Connection) -> bool:
        """Whether there is room for one more, and whether it comes in time."""
        if self._room() <= 0:
            return False
        self._connections[connection] = asyncio.get_running_loop().create_future()
        return True

    def disconnected(self, connection: Connection) -> None:
        """It takes no room any more. Idempotent."""
        gone = self._connections.pop(connection, None)
        if gone is not None and not gone.done():
            gone.set_result(None)


def _page_limits(limits: Limits) -> Limits:
    """What a page may have under way on a connection of HTTP/2 is what it may on a WebSocket."""
    return replace(
        limits,
        http2_partial_bytes_max=limits.web_upload_bytes_max + PREFIX_BYTES,
        http2_requests_bytes_max=limits.web_requests_bytes_max,
    )


class _Secured(asyncio.Protocol):
    """Of a connection whose TLS handshake is done, until it is known what is spoken on it: for no
    time at all."""

    def __init__(self, owner: WebListener) -> None:
        self._owner = owner
        self._made: WebConnection | PageHttp2 | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tls: Any = transport.get_extra_info("ssl_object")
        self._made = self._owner.made_for(tls.selected_alpn_protocol())
        cast("asyncio.Transport", transport).set_protocol(self._made)
        self._made.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """What the client has said right behind its part of the handshake."""
        if self._made is not None:
            self._made.data_received(data)
