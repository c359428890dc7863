"""Sources of the connector protocol on a real server: rows and positions, owners, restarts, bad
peers."""

from __future__ import annotations

import contextlib
import socket
import threading

import pyarrow as pa
import pytest

from barrage.errors import ConfigError
from barrage.journal.disk.storage import SystemCalls
from barrage.limits import Limits
from barrage.proto.connector.source_session import StreamRewound, WorkerFailed
from barrage.server import Server, ServerConfig
from barrage.server.ingest.connector import connector_worker
from barrage.server.statistics.connector_statistics import ConnectorStatistics
from barrage.wire.connector.frame_values import Dialect
from tests.helpers.connector_source import SocketSource, source, text_of
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until

ANYWHERE = "127.0.0.1:0"


def serving(**settings) -> Server:
    return Server(config=ServerConfig(connector=ANYWHERE, **settings))


@pytest.fixture(scope="module")
def server():
    with serving() as made:
        yield made


def rows(server: Server, table: str) -> list[tuple[str, int, bytes]]:
    found = server.table(table).to_arrow()
    columns = [found[name].to_pylist() for name in ("stream", "message_id", "payload")]
    return list(zip(*columns, strict=True))


def wanted(stream: int, *numbers: int) -> list[tuple[str, int, bytes]]:
    return [(str(stream), number, text_of(stream, number)) for number in numbers]


@pytest.mark.parametrize("dialect", Dialect)
def test_streams_land_in_a_table_of_their_program(server, dialect) -> None:
    name = f"lands {dialect.value}"
    with source(server.connector_port, name, dialect=dialect) as s:
        s.announce(1)
        assert s.opened == {1: None}
        s.send(1, 1, 5, 2**64 - 2)
        s.wait_safe(1, 2**64 - 2)
    assert rows(server, name) == wanted(1, 1, 5, 2**64 - 2)
    found = server.table(name).to_arrow()
    is_draft = dialect is Dialect.DRAFT
    assert found["key"].to_pylist() == [None if is_draft else b"k"] * 3
    assert found["event_time"].to_pylist() == [None if is_draft else 0] * 3
    # Another connection goes on after it, and what it sends again is dropped.
    with source(server.connector_port, name, dialect=dialect) as s:
        s.announce(1, 2)
        assert s.opened == {1: 2**64 - 2, 2: None}
        s.send(1, 5, 2**64 - 2)
        s.send(2, 9)
        s.wait_safe(2, 9)
    assert rows(server, name) == [*wanted(1, 1, 5, 2**64 - 2), *wanted(2, 9)]


def test_a_thousand_streams_of_one_connection(server) -> None:
    streams = range(1000)
    with source(server.connector_port, "many") as s:
        s.announce(*streams)
        for number in (1, 2):
            for stream in streams:
                s.send(stream, number)
        for stream in streams:
            s.session.end(stream)
        for stream in streams:
            s.wait_safe(stream, 2)
    assert sorted(rows(server, "many")) == sorted(
        row for stream in streams for row in wanted(stream, 1, 2)
    )


def test_the_newest_connection_owns_a_stream(server) -> None:
    with source(server.connector_port, "owned") as old:
        old.announce(1)
        old.send(1, 1)
        with source(server.connector_port, "owned") as new:
            new.announce(1)
            told = old.until(WorkerFailed)
            assert "newer" in told.message
            new.send(1, 1, 2)
            new.wait_safe(1, 2)
    assert rows(server, "owned") == wanted(1, 1, 2)


def test_a_gap_is_told_to_a_source_of_the_draft(server) -> None:
    with source(server.connector_port, "gap", dialect=Dialect.DRAFT) as s:
        s.session.announce(1, b"1", last=7)
        assert s.until(StreamRewound) == StreamRewound(1, None)


def test_positions_come_back_with_the_rows(tmp_path) -> None:
    with serving(data=str(tmp_path)) as server, source(server.connector_port) as s:
        s.announce(1, 2)
        s.send(1, 1, 2, 3)
        s.send(2, 2**64 - 2)
        s.wait_safe(1, 3)
        s.wait_safe(2, 2**64 - 2)
    with serving(data=str(tmp_path)) as server:
        with source(server.connector_port) as s:
            s.announce(1, 2)
            assert s.opened == {1: 3, 2: 2**64 - 2}
            s.send(1, 3, 4)
            s.wait_safe(1, 4)
        assert sorted(rows(server, "feed")) == sorted(
            [*wanted(1, 1, 2, 3, 4), *wanted(2, 2**64 - 2)]
        )


