"""Workers of the server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Any

import pytest

import barrage
from barrage.cli.host_tables import HostTables
from barrage.client.connection.reconnect import Backoff
from barrage.client.subscriptions.state import State
from barrage.engine.planning.derivation import Derivation
from barrage.errors import (
    EngineDiedError,
    JournalFailedError,
    ServerFailedError,
    TableFailedError,
    WorkerDiedError,
)
from barrage.limits import Limits
from barrage.server import ServerConfig
from barrage.server.api.publish import LOOP
from barrage.server.runtime import message_worker
from barrage.supervision import living
from tests.end_to_end.deaths.killing import (
    HANG_SECONDS,
    ROW,
    SCHEMA,
    Killing,
    Scene,
    die,
    kills,
    leave,
    refusal,
    scene,
)
from tests.helpers.certificates import authority
from tests.helpers.server_process import wait_until
from tests.helpers.users import users_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage.client.synchronous.sync_ticking import TickingTable

AT_ONCE = Backoff(first_seconds=0.001, seconds_max=0.01)


def fails(live: TickingTable) -> None:
    """A subscription ends, because its table does."""
    wait_until(lambda: live.state is State.FAILED, HANG_SECONDS)
    assert isinstance(live.error, TableFailedError | WorkerDiedError), live.error


@kills("barrage-engine")
def engine(killing: Killing) -> None:
    with scene({"reconnect": AT_ONCE}) as s, s.session.writer("w", producer="p") as writer:
        waiting = s.session.table("t").subscribe(reconnect=AT_ONCE)
        killing.thread(s.server._parts.runtime, "_propagate")
        assert isinstance(refusal(lambda: s.server.table("t").add(ROW) or die()), WorkerDiedError)
        assert isinstance(refusal(lambda: s.server.table("t").add(ROW)), EngineDiedError)
        for live in (s.live, s.other, waiting):
            wait_until(lambda live=live: live.state is State.RECONNECTING, HANG_SECONDS)
            told = refusal(lambda live=live: live.wait_ready(HANG_SECONDS))
            assert isinstance(told, ServerFailedError)
            assert "barrage-engine has died" in str(told)
        updates = s.live.updates(timeout=0.01)
        assert next(updates).is_replacement
        with pytest.raises(TimeoutError, match="barrage-engine has died"):
            next(updates)
        assert isinstance(refusal(lambda: s.session.put("t", ROW)), ServerFailedError)
        writer.write(ROW)
        assert isinstance(refusal(lambda: writer.flush(HANG_SECONDS)), ServerFailedError)
        s.is_not_serving()
        writer.abandon()


@kills("barrage-journal")
def journal(killing: Killing) -> None:
    journal_has_failed(killing, "pump")


@kills("barrage-journal-upkeep")
def upkeep(killing: Killing) -> None:
    journal_has_failed(killing, "maintain")


def journal_has_failed(killing: Killing, method: str) -> None:
    with scene(data=killing.directory, journal="none") as s:
        kept = s.server.create_table("kept", SCHEMA, journal="durable")
        live = s.session.table("kept").subscribe(interval_ms=1).wait_ready(HANG_SECONDS)
        writer = s.session.writer("kept", producer="p", reconnect=AT_ONCE)
        store = s.server._parts.journals.store
        killing.thread(store, method)
        if method == "maintain":
            store._upkeep_wake.set()
            wait_until(lambda: store._failure is not None, HANG_SECONDS)
        told = refusal(lambda: kept.add(ROW))
        assert isinstance(told, JournalFailedError)
        assert "must be restarted" in str(told)
        assert isinstance(refusal(lambda: s.session.put("kept", ROW)), ServerFailedError)
        writer.write(ROW)
        for _ in range(2):
            assert isinstance(refusal(lambda: writer.flush(HANG_SECONDS)), ServerFailedError)
        assert writer.pending_count == 1, "it goes on when the server has been restarted"
        assert live.state is State.LIVE
        s.others_go_on()
        s.is_not_serving()
        writer.abandon()


@kills("barrage-loop")
def loop(killing: Killing) -> None:
    server = barrage.Server(host="inproc://").start()
    with barrage.connect(server.uri) as session:
        server.create_table("t", SCHEMA)
        live = session.table("t").subscribe(reconnect=False).wait_ready(HANG_SECONDS)
        server._loop.call_soon_threadsafe(server._loop.call_soon, leave)
        wait_until(lambda: live.state is State.FAILED, HANG_SECONDS)
        assert isinstance(refusal(server.serve_forever), WorkerDiedError)
        refusal(lambda: session.tables())
    assert LOOP not in [role for role, _ in living()]


@kills("barrage-watchdog")
def watchdog(killing: Killing) -> None:
    with scene() as s:
        killing.thread(s.server._parts.watchdog, "_rest")
        s.others_go_on()
        killing.check()
        s.others_go_on()
        assert s.server._parts.watchdog.engine.longest is not None


@kills("barrage-queries")
def queries(killing: Killing) -> None:
    with scene(config=ServerConfig(limits=Limits(turn_work_max=1))) as s:
        s.table.add({"x": list(range(100))})
        with killing.patches.context() as patches:
            patches.setattr(Derivation, "make", die)
            told = refusal(lambda: s.session.table("t").sort("-x").snapshot())
            assert "barrage-queries has died" in str(told)
        assert len(s.session.table("t").sort("-x").snapshot()) == 100
        s.others_go_on()


@kills("barrage-makings")
def makings(killing: Killing) -> None:
    with scene(config=ServerConfig(limits=Limits(turn_work_max=1))) as s:
        s.table.add({"x": list(range(100))})
        wait_until(lambda: len(s.live) == 100, HANG_SECONDS)
        made = message_worker._made

        def die_once(*arguments: Any) -> Any:
            killing.patches.setattr(message_worker, "_made", made)
            die()

        killing.patches.setattr(message_worker, "_made", die_once)
        live = s.session.table("t").subscribe(reconnect=AT_ONCE).wait_ready(HANG_SECONDS)
        assert live.stats.reconnects == 1
        assert len(live) == 100
        s.others_go_on()


@kills("barrage-exchange-reader")
@kills("barrage-exchange-writer")
def stream(killing: Killing) -> None:
    with scene({"reconnect": AT_ONCE}) as s:
        killing.task()
        s.comes_back()
        s.others_go_on()


@kills("barrage-call")
def call(killing: Killing) -> None:
    if not barrage.Server(host="inproc://").config.host.startswith("inproc"):
        return
    with barrage.Server(host="inproc://") as server, barrage.connect(server.uri) as session:
        server.create_table("t", SCHEMA)
        server.create_table("other", SCHEMA)
        other = session.table("other").subscribe().wait_ready(HANG_SECONDS)
        live = session.table("t").subscribe(reconnect=AT_ONCE).wait_ready(HANG_SECONDS)
        killing.task()
        wait_until(lambda: live.stats.reconnects == 1, HANG_SECONDS)
        live.wait_ready(HANG_SECONDS)
        assert other.stats.reconnects == 0


@kills("barrage-audit")
def audit(killing: Killing) -> None:
    with scene(config=ServerConfig(audit=str(killing.directory / "audit.log"))) as s:
        killing.task()
        s.others_go_on()
        s.is_not_serving()


@kills("barrage-upload")
def upload(killing: Killing) -> None:
    with scene() as s, s.session.writer("t", producer="p", reconnect=AT_ONCE) as writer:
        writer.write(ROW)
        writer.flush(HANG_SECONDS)
        killing.task()
        killing.check()
        for _ in range(3):
            writer.write(ROW)
        writer.flush(HANG_SECONDS)
        wait_until(lambda: len(s.live) == 4, HANG_SECONDS)
        s.others_go_on()


@kills("barrage-resume-job")
def resume_job(killing: Killing) -> None:
    with scene({"reconnect": AT_ONCE}, journal="memory") as s:
        killing.newborn()
        drop_stream(s.live)
        killing.check()
        s.live.wait_ready(HANG_SECONDS)
        s.table.add(ROW)
        wait_until(lambda: len(s.live) == 1, HANG_SECONDS)
        s.others_go_on()


def drop_stream(live: TickingTable) -> None:
    """Cut the stream of a subscription, which then begins another one."""
    table = live._table
    live._thread._loop.call_soon_threadsafe(lambda: table._stream.cancel())


@kills("barrage-time-table")
def time_table(killing: Killing) -> None:
    with scene() as s:
        app = s.server._app
        [calls] = [each for each in vars(app._deephaven).values() if hasattr(each, "_time_tables")]
        making = calls._time_tables.create(start_ns=None, period_ns=10**9)
        lease = asyncio.run_coroutine_threadsafe(making, s.server._loop).result(HANG_SECONDS)
        killing.task()
        wait_until(lambda: lease.table.failure is not None, HANG_SECONDS)
        assert isinstance(lease.table.failure, WorkerDiedError | TableFailedError)
        s.others_go_on()


@kills("barrage-sessions")
def sessions(killing: Killing) -> None:
    health_is_told(killing)


@kills("barrage-users")
def users(killing: Killing) -> None:
    path = users_file(killing.directory / "users.jsonl")
    health_is_told(killing, config=ServerConfig(users=str(path), anonymous=True))


@kills("barrage-rules")
def rules(killing: Killing) -> None:
    path = killing.directory / "policy.toml"
    path.write_text('[[rule]]\ntables = ["*"]\nallow = ["read"]\n')
    health_is_told(killing, config=ServerConfig(policy=str(path)))


@kills("barrage-bodies")
def bodies(killing: Killing) -> None:
    health_is_told(killing, bodies="shm")


def health_is_told(killing: Killing, **settings: Any) -> None:
    with scene(**settings) as s:
        killing.task()
        s.is_not_serving()
        s.others_go_on()


@kills("barrage-journal-statistics")
def journal_statistics(killing: Killing) -> None:
    statistics_fail(killing, "_journal", journal="memory")


@kills("barrage-thread-statistics")
def thread_statistics(killing: Killing) -> None:
    statistics_fail(killing, "_threads", journal="memory")


@kills("barrage-server-statistics")
def server_statistics(killing: Killing) -> None:
    statistics_fail(killing, "_server", config=ServerConfig(statistics=True))


@kills("barrage-caller-statistics")
def caller_statistics(killing: Killing) -> None:
    config = ServerConfig(token="secret", anonymous=True)
    statistics_fail(killing, "_callers", config=config)


@kills("barrage-body-statistics")
def body_statistics(killing: Killing) -> None:
    statistics_fail(killing, "_bodies", bodies="shm")


def statistics_fail(killing: Killing, name: str, **settings: Any) -> None:
    with scene(**settings) as s:
        wait_until(lambda: name in [table.name for table in s.session.tables()], HANG_SECONDS)
        live = s.session.table(name).subscribe().wait_ready(HANG_SECONDS)
        killing.task()
        fails(live)
        s.is_not_serving()
        s.others_go_on()


@kills("barrage-spare-memory")
def spare_memory(killing: Killing) -> None:
    with scene() as s:
        killing.task()
        killing.check()
        s.others_go_on()


@kills("barrage-certificates")
def certificates(killing: Killing) -> None:
    with secured(killing) as s:
        killing.task()
        s.is_not_serving()
        s.others_go_on()


@kills("barrage-tls-handshake")
def handshake(killing: Killing) -> None:
    with secured(killing) as s:
        killing.newborn()
        with socket.create_connection(("localhost", s.server.port), HANG_SECONDS) as silent:
            assert silent.recv(1) == b""
        s.others_go_on()
        again = barrage.TLS(ca=str(killing.directory / "ca.pem"))
        with barrage.connect(s.server.uri, tls=again) as session:
            assert session.table("t").snapshot().num_rows == 0


@contextlib.contextmanager
def secured(killing: Killing) -> Iterator[Scene]:
    """A server with TLS."""
    certificate, key = authority().for_localhost().write(killing.directory, "server")
    tls = barrage.TLS(ca=authority().write(killing.directory))
    config = ServerConfig(host="localhost", tls_cert=certificate, tls_key=key)
    with (
        barrage.Server(config=config) as server,
        barrage.connect(server.uri, tls=tls) as session,
    ):
        yield Scene(server, session)


@kills("barrage-stop")
def stop(killing: Killing) -> None:
    with scene() as s:
        killing.newborn()
        s.server.stop()
        assert isinstance(refusal(s.server.serve_forever), WorkerDiedError)
        assert isinstance(refusal(lambda: s.table.add(ROW)), barrage.errors.TransportError)


@kills("sample-processes")
def processes(killing: Killing) -> None:
    samples_fail(killing, "processes", "sample_processes")


@kills("sample-machine")
def machine(killing: Killing) -> None:
    samples_fail(killing, "machine", "sample_machine")


def samples_fail(killing: Killing, kind: str, method: str) -> None:
    with scene() as s:
        tables = HostTables(s.server)
        for each in ("sample_processes", "sample_machine"):
            killing.patches.setattr(tables, each, lambda: None)
        name = "processes" if kind == "processes" else next(iter(tables._machine_tables))
        live = s.session.table(name).subscribe(interval_ms=1).wait_ready(HANG_SECONDS)
        killing.thread(tables, method)
        with tables:
            fails(live)
        s.others_go_on()
