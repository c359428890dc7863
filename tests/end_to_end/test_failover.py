"""Sessions with several addresses: a server is lost, and everything goes on at another."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket

import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app
from barrage.client import Backoff, State
from barrage.errors import AuthenticationError, ConfigError, ConnectionLostError
from tests.helpers.cutter import Cutter
from tests.helpers.server_process import ServerProcess, wait_until

SOON = Backoff(first_seconds=0.01, seconds_max=0.1)
WAIT = 60
ROWS = {"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]}

SERVER = """
import sys, barrage
from barrage.server.settings.config import ServerConfig
server = barrage.Server(port=0, config=ServerConfig(bodies="{bodies}"))
server.create_table("t", key="k", data={{"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]}})
server.create_table("static", kind="static", data={{"n": list(range(1000))}})
server.start()
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
server.serve_forever()
"""


def server_process(bodies: str = "inline") -> ServerProcess:
    return ServerProcess(SERVER.format(bodies=bodies))


@pytest.fixture
def nobody():
    """The address of a port that nobody has, which refuses."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture
def silent():
    """The address of a server that takes connections and never says a word."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen(64)
        yield f"127.0.0.1:{held.getsockname()[1]}"


def serving(name: str, data=ROWS) -> barrage.Server:
    server = barrage.Server(f"inproc://{name}")
    server.create_table("t", key="k", data=data)
    return server.start()


def test_everything_goes_on_at_the_next_server_without_a_socket():
    first, second = serving("failing"), serving("other")
    try:
        with barrage.connect("inproc://failing,inproc://other") as session:
            table = session.table("t")
            assert table.snapshot().num_rows == 3
            with table.subscribe(interval_ms=10, reconnect=SOON) as live:
                live.wait_ready(WAIT)
                with session.writer("t", producer="p", reconnect=SOON) as writer:
                    writer.write({"k": [4], "v": [4.0]})
                    writer.flush(WAIT)
                    first.stop()
                    assert session.table("t").snapshot(timeout=WAIT).num_rows == 3
                    writer.write({"k": [5], "v": [5.0]})
                    writer.flush(WAIT)
                wait_until(lambda: live.to_arrow()["k"].to_pylist() == [1, 2, 3, 5])
                assert live.resumption.startswith("resnapshot")
                assert live.state is State.LIVE
            assert "inproc://other" in repr(session)
            assert [info.name for info in session.tables()] == ["t"]
            assert table.info().total_records == 4
    finally:
        first.stop()
        second.stop()


def test_what_needs_a_session_goes_on_too():
    """Uploads and exports belong to a session of one server; another one begins at the next."""
    first, second = serving("first of two"), serving("second of two")
    try:
        with barrage.connect(["inproc://first of two", "inproc://second of two"]) as session:
            assert session.upload({"x": [2, 1]}).sort("x").snapshot().num_rows == 2
            opened = session.open_table("t")
            first.stop()
            assert opened.snapshot(timeout=WAIT).num_rows == 3
            # It may know already that its session was lost.
            with contextlib.suppress(ConnectionLostError):
                session.upload({"x": [1]}, timeout=WAIT)
            assert session.upload({"x": [1]}, timeout=WAIT).snapshot().num_rows == 1
    finally:
        first.stop()
        second.stop()


def test_a_killed_server_is_followed_by_the_next():
    with server_process() as first, server_process() as second:
        addresses = f"grpc://{first.address},grpc://{second.address}"
        with barrage.connect(addresses) as session:
            lives = [
                session.table("t").subscribe(interval_ms=10, reconnect=SOON),
                session.table("static").subscribe(viewport=(10, 20), reconnect=SOON),
            ]
            for live in lives:
                live.wait_ready(WAIT)
            first.process.kill()
            first.process.wait()
            assert session.table("static").snapshot(timeout=WAIT).num_rows == 1000
            for live in lives:
                wait_until(lambda live=live: live.stats.reconnects and live.state is State.LIVE)
                live.wait_ready(WAIT)
            assert lives[1].to_arrow()["n"].to_pylist() == list(range(10, 20))
            session.put("t", {"k": [9], "v": [9.0]})
            wait_until(lambda: lives[0].to_arrow()["k"].to_pylist() == [1, 2, 3, 9])
        assert second.address in repr(session)


def test_a_session_of_deephavens_kind_logs_in_at_the_next_server():
    """Our own server, addressed as one of Deephaven's: everything is within a session there."""
    with server_process() as first, server_process() as second:
        addresses = [f"dh://{first.address}", f"dh://{second.address}"]
        with barrage.connect(addresses, timeout=30) as session:
            table = session.open_table("t")
            lives = [
                session.table("t").subscribe(interval_ms=10, reconnect=SOON),
                table.where("k > 1").subscribe(interval_ms=10, reconnect=SOON),
            ]
            for live in lives:
                live.wait_ready(WAIT)
            first.process.kill()
            first.process.wait()
            assert table.snapshot(timeout=WAIT).num_rows == 3
            for live in lives:
                wait_until(lambda live=live: live.stats.reconnects and live.state is State.LIVE)
                live.wait_ready(WAIT)
            assert [len(live) for live in lives] == [3, 2]
            assert session.upload({"x": [1]}, timeout=WAIT).snapshot(timeout=WAIT).num_rows == 1
            assert {info.name for info in session.tables()} >= {"t", "static"}
            second.process.kill()
            second.process.wait()
            with pytest.raises(ConnectionLostError, match="none of 2 servers"):
                session.table("t").snapshot(timeout=WAIT)


@pytest.mark.parametrize(
    ("at_first", "then"), [("shm", "shm"), ("inline", "shm"), ("shm", "inline")]
)
def test_the_way_of_bodies_is_that_of_the_server_in_use(at_first, then):
    with (
        server_process(at_first) as first,
        server_process(then) as second,
        barrage.connect([first.address, second.address]) as session,
    ):
        live = session.table("static").subscribe(reconnect=SOON)
        live.wait_ready(WAIT)
        assert live.bodies.way.value == at_first
        first.process.kill()
        first.process.wait()
        wait_until(lambda: live.stats.reconnects and live.state is State.LIVE)
        assert live.bodies.way.value == then
        assert session.table("static").snapshot(timeout=WAIT).num_rows == 1000


def test_a_subscription_resumes_at_another_door_to_the_same_epoch(tmp_path):
    with barrage.Server(port=0, data=str(tmp_path)) as server:
        table = server.create_table("t", {"n": "int64"})
        with (
            Cutter(server.address) as one,
            Cutter(server.address) as other,
            barrage.connect(f"{one.uri},{other.uri}") as session,
        ):
            live = session.table("t").subscribe(interval_ms=10, reconnect=SOON)
            live.wait_ready(WAIT)
            table.add({"n": [1]})
            wait_until(lambda: len(live) == 1)
            replaced = []
            live.on_update(lambda update: replaced.append(update.is_replacement))
            one.close()
            table.add({"n": [2]})
            wait_until(lambda: live.state is State.LIVE and len(live) == 2)
            assert live.resumption == "live" or live.resumption.startswith("replayed")
            other.close()
            one.open()
            table.add({"n": [3]})
            wait_until(lambda: len(live) == 3)
            wait_until(lambda: len(replaced) >= 3)
            assert replaced.count(True) == 1


def test_dead_addresses_cost_their_timeout_and_are_all_named(nobody, silent):
    with barrage.Server(port=0) as server:
        server.create_table("t", data=ROWS)
        with barrage.connect(f"{nobody},{silent},{server.uri}", timeout=3) as session:
            assert session.table("t").snapshot(timeout=WAIT).num_rows == 3
            assert server.address in repr(session)
    with pytest.raises(ConnectionLostError) as caught:
        barrage.connect([nobody, silent], timeout=0.2)
    text = str(caught.value)
    assert text.startswith("none of 2 servers can be reached: ")
    assert f"{nobody}: " in text
    assert "refused" in text
    assert f"{silent}: " in text


def test_a_subscription_gets_past_a_silent_server(silent):
    with server_process() as first, server_process() as last:
        addresses = [first.address, silent, last.address]
        with barrage.connect(addresses, timeout=3) as session:
            # Nobody but the subscription asks for anything.
            live = session.table("t").subscribe(interval_ms=10, reconnect=SOON)
            live.wait_ready(WAIT)
            first.process.kill()
            first.process.wait()
            wait_until(lambda: live.stats.reconnects >= 2 and live.state is State.LIVE)
            live.wait_ready(WAIT)
            assert last.address in repr(session)


def test_a_table_that_one_server_has_not_got_is_followed_at_another():
    first, second, third = serving("has it"), barrage.Server("inproc://has not"), serving("too")
    second.start()
    try:
        with (
            barrage.connect("inproc://has it,inproc://has not,inproc://too") as session,
            session.table("t").subscribe(interval_ms=10, reconnect=SOON) as live,
        ):
            live.wait_ready(WAIT)
            first.stop()
            third.table("t").upsert({"k": [7], "v": [7.0]})
            wait_until(lambda: live.to_arrow()["k"].to_pylist() == [1, 2, 3, 7])
    finally:
        for server in (first, second, third):
            server.stop()


def test_the_same_token_is_used_everywhere():
    with (
        barrage.Server("inproc://", token="one") as first,
        barrage.Server("inproc://", token="one") as second,
    ):
        second.create_table("t", data=ROWS)
        with barrage.connect([first.uri, second.uri], auth="one") as session:
            first.stop()
            assert session.table("t").snapshot(timeout=WAIT).num_rows == 3
        with pytest.raises(AuthenticationError):
            barrage.connect([first.uri, second.uri], auth="another")


def test_an_asyncio_session_starts_anywhere():
    first, second = serving("any one"), serving("any two")

    async def used() -> set[str]:
        found = set()
        while len(found) < 2:
            async with barrage.aconnect("inproc://any one,inproc://any two", order="random") as one:
                found.add(one.address.target)
        return found

    try:
        assert asyncio.run(used()) == {"inproc://any one", "inproc://any two"}
        with pytest.raises(ConfigError, match="'any'"):
            barrage.connect("inproc://any one", order="any")
    finally:
        first.stop()
        second.stop()


def test_commands_take_lists(nobody):
    with barrage.Server(port=0) as server:
        server.create_table("t", data=ROWS)
        shown = CliRunner().invoke(app, ["snapshot", f"{nobody},{server.address}/t", "--json"])
        assert [json.loads(line)["k"] for line in shown.stdout.splitlines()] == [1, 2, 3]
    failed = CliRunner().invoke(app, ["ls", f"{nobody},{server.address}"])
    assert failed.exit_code == 1
    assert nobody in failed.stderr
    assert server.address in failed.stderr


def test_readers_miss_nothing_while_addresses_come_and_go():
    """Two ways to one engine, cut in turn: readers get every row once."""
    with (
        barrage.Server(port=0) as server,
        Cutter(server.address) as one,
        Cutter(server.address) as other,
        barrage.connect(f"{one.uri},{other.uri}") as session,
    ):
        table = server.create_table("t", {"n": "int64"}, journal="memory")
        lives = [
            session.table("t").subscribe(interval_ms=10, reconnect=SOON, resume=mode)
            for mode in ("coalesced", "steps") * 3
        ]
        seen = [[] for _ in lives]
        for live, rows in zip(lives, seen, strict=True):
            live.wait_ready(WAIT)
            live.on_update(lambda update, rows=rows: rows.append(update.is_replacement))
        for turn in range(10):
            down, up = (one, other) if turn % 2 else (other, one)
            up.open()
            table.add({"n": [2 * turn]})
            down.close()
            table.add({"n": [2 * turn + 1]})
            for live in lives:
                wait_until(lambda live=live, count=2 * turn + 2: len(live) == count)
        assert sorted(table.to_arrow()["n"].to_pylist()) == list(range(20))
        for live, rows in zip(lives, seen, strict=True):
            wait_until(lambda live=live: live.state is State.LIVE and len(live) == 20)
            assert live.to_arrow() == table.to_arrow()
            assert rows.count(True) <= 1
        assert any(live.stats.reconnects for live in lives)
