"""A server and its clients in one process, without a socket."""

from __future__ import annotations

import asyncio
import socket

import pytest

import barrage
from barrage.errors import AuthenticationError, ConfigError, ConnectionLostError
from barrage.server.settings.config import ServerConfig
from tests.helpers.server_process import wait_until

WAIT = 60


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch):
    """Nothing here may listen or connect."""

    def refuse(*_):
        raise AssertionError("a socket was used")

    for name in ("connect", "bind", "listen"):
        monkeypatch.setattr(socket.socket, name, refuse)


def test_a_table_is_written_read_and_followed():
    with barrage.Server("inproc://prices") as server:
        assert (server.uri, server.address, server.port) == ("inproc://prices",) * 2 + (0,)
        assert server.token is None
        ticks = server.create_table("ticks", {"n": "int64"})
        with barrage.connect("inproc://prices") as session:
            assert [info.name for info in session.tables()] == ["ticks"]
            session.put("ticks", {"n": [1, 2]})
            with session.table("ticks").subscribe() as live:
                live.wait_ready(timeout=WAIT)
                ticks.add({"n": [3]})
                wait_until(lambda: len(live.to_arrow()) == 3)
                assert live.to_arrow().column("n").to_pylist() == [1, 2, 3]
            assert session.table("ticks").where("n > 1").snapshot().num_rows == 2


def test_a_large_snapshot_comes_whole():
    with barrage.Server("inproc://") as server:
        server.create_table("big", data={f"c{i}": range(200_000) for i in range(8)}, kind="static")
        with barrage.connect(server.uri) as session:
            assert session.table("big").snapshot(timeout=WAIT).num_rows == 200_000


def test_sessions_of_queries_and_uploads_work_too():
    with barrage.Server("inproc://") as server, barrage.connect(server.uri) as session:
        rows = session.upload({"x": [3, 1, 2]})
        assert rows.sort("x").snapshot().column("x").to_pylist() == [1, 2, 3]


def test_credentials_are_asked_for():
    with barrage.Server("inproc://", token="secret") as server:
        with pytest.raises(AuthenticationError):
            barrage.connect(server.uri)
        with barrage.connect(server.uri, auth="secret") as session:
            assert session.tables() == []


def test_a_subscriber_comes_back_to_a_server_that_was_started_again():
    first = barrage.Server("inproc://again").start()
    first.create_table("t", data={"x": [1]})
    with barrage.connect("inproc://again") as session, session.table("t").subscribe() as live:
        live.wait_ready(timeout=WAIT)
        first.stop()
        with pytest.raises(ConnectionLostError, match="serves inproc://again"):
            barrage.connect("inproc://again")
        with barrage.Server("inproc://again") as second:
            second.create_table("t", data={"x": [1, 2]})
            wait_until(lambda: live.to_arrow().num_rows == 2)


def test_a_name_belongs_to_one_server():
    with barrage.Server("inproc://mine"):
        with pytest.raises(ConfigError, match="the name is taken"):
            barrage.Server("inproc://mine").start()
        with barrage.Server("inproc://") as one, barrage.Server("inproc://") as other:
            assert one.uri != other.uri
    with pytest.raises(ConfigError, match="no name"):
        barrage.connect("inproc://")


def test_both_may_share_a_loop():
    async def scene():
        async with barrage.AsyncServer(config=ServerConfig(host="inproc://shared")) as server:
            table = await server.create_table("t", {"x": "int64"}, journal="memory")
            async with barrage.aconnect(server.uri) as session:
                async with session.writer("t", producer="p") as writer:
                    for number in range(50):
                        await writer.write({"x": [number]})
                    await writer.flush()
                async with session.table("t").subscribe() as live:
                    await live.wait_ready()
                    assert live.to_arrow().num_rows == 50
                await table.add({"x": [50]})

    asyncio.run(asyncio.wait_for(scene(), WAIT))


@pytest.mark.further
def test_nothing_is_left_of_a_hundred_clients():
    with barrage.Server("inproc://") as server:
        server.create_table("t", data={"x": range(10)})
        for _ in range(100):
            with barrage.connect(server.uri) as session, session.table("t").subscribe() as live:
                live.wait_ready(timeout=WAIT)
        wait_until(lambda: server.stream_count == 0)
        wait_until(lambda: not server._running._listener._tasks)
