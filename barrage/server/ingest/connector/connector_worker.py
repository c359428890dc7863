"""The door for external sources: its connections on the event loop, and the desks of programs.

Bytes are taken as they come, always: credits are the only brake. What one turn of the loop has
brought for a program is one command of the engine, whatever the number of streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from barrage.errors import (
    BarrageError,
    ConfigError,
    LimitExceededError,
    PermissionDeniedError,
    SchemaError,
    TableExistsError,
    UnsupportedError,
)
from barrage.proto.connector.session_states import WorkerState
from barrage.proto.connector.stream_desk import StreamDesk
from barrage.proto.connector.worker_session import WorkerSession
from barrage.server.identity.caller import ANYBODY, KEY_NAME, Caller, Proof
from barrage.server.ingest.connector.stream_landings import StreamLandings
from barrage.server.runtime.failure import unexpected_failure
from barrage.supervision import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from barrage.limits import Limits
    from barrage.proto.connector.stream_desk import Stream, StreamBatch
    from barrage.server.ingest.connector.stream_landings import Landing, LandingTarget
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService
    from barrage.wire.payloads.source_mapping import MappedRows, SourceMapping

log = logging.getLogger(__name__)

BATCHES_UNDER_WAY_MAX = 8
"""Of one program; what comes then gathers into the next one."""

LOOK_SECONDS = 0.5
"""Between two looks for connections whose time is up and for room in the engine."""


_FOR_SOURCES = (
    *(SchemaError, UnsupportedError, PermissionDeniedError, TableExistsError, ConfigError),
)
"""Why a program can have no table, that only somebody who looks at it can help."""

READ_BYTES = 256 * 1024
"""Taken from one connection at a time: some milliseconds of work, were all messages small and each
of another stream."""

BESIDE_BYTES = 16 * 1024
"""Payloads from which on they are decoded beside the event loop."""


FAILED_SHOWN = 100
"""Connections that ended by an error and are still told of."""


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


class ConnectorConnection(asyncio.BufferedProtocol):
    """One connection of a source."""

    def __init__(self, worker: ConnectorWorker) -> None:
        self._worker = worker
        self._transport: asyncio.Transport | None = None
        self.session = worker.new_session(self)
        self.expires_s: float | None = None
        """When it is cut: before its HELLO, and after its ERROR."""
        self.number = 0
        """Of the connections of this server."""
        self._is_greeted = False
        self._is_ending = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.expires_s = self._worker.joined(self)
        if self.expires_s is None:
            transport.abort()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._worker.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.session.receive_data(memoryview(self._worker.buffer)[:nbytes])
        if self.session.state is WorkerState.GREETED and not self._is_greeted:
            self._is_greeted = True
            self.expires_s = None
            self._worker.greeted(self)
        self._worker.touch(self)

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
            transport.write_eof()

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


class _Program:
    """A target that connectors have begun with; the programs that share it are one."""

    def __init__(self, target: LandingTarget) -> None:
        self.target = target
        self.landing: Landing | None = None
        self.desk: StreamDesk | None = None
        self.held: _Mapped | None = None
        """What the engine had no room for."""
        self.waiting: deque[ConnectorConnection] = deque()
        self.is_opening = False
        self.is_mapping = False
        """Whether payloads are being decoded beside the loop."""


@dataclass(frozen=True, slots=True)
class _Mapped:
    """A batch and what its messages become."""

    batch: StreamBatch
    rows: MappedRows | None


class ConnectorWorker:
    """Listens for sources. Made and used on one event loop; ``on_death`` is told when it cannot go
    on."""

    def __init__(
        self,
        tables: TableService,
        catalog: Catalog,
        *,
        limits: Limits,
        cookie: str,
        gate: AccessGate,
        on_death: Callable[[BarrageError], object],
        sources: Sequence[SourceMapping] = (),
    ) -> None:
        self.limits = limits
        caller = Caller(name=KEY_NAME, proof=Proof.KEY) if cookie else ANYBODY
        self._landings = StreamLandings(
            tables, catalog, gate=gate, caller=caller, limits=limits, sources=sources
        )
        self._decoding = WorkerPool(1, thread_name_prefix="barrage-payloads")
        self.buffer = bytearray(READ_BYTES)
        """What a connection has brought, until it has looked at it."""
        self._cookie = cookie
        self._on_death = on_death
        self._connections: set[ConnectorConnection] = set()
        self._programs: dict[LandingTarget, _Program] = {}
        self._touched: set[ConnectorConnection] = set()
        self._failed_sessions: deque[ConnectorFacts] = deque(maxlen=FAILED_SHOWN)
        self._numbers = count(1)
        self._has_turn = False
        self._server: asyncio.Server | None = None
        self._look: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looks = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    @property
    def port(self) -> int:
        """The TCP port; the chosen one when 0 was asked for."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen; ConfigError when the address cannot be had."""
        self._loop = asyncio.get_running_loop()
        try:
            self._server = await self._loop.create_server(
                lambda: ConnectorConnection(self), host, port
            )
        except OSError as error:
            raise ConfigError(f"cannot listen for connectors on {host}:{port}: {error}") from error
        self._look = self._loop.call_later(LOOK_SECONDS, self._look_around)

    def close(self, restart: str | None = None) -> None:
        """Take no more; connections end without a word, so that sources come again, or with RESTART
        and that address (empty for this one). What the engine has is written. Idempotent."""
        if self._look is not None:
            self._look.cancel()
        if self._server is not None:
            self._server.close()
        if restart is not None:
            for connection in tuple(self._connections):
                connection.session.restart(restart)
                connection.flush()
        # What is written by now is sent before a connection ends.
        for program in self._programs.values():
            if program.desk is not None:
                program.desk.close()
        for connection in tuple(self._connections):
            connection.flush()
            connection.session.close()
            connection.flush()
        self._decoding.shutdown(wait=False, cancel_futures=True)

    # --- connections ---

    def new_session(self, connection: ConnectorConnection) -> WorkerSession:
        return WorkerSession(
            limits=self.limits, cookie=self._cookie, on_change=partial(self.touch, connection)
        )

    def deadline_s(self) -> float:
        return self.loop.time() + self.limits.connector_handshake_ns_max / 1e9

    def joined(self, connection: ConnectorConnection) -> float | None:
        """When its HELLO must be there; None when there are too many connections."""
        if len(self._connections) >= self.limits.connector_connections_max:
            log.warning("a connector was turned away: there are %d", len(self._connections))
            return None
        self._connections.add(connection)
        connection.number = next(self._numbers)
        return self.deadline_s()

    def left(self, connection: ConnectorConnection) -> None:
        self._connections.discard(connection)
        if connection.session.failure is not None:
            self._failed_sessions.append(connection.facts())

    def connections(self) -> list[ConnectorFacts]:
        """The connections there are, and the last of those that ended by an error."""
        return [*self._failed_sessions, *(each.facts() for each in self._connections)]

    def streams(self) -> Iterator[tuple[str, Stream]]:
        """The streams of all targets, with the names of their tables."""
        for program in self._programs.values():
            if program.desk is not None:
                for stream in program.desk.streams():
                    yield program.target.table, stream

    def touch(self, connection: ConnectorConnection) -> None:
        """Something of a connection has changed: the next turn looks at it."""
        self._touched.add(connection)
        if not self._has_turn and self._loop is not None:
            self._has_turn = True
            self._loop.call_soon(self._guarded, self._turn)

    def greeted(self, connection: ConnectorConnection) -> None:
        """HELLO has come: welcome it once its table is open."""
        hello = connection.session.hello
        assert hello is not None
        try:
            target = self._landings.target(hello.program, hello.instance)
        except PermissionDeniedError as error:
            connection.session.fail(f"unknown program: {error}")
            return
        program = self._programs.get(target)
        if program is None:
            if len(self._programs) >= self.limits.connector_programs_max:
                connection.session.fail("there are too many programs")
                return
            program = self._programs[target] = _Program(target)
        program.waiting.append(connection)
        self._advance(program)

    # --- programs ---

    def _guarded(self, work: Callable[[], None]) -> None:
        """An error nobody expected ends the door, and is told."""
        try:
            work()
        except Exception:
            error = unexpected_failure(log, "the door for connectors has failed")
            self.close()
            self._on_death(error)

    def _turn(self) -> None:
        self._has_turn = False
        for program in tuple(self._programs.values()):
            self._submit(program)
        touched, self._touched = self._touched, set()
        for connection in touched:
            connection.flush()

    def _advance(self, program: _Program) -> None:
        """Open what is to be opened; welcome who waits."""
        desk = program.desk
        if desk is not None and not desk.is_open and not desk.batches_under_way:
            desk = program.desk = program.landing = program.held = None
        if desk is not None and desk.is_open:
            while program.waiting:
                connection = program.waiting.popleft()
                if connection.session.state is WorkerState.GREETED:
                    connection.session.welcome(desk)
        elif desk is None and not program.is_opening:
            if not program.waiting:
                self._programs.pop(program.target, None)
                return
            program.is_opening = True
            try:
                future = self._landings.open(program.target)
            except BarrageError as error:
                self._not_opened(program, error)
            else:
                future.add_done_callback(partial(self._on_loop, self._opened, program))

    def _on_loop(
        self, told: Callable[[_Program, Any], None], program: _Program, future: Future[Any]
    ) -> None:
        try:
            self.loop.call_soon_threadsafe(self._guarded, partial(told, program, future))
        except RuntimeError:
            log.debug("the loop has ended before a write of connectors was answered")

    def _opened(self, program: _Program, future: Future[Landing]) -> None:
        try:
            program.landing = landing = future.result()
        except BarrageError as error:
            self._not_opened(program, error)
            return
        program.is_opening = False
        mapping = landing.target.mapping
        program.desk = StreamDesk(
            landing.target.table,
            landing.positions,
            limits=self.limits,
            takes=mapping.takes_stream,
        )
        self._advance(program)

    def _not_opened(self, program: _Program, error: BarrageError) -> None:
        log.warning("a connector has no table %r: %s", program.target.table, error)
        self._programs.pop(program.target, None)
        for connection in program.waiting:
            if isinstance(error, _FOR_SOURCES):
                connection.session.fail(f"unknown program: {error}")
            else:
                # Sources take an ERROR for the end; this may pass.
                connection.session.close()

    def _submit(self, program: _Program) -> None:
        """Hand the engine what has come for a program, if it has room."""
        desk, landing = program.desk, program.landing
        if desk is None or landing is None or not desk.is_open or program.is_mapping:
            return
        if program.held is not None:
            self._write(program, program.held)
            return
        if desk.batches_under_way >= BATCHES_UNDER_WAY_MAX:
            return
        batch = desk.take_batch()
        if batch is None:
            return
        messages = batch.messages()
        if messages is None:
            self._write(program, _Mapped(batch, None))
        elif landing.target.is_raw or batch.byte_count < BESIDE_BYTES:
            self._write(program, _Mapped(batch, landing.mapper.map(messages)))
        else:
            program.is_mapping = True
            future = self._decoding.submit(landing.mapper.map, messages)
            future.add_done_callback(partial(self._on_loop, partial(self._mapped, batch), program))

    def _mapped(self, batch: StreamBatch, program: _Program, future: Future[MappedRows]) -> None:
        """Payloads were decoded beside the loop, and nothing of the program meanwhile."""
        assert program.desk is not None
        program.is_mapping = False
        if future.cancelled() or not program.desk.is_open:
            program.desk.fail(batch)
            self._advance(program)
            return
        self._write(program, _Mapped(batch, future.result()))
        self._submit(program)

    def _write(self, program: _Program, mapped: _Mapped) -> None:
        desk, landing = program.desk, program.landing
        assert desk is not None
        assert landing is not None
        rows, batch = mapped.rows, mapped.batch
        if rows is not None and len(rows.rejected):
            desk.note_rejected(rows.rejected)
        if rows is not None and len(rows.rejected) and _ends_by_bad(landing):
            desk.fail(batch, f"payload rejected: {rows.rejected['reason'][0].as_py()}")
            self._advance(program)
            return
        try:
            future = self._landings.write(landing, rows, batch.positions)
        except LimitExceededError:
            program.held, desk.is_full = mapped, True
            return
        except BarrageError as error:
            self._failed(program, batch, error)
            return
        program.held, desk.is_full = None, False
        future.add_done_callback(partial(self._on_loop, partial(self._written, batch), program))

    def _written(self, batch: StreamBatch, program: _Program, future: Future[int]) -> None:
        desk = program.desk
        assert desk is not None
        try:
            future.result()
        except BarrageError as error:
            self._failed(program, batch, error)
            return
        desk.settle(batch)
        self._submit(program)
        if desk.gives_credits:
            desk.give_credits()
        self._advance(program)

    def _failed(self, program: _Program, batch: StreamBatch, error: BarrageError) -> None:
        """Sources come again, and are told where their streams stand then."""
        assert program.desk is not None
        if program.desk.is_open:
            log.error("rows for table %r could not be written: %s", program.target.table, error)
        program.desk.fail(batch)
        if program.held is not None and program.held.batch is not batch:
            program.desk.fail(program.held.batch)
        program.held = None
        self._advance(program)

    # --- time ---

    def _look_around(self) -> None:
        self._look = self.loop.call_later(LOOK_SECONDS, self._look_around)
        self._guarded(self._look_once)

    def _look_once(self) -> None:
        now_s = self.loop.time()
        self._looks += 1
        for connection in tuple(self._connections):
            if connection.expires_s is not None and now_s >= connection.expires_s:
                connection.cut()
            elif connection.session.has_refused and self._looks % 2:
                connection.session.remind()
        for program in tuple(self._programs.values()):
            self._submit(program)
            if program.desk is not None and program.desk.is_open:
                program.desk.give_credits()


def _ends_by_bad(landing: Landing) -> bool:
    return landing.target.mapping.on_bad_payload == "error"
