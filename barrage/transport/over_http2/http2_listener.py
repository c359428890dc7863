"""Listens for HTTP/2 connections on a port or on a socket of the file system."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from typing import TYPE_CHECKING

from barrage.errors import ConfigError, StatusCode
from barrage.transport.call_running import CallRunner
from barrage.transport.host_names import is_served, with_port
from barrage.transport.over_http2.http2_protocol import Http2Protocol
from barrage.transport.sockets.listening_sockets import BACKLOG, ListeningSockets
from barrage.transport.sockets.servers import close_servers
from barrage.transport.tls.handshakes import TlsHandshakes

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from barrage.transport.base import ListenOptions

_LAST_WORDS_SECONDS = 1.0
"""How long a listener that stops waits for its connections to say what they have to say."""


class Http2Listener(CallRunner):
    """A server on one port, at all addresses of its host."""

    def __init__(self, host: str, options: ListenOptions) -> None:
        super().__init__()
        self._host = host
        self._options = options
        self._sockets = ListeningSockets(host, options.port)
        self._servers: list[asyncio.Server] = []
        self._connections: dict[Http2Protocol, asyncio.Future[None]] = {}
        self._is_stopped = False
        self._handshakes: TlsHandshakes | None = None

    @property
    def port(self) -> int:
        return self._sockets.port

    @property
    def address(self) -> str:
        return with_port(self._host, self.port)

    @property
    def uri(self) -> str:
        return f"{'grpc' if self._options.tls is None else 'grpcs'}://{self.address}"

    @property
    def connections_count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    @property
    def handshakes_count(self) -> int:
        """Connections that come and have not said yet who they are."""
        return 0 if self._handshakes is None else len(self._handshakes)

    def bind(self) -> None:
        """Listens already; the system keeps who comes until :meth:`start`."""
        self._sockets.bind()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        made: Callable[[], asyncio.Protocol] = self._made
        if self._options.tls is not None:
            self._handshakes = TlsHandshakes(
                self._context, self._options.limits, made=self._made, room=self._room
            )
            made = self._handshakes.protocol
        for each in self._sockets:
            self._servers.append(await loop.create_server(made, sock=each, backlog=BACKLOG))

    def _context(self) -> ssl.SSLContext:
        assert self._options.tls is not None
        return self._options.tls.context

    def _room(self) -> int:
        """How many more connections there may be."""
        taken = len(self._connections)
        return 0 if self._is_stopped else self._options.limits.http2_connections_max - taken

    def _made(self) -> Http2Protocol:
        return Http2Protocol(self, self, self._options)

    async def stop(self, grace_s: float | None) -> None:
        self._is_stopped = True
        await close_servers(self._servers)
        self._close_sockets()
        if self._handshakes is not None:
            await self._handshakes.stop()
        for each in list(self._connections):
            each.drain()
        await self.wait_for_calls(grace_s)
        for each in list(self._connections):
            each.end_calls(StatusCode.UNAVAILABLE, "the server has stopped")
        await self.cancel_calls()
        open_ones = dict(self._connections)
        for each in open_ones:
            each.close()
        if open_ones:
            await asyncio.wait(open_ones.values(), timeout=_LAST_WORDS_SECONDS)
        for each in list(self._connections):
            each.abort()

    def _close_sockets(self) -> None:
        self._sockets.close()

    def connected(self, protocol: Http2Protocol) -> bool:
        """Whether there is room for one more, and whether it comes in time."""
        if self._is_stopped or len(self._connections) >= self._options.limits.http2_connections_max:
            return False
        self._connections[protocol] = asyncio.get_running_loop().create_future()
        return True

    def disconnected(self, protocol: Http2Protocol) -> None:
        """It takes no room any more. Idempotent."""
        gone = self._connections.pop(protocol, None)
        if gone is not None and not gone.done():
            gone.set_result(None)


class UnixHttp2Listener(Http2Listener):
    """The same on a socket of the file system."""

    def __init__(self, path: str, options: ListenOptions) -> None:
        super().__init__(f"unix://{path}", options)
        self._path = path
        self._identity: tuple[int, int] | None = None

    @property
    def address(self) -> str:
        return self._host

    @property
    def uri(self) -> str:
        return self._host

    def bind(self) -> None:
        """Take the place of a socket that nobody serves any more."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            if is_served(self._path):
                raise OSError("another server does")
            with contextlib.suppress(FileNotFoundError):
                if _is_socket(self._path):
                    os.unlink(self._path)
            made.bind(self._path)
            made.setblocking(False)
            made.listen(BACKLOG)
            self._identity = _identity_of(self._path)
        except OSError as error:
            made.close()
            raise ConfigError(f"cannot listen on {self._host}: {error}") from error
        self._sockets.add(made)

    async def start(self) -> None:
        for each in self._sockets:
            loop = asyncio.get_running_loop()
            self._servers.append(
                await loop.create_unix_server(self._made, sock=each, backlog=BACKLOG)
            )

    def _close_sockets(self) -> None:
        super()._close_sockets()
        with contextlib.suppress(OSError):
            if self._identity is not None and _identity_of(self._path) == self._identity:
                os.unlink(self._path)
        self._identity = None


def _is_socket(path: str) -> bool:
    return os.stat(path).st_mode & 0o170000 == 0o140000


def _identity_of(path: str) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino
