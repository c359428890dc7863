"""Whatever becomes of the shared memory or of its server: a client goes on, inline if need be, and
what it holds stays as it was."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app
from barrage.client import Backoff, BodyStatus, BodyWay, State
from barrage.client.bodies.body_routes import NOT_OFFERED
from barrage.errors import BodyChannelError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.bodies.body_channels import UNKNOWN, WRONG_PROOF
from barrage.server.settings.config import ServerConfig
from barrage.transport.shared_memory import ArenaMapping, shared_bodies
from tests.helpers.server_process import ServerProcess, wait_until
from tests.helpers.serving import HOST

WAIT = 60
ROWS = 20_000
PART = 5_000
"""So many changed rows are replayed rather than sent anew."""
OUTSIDE = replace(DEFAULT_LIMITS, body_inline_bytes_max=0)
SHARED = BodyStatus(BodyWay.SHM)
SLOW = Backoff(first_seconds=1000.0, seconds_max=1000.0)
"""Who waits for it runs into the test's limit."""


def rows(value, count=ROWS):
    return pa.table({"k": np.arange(count), "v": np.full(count, value), "s": [f"s{value}"] * count})


SCHEMA = {"k": "int64", "v": "int64", "s": "string"}


@pytest.fixture
def server(tmp_path):
    with barrage.Server(bodies="shm", data=tmp_path) as running:
        running.create_table("t", SCHEMA, key="k", data=rows(0))
        yield running


@pytest.fixture
def session(server):
    with barrage.connect(server.uri, auth=server.token) as opened:
        yield opened


def shows(live, value):
    table = live.to_arrow()
    return set(table["v"].to_pylist()) == {value} and set(table["s"].to_pylist()) == {f"s{value}"}


def test_a_lost_body_is_resumed_inline_without_a_snapshot(server, session, monkeypatch):
    states, errors = [], []
    with session.table("t").subscribe(interval_ms=10, reconnect=SLOW) as live:
        live.on_state(states.append)
        live.on_error(errors.append)
        live.wait_ready(WAIT)
        assert live.bodies == SHARED
        updates = live.updates(timeout=WAIT)
        assert next(updates).is_replacement

        def gone(self, reference, on_release):
            raise BodyChannelError("the memory is gone")

        monkeypatch.setattr(ArenaMapping, "borrow", gone)
        monkeypatch.setattr(ArenaMapping, "copy", gone)
        server.table("t").upsert(rows(1, PART))
        update = next(updates)
        assert not update.is_replacement
        assert update.modified["v"].to_pylist() == [1] * PART
        assert live.to_arrow()["v"].to_pylist() == [1] * PART + [0] * (ROWS - PART)
        assert live.resumption.startswith("replayed")
        assert live.bodies == BodyStatus(BodyWay.INLINE, "the memory is gone")
        assert live.stats.reconnects == 1
        wait_until(lambda: State.RESUMED in states)
        assert isinstance(errors[0], BodyChannelError)
        # Snapshots do not try either.
        assert session.table("t").snapshot(columns=["v"]).num_rows == ROWS


def test_a_snapshot_whose_body_is_lost_is_repeated_inline(server, session, monkeypatch):
    table = pa.table({"n": np.arange(1 << 20)})
    server.create_table("big", data=table, kind="static")

    def gone(self, reference, on_release):
        raise BodyChannelError("the memory is gone")

    monkeypatch.setattr(ArenaMapping, "borrow", gone)
    assert session.table("big").snapshot().equals(table)
    routes = session._session._connection.bodies
    assert not routes.can_ask


def test_an_arena_that_cannot_be_opened(server, session, tmp_path, monkeypatch):
    monkeypatch.setattr(
        shared_bodies.ArenaMapping, "open", lambda name: OPEN(name, directory=str(tmp_path))
    )
    with session.table("t").subscribe() as live:
        live.wait_ready(WAIT)
        assert live.bodies.way is BodyWay.INLINE
        assert "barrage-" in live.bodies.reason
        assert live.stats.bodies.inline.count > 0
        assert shows(live, 0)
        assert live.stats.reconnects == 0


OPEN = ArenaMapping.open


def test_a_wrong_proof(server, session, monkeypatch):
    monkeypatch.setattr(ArenaMapping, "proof", lambda self: bytes(16))
    with session.table("t").subscribe() as live:
        live.wait_ready(WAIT)
        assert live.bodies == BodyStatus(BodyWay.INLINE, WRONG_PROOF)
        assert live.stats.bodies.shm.count == 0