def test_positions_of_streams_outlive_those_of_producers(tmp_path) -> None:
    limits = Limits(producers_max=2)
    with serving(data=str(tmp_path), limits=limits) as server, source(server.connector_port) as s:
        s.announce(1, 2, 3)
        for stream in (1, 2, 3):
            s.send(stream, 1)
            s.wait_safe(stream, 1)
        table = server.table("feed")
        row = table.to_arrow().slice(0, 1)
        for producer in "abcd":
            table.add(row, producer=producer, sequence=1)
        assert [table.position(producer) for producer in "abcd"] == [None, None, 1, 1]
    with (
        serving(data=str(tmp_path), limits=limits) as server,
        source(server.connector_port, dialect=Dialect.DRAFT) as s,
    ):
        assert s.known == {1: 1, 2: 1, 3: 1}
        table = server.table("feed")
        assert [table.position(producer) for producer in "abcd"] == [None, None, 1, 1]


def test_a_table_that_is_dropped_begins_anew(server) -> None:
    with source(server.connector_port, "dropped") as s:
        s.announce(1)
        s.send(1, 1)
        s.wait_safe(1, 1)
        server.drop_table("dropped")
        s.send(1, 2)
        with pytest.raises((EOFError, ConnectionError)):
            s.wait_safe(1, 2)
    with source(server.connector_port, "dropped") as s:
        s.announce(1)
        assert s.opened == {1: None}
        s.send(1, 1, 2)
        s.wait_safe(1, 2)
    assert rows(server, "dropped") == wanted(1, 1, 2)


def test_tables_that_cannot_take_streams(server) -> None:
    server.create_table("other columns", pa.schema({"a": pa.int64()}))
    for program in ("other columns", "", "\n", "x" * 2000):
        with socket.create_connection(("127.0.0.1", server.connector_port)) as s:
            s.settimeout(HANG_SECONDS)
            s.sendall(_hello(program))
            assert b"unknown program" in _all_of(s)


def _hello(program: str, cookie: str = "") -> bytes:
    texts = b"".join(
        len(raw).to_bytes(2, "big") + raw for raw in map(str.encode, ("0.0.1", cookie, program, ""))
    )
    return (len(texts) + 1).to_bytes(4, "big") + b"\0" + texts


def _all_of(s: socket.socket) -> bytes:
    return b"".join(iter(lambda: s.recv(65_536), b""))


def test_the_cookie_is_the_token() -> None:
    with serving(token="secret") as server:
        for cookie in ("", "wrong"):
            with socket.create_connection(("127.0.0.1", server.connector_port)) as s:
                s.settimeout(HANG_SECONDS)
                s.sendall(_hello("p", cookie))
                told = _all_of(s)
                assert b"bad cookie" in told
                assert b"secret" not in told
        with source(server.connector_port, cookie="secret") as s:
            s.announce(1)


@pytest.mark.parametrize(
    ("connector", "token", "is_made_up"),
    [
        ("127.0.0.1:0", None, False),
        ("[::1]:0", None, False),
        ("0.0.0.0:0", None, True),
        ("0.0.0.0:0", "t", False),
    ],
)
def test_an_address_others_can_reach_gets_a_token(connector, token, is_made_up) -> None:
    with Server(config=ServerConfig(connector=connector, token=token)) as server:
        assert (server.token not in (None, token)) is is_made_up


@pytest.mark.parametrize("address", ["", "host", ":1", "host:", "host:65536", "host:x"])
def test_addresses_that_are_none(address) -> None:
    with pytest.raises(ConfigError, match="host:port"):
        ServerConfig(connector=address)


def test_a_server_with_a_certificate_serves_no_connectors_in_the_clear() -> None:
    files = {"tls_cert": "cert.pem", "tls_key": "key.pem"}
    with pytest.raises(ConfigError, match=r"can be reached by others: with connector_tls = false"):
        ServerConfig(connector="0.0.0.0:0", connector_tls=False, **files)
    assert ServerConfig(connector="0.0.0.0:0", **files)
    assert ServerConfig(connector=ANYWHERE, connector_tls=False, **files)


def test_an_address_in_use_is_an_error(server) -> None:
    taken = ServerConfig(connector=f"127.0.0.1:{server.connector_port}")
    with pytest.raises(ConfigError, match="connectors"), Server(config=taken):
        pass


