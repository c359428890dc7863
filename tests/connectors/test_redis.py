"""Redis streams in and out, against a real Redis."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from barrage.client import Backoff
from barrage.connector import SinkFollower, SourceMapping, TableDelivery, run_sources
from barrage.connector.shipped import redis_streams
from barrage.connector.shipped.redis_streams import (
    RedisSink,
    RedisStream,
    entry_of_number,
    number_of_entry,
)
from barrage.errors import ConfigError, SourceLostError
from barrage.server import Server
from tests.connectors.peers import redis
from tests.helpers.restless_server import HANG_SECONDS

pytestmark = pytest.mark.connectors

MAPPING = SourceMapping(program="*", table="t", columns={"n": "string"})
NUMBERS = SourceMapping(program="*", table="t", columns={"n": "int64"})


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    with redis(tmp_path_factory.mktemp("redis")) as peer:
        yield f"redis://127.0.0.1:{peer.port}"


@pytest.fixture
def store(url):
    from redis import Redis

    with Redis.from_url(url) as client:
        client.flushall()
        yield client


def deliver(server: Server, url: str, mapping: SourceMapping = MAPPING, **options) -> None:
    source = RedisStream(url, "s", follows=False, **options)
    delivery = TableDelivery(server.uri, mapping=mapping, backoff=Backoff(0.01))
    asyncio.run(asyncio.wait_for(run_sources(source, delivery), HANG_SECONDS))


def numbers(server: Server) -> list[int]:
    return [int(n) for n in server.table("t").to_arrow()["n"].to_pylist()]


def add(store, *values: int) -> None:
    for value in values:
        store.xadd("s", {"n": value})


def test_entries_arrive_once(store, url, monkeypatch) -> None:
    monkeypatch.setattr(redis_streams, "READ_COUNT", 7)
    with Server() as server:
        deliver(server, url)
        add(store, *range(100))
        deliver(server, url)
        add(store, *range(100, 150))
        deliver(server, url)
        deliver(server, url)
        assert numbers(server) == list(range(150))


def test_a_field_is_the_payload(store, url) -> None:
    store.xadd("s", {"body": '{"n":5}', "other": "x"})
    store.xadd("s", {"other": "no body"})
    with Server() as server:
        deliver(server, url, NUMBERS, field="body", key_field="other")
        assert numbers(server) == [5]


def test_entries_that_were_trimmed(store, url) -> None:
    add(store, *range(10))
    with Server() as server:
        deliver(server, url)
        # What was read may go.
        store.xtrim("s", maxlen=0)
        deliver(server, url)
        add(store, *range(10, 15))
        store.xtrim("s", maxlen=3)
        with pytest.raises(SourceLostError, match="trimmed"):
            deliver(server, url)
        store.delete("s")
        with pytest.raises(SourceLostError, match="no stream"):
            deliver(server, url)
        store.xadd("s", {"n": 1}, id="1-1")
        with pytest.raises(SourceLostError, match="another one"):
            deliver(server, url)
        assert numbers(server) == list(range(10))


def test_a_source_that_keeps_up_does_not_mind_trimming(store, url) -> None:
    async def scene() -> None:
        batches = RedisStream(url, "s").read(None)
        for value in range(20):
            store.xadd("s", {"n": value}, maxlen=1, approximate=False)
            batch = await asyncio.wait_for(anext(batches), HANG_SECONDS)
            assert json.loads(batch.payloads[0]) == {"n": str(value)}
        for value in range(3):
            store.xadd("s", {"n": value}, maxlen=1, approximate=False)
        with pytest.raises(SourceLostError):
            await asyncio.wait_for(anext(batches), HANG_SECONDS)

    asyncio.run(scene())


def test_numbers_of_entries() -> None:
    for entry in ("0-1", "1764000000000-0", "1764000000000-2097151"):
        assert entry_of_number(number_of_entry(entry)) == entry
    for entry in ("1-2097152", "4398046511104-0"):
        with pytest.raises(ConfigError, match="too large"):
            number_of_entry(entry)


def test_changes_of_a_table_become_entries_once(store, url) -> None:
    def follow(server: Server) -> int:
        async def run() -> int:
            sink = RedisSink(url, "out")
            follower = SinkFollower(sink, server.uri, "t")
            try:
                await asyncio.wait_for(follower.run(until=lambda _: True), HANG_SECONDS)
            finally:
                await sink.close()
            return follower.rows_written

        return asyncio.run(run())

    with Server(journal="memory") as server:
        table = server.create_table("t", {"k": "string", "v": "int64"}, key="k")
        table.upsert({"k": ["a", "b"], "v": [1, 2]})
        assert follow(server) == 2
        table.upsert({"k": ["a"], "v": [3]})
        table.remove({"k": ["b"]})
        follow(server)
        assert follow(server) == 0
        entries = [fields for _, fields in store.xrange("out")]
        told = [(e[b"change"].decode(), json.loads(e[b"row"])) for e in entries]
        assert sorted(told[:2], key=str) == [
            ("insert", {"k": "a", "v": 1}),
            ("insert", {"k": "b", "v": 2}),
        ]
        assert told[2:] == [
            ("update_postimage", {"k": "a", "v": 3}),
            ("delete", {"k": "b", "v": 2}),
        ]
