"""Kafka in, against the broker that librdkafka has for tests: it speaks the protocol over a socket.
There is no Apache Kafka here, so nothing was run against one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from barrage.client import Backoff
from barrage.connector import SourceMapping, TableDelivery, run_sources
from barrage.connector.shipped.kafka import KafkaPartition, partitions_of
from barrage.errors import ConfigError, SourceLostError
from barrage.server import Server
from tests.helpers.restless_server import HANG_SECONDS

pytestmark = pytest.mark.connectors

MAPPING = SourceMapping(program="*", table="t", columns={"n": "int64"})


class Broker:
    """A producer of librdkafka, which has the broker in it."""

    def __init__(self) -> None:
        from confluent_kafka import Producer

        self._producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        brokers = self._producer.list_topics(timeout=HANG_SECONDS).brokers
        (self.servers,) = (f"{each.host}:{each.port}" for each in brokers.values())

    def add(self, topic: str, *values: int, partition: int = 0) -> None:
        for value in values:
            self._producer.produce(topic, b'{"n":%d}' % value, b"k", partition=partition)
        assert self._producer.flush(HANG_SECONDS) == 0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    return Broker()


def deliver(server: Server, broker: Broker, topic: str) -> None:
    sources = [
        KafkaPartition(broker.servers, topic, number, follows=False)
        for number in partitions_of(broker.servers, topic, {})
    ]
    delivery = TableDelivery(server.uri, mapping=MAPPING, backoff=Backoff(0.01))
    asyncio.run(asyncio.wait_for(run_sources(sources, delivery), HANG_SECONDS))


def test_records_of_all_partitions_arrive_once(broker) -> None:
    broker.add("topic", *range(100))
    broker.add("topic", *range(100, 200), partition=1)
    with Server() as server:
        deliver(server, broker, "topic")
        broker.add("topic", *range(200, 250), partition=1)
        deliver(server, broker, "topic")
        deliver(server, broker, "topic")
        found = server.table("t").to_arrow()["n"].to_pylist()
        assert sorted(found) == list(range(250))


def test_offsets_that_are_not_there(broker) -> None:
    broker.add("short", *range(5))

    async def read(after: int) -> None:
        source = KafkaPartition(broker.servers, "short", 0, follows=False)
        async for _ in source.read(after):
            pass

    with pytest.raises(SourceLostError, match="100 comes next"):
        asyncio.run(asyncio.wait_for(read(99), HANG_SECONDS))


def test_a_broker_that_is_not_there(monkeypatch) -> None:
    from barrage.connector.shipped import kafka

    monkeypatch.setattr(kafka, "START_SECONDS", 1.0)
    with pytest.raises(ConfigError, match="Kafka at"):
        partitions_of("127.0.0.1:1", "topic", {})
