"""TLS handshakes of one listener: each has its time, and only so many are under way at once.

A connection comes in the clear and is told nothing. It waits for its turn without being read, which
costs a descriptor and a task; only then there is a TLS engine with its buffers. What the client
says right behind its part of the handshake is kept for the connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import TYPE_CHECKING, Protocol, cast

from barrage.supervision import Role, no_dependants, start_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.limits import Limits

HANDSHAKE = Role("barrage-tls-handshake", "the connection, which is closed")

log = logging.getLogger(__name__)


class Secured(Protocol):
    """What a connection is given to once its handshake is done: a protocol of asyncio, of any
    kind."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None:
        """What the client has said right behind its part of the handshake."""
        ...


class TlsHandshakes:
    """Of connections that are not one yet. On one event loop."""

    def __init__(
        self,
        context: Callable[[], ssl.SSLContext],
        limits: Limits,
        *,
        made: Callable[[], Secured],
        room: Callable[[], int],
    ) -> None:
        """``context``: for one connection that begins now. ``made``: the protocol of a connection
        whose handshake is done. ``room``: how many more connections there may be, those not counted
        that are here."""
        self._context = context
        self._seconds_max = limits.http2_preface_ns_max / 1e9
        self._turns = asyncio.Semaphore(limits.tls_handshakes_max)
        self._made = made
        self._room = room
        self._tasks: set[asyncio.Task[None]] = set()
        self.under_way = 0
        """Those that have a TLS engine."""

    def __len__(self) -> int:
        """Those that wait included."""
        return len(self._tasks)

    def protocol(self) -> asyncio.Protocol:
        """Of a connection that has just come."""
        return _Waiting(self)

    def begin(self, transport: asyncio.Transport) -> None:
        """Do the handshake as soon as it is its turn, if there is room."""
        if len(self._tasks) >= self._room():
            transport.abort()
            return
        transport.pause_reading()
        task = start_task(HANDSHAKE, self._shake(transport), on_death=no_dependants)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """End those under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _shake(self, transport: asyncio.Transport) -> None:
        early = _Early()
        secured: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(self._seconds_max), self._turns:
                self.under_way += 1
                try:
                    secured = await asyncio.get_running_loop().start_tls(
                        transport,
                        early,
                        self._context(),
                        server_side=True,
                        ssl_handshake_timeout=self._seconds_max,
                    )
                finally:
                    self.under_way -= 1
        except (OSError, TimeoutError, ssl.SSLError) as error:
            peer = transport.get_extra_info("peername")
            log.info("%s: no TLS: %s", _shown(peer), _reason(error))
        finally:
            if secured is None:
                transport.abort()
        if secured is not None and not early.is_lost:
            self._hand_over(secured, bytes(early.data))

    def _hand_over(self, secured: asyncio.Transport, data: bytes) -> None:
        try:
            protocol = self._made()
            secured.set_protocol(cast("asyncio.BaseProtocol", protocol))
            protocol.connection_made(secured)
            if data and not secured.is_closing():
                protocol.data_received(data)
        except BaseException:
            # Nobody else knows of it.
            secured.abort()
            raise


class _Waiting(asyncio.Protocol):
    """Of a connection before its handshake: nothing is read, so nothing is told but that it has
    come."""

    def __init__(self, handshakes: TlsHandshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshakes.begin(cast("asyncio.Transport", transport))


class _Early(asyncio.Protocol):
    """Of a connection whose handshake is done and whose protocol is not there yet: for one turn of
    the loop, so what it keeps is at most what was read in it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True


def _shown(peer: object) -> str:
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a client"


def _reason(error: Exception) -> str:
    """Nothing of what the peer has sent."""
    if isinstance(error, TimeoutError):
        return "the handshake took too long"
    reason = getattr(error, "reason", None)
    text = reason if isinstance(reason, str) else type(error).__name__
    return text.replace("_", " ").lower()
