"""A small HTTP listener of its own: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz``.

One request per connection, GET and HEAD only. Everything a client can do is bounded: connections,
bytes of a request, the time from the connection to its last byte. What is refused is answered with
a status and one line of text; nobody's metrics are lost by it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.supervision import start_awaited
from barrage.transport.host_names import with_port
from barrage.transport.sockets.servers import close_servers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barrage.limits import Limits

log = logging.getLogger(__name__)

PLAIN = "text/plain; charset=utf-8"
_HEAD_END = b"\r\n\r\n"
_METHODS = ("GET", "HEAD")
_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What is looked at of a request."""

    method: str
    path: str
    accept: str = ""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What is answered."""

    status: HTTPStatus
    body: bytes = b""
    content_type: str = PLAIN

    @classmethod
    def of_text(cls, status: HTTPStatus, text: str) -> HttpAnswer:
        return cls(status, text.encode() + b"\n")

    def encode(self, *, with_body: bool = True) -> bytes:
        """As it is sent. The connection ends with it."""
        head = (
            f"HTTP/1.1 {self.status.value} {self.status.phrase}\r\n"
            f"Content-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n"
            "Cache-Control: no-store\r\n"
            "Connection: close\r\n"
        )
        if self.status is HTTPStatus.METHOD_NOT_ALLOWED:
            head += f"Allow: {', '.join(_METHODS)}\r\n"
        return head.encode("latin-1") + b"\r\n" + (self.body if with_body else b"")


class BadRequestError(Exception):
    """What came is no request that is answered here."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        self.answer = HttpAnswer.of_text(status, text)
        super().__init__(text)


def parse_request(head: bytes) -> HttpRequest:
    """The request line and headers, up to the empty line. BadRequestError."""
    try:
        lines = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "the request is not ASCII") from None
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1.") or not parts[1].startswith("/"):
        raise BadRequestError(
            HTTPStatus.BAD_REQUEST, "expected a request line such as 'GET /metrics HTTP/1.1'"
        )
    method, target, _ = parts
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if line and (not colon or not name or name != name.strip()):
            raise BadRequestError(HTTPStatus.BAD_REQUEST, "a header is not 'Name: value'")
        headers[name.lower()] = value.strip()
    if method not in _METHODS:
        raise BadRequestError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, "a request has no body here")
    return HttpRequest(method, target.partition("?")[0], headers.get("accept", ""))


class MetricsListener:
    """Made and used on the event loop."""

    def __init__(
        self, answer: Callable[[HttpRequest], Awaitable[HttpAnswer]], limits: Limits
    ) -> None:
        """``answer`` must not raise."""
        self._answer = answer
        self._limits = limits
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self.refused_count = 0
        """Requests that were not answered as they were meant."""

    @property
    def port(self) -> int:
        """Where it listens; 0 while it does not."""
        if self._server is None or not self._server.sockets:
            return 0
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen; ConfigError when the address cannot be had."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Connection(self, self._answer, self._limits),
                host.strip("[]"),
                port,
                backlog=_BACKLOG,
            )
        except (OSError, UnicodeError) as error:
            where = with_port(host, port)
            raise ConfigError(f"cannot listen for metrics on {where}: {error}") from error

    async def close(self) -> None:
        """Give back the address and end the connections. Idempotent."""
        if self._server is not None:
            await close_servers([self._server])
        for connection in list(self._connections):
            connection.abort()

    # --- for its connections ---

    def connected(self, connection: _Connection) -> bool:
        """Whether there is room for one more."""
        self._connections.add(connection)
        return len(self._connections) <= self._limits.metrics_connections_max

    def disconnected(self, connection: _Connection) -> None:
        """It takes no room any more."""
        self._connections.discard(connection)

    def refused(self) -> None:
        """One more request was not answered as it was meant."""
        self.refused_count += 1


class _Connection(asyncio.Protocol):
    """One connection, which is one request."""

    def __init__(
        self,
        owner: MetricsListener,
        answer: Callable[[HttpRequest], Awaitable[HttpAnswer]],
        limits: Limits,
    ) -> None:
        self._owner = owner
        self._answer = answer
        self._limits = limits
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        seconds = self._limits.metrics_request_ns_max / 1e9
        self._timer = asyncio.get_running_loop().call_later(seconds, self._is_late)
        if not self._owner.connected(self):
            self._refuse(
                HttpAnswer.of_text(
                    HTTPStatus.SERVICE_UNAVAILABLE, "too many connections; come again"
                )
            )

    def connection_lost(self, _error: Exception | None) -> None:
        self._owner.disconnected(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_answered:
            return  # Nobody reads what follows the request.
        self._received += data
        end = self._received.find(_HEAD_END)
        if max(end, len(self._received) if end < 0 else end) > self._size_max:
            text = f"a request has at most {self._size_max} bytes"
            self._refuse(HttpAnswer.of_text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text))
            return
        if end < 0:
            return
        try:
            request = parse_request(bytes(self._received[:end]))
        except BadRequestError as error:
            self._refuse(error.answer)
            return
        self._is_answered = True
        self._task = start_awaited(self._answer_to(request))

    @property
    def _size_max(self) -> int:
        return self._limits.metrics_request_bytes_max

    async def _answer_to(self, request: HttpRequest) -> None:
        answer = await self._answer(request)
        if answer.status is not HTTPStatus.OK:
            self._owner.refused()
        self._send(answer.encode(with_body=request.method != "HEAD"))

    def _refuse(self, answer: HttpAnswer) -> None:
        self._is_answered = True
        self._owner.refused()
        self._send(answer.encode())

    def _send(self, data: bytes) -> None:
        """What does not go out in time is cut by the timer."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        transport.close()

    def _is_late(self) -> None:
        if not self._is_answered:
            self._refuse(
                HttpAnswer.of_text(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time")
            )
            # The answer is short: whoever reads at all has it at once.
            asyncio.get_running_loop().call_later(1.0, self.abort)
            return
        self._owner.refused()
        self.abort()

    def abort(self) -> None:
        """Cut it."""
        if self._transport is not None:
            self._transport.abort()
