"""SourceDelivery to a worker by the connector protocol.

Each source is read by a task that waits for credits, so a worker without room slows the source down
and nobody else. After a lost connection every source is read again from the position that the
worker says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from functools import partial
from typing import TYPE_CHECKING, Any

from barrage.client.connection.reconnect import Backoff
from barrage.connector.delivery import SourceDelivery
from barrage.connector.messages import stream_id_of
from barrage.errors import (
    ConfigError,
    ConnectionLostError,
    ConnectorRefusedError,
    RemoteProtocolError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.proto.connector.source_session import (
    Acknowledged,
    RestartAsked,
    SourceSession,
    StreamOpened,
    StreamRefused,
    Welcomed,
    WorkerFailed,
)
from barrage.supervision import start_awaited

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from barrage.connector.delivery import DeliveryProgress
    from barrage.connector.source import Source
    from barrage.limits import Limits
    from barrage.proto.connector.source_session import SourceEvent
    from barrage.wire.payloads.payload_batch import PayloadBatch

logger = logging.getLogger(__name__)

READ_BYTES = 256 * 1024
CONNECT_SECONDS = 10.0
WRITE_BYTES_MAX = 1024 * 1024
"""Sent and not taken by the system yet; then reading the source waits."""
RUN_MESSAGES = 4_096
"""Messages of one write at most, so that several sources share a connection."""


def parse_worker(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; ConfigError."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ConfigError(f"{text!r} is no address of a worker: write HOST:PORT")
    return host.strip("[]"), int(port)


class _Stream:
    """One source on one connection."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.id = stream_id_of(source.name)
        self.is_opened = asyncio.Event()
        self.after: int | None = None
        """Where the worker says it stands."""
        self.last: int | None = None
        """The last id that was sent, or was there."""
        self.safe: int | None = None
        self.told: int | None = None
        """What the source was told of ``safe``."""
        self.is_ended = False
        """Whether all of it was sent."""

    @property
    def is_done(self) -> bool:
        return self.is_ended and (self.last is None or self.safe == self.last)


