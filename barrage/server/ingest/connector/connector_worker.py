"""The door for external sources: who they are, and the desks of their programs.

Bytes are taken as they come, always: credits are the only brake. What one turn of the loop has
brought for a program is one command of the engine, whatever the number of streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from barrage.errors import (
    AuthenticationError,
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
from barrage.server.ingest.connector.source_connection import READ_BYTES, ConnectorConnection
from barrage.server.ingest.connector.source_program import MappedPart, SourceProgram
from barrage.server.ingest.connector.stream_landings import StreamLandings
from barrage.server.runtime.failure import unexpected_failure
from barrage.supervision import Role, WorkerPool, start_task
from barrage.transport.sockets.servers import close_servers
from barrage.transport.tls.handshakes import TlsHandshakes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from barrage.limits import Limits
    from barrage.proto.connector.stream_desk import Stream
    from barrage.server.identity.audit import AuditLog
    from barrage.server.identity.caller import Caller
    from barrage.server.ingest.connector.source_callers import SourceCallers
    from barrage.server.ingest.connector.source_connection import ConnectorFacts
    from barrage.server.ingest.connector.source_program import BatchWork
    from barrage.server.ingest.connector.stream_landings import Landing, LandingTarget
    from barrage.server.policy.access_gate import AccessGate
    from barrage.server.runtime.catalog import Catalog
    from barrage.server.tables.table_service import TableService
    from barrage.transport.base import ServerCertificates
    from barrage.wire.connector.frame_values import Hello
    from barrage.wire.payloads.mapping_turns import MappedTurn
    from barrage.wire.payloads.source_mapping import SourceMapping

log = logging.getLogger(__name__)

BATCHES_UNDER_WAY_MAX = 8
"""Of one program; what comes then gathers into the next one."""

LOOK_SECONDS = 0.5
"""Between two looks for connections whose time is up and for room in the engine."""


_FOR_SOURCES = (
    *(SchemaError, UnsupportedError, PermissionDeniedError, TableExistsError, ConfigError),
)
"""Why a program can have no table, that only somebody who looks at it can help."""

FAILED_SHOWN = 100
"""Connections that ended by an error and are still told of."""

BAD_COOKIE = "bad cookie: it must be the server's key, USER:PASSWORD or a token that holds"

ADMISSION = Role("barrage-connector-admission", "the connection, which is cut")


class ConnectorWorker:
    """Listens for sources. Made and used on one event loop; ``on_death`` is told when it cannot go
    on."""

    def __init__(
        self,
        tables: TableService,
        catalog: Catalog,
        *,
        limits: Limits,
        callers: SourceCallers,
        gate: AccessGate,
        on_death: Callable[[BarrageError], object],
        audit: AuditLog | None = None,
        sources: Sequence[SourceMapping] = (),
    ) -> None:
        self.limits = limits
        self._landings = StreamLandings(tables, catalog, gate=gate, limits=limits, sources=sources)
        self._decoding = WorkerPool(1, thread_name_prefix="barrage-payloads")
        # A view: asyncio's TLS fills it in parts, and a part of a bytearray is a copy.
        self.buffer = memoryview(bytearray(READ_BYTES))
        """What a connection has brought, until it has looked at it."""
        self._callers = callers
        self._audit = audit
        self._admitting: set[asyncio.Task[None]] = set()
        self._handshakes: TlsHandshakes | None = None
        self._on_death = on_death
        self._connections: set[ConnectorConnection] = set()
        self._programs: dict[LandingTarget, SourceProgram] = {}
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

    async def start(self, host: str, port: int, tls: ServerCertificates | None = None) -> None:
        """Listen; ConfigError when the address cannot be had."""
        self._loop = asyncio.get_running_loop()
        made: Callable[[], asyncio.BaseProtocol] = self._connection
        if tls is not None:
            self._handshakes = TlsHandshakes(
                lambda: tls.context, self.limits, made=self._connection, room=self._room
            )
            made = self._handshakes.protocol
        try:
            self._server = await self._loop.create_server(made, host, port)
        except OSError as error:
            raise ConfigError(f"cannot listen for connectors on {host}:{port}: {error}") from error
        self._look = self._loop.call_later(LOOK_SECONDS, self._look_around)

    def _connection(self) -> ConnectorConnection:
        return ConnectorConnection(self)

    def _room(self) -> int:
        return self.limits.connector_connections_max - len(self._connections)

    async def stop(self, restart: str | None = None) -> None:
        """Close, and wait for what looks at who comes. Idempotent."""
        if self._server is not None:
            await close_servers([self._server])
        self.close(restart)
        if self._handshakes is not None:
            await self._handshakes.stop()
        if self._admitting:
            await asyncio.wait(self._admitting)

    def close(self, restart: str | None = None) -> None:
        """Take no more; connections end without a word, so that sources come again, or with RESTART
        and that address (empty for this one). What the engine has is written. Idempotent."""
        for task in self._admitting:
            task.cancel()
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
            limits=self.limits,
            cookie=None,
            on_change=partial(self.touch, connection),
            turn_frames=self.limits.connector_turn_frames_max,
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
        """It is gone. Idempotent."""
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        if connection.session.failure is not None:
            self._failed_sessions.append(connection.facts())
        self._callers.calls.finish(connection.call)
        hello = connection.session.hello
        if self._audit is not None and hello is not None:
            caller = connection.caller
            self._audit.record(
                user=None if caller is None else caller.name,
                proof=None if caller is None else caller.proof.value,
                peer=connection.source.peer(),
                method="connector",
                tables=[hello.program],
                outcome="OK" if connection.outcome is None else connection.outcome.name,
            )

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
        """HELLO has come: welcome it once it is known who it is and its table is open."""
        hello = connection.session.hello
        assert hello is not None
        try:
            caller = self._callers.known(hello.cookie, connection.source)
        except BarrageError as error:
            self._turn_away(connection, error)
            return
        if caller is not None:
            self._admit(connection, hello, caller)
            return
        connection.pause()
        looking = self._look_at(connection, hello)
        task = start_task(ADMISSION, looking, on_death=partial(self._turn_away, connection))
        self._admitting.add(task)
        task.add_done_callback(self._admitting.discard)

    async def _look_at(self, connection: ConnectorConnection, hello: Hello) -> None:
        try:
            caller = await self._callers.caller(hello.cookie, connection.source)
        except BarrageError as error:
            self._turn_away(connection, error)
        else:
            self._admit(connection, hello, caller)
        finally:
            connection.resume()

    def _turn_away(self, connection: ConnectorConnection, error: BarrageError) -> None:
        """Sources take an ERROR for the end; what may pass ends without one."""
        connection.outcome = error.status_code
        if isinstance(error, AuthenticationError):
            connection.session.fail(BAD_COOKIE)
        else:
            connection.session.close()
        self.touch(connection)

    def _admit(self, connection: ConnectorConnection, hello: Hello, caller: Caller) -> None:
        if connection.session.state is not WorkerState.GREETED:
            return
        connection.expires_s = None
        connection.caller = caller
        connection.call = self._callers.calls.begin(caller, partial(self._end, connection))
        try:
            target = self._landings.target(hello.program, hello.instance)
            self._landings.check(target, caller)
        except BarrageError as error:
            _refuse(connection, error)
            self.touch(connection)
            return
        program = self._programs.get(target)
        if program is None:
            if len(self._programs) >= self.limits.connector_programs_max:
                connection.session.fail("there are too many programs")
                return
            program = self._programs[target] = SourceProgram(target)
        program.waiting.append(connection)
        self._advance(program)

    def _end(self, connection: ConnectorConnection, error: BarrageError) -> None:
        """Its caller is none any more, or may do other things than before."""
        self._turn_away(connection, error)

    # --- programs ---

    def _guarded(self, work: Callable[[], None]) -> None:
        """An error nobody expected ends the door, and is told."""
        try:
            work()
        except Exception:
            error = unexpected_failure(log, "the door for connectors has failed")
            self.close()
            self._on_death(error)

    def _contained(self, program: SourceProgram, work: Callable[[], None]) -> None:
        """An error nobody expected ends the connections of its program, and is told; the next ones
        begin anew."""
        try:
            work()
        except Exception:
            name = program.target.table
            error = unexpected_failure(log, f"the connectors of table {name!r} have failed")
            self._forget(program)
            waiting, program.waiting = program.waiting, deque()
            for connection in waiting:
                connection.session.fail(str(error))
            if program.desk is not None:
                program.desk.close(str(error))
            program.give_up()

    def _forget(self, program: SourceProgram) -> None:
        """Who comes next has another one."""
        if self._programs.get(program.target) is program:
            del self._programs[program.target]

    def _turn(self) -> None:
        self._has_turn = False
        for program in tuple(self._programs.values()):
            self._contained(program, partial(self._submit, program))
        touched, self._touched = self._touched, set()
        for connection in touched:
            self._look_after(connection)

    def _look_after(self, connection: ConnectorConnection) -> None:
        """Read what it has brought and send what there is. What nobody expected ends it alone."""
        try:
            connection.read_on()
            connection.flush()
        except Exception:
            unexpected_failure(log, "a connector is cut")
            connection.cut()

    def _advance(self, program: SourceProgram) -> None:
        """Open what is to be opened; welcome who waits."""
        desk = program.desk
        if desk is not None and not desk.is_open and not desk.batches_under_way:
            program.give_up()
            desk = program.desk = program.landing = None
        if desk is not None and desk.is_open:
            while program.waiting:
                self._welcome(program.waiting.popleft(), program.target, desk)
        elif desk is None and not program.is_opening:
            self._open(program)

    def _open(self, program: SourceProgram) -> None:
        """For the first that waits and is still there."""
        while program.waiting and program.waiting[0].session.state is not WorkerState.GREETED:
            program.waiting.popleft()
        if not program.waiting:
            self._forget(program)
            return
        first = program.waiting[0].caller
        assert first is not None
        program.is_opening = True
        try:
            future = self._landings.open(program.target, first)
        except BarrageError as error:
            self._not_opened(program, error)
        else:
            future.add_done_callback(partial(self._on_loop, self._opened, program))

    def _welcome(
        self, connection: ConnectorConnection, target: LandingTarget, desk: StreamDesk
    ) -> None:
        """Its table was opened for another one, perhaps."""
        if connection.session.state is not WorkerState.GREETED:
            return
        try:
            self._landings.check(target, connection.caller)
        except BarrageError as error:
            _refuse(connection, error)
        else:
            connection.session.welcome(desk)

    def _on_loop(
        self,
        told: Callable[[SourceProgram, Any], None],
        program: SourceProgram,
        future: Future[Any],
    ) -> None:
        try:
            work = partial(self._contained, program, partial(told, program, future))
            self.loop.call_soon_threadsafe(self._guarded, work)
        except RuntimeError:
            log.debug("the loop has ended before a write of connectors was answered")

    def _opened(self, program: SourceProgram, future: Future[Landing]) -> None:
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

    def _not_opened(self, program: SourceProgram, error: BarrageError) -> None:
        log.warning("a connector has no table %r: %s", program.target.table, error)
        program.is_opening = False
        if isinstance(error, PermissionDeniedError):
            # Somebody else may be allowed to. Not at once: many may wait that are not.
            _refuse(program.waiting.popleft(), error)
            self.loop.call_soon(self._guarded, partial(self._advance, program))
            return
        self._forget(program)
        for connection in program.waiting:
            if isinstance(error, _FOR_SOURCES):
                _refuse(connection, error)
            else:
                # Sources take an ERROR for the end; this may pass.
                connection.session.close()

    def _submit(self, program: SourceProgram) -> None:
        """Hand the engine what has come for a program, if it has room."""
        desk = program.desk
        if desk is None or program.landing is None or not desk.is_open or program.is_mapping:
            return
        if program.held is not None:
            self._write(program, program.held)
            return
        while program.row_bytes <= self.limits.connector_decoded_bytes_max:
            work = self._next_work(program, desk)
            if work is None or not self._take_turn(program, work):
                return

    def _next_work(self, program: SourceProgram, desk: StreamDesk) -> BatchWork | None:
        """The batch that is being decoded, or the next one."""
        if program.work is None and desk.batches_under_way < BATCHES_UNDER_WAY_MAX:
            batch = desk.take_batch()
            if batch is not None:
                program.work = program.begin(batch, limits=self.limits)
        return program.work

    def _take_turn(self, program: SourceProgram, work: BatchWork) -> bool:
        """Whether there may be another one at once."""
        if work.turns is None:
            program.work = None
            self._write(program, program.whole(work))
            return False
        if work.is_beside:
            program.is_mapping = True
            future = self._decoding.submit(work.turns.next)
            future.add_done_callback(partial(self._on_loop, partial(self._mapped, work), program))
            return False
        return self._write_turn(program, work, work.turns.next())

    def _mapped(self, work: BatchWork, program: SourceProgram, future: Future[MappedTurn]) -> None:
        """Payloads were decoded beside the loop, and nothing of the program meanwhile. Programs
        take turns: the next one of this stands behind those of others."""
        program.is_mapping = False
        if future.cancelled() or work.is_failed or not work.desk.is_open:
            work.fail()
            program.work = None
            self._advance(program)
        else:
            self._write_turn(program, work, future.result())
        self._submit(program)

    def _write_turn(self, program: SourceProgram, work: BatchWork, turn: MappedTurn) -> bool:
        """Whether there is more of it."""
        part = work.part(turn)
        if part.is_last:
            program.work = None
        self._write(program, part)
        return program.work is work and program.held is None

    def _write(self, program: SourceProgram, part: MappedPart) -> None:
        landing, work, rows = program.landing, part.work, part.rows
        assert landing is not None
        desk = work.desk
        if rows is not None and len(rows.rejected):
            desk.note_rejected(rows.rejected)
        if rows is not None and len(rows.rejected) and _ends_by_bad(landing):
            work.fail(f"payload rejected: {rows.rejected['reason'][0].as_py()}")
            program.give_up()
            self._advance(program)
            return
        try:
            future = self._landings.write(landing, rows, part.positions)
        except LimitExceededError:
            program.held, desk.is_full = part, True
            return
        except BarrageError as error:
            self._failed(program, work, error)
            return
        program.held, desk.is_full = None, False
        program.row_bytes += part.byte_count
        work.handed_over(part)
        future.add_done_callback(partial(self._on_loop, partial(self._written, part), program))

    def _written(self, part: MappedPart, program: SourceProgram, future: Future[int]) -> None:
        work = part.work
        program.row_bytes -= part.byte_count
        work.parts_under_way -= 1
        try:
            future.result()
        except BarrageError as error:
            self._failed(program, work, error)
            return
        work.finish()
        self._submit(program)
        if work.desk.gives_credits:
            work.desk.give_credits()
        self._advance(program)

    def _failed(self, program: SourceProgram, work: BatchWork, error: BarrageError) -> None:
        """Sources come again, and are told where their streams stand then."""
        if work.desk.is_open:
            log.error("rows for table %r could not be written: %s", program.target.table, error)
        work.fail()
        work.finish()
        if work.desk is program.desk:
            program.give_up()
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
            self._contained(program, partial(self._submit, program))
            if program.desk is not None and program.desk.is_open:
                program.desk.give_credits()


def _refuse(connection: ConnectorConnection, error: BarrageError) -> None:
    connection.outcome = error.status_code
    connection.session.fail(f"unknown program: {error}")


def _ends_by_bad(landing: Landing) -> bool:
    return landing.target.mapping.on_bad_payload == "error"
