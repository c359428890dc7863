"""One connection of a source: bytes between its transport and its session."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from barrage.proto.connector.session_states import WorkerState
from barrage.server.ingest.connector.source_callers import Source

if TYPE_CHECKING:
    from barrage.errors import StatusCode
    from barrage.limits import Limits
    from barrage.proto.connector.worker_session import WorkerSession
    from barrage.server.identity.caller import Caller

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
"""Taken from one connection at a time, as a small message costs some microseconds."""


class ConnectionOwner(Protocol):
    """Who is told what happens to connections."""

    limits: Limits

    def new_session(self, connection: ConnectorConnection) -> WorkerSession: ...

    def deadline_s(self) -> float:
        """Until when one that begins, or ends, may take."""
        ...

    def joined(self, connection: ConnectorConnection) -> float | None:
        """When its HELLO must be there; None when there is no room for it."""
        ...

    def greeted(self, connection: ConnectorConnection) -> None: ...

    def touch(self, connection: ConnectorConnection) -> None:
        """There may be something to send."""
        ...

    def left(self, connection: ConnectorConnection) -> None: ...


class ConnectorConnection(asyncio.BufferedProtocol):
    """One of them."""

    def __init__(self, worker: ConnectionOwner) -> None:
        self._worker = worker
        self._transport: asyncio.Transport | None = None
        self.session = worker.new_session(self)
        self.expires_s: float | None = None
        """When it is cut: before it is known who it is, and after its ERROR."""
        self.source: Source
        """What it shows, from the moment it is made."""
        self.caller: Caller | None = None
        """Who it is, once that is known."""
        self.call: object = None
        """Under which the caller's calls know it."""
        self.outcome: StatusCode | None = None
        """Why it was turned away; None when it was not."""
        self._is_greeted = False
        self._is_ending = False
        # A view: asyncio's TLS fills it in parts, and a part of a bytearray is a copy.
        self._buffer = memoryview(bytearray(READ_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.source = Source.of(transport)
        self.expires_s = self._worker.joined(self)
        if self.expires_s is None:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received(self._buffer[:nbytes])

    def _received(self, data: memoryview) -> None:
        self.session.receive_data(data)
        if self.session.state is WorkerState.GREETED and not self._is_greeted:
            self._is_greeted = True
            self._worker.greeted(self)
        self._worker.touch(self)

    def data_received(self, data: bytes) -> None:
        """What came right behind a TLS handshake."""
        self._received(memoryview(data))

    def connection_lost(self, error: Exception | None) -> None:
        self.session.close()
        self._worker.left(self)

    def flush(self) -> None:
        """Send what there is to send; end once the session has."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        data = self.session.data_to_send()
        if data and not self._is_ending:
            transport.write(data)
            if transport.get_write_buffer_size() > self._worker.limits.connector_replies_bytes_max:
                log.warning("a connector does not read its replies and is cut")
                transport.abort()
                return
        if self.session.state is WorkerState.CLOSED:
            transport.close()
        elif self.session.state is WorkerState.FAILING and not self._is_ending:
            # Closing now, with bytes of the peer not read, could take the ERROR away from it.
            self._is_ending = True
            self.expires_s = self._worker.deadline_s()
            log.warning("a connector was ended: %s", self.session.failure)
            self._half_close(transport)

    def _half_close(self, transport: asyncio.Transport) -> None:
        if not transport.can_write_eof():
            return
        try:
            transport.write_eof()
        except OSError:
            # The peer has reset it, and this side has not heard of that yet.
            transport.abort()

    def pause(self) -> None:
        """Read no more of it, for a while."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def cut(self) -> None:
        if self._transport is not None:
            self._transport.abort()
