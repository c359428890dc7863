"""Programs whose messages become rows of tables of their own: decoded, keyed, with dead letters;
what is told about them; and how their sources are sent away."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading

import pyarrow as pa
import pytest

from barrage.connector import (
    MessageBatch,
    Source,
    SourceMapping,
    TableDelivery,
    WorkerDelivery,
    run_sources,
)
from barrage.connector.shipped.webhook import PENDING_MAX, Webhook
from barrage.errors import (
    ConfigError,
    ConnectorRefusedError,
    LocalProtocolError,
    TableNotFoundError,
)
from barrage.journal.disk.storage import SystemCalls
from barrage.proto.connector.source_session import RestartAsked, StreamRefused
from barrage.server import Server, ServerConfig
from barrage.server.ingest.connector.sources_file import parse_sources, read_sources
from tests.helpers.connector_source import SocketSource, source
from tests.helpers.payload_samples import AVRO, AVRO_RECORDS, DESCRIPTORS, avro_payload
from tests.helpers.restless_server import HANG_SECONDS
from tests.helpers.server_process import wait_until

ANYWHERE = "127.0.0.1:0"


class Given(Source):
    """These payloads, numbered from 1."""

    def __init__(self, *payloads: bytes, name: str = "s", keys=None) -> None:
        self.name = name
        self.payloads = payloads
        self.keys = keys

    async def read(self, after):
        start = after or 0
        payloads = list(self.payloads[start:])
        keys = None if self.keys is None else list(self.keys[start:])
        if payloads:
            ids = range(start + 1, len(self.payloads) + 1)
            yield MessageBatch(ids=ids, payloads=payloads, keys=keys)


def serving(*sources: SourceMapping, **settings) -> Server:
    return Server(config=ServerConfig(connector=ANYWHERE, **settings), sources=list(sources))


def push(server: Server, given: Source, program: str = "p") -> None:
    delivery = WorkerDelivery(f"127.0.0.1:{server.connector_port}", program=program)
    asyncio.run(asyncio.wait_for(run_sources(given, delivery), HANG_SECONDS))


def rows(server: Server, name: str) -> list[dict]:
    return server.table(name).to_arrow().to_pylist()


def has(server: Server, name: str) -> bool:
    with contextlib.suppress(TableNotFoundError):
        server.table(name)
        return True
    return False


KEYED = SourceMapping(
    program="p*",
    table="orders",
    columns={"id": "int64", "v": "string"},
    key=("id",),
    delete_column="gone",
    streams="s*",
)


def test_rows_deletions_and_dead_letters_come_back_with_the_positions(tmp_path) -> None:
    given = [b'{"id":1,"v":"a"}', b"no", b'{"id":2,"v":"b"}', b'{"id":1,"gone":true}', b'{"v":"c"}']
    with serving(KEYED, data=str(tmp_path)) as server:
        push(server, Given(*given[:3]))
    with serving(KEYED, data=str(tmp_path)) as server:
        push(server, Given(*given))
        push(server, Given(*given), "p2")
        assert rows(server, "orders") == [{"id": 2, "v": "b"}]
        letters = rows(server, "orders__rejected")
        assert [each["message_id"] for each in letters] == [2, 5]
        assert [each["payload"] for each in letters] == [b"no", b'{"v":"c"}']
        assert [each["stream"] for each in letters] == ["s", "s"]


@pytest.mark.parametrize("big", [False, True])
def test_the_same_through_a_server_and_a_worker(big) -> None:
    """Small batches are decoded on the loop of the worker, large ones beside it."""
    count = 20_000 if big else 50
    given = [b'{"id":%d,"v":"x%d"}' % (n % 1000, n) for n in range(count)]
    given[7] = b"bad"
    with serving(KEYED) as server:
        push(server, Given(*given))
        one = sorted(rows(server, "orders"), key=lambda row: row["id"])
        server.drop_table("orders")
        letters = rows(server, "orders__rejected")
        server.drop_table("orders__rejected")
        delivery = TableDelivery(server.uri, mapping=KEYED)
        asyncio.run(asyncio.wait_for(run_sources(Given(*given), delivery), HANG_SECONDS))
        assert sorted(rows(server, "orders"), key=lambda row: row["id"]) == one
        assert rows(server, "orders__rejected") == letters
        assert (delivery.progress.messages_sent, delivery.progress.messages_rejected) == (count, 1)


def test_files_of_sources(tmp_path) -> None:
    import json

    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "orders.pb").write_bytes(DESCRIPTORS)
    file = tmp_path / "sources.toml"
    file.write_text(
        """
        [sources.trades]
        program = "avro"
        format = "avro"
        avro_schema = "order.avsc"
        [sources.others]
        program = "proto"
        table = "t"
        format = "protobuf"
        protobuf_descriptors = "orders.pb"
        protobuf_message = "t.Order"
        key = ["id"]
        [sources.own]
        program = "own"
        format = "python"
        function = "tests.end_to_end.test_connector_tables:decoded"
        columns = { size = "int64", at = "timestamp[ms, UTC]" }
        time_column = "at"
        time_unit = "ms"
        """
    )
    with serving(connector_config=str(file)) as server:
        push(server, Given(*map(avro_payload, AVRO_RECORDS)), "avro")
        assert rows(server, "avro") == AVRO_RECORDS
        push(server, Given(b"abc", b"x" * 7), "own")
        assert [row["size"] for row in rows(server, "own")] == [3, 7]
        with pytest.raises(ConnectorRefusedError, match="unknown program"):
            push(server, Given(b""), "another")
    assert [each.format for each in read_sources(file)] == ["avro", "protobuf", "python"]


def decoded(payload: bytes) -> dict:
    return {"size": len(payload)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "sources"),
        ("[sources]", "length"),
        ("x", "TOML"),
        ("[sources.a]", "program"),
        ('[sources.a]\nprogram = "p"\nformat = "xml"', "format"),
        ('[sources.a]\nprogram = "p"\nnone = 1', "none"),
        ('[sources.a]\nprogram = "p"\ncolumns = { a = "what" }', "'a'"),
        ('[sources.a]\nprogram = "p"\nformat = "avro"\navro_schema = "none"', "cannot read"),
        ('[sources.a]\nprogram = "p"\nformat = "python"\nfunction = "none"', "function 'none'"),
        ('[sources.a]\nprogram = "p"\nformat = "python"\nfunction = "sys:path"', "is none"),
        ('[sources.a]\nprogram = "p"\ndelete_column = "x"', "'a': delete_column"),
    ],
)
def test_files_of_sources_that_are_wrong(text, told) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_sources(text)


def test_tables_that_do_not_fit_their_source() -> None:
    with serving(KEYED) as server:
        server.create_table("orders", {"id": "int64"})
        with pytest.raises(ConnectorRefusedError, match="takes no streams"):
            push(server, Given(b"{}"))


def test_streams_that_are_none_of_the_program() -> None:
    with serving(KEYED) as server, source(server.connector_port, "p") as s:
        s.session.announce(1, b"other")
        assert s.until(StreamRefused) == StreamRefused(1)


def test_bad_payloads_can_end_the_connection() -> None:
    strict = SourceMapping(program="p", columns={"a": "int64"}, on_bad_payload="error")
    skips = SourceMapping(program="q", columns={"a": "int64"}, on_bad_payload="skip")
    with serving(strict, skips) as server:
        with pytest.raises(
            ConnectorRefusedError, match="payload rejected: the payload is not JSON"
        ):
            push(server, Given(b"no"))
        assert rows(server, "p") == []
        push(server, Given(b"no", b'{"a":1}'), "q")
        assert rows(server, "q") == [{"a": 1}]
        assert not has(server, "q__rejected")


def test_a_thousand_streams_of_one_turn_are_one_step() -> None:
    with serving() as server, source(server.connector_port) as s:
        s.announce(*range(1000))
        server.table("feed").to_arrow()
        before = server._parts.runtime.graph.step
        for stream in range(1000):
            s.session.send(_message(stream))
        goes_on = threading.Event()
        # All of it comes while the loop does something else.
        loop = server._app._connectors.loop
        loop.call_soon_threadsafe(goes_on.wait, HANG_SECONDS)
        s.flush()
        goes_on.set()
        while len(s.safe) < 1000:
            s.receive()
        assert len(rows(server, "feed")) == 1000
        # One read of the socket may not have all of it, and the statistics tick.
        assert server._parts.runtime.graph.step - before < 20


def _message(stream: int):
    from barrage.wire.connector.frame_values import SentMessage

    return SentMessage(stream, 1, 0, b"", b"x")


def test_what_is_told_of_connectors() -> None:
    with serving(KEYED) as server, source(server.connector_port, "p") as s:
        s.announce_as = "s"
        s.session.announce(5, b"s5")
        while 5 not in s.opened:
            s.flush()
            s.receive()
        s.session.send(_message(5)._replace(payload=b"no"))
        s.wait_safe(5, 1)
        with contextlib.suppress(EOFError, ConnectionError):
            SocketSource(server.connector_port, "none of them").close()

        def told() -> bool:
            if not (has(server, "_connectors") and has(server, "_streams")):
                return False
            streams, connectors = rows(server, "_streams"), rows(server, "_connectors")
            return len(streams) == 1 and streams[0]["last_safe"] == 1 and len(connectors) == 2

        wait_until(told)
        (stream,) = rows(server, "_streams")
        assert (stream["table"], stream["name"], stream["lag"]) == ("orders", "s5", 0)
        assert stream["is_owned"]
        assert "JSON" in stream["last_error"]
        alive = next(each for each in rows(server, "_connectors") if each["last_error"] is None)
        assert (alive["program"], alive["instance"], alive["streams"]) == ("p", "test", 1)
        assert (alive["messages"], alive["waiting"], alive["state"]) == (1, 0, "streaming")
        assert alive["credits"] > 0
        failed = next(each for each in rows(server, "_connectors") if each["last_error"])
        assert "unknown program" in failed["last_error"]


# --- ends ---


def test_a_planned_stop_can_ask_for_another_connection() -> None:
    for address in ("", "127.0.0.1:7"):
        with serving(connector_restart=address) as server:
            s = SocketSource(server.connector_port, "feed")
            s.announce(1)
        assert s.until(RestartAsked) == RestartAsked(address)
        s.close()


def arrive(s: SocketSource, numbers: range) -> bool:
    """Whether messages become safe; else the connection has ended."""
    with contextlib.suppress(EOFError, OSError):
        s.send(1, *numbers)
        s.wait_safe(1, numbers[-1])
        return True
    return False


def test_a_journal_that_dies_ends_sources_and_keeps_what_was_acknowledged(
    tmp_path, monkeypatch
) -> None:
    is_broken = threading.Event()
    sync = SystemCalls.sync

    def synced(self: SystemCalls, file: int) -> None:
        if is_broken.is_set():
            raise OSError(errno.EIO, "the disk is broken")
        sync(self, file)

    monkeypatch.setattr(SystemCalls, "sync", synced)
    with serving(data=str(tmp_path)) as server:
        with source(server.connector_port) as s:
            s.announce(1)
            s.send(1, *range(1, 100))
            s.wait_safe(1, 99)
            is_broken.set()
            assert not arrive(s, range(100, 200))
            safe = s.safe[1]
        # Who comes again is not welcomed to a table that cannot be written.
        with contextlib.suppress(EOFError, OSError), source(server.connector_port) as s:
            s.announce(1)
            assert not arrive(s, range(100, 200))
    is_broken.clear()
    with serving(data=str(tmp_path)) as server, source(server.connector_port) as s:
        s.announce(1)
        assert s.opened[1] is not None
        assert s.opened[1] >= safe
        s.send(1, *range(s.opened[1] + 1, 300))
        s.wait_safe(1, 299)
        found = [row["message_id"] for row in rows(server, "feed")]
        assert found == list(range(1, 300))


# --- HTTP ---


async def post(port: int, body: bytes, *, head: str = "", method: str = "POST / HTTP/1.1") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    told = head or f"Content-Length: {len(body)}\r\n"
    writer.write(f"{method}\r\n{told}Connection: close\r\n\r\n".encode() + body)
    answer = await asyncio.wait_for(reader.read(), HANG_SECONDS)
    writer.close()
    await writer.wait_closed()
    return answer.split(b" ", 2)[1]


def test_a_request_is_answered_when_it_is_safe() -> None:
    mapping = SourceMapping(program="*", table="hooks", columns={"a": "int64"})

    async def scene(server: Server) -> None:
        async with Webhook(token="secret") as hook:
            delivery = TableDelivery(server.uri, mapping=mapping)
            running = asyncio.ensure_future(run_sources(hook, delivery))
            shown = "Authorization: Bearer secret\r\n"
            good = f"{shown}Content-Length: 7\r\n"
            answers = await asyncio.gather(
                *(post(hook.port, b'{"a":%d}' % n, head=good) for n in range(1, 10))
            )
            assert answers == [b"200"] * 9
            assert sorted(row["a"] for row in rows(server, "hooks")) == list(range(1, 10))
            for status, options in {
                b"401": {"head": "Content-Length: 7\r\n"},
                b"411": {"head": f"{shown}Transfer-Encoding: chunked\r\n"},
                b"413": {"head": f"{shown}Content-Length: 99999999\r\n"},
                b"400": {"head": f"{shown}Content-Length: -1\r\n"},
                b"405": {"head": good, "method": "GET / HTTP/1.1"},
                b"404": {"head": good, "method": "POST /other HTTP/1.1"},
                b"431": {"head": f"{good}X: {'x' * 20_000}\r\n"},
            }.items():
                assert await post(hook.port, b'{"a":1}', **options) == status
            assert await post(hook.port, b"x", method="nonsense", head=good) == b"400"
            running.cancel()
            await asyncio.wait([running])
            assert len(rows(server, "hooks")) == 9

    with Server() as server:
        asyncio.run(scene(server))


def test_requests_that_cannot_be_made_safe_are_told_to_come_again() -> None:
    async def scene() -> None:
        async with Webhook(safe_seconds=0.01) as hook:
            # Nobody has said yet where the stream stands.
            assert await post(hook.port, b"x") == b"503"
            batches = hook.read(41)
            waiting = asyncio.ensure_future(anext(batches))
            assert await post(hook.port, b"y") == b"503"
            batch = await waiting
            assert (list(batch.ids), list(batch.payloads)) == ([42], [b"y"])
            # It is still to come when there is another connection.
            await batches.aclose()
            batches = hook.read(41)
            assert list((await anext(batches)).ids) == [42]
            await hook.acknowledged(42)
            await batches.aclose()
            hook._pending = {n: (b"", asyncio.Future()) for n in range(PENDING_MAX)}
            assert await post(hook.port, b"z") == b"503"

    asyncio.run(scene())


def test_a_batch_that_is_no_batch() -> None:
    with pytest.raises(LocalProtocolError, match="do not grow"):
        MessageBatch(ids=[1, 1], payloads=[b"", b""]).columns("s")
    assert MessageBatch(ids=[1], payloads=pa.array([b"x"])).columns("s").keys.to_pylist() == [b""]
