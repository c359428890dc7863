"""One POST to the receiver of an alert: by HTTP/1.1, on a connection of its own.

``h11`` keeps the protocol. Nothing of an answer counts but its status and Retry-After: its body is
not read, redirects are not followed, and whatever a receiver does ends with the timeout. Errors
name no address but the host, as a path may be a secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import h11

from barrage.errors import TransportError
from barrage.supervision import WorkerPool, in_thread

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.server.alerting.receiver_hosts import ReceiverHosts

HEAD_BYTES_MAX = 16 * 1024
"""Of an answer, those before it (1xx) included."""

LOOKUPS_MAX = 2
"""Threads that look up names: those of others are not made to wait for a name server."""

CLOSE_S = 1.0
_READ_BYTES = 16 * 1024
_PORTS = {"http": 80, "https": 443}


class PostError(TransportError):
    """A message did not get to its receiver, or no answer came back."""


@dataclass(frozen=True, slots=True)
class PostAnswer:
    """What a receiver has answered."""

    status: int
    retry_after: str | None = None


class WebhookPost:
    """Sends messages. Made and used on one event loop."""

    def __init__(self, hosts: ReceiverHosts) -> None:
        """``hosts`` says where connections may be made to."""
        self.hosts = hosts
        self._lookups = WorkerPool(LOOKUPS_MAX, "barrage-alert-lookup")
        self._tls: ssl.SSLContext | None = None

    def close(self) -> None:
        """Look up no more names. Idempotent."""
        self._lookups.shutdown(wait=False, cancel_futures=True)

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, timeout_s: float
    ) -> PostAnswer:
        """Send ``body``. PostError."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._post(url, headers, body)
        except TimeoutError:
            raise PostError(f"there was no answer within {timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise PostError(f"TLS failed: {error.reason or type(error).__name__}") from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise PostError(f"the connection failed: {reason}") from None
        except UnicodeError:
            raise PostError("the connection failed: there can be no host of that name") from None
        except h11.ProtocolError:
            raise PostError("what came back is no HTTP, or its head is too long") from None

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> PostAnswer:
        parts = urlsplit(url)
        reader, writer = await self._connected(
            parts.hostname or "", parts.port or _PORTS[parts.scheme], is_tls=parts.scheme == "https"
        )
        try:
            http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            told = {
                "Host": parts.netloc,
                "Content-Length": str(len(body)),
                "Connection": "close",
                **headers,
            }
            request = h11.Request(method="POST", target=target, headers=list(told.items()))
            for event in (request, h11.Data(data=body), h11.EndOfMessage()):
                writer.write(http.send(event) or b"")
            # A receiver may answer and close before it has read all.
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            return await _answer(http, reader)
        finally:
            await _close(writer)

    async def _connected(
        self, host: str, port: int, *, is_tls: bool
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to an address that was checked, not to whatever a name stands for now."""
        addresses = [each for each in await self._addresses(host, port) if self.hosts.allows(each)]
        if not addresses:
            raise PostError(
                f"{host} stands for an address that is not public and was not named: "
                "alert_hosts, or the hosts of the file, name those that may be"
            )
        if is_tls and self._tls is None:
            self._tls = await in_thread(ssl.create_default_context)
        options: dict[str, Any] = {}
        if is_tls:
            options = {
                "ssl": self._tls,
                "server_hostname": host,
                "ssl_shutdown_timeout": CLOSE_S,
            }
        failure: OSError | None = None
        for address in addresses:
            try:
                return await asyncio.open_connection(address, port, **options)
            except ssl.SSLError:
                raise
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure

    async def _addresses(self, host: str, port: int) -> list[str]:
        """Of a host, each once."""
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._lookups, look_up)
        return list(dict.fromkeys(str(each[4][0]) for each in found))


async def _answer(http: h11.Connection, reader: asyncio.StreamReader) -> PostAnswer:
    byte_count = 0
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(_READ_BYTES)
            byte_count += len(data)
            http.receive_data(data)
        elif isinstance(event, h11.Response):
            named = dict(event.headers)
            after = named.get(b"retry-after")
            return PostAnswer(event.status_code, None if after is None else after.decode("latin-1"))
        elif not isinstance(event, h11.InformationalResponse) or byte_count > HEAD_BYTES_MAX:
            raise PostError("the connection ended before the answer, or it is too long")


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