def test_a_channel_the_server_forgot(tmp_path):
    limits = replace(DEFAULT_LIMITS, body_ticket_ns=1_500_000_000)
    config = ServerConfig(bodies="shm", limits=limits)
    with barrage.Server(HOST, config=config) as server:
        server.create_table("t", SCHEMA, key="k", data=rows(0))
        with barrage.connect(server.uri) as session:
            routes = session._session._connection.bodies
            session._thread.call(routes.channel(), WAIT)
            assert routes.is_ready
            wait_until(lambda: server._app.bodies.facts()[0].channels == 0)
            with session.table("t").subscribe() as live:
                live.wait_ready(WAIT)
                assert live.bodies == BodyStatus(BodyWay.INLINE, UNKNOWN)
            # That one was told; the next one asks anew.
            with session.table("t").subscribe() as live:
                live.wait_ready(WAIT)
                assert live.bodies == SHARED


def test_a_server_without_other_ways(caplog):
    with barrage.Server(HOST) as server:
        server.create_table("t", SCHEMA, key="k", data=rows(0))
        for choice in ("auto", "shm", "ucx"):
            with (
                barrage.connect(server.uri, bodies=choice) as session,
                session.table("t").subscribe() as live,
            ):
                live.wait_ready(WAIT)
                assert live.bodies == BodyStatus(BodyWay.INLINE, NOT_OFFERED)
                # An older server that was not asked what it has says the same.
                routes = session._session._connection.bodies
                routes._failure = None
                if choice != "ucx":
                    channel = session._thread.call(routes.channel(), WAIT)
                    assert (channel.is_there, channel.reason) == (False, NOT_OFFERED)
    assert not [record for record in caplog.records if record.name.startswith("barrage.client")]


def test_a_session_of_deephaven_clients_has_none(server):
    uri = server.uri.replace("grpc", "dh", 1)
    with barrage.connect(uri, auth=server.token) as session:
        live = session.table("t").subscribe()
        live.wait_ready(WAIT)
        assert live.bodies.way is BodyWay.INLINE
        assert "session" in live.bodies.reason
    with barrage.connect(server.uri, auth=server.token) as session:
        with session.upload(rows(3)) as table, table.subscribe() as live:
            live.wait_ready(WAIT)
            assert live.bodies.way is BodyWay.INLINE
            assert shows(live, 3)
        with session.table("t").subscribe() as live:
            live.wait_ready(WAIT)
            assert live.bodies == SHARED


def test_who_keeps_an_update_for_too_long_is_told_that_its_stream_is_inline():
    limits = replace(OUTSIDE, body_lease_ns_max=2_000_000_000)
    with barrage.Server(HOST, config=ServerConfig(bodies="shm", limits=limits)) as server:
        table = server.create_table("t", {"x": "int64"}, data={"x": range(ROWS)})
        with (
            barrage.connect(server.uri, auth=server.token) as session,
            session.table("t").subscribe() as live,
        ):
            live.wait_ready(WAIT)
            assert live.bodies == SHARED
            updates = iter(live)
            next(updates)
            table.add({"x": range(ROWS)})
            kept = next(updates).added
            wait_until(lambda: server._app.bodies.facts()[0].counts.fallbacks == 1)
            table.add({"x": [-1]})
            assert next(updates).added["x"].to_pylist() == [-1]
            assert live.bodies == BodyStatus(BodyWay.INLINE, "a body was not given back within 2 s")
            assert len(live) == 2 * ROWS + 1
            assert live.stats.reconnects == 0
            assert kept["x"].to_pylist() == list(range(ROWS))


def test_two_streams_at_once(server, session):
    views = [
        session.table("t").subscribe(interval_ms=10),
        session.table("t").where("k >= 0").subscribe(interval_ms=10),
        session.table("t").subscribe(interval_ms=10, viewport=(0, ROWS)),
    ]
    for live in views:
        live.wait_ready(WAIT)
    for value in range(1, 8):
        server.table("t").upsert(rows(value))
    for live in views:
        wait_until(lambda live=live: shows(live, 7))
        assert live.bodies == SHARED
        assert live.stats.bodies.shm.count > 1
        live.close()


