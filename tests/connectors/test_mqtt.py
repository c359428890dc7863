"""MQTT in, against a real mosquitto."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from barrage.connector import StateFile, WorkerDelivery, run_sources
from barrage.connector.local_worker import LocalWorker
from barrage.connector.shipped.mqtt import MqttTopics
from tests.connectors.peers import Peer, mosquitto
from tests.helpers.restless_server import HANG_SECONDS

pytestmark = pytest.mark.connectors


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[Peer]:
    with mosquitto(tmp_path_factory.mktemp("mqtt")) as peer:
        yield peer


def publish(broker: Peer, *values: bytes, topic: str = "t/a") -> None:
    from paho.mqtt import publish

    publish.multiple(
        [(topic, value, 1, False) for value in values], hostname="127.0.0.1", port=broker.port
    )


def source(broker: Peer, tmp_path, client: str) -> MqttTopics:
    state = StateFile(client, tmp_path)
    return MqttTopics("127.0.0.1", "t/#", port=broker.port, client=client, state=state, name="m")


async def until(worker: LocalWorker, count: int) -> list[bytes]:
    async with asyncio.timeout(HANG_SECONDS):
        while len(worker.messages.get("m", [])) < count:
            await asyncio.sleep(0.01)
    return [payload for _, payload in worker.messages["m"]]


class Running:
    """A source that runs until it is stopped."""

    def __init__(self, source: MqttTopics, worker: LocalWorker) -> None:
        delivery = WorkerDelivery(worker.address, program="p")
        self._task = asyncio.ensure_future(run_sources(source, delivery))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


async def subscribed(broker: Peer, tmp_path, worker: LocalWorker, client: str) -> None:
    """The broker keeps a session from here on."""
    running = Running(source(broker, tmp_path, client), worker)
    async with asyncio.timeout(HANG_SECONDS):
        while not worker.messages:
            await asyncio.to_thread(publish, broker, b"first")
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.2)
    await running.stop()


def test_messages_wait_at_the_broker(broker, tmp_path) -> None:
    async def scene() -> None:
        async with LocalWorker() as worker:
            await subscribed(broker, tmp_path, worker, "waits")
            count = len(worker.messages["m"])
            await asyncio.to_thread(publish, broker, *[b"%d" % n for n in range(50)])
            running = Running(source(broker, tmp_path, "waits"), worker)
            found = await until(worker, count + 50)
            # A few of the first ones may have come on the way.
            assert [each for each in found if each != b"first"] == [b"%d" % n for n in range(50)]
            await running.stop()

    asyncio.run(scene())


def test_what_was_safe_and_not_confirmed_is_not_taken_twice(broker, tmp_path) -> None:
    async def scene() -> None:
        async with LocalWorker() as worker:
            await subscribed(broker, tmp_path, worker, "dies")
            before = len(worker.messages["m"])
            # One that dies between: everything is safe, nothing is confirmed.
            dying = source(broker, tmp_path, "dies")
            dying._connected = _without_acks(dying._connected)
            running = Running(dying, worker)
            await asyncio.to_thread(publish, broker, *[b"x%d" % n for n in range(30)])
            found = await until(worker, before + 30)
            await running.stop()
            running = Running(source(broker, tmp_path, "dies"), worker)
            await asyncio.to_thread(publish, broker, b"last")
            found = await until(worker, before + 31)
            mine = [each for each in found if each != b"first"]
            assert mine == [*(b"x%d" % n for n in range(30)), b"last"]
            await running.stop()

    asyncio.run(scene())


def _without_acks(connected):
    def made(take):
        client = connected(take)
        client.ack = lambda *_: None
        return client

    return made
