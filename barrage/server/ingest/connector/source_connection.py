"""One connection of a source: bytes between its transport and its session."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from barrage.proto.connector.session_states import WorkerState
from barrage.server.ingest.connector.source_callers import SourcePeer

if TYPE_CHECKING:
    from barrage.errors import StatusCode
    from barrage.limits import Limits
    from barrage.proto.connector.worker_session import WorkerSession
    from barrage.server.identity.caller import Caller

log = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
"""Taken from one connection at a time: some milliseconds of work, were all messages small and each
of another stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorFacts:
    """What is told of one connection."""

    number: int
    program: str
    instance: str
    state: str
    streams: int
    credits: int
    waiting: int
    """Messages that are received and not safe."""
    waiting_bytes: int
    messages: int
    last_error: str | None


class ConnectionOwner(Protocol):
    """Who is told what happens to connections."""

    limits: Limits
    buffer: memoryview
    """What a connection has brought, until it has looked at it."""

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
        self.source: SourcePeer
        """What it shows, from the moment it is made."""
        self.caller: Caller | None = None
        """Who it is, once that is known."""
        self.call: object = None
        """Under which the caller's calls know it."""
        self.outcome: StatusCode | None = None
        """Why it was turned away; None when it was not."""
        self._is_greeted = False
        self._is_held = False
        """Whether nothing is read because there is enough to look at."""
        self._is_ending = False
        self.number = 0
        """Of the connections of this server."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.source = SourcePeer.of(transport)
        self.expires_s = self._worker.joined(self)
        if self.expires_s is None:
            transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._worker.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received(self._worker.buffer[:nbytes])

    def _received(self, data: memoryview) -> None:
        self.session.receive_data(data)
        self._hold()
        if self.session.state is WorkerState.GREETED and not self._is_greeted:
            self._is_greeted = True
            self._worker.greeted(self)
        self._worker.touch(self)

    def read_on(self) -> None:
        """Look at more of what has come, in a turn of the loop that others have as well."""
        if not self.session.has_unread and not self._is_held:
            return
        self.session.read_on()
        self._hold()
        # What was read is for the next turn to hand over, also when it was the last.
        self._worker.touch(self)

    def _hold(self) -> None:
        """Read no more while there is enough to look at."""
        has_enough = self.session.has_unread
        if has_enough == self._is_held:
            return
        self._is_held = has_enough
        if has_enough:
            self.pause()
        else:
            self.resume()

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

    def facts(self) -> ConnectorFacts:
        hello = self.session.hello
        return ConnectorFacts(
            number=self.number,
            program="" if hello is None else hello.program,
            instance="" if hello is None else hello.instance,
            state=self.session.state.name.lower(),
            streams=self.session.stream_count,
            credits=self.session.credits,
            waiting=self.session.under_way,
            waiting_bytes=self.session.unsafe_bytes,
            messages=self.session.message_count,
            last_error=self.session.failure,
        )