class WorkerDelivery(SourceDelivery):
    """To the worker at ``host:port`` (``barrage serve --connector``), as a program it knows.

    What the worker refuses (a wrong cookie, an unknown program, a newer connection that announced
    the same stream) is raised as ConnectorRefusedError.
    """

    def __init__(
        self,
        address: str,
        *,
        program: str,
        instance: str = "",
        cookie: str = "",
        tls: ssl.SSLContext | None = None,
        limits: Limits = DEFAULT_LIMITS,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__()
        self._host, self._port = parse_worker(address)
        self._program = program
        self._instance = instance
        self._cookie = cookie
        self._tls = tls
        self._limits = limits
        self._backoff = backoff or Backoff(seconds_max=2.0)

    async def run(self, sources: Sequence[Source]) -> None:
        """See :class:`~barrage.connector.delivery.SourceDelivery`."""
        left = list(sources)
        where = (self._host, self._port)
        while left:
            connection = _Connection(self._limits, self.progress)
            try:
                await connection.open(where, self._tls)
                await connection.greet(self._program, self._instance, self._cookie)
                self.progress.connections += 1
                self._backoff.reset()
                await connection.serve([_Stream(each) for each in left])
                where = parse_worker(connection.restart_at) if connection.restart_at else where
                is_lost = False
            except (OSError, ConnectionLostError, RemoteProtocolError) as error:
                logger.info("the worker at %s:%d: %s", *where, error or type(error).__name__)
                is_lost = True
            finally:
                await connection.close()
            left = [each for each in left if each not in connection.finished]
            if left and is_lost:
                await asyncio.sleep(self._backoff.next_delay())


class _Connection:
    """One connection to a worker."""

    def __init__(self, limits: Limits, progress: DeliveryProgress) -> None:
        self._session = SourceSession(limits=limits)
        self._progress = progress
        self._streams: dict[int, _Stream] = {}
        self._refused: set[int] = set()
        """Streams to announce again when the next acknowledgement comes."""
        self._moved: set[int] = set()
        """Streams of which more is safe than their sources were told."""
        self._turn = asyncio.Lock()
        """Held by the stream that sends, or waits for credits; the others wait for it in order."""
        self._has_credits = asyncio.Event()
        self._is_finished = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self.finished: list[Source] = []
        """Sources that have ended and are safe as a whole."""
        self.restart_at: str | None = None
        """Where to connect again, empty for the same place; None unless the worker has asked."""

    async def open(self, where: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            self._reader, self._writer = await asyncio.open_connection(*where, ssl=tls)
        self._writer.transport.set_write_buffer_limits(high=WRITE_BYTES_MAX)

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()

    async def greet(self, program: str, instance: str, cookie: str) -> None:
        self._session.greet(program, instance=instance, cookie=cookie)
        async with asyncio.timeout(CONNECT_SECONDS):
            await self._flush()
            while not any(isinstance(each, Welcomed) for each in await self._receive()):
                pass

    async def serve(self, streams: list[_Stream]) -> None:
        """Until all are done, or the worker asks for another connection; what any of it fails with
        is raised."""
        self._streams = {each.id: each for each in streams}
        for each in streams:
            self._session.announce(each.id, each.source.name.encode())
        await self._flush()
        ends: set[asyncio.Future[Any]] = {
            start_awaited(self._listen()),
            start_awaited(self._is_finished.wait()),
        }
        pumps: set[asyncio.Future[Any]] = {start_awaited(self._pump(each)) for each in streams}
        # One future for all: to wait for a thousand tasks anew whenever one is done is quadratic.
        failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        for pump in pumps:
            pump.add_done_callback(partial(_pass_failure, failed))
        try:
            await asyncio.wait({*ends, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                raise failed.result()
            for end in ends:
                if end.done():
                    end.result()
        finally:
            failed.cancel()
            for task in ends | pumps:
                task.cancel()
            await asyncio.wait(ends | pumps)

    # --- what comes ---

    async def _listen(self) -> None:
        while self.restart_at is None:
            await self._receive()
            moved, self._moved = self._moved, set()
            for number in moved:
                stream = self._streams[number]
                if stream.safe is not None and stream.safe != stream.told:
                    stream.told = stream.safe
                    await stream.source.acknowledged(stream.safe)
                self._look_at(stream)
            await self._flush()

    async def _receive(self) -> list[SourceEvent]:
        data = await self._reader.read(READ_BYTES)
        if not data:
            raise ConnectionLostError("the worker has ended the connection")
        events = self._session.receive_data(data)
        for event in events:
            self._take(event)
        if self._session.credits > 0:
            self._has_credits.set()
        return events

    def _take(self, event: SourceEvent) -> None:
        if isinstance(event, WorkerFailed):
            raise ConnectorRefusedError(f"the worker has ended the connection: {event.message}")
        if isinstance(event, RestartAsked):
            self.restart_at = event.address
        elif isinstance(event, StreamOpened):
            stream = self._streams[event.stream]
            stream.after = stream.last = stream.safe = stream.told = event.last
            stream.is_opened.set()
        elif isinstance(event, StreamRefused):
            self._refused.add(event.stream)
        elif isinstance(event, Acknowledged):
            for number, last in event.positions:
                if number in self._streams:
                    self._streams[number].safe = last
                    self._moved.add(number)
            for number in self._refused:
                self._session.announce(number, self._streams[number].source.name.encode())
            self._refused.clear()

    def _look_at(self, stream: _Stream) -> None:
        """Let go of a stream that is done."""
        if stream.is_done and stream.source not in self.finished:
            self.finished.append(stream.source)
            if len(self.finished) == len(self._streams):
                self._is_finished.set()

    # --- what goes ---

    async def _pump(self, stream: _Stream) -> None:
        await stream.is_opened.wait()
        batches = stream.source.read(stream.after)
        try:
            async for batch in batches:
                await self._send(stream, batch.columns(stream.source.name))
        finally:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()
        await self._may_send()
        self._session.end(stream.id)
        await self._flush()
        stream.is_ended = True
        self._look_at(stream)

    async def _may_send(self) -> None:
        """Once the worker has asked for another connection, wait to be cancelled."""
        if self._session.has_ended:
            await asyncio.get_running_loop().create_future()

    async def _send(self, stream: _Stream, batch: PayloadBatch) -> None:
        at = 0
        while at < len(batch):
            async with self._turn:
                await self._may_send()
                while self._session.credits < 1:
                    self._has_credits.clear()
                    await self._has_credits.wait()
                    await self._may_send()
                part = batch.slice(at, min(self._session.credits, RUN_MESSAGES))
                self._session.send_run(stream.id, part)
                at += len(part)
                stream.last = part.ids[-1].as_py()
                self._progress.messages_sent += len(part)
                self._progress.bytes_sent += part.payloads.nbytes
                await self._flush()

    async def _flush(self) -> None:
        assert self._writer is not None
        data = self._session.data_to_send()
        if data:
            self._writer.write(data)
            await self._writer.drain()


def _pass_failure(failed: asyncio.Future[BaseException], task: asyncio.Future[Any]) -> None:
    """What one of many tasks has failed with, to whoever waits for all of them."""
    if not task.cancelled() and (error := task.exception()) is not None and not failed.done():
        failed.set_result(error)