def maps_of_arenas():
    """What clients in this process have mapped; a server maps its memory writable."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("/dev/shm/barrage-" in line and " r--s " in line for line in lines)


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.further
def test_nothing_grows_over_many_subscriptions(server, session):
    def once():
        with session.table("t").subscribe() as live:
            live.wait_ready(WAIT)
            assert live.bodies == SHARED

    for _ in range(10):
        once()
    before = (descriptors(), maps_of_arenas())
    for _ in range(200):
        once()
    gc.collect()
    wait_until(lambda: maps_of_arenas() <= before[1])
    # What each subscription leaves would be two hundred.
    wait_until(lambda: descriptors() <= before[0] + 50)
    assert before[1] > 0
    session.close()
    gc.collect()
    wait_until(lambda: maps_of_arenas() == 0)


def test_nothing_grows_over_many_sessions(server):
    def once():
        with (
            barrage.connect(server.uri, auth=server.token) as session,
            session.table("t").subscribe() as live,
        ):
            live.wait_ready(WAIT)
            assert live.bodies == SHARED

    once()
    gc.collect()
    before = (descriptors(), maps_of_arenas())
    for _ in range(10):
        once()
    gc.collect()
    wait_until(lambda: (descriptors(), maps_of_arenas()) <= before)


def test_what_is_held_is_let_go_from_other_threads_and_after_everything(server):
    with barrage.connect(server.uri, auth=server.token) as session:
        live = session.table("t").subscribe(interval_ms=10)
        live.wait_ready(WAIT)
        updates = live.updates(timeout=WAIT)
        next(updates)
        held = []
        for value in range(1, 5):
            server.table("t").upsert(rows(value))
            held.append(next(updates))
        freeing = threading.Thread(target=held.pop)
        freeing.start()
        freeing.join()
        server.table("t").upsert(rows(9))
        wait_until(lambda: shows(live, 9))
        live.close()
    server.stop()
    # Held where the server put it.
    assert maps_of_arenas() > 0
    for value, update in enumerate(held, 1):
        assert set(update.modified["v"].to_pylist()) == {value}
        assert set(update.modified["s"].to_pylist()) == {f"s{value}"}
    del updates
    freeing = threading.Thread(target=held.clear)
    freeing.start()
    freeing.join()
    del update
    gc.collect()
    # Freed after the session's loop had ended: nothing was raised, nothing stays mapped.
    wait_until(lambda: maps_of_arenas() == 0)


def test_a_forked_child_reads_and_frees_without_harm(server, session):
    """A child of ``fork`` has copies of its parent's arrays; its end must not take the parent's
    locks or wake its loop."""
    with session.table("t").subscribe(interval_ms=10) as live:
        live.wait_ready(WAIT)
        updates = live.updates(timeout=WAIT)
        next(updates)
        server.table("t").upsert(rows(1))
        update = next(updates)
        context = multiprocessing.get_context("fork")
        reading, writing = context.Pipe(duplex=False)

        def child():
            nonlocal update
            total = sum(update.modified["v"].to_pylist())
            del update
            gc.collect()
            writing.send(total)

        process = context.Process(target=child)
        process.start()
        assert reading.recv() == ROWS
        process.join(WAIT)
        assert process.exitcode == 0
        for value in range(2, 20):
            server.table("t").upsert(rows(value))
        wait_until(lambda: next(updates) and shows(live, 19))
        assert set(update.modified["v"].to_pylist()) == {1}
        assert live.bodies == SHARED
        assert live.stats.reconnects == 0


SCRIPT = """
import sys, numpy as np, pyarrow as pa, barrage
server = barrage.Server(port={port}, bodies="shm").start()
rows = pa.table({{"k": np.arange(100_000), "v": np.full(100_000, {life})}})
book = server.create_table("book", {{"k": "int64", "v": "int64"}}, key="k", data=rows)
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
import threading
from tests.helpers.serving import HOST
for n in range(10_000):
    book.upsert({{"k": np.arange(100_000), "v": np.full(100_000, {life} + n % 2)}})
    threading.Event().wait(0.005)
"""


def test_a_server_that_is_killed_mid_stream():
    first = ServerProcess(SCRIPT.format(port=0, life=10))
    port = first.address.rpartition(":")[2]
    with first, barrage.connect(first.address) as session:
        live = session.table("book").subscribe(
            interval_ms=10, reconnect=Backoff(first_seconds=0.05, seconds_max=0.2)
        )
        live.wait_ready(WAIT)
        assert live.bodies == SHARED
        updates = live.updates(timeout=WAIT)
        next(updates)
        update = next(updates)
        values = update.modified["v"].to_pylist()
        first.process.kill()
        first.process.wait()
        wait_until(lambda: live.state is State.RECONNECTING)
        snapshot = live.to_arrow()
        with ServerProcess(SCRIPT.format(port=port, life=20)):
            wait_until(lambda: next(updates) and live.state is State.LIVE)
            # The new server has other memory, which is found anew.
            assert live.bodies == SHARED
            wait_until(lambda: next(updates) and set(live.to_arrow()["v"].to_pylist()) <= {20, 21})
            assert update.modified["v"].to_pylist() == values
            assert set(snapshot["v"].to_pylist()) <= {10, 11}
        live.close()


def test_watch_tells_the_way(server):
    target = f"{server.address}/t"
    runner = CliRunner()
    shown = runner.invoke(app, ["watch", target, "--once"], env={"BARRAGE_TOKEN": ""})
    assert shown.exit_code == 0, shown.output
    assert "bodies shm" in shown.output.splitlines()[0]
    shown = runner.invoke(app, ["watch", target, "--json", "--once"])
    told = json.loads(shown.output)["bodies"]
    # What fits a screen is small and stays inline.
    assert told["way"] == "shm"
    assert told["inline"]["count"] == 1
    assert told["shm"] == {"count": 0, "bytes": 0}