def test_bad_peers_end_alone_and_late_ones_are_cut() -> None:
    limits = Limits(connector_connections_max=3, connector_handshake_ns_max=1)
    with serving(limits=limits) as server, source(server.connector_port) as s:
        s.announce(1)
        for raw in (b"GET / HTTP/1.1\r\n\r\n", bytes.fromhex("ffffffff05"), b"\0\0", b""):
            with socket.create_connection(("127.0.0.1", server.connector_port)) as bad:
                bad.settimeout(HANG_SECONDS)
                bad.sendall(raw)
                with contextlib.suppress(ConnectionError):
                    _all_of(bad)
        others: list[SocketSource] = []
        worker = server._app._connectors
        wait_until(lambda: worker.connection_count == 1)
        try:
            others += [SocketSource(server.connector_port, "feed") for _ in range(2)]
            with pytest.raises((EOFError, ConnectionError)):
                SocketSource(server.connector_port, "feed")
        finally:
            for other in others:
                other.close()
        s.send(1, 1)
        s.wait_safe(1, 1)
        assert rows(server, "feed") == wanted(1, 1)


def test_a_source_that_does_not_read_is_cut_and_its_rows_stay(monkeypatch) -> None:
    # An answer to every few messages, and little room for answers that nobody reads.
    monkeypatch.setattr(connector_worker, "READ_BYTES", 256)
    with serving(limits=Limits(connector_replies_bytes_max=1)) as server:
        with source(server.connector_port) as s:
            s.announce(1)
            s.send(1, *range(1, 100))
            s.wait_safe(1, 99)
            (connection,) = server._app._connectors._connections
            sock = connection._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            s.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            # Replays are answered each time, and nobody reads the answers.
            s.session.credits = 10**9
            with contextlib.suppress(OSError, EOFError):
                while True:
                    s.send(1, *range(1, 50))
            wait_until(lambda: not server._app._connectors.connection_count)
        wait_until(lambda: len(rows(server, "feed")) == 99)


def test_an_engine_without_room_gives_no_credits_and_loses_nothing(monkeypatch) -> None:
    async def told_nothing(_: ConnectorStatistics) -> None:
        """The one place in the queue is for what is tested."""

    monkeypatch.setattr(ConnectorStatistics, "run", told_nothing)
    limits = Limits(command_queue_max=1, connector_credits_max=64)
    with serving(limits=limits) as server, source(server.connector_port) as s:
        s.announce(1)
        runtime = server._parts.runtime
        goes_on = threading.Event()
        runtime.post(lambda: goes_on.wait(HANG_SECONDS))
        runtime.post(lambda: None)
        s.send(1, *range(1, 60))
        wait_until(
            lambda: any(p.held is not None for p in server._app._connectors._programs.values())
        )
        goes_on.set()
        s.send(1, *range(60, 200))
        s.wait_safe(1, 199)
        assert rows(server, "feed") == wanted(1, *range(1, 200))


def test_a_server_that_stops_ends_connections_and_keeps_what_it_took(tmp_path) -> None:
    with serving(data=str(tmp_path)) as server:
        s = SocketSource(server.connector_port, "feed")
        s.announce(1)
        s.send(1, *range(1, 500))
    with pytest.raises((EOFError, ConnectionError)):
        s.wait_safe(1, 10**9)
    s.close()
    with serving(data=str(tmp_path)) as server, source(server.connector_port) as again:
        again.announce(1)
        last = again.opened[1] or 0
        assert last >= s.safe.get(1, 0)
        again.send(1, *range(1, 600))
        again.wait_safe(1, 599)
        assert rows(server, "feed") == wanted(1, *range(1, 600))


def test_a_full_disk_sends_sources_away_and_loses_nothing_that_was_acknowledged(
    tmp_path, monkeypatch
) -> None:
    is_full = threading.Event()
    free_bytes = SystemCalls.free_bytes

    def free(self: SystemCalls, path: str) -> int:
        return 0 if is_full.is_set() else free_bytes(self, path)

    def send_on(s: SocketSource) -> None:
        for number in range(300, 10**9):
            s.send(1, number)
            if number % 50 == 0:
                s.wait_safe(1, number)

    monkeypatch.setattr(SystemCalls, "free_bytes", free)
    with serving(data=str(tmp_path)) as server:
        with source(server.connector_port) as s:
            s.announce(1)
            s.send(1, *range(1, 300))
            s.wait_safe(1, 299)
            is_full.set()
            with pytest.raises((EOFError, OSError)):
                send_on(s)
            safe = s.safe[1]
        is_full.clear()

        def goes_on() -> bool:
            with contextlib.suppress(EOFError, OSError), source(server.connector_port) as s:
                s.announce(1)
                assert (s.opened[1] or 0) >= safe
                s.send(1, *range((s.opened[1] or 0) + 1, 900))
                s.wait_safe(1, 899)
                return True
            return False

        wait_until(goes_on)
    with serving(data=str(tmp_path)) as server:
        assert rows(server, "feed") == wanted(1, *range(1, 900))
