"""Messages by HTTP: the body of each POST is one, and is answered when it is safe.

A sender that gets no 200 sends again, so each message arrives at least once; a table with a key
makes that once. HTTP/1.1 with a Content-Length, and nothing else of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from typing import TYPE_CHECKING

from barrage.connector.messages import MessageBatch
from barrage.connector.source import Source

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 1024 * 1024
PENDING_MAX = 1_000
"""Requests that wait to be safe; more are told 503."""
REQUEST_SECONDS = 30.0
"""How long a sender may take for a request."""
SAFE_SECONDS = 30.0
"""How long a request may wait to be safe; then it is told 503, and comes again."""

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


class _HttpError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Webhook(Source):
    """Listens on ``host:port`` while it is entered. ``token``: what ``Authorization: Bearer`` must
    bring."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        path: str = "/",
        token: str | None = None,
        name: str = "webhook",
        safe_seconds: float = SAFE_SECONDS,
    ) -> None:
        self.name = name
        self._host = host
        self._port = port
        self._path = path
        self._token = token
        self._safe_seconds = safe_seconds
        self._server: asyncio.Server | None = None
        self._last: int | None = None
        """The last id that was given out; None until the worker has said where it stands."""
        self._pending: dict[int, tuple[bytes, asyncio.Future[None]]] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._has_more = asyncio.Event()
        self._begun = asyncio.Event()

    async def __aenter__(self) -> Webhook:
        self._server = await asyncio.start_server(
            self._serve, self._host, self._port, limit=HEAD_BYTES_MAX
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving)

    @property
    def port(self) -> int:
        """The TCP port; the chosen one when 0 was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        """See :class:`~barrage.connector.source.Source`."""
        position = 0 if after is None else after
        self._settle(position)
        if self._last is None:
            self._last = position
            self._begun.set()
        while True:
            self._has_more.clear()
            fresh = [number for number in self._pending if number > position]
            if fresh:
                position = fresh[-1]
                yield MessageBatch(ids=fresh, payloads=[self._pending[n][0] for n in fresh])
            else:
                await self._has_more.wait()

    async def acknowledged(self, last: int) -> None:
        """See :class:`~barrage.connector.source.Source`."""
        self._settle(last)

    def _settle(self, last: int) -> None:
        for number in [each for each in self._pending if each <= last]:
            _, is_safe = self._pending.pop(number)
            if not is_safe.done():
                is_safe.set_result(None)

    # --- requests -------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._writers.add(writer)
        try:
            goes_on = True
            while goes_on:
                status, goes_on = await self._one(reader, writer)
                if status is None:
                    return
                ends = "" if goes_on else "Connection: close\r\n"
                reason = _REASONS[status]
                head = f"HTTP/1.1 {status} {reason}\r\nContent-Length: 0\r\n{ends}\r\n"
                writer.write(head.encode())
                await writer.drain()
        except ConnectionError:
            return
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            self._writers.discard(writer)
            self._serving.discard(task)

    async def _one(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int | None, bool]:
        """The answer to the next request, None when there is none, and whether more may come."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                length, goes_on, expects = self._checked(head)
                if expects:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await reader.readexactly(length)
            await self._take(body)
        except asyncio.IncompleteReadError:
            return None, False
        except asyncio.LimitOverrunError:
            return 431, False
        except TimeoutError:
            return 408, False
        except _HttpError as error:
            # What follows the head was not read, so nothing can follow that.
            return error.status, error.status == 503 and goes_on
        return 200, goes_on

    def _checked(self, head: bytes) -> tuple[int, bool, bool]:
        """The length of the body, whether the connection goes on, and whether the sender waits
        to be told to send it."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise _HttpError(400)
        fields: dict[str, str] = {}
        for line in lines[1:-2]:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip() or name.lower() in fields:
                raise _HttpError(400)
            fields[name.lower()] = value.strip()
        if self._token is not None:
            shown = fields.get("authorization", "").encode()
            if not hmac.compare_digest(shown, f"Bearer {self._token}".encode()):
                raise _HttpError(401)
        if words[0] != "POST":
            raise _HttpError(405)
        if words[1].partition("?")[0] != self._path:
            raise _HttpError(404)
        length = fields.get("content-length", "")
        if "transfer-encoding" in fields or not length:
            raise _HttpError(411)
        if not (length.isascii() and length.isdigit() and len(length) < 12):
            raise _HttpError(400)
        if int(length) > BODY_BYTES_MAX:
            raise _HttpError(413)
        goes_on = words[2] == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
        return int(length), goes_on, fields.get("expect", "").lower() == "100-continue"

    async def _take(self, body: bytes) -> None:
        """Until a message is safe."""
        if not body:
            raise _HttpError(400)
        if len(self._pending) >= PENDING_MAX:
            raise _HttpError(503)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._safe_seconds):
                await self._begun.wait()
                assert self._last is not None
                self._last += 1
                is_safe = asyncio.get_running_loop().create_future()
                self._pending[self._last] = (body, is_safe)
                self._has_more.set()
                await is_safe
                return
        raise _HttpError(503)
