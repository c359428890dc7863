"""The SDK's delivery to a worker: everything arrives once, whatever happens between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from barrage.client import Backoff
from barrage.connector import (
    MessageBatch,
    Source,
    SyncSource,
    WorkerDelivery,
    run_sources,
    run_sources_blocking,
    stream_id_of,
)
from barrage.connector.local_worker import LocalWorker
from barrage.errors import ConfigError, ConnectorRefusedError, LocalProtocolError
from barrage.limits import Limits

HANG_SECONDS = 180.0
VECTORS = Path(__file__).parents[2] / "vectors" / "connector"


class Numbers(Source):
    """Messages 1 to ``count``, in batches."""

    def __init__(self, count: int, *, name: str = "numbers", batch: int = 10) -> None:
        self.name = name
        self.count = count
        self.batch = batch
        self.began: list[int | None] = []
        self.safe: list[int] = []

    async def read(self, after: int | None) -> AsyncIterator[MessageBatch]:
        self.began.append(after)
        for first in range((after or 0) + 1, self.count + 1, self.batch):
            ids = range(first, min(first + self.batch, self.count + 1))
            yield MessageBatch(ids=ids, payloads=[b"m%d" % n for n in ids])
            await asyncio.sleep(0)

    async def acknowledged(self, last: int) -> None:
        self.safe.append(last)


def delivery(worker: LocalWorker, **options) -> WorkerDelivery:
    quick = Backoff(first_seconds=0.001, seconds_max=0.01)
    return WorkerDelivery(worker.address, program="p", backoff=quick, **options)


def wanted(count: int) -> list[tuple[int, bytes]]:
    return [(n, b"m%d" % n) for n in range(1, count + 1)]


async def hang_limit(work):
    return await asyncio.wait_for(work, HANG_SECONDS)


def test_everything_arrives_and_is_told() -> None:
    async def scene() -> None:
        async with LocalWorker() as worker:
            source = Numbers(95)
            told: list[int] = []
            progress = await hang_limit(
                run_sources(
                    source, delivery(worker), on_progress=lambda p: told.append(p.messages_sent)
                )
            )
            assert worker.messages == {"numbers": wanted(95)}
            assert source.safe[-1] == 95
            assert (progress.messages_sent, progress.connections) == (95, 1)
            assert progress.is_done
            assert told[-1] == 95
            # It goes on from where the worker is.
            again = Numbers(120)
            await hang_limit(run_sources(again, delivery(worker)))
            assert again.began == [95]
            assert worker.messages == {"numbers": wanted(120)}
            # And has nothing to do when there is nothing new.
            await hang_limit(run_sources(Numbers(120), delivery(worker)))

    asyncio.run(scene())


def test_several_sources_share_a_connection() -> None:
    async def scene() -> None:
        async with LocalWorker() as worker:
            sources = [Numbers(n * 7, name=f"s{n}") for n in range(20)]
            await hang_limit(run_sources(sources, delivery(worker)))
            assert worker.messages == {f"s{n}": wanted(n * 7) for n in range(1, 20)}

    asyncio.run(scene())


def test_lost_connections_lose_and_double_nothing() -> None:
    async def scene() -> None:
        async with LocalWorker(limits=Limits(connector_credits_max=16)) as worker:
            sources = [Numbers(400, name=name, batch=7) for name in "ab"]
            running = asyncio.ensure_future(run_sources(sources, delivery(worker)))
            for _ in range(30):
                for _ in range(20):
                    await asyncio.sleep(0)
                worker.cut()
            progress = await hang_limit(running)
            assert worker.messages == {"a": wanted(400), "b": wanted(400)}
            assert progress.connections > 1

    asyncio.run(scene())


def test_a_restart_is_followed_to_another_worker() -> None:
    async def scene() -> None:
        async with LocalWorker() as first, LocalWorker() as second:
            source = Numbers(10**9, batch=3)
            running = asyncio.ensure_future(run_sources(source, delivery(first)))
            async with asyncio.timeout(HANG_SECONDS):
                while not first.messages:
                    await asyncio.sleep(0)
                first.restart(second.address)
                while not second.messages:
                    await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running])
            assert source.began[-1] is None
            assert second.messages["numbers"][0] == (1, b"m1")

    asyncio.run(scene())


def test_a_worker_without_room_holds_the_source() -> None:
    async def scene() -> None:
        async with LocalWorker(limits=Limits(connector_credits_max=16)) as worker:
            worker.is_holding = True
            given = 0

            class Counted(Numbers):
                async def read(self, after):
                    nonlocal given
                    async for batch in super().read(after):
                        given += len(batch)
                        yield batch

            running = asyncio.ensure_future(run_sources(Counted(500, batch=1), delivery(worker)))
            async with asyncio.timeout(HANG_SECONDS):
                while given < 15:
                    await asyncio.sleep(0)
            for _ in range(200):
                await asyncio.sleep(0)
            assert given <= 17
            worker.is_holding = False
            worker.settle()
            await hang_limit(running)
            assert worker.messages == {"numbers": wanted(500)}

    asyncio.run(scene())


def test_what_the_worker_refuses_is_raised() -> None:
    async def scene() -> None:
        async with LocalWorker(cookie="secret") as worker:
            with pytest.raises(ConnectorRefusedError, match="bad cookie"):
                await hang_limit(run_sources(Numbers(1), delivery(worker, cookie="other")))
            await hang_limit(run_sources(Numbers(1), delivery(worker, cookie="secret")))

    asyncio.run(scene())


def test_a_source_that_fails_is_raised() -> None:
    class Broken(Source):
        name = "broken"

        async def read(self, after):
            yield MessageBatch(ids=[2, 1], payloads=[b"a", b"b"])

    class Long(Source):
        name = "long"

        async def read(self, after):
            yield MessageBatch(ids=[1], payloads=[bytes(Limits().connector_frame_bytes_max)])

    async def scene() -> None:
        async with LocalWorker() as worker:
            with pytest.raises(LocalProtocolError, match="do not grow"):
                await hang_limit(run_sources(Broken(), delivery(worker)))
            with pytest.raises(LocalProtocolError, match="a frame has at most"):
                await hang_limit(run_sources(Long(), delivery(worker)))

    asyncio.run(scene())


def test_sources_without_an_event_loop() -> None:
    class Blocking(SyncSource):
        name = "blocking"

        def read_blocking(self, after: int | None) -> Iterator[MessageBatch]:
            for n in range((after or 0) + 1, 20):
                yield MessageBatch(ids=[n], payloads=[b"m%d" % n])

        def acknowledged_blocking(self, last: int) -> None:
            told.append(last)

    told: list[int] = []

    async def scene() -> None:
        async with LocalWorker() as worker:
            address = worker.address

            def work() -> None:
                run_sources_blocking(Blocking(), WorkerDelivery(address, program="p"))

            await hang_limit(asyncio.to_thread(work))
            assert worker.messages == {"blocking": wanted(19)}

    asyncio.run(scene())
    assert told[-1] == 19


def test_names_and_addresses() -> None:
    vectors = json.loads((VECTORS / "published_frames.json").read_text())["stream_id_of_name"]
    assert [stream_id_of(each["name"]) for each in vectors] == [e["stream_id"] for e in vectors]
    with pytest.raises(ConfigError, match="names that differ"):
        run_sources_blocking([Numbers(1), Numbers(2)], WorkerDelivery("h:1", program="p"))
    with pytest.raises(ConfigError, match="names that differ"):
        run_sources_blocking([], WorkerDelivery("h:1", program="p"))
    for bad in ("", "h", ":1", "h:", "h:x", "h:65536"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            WorkerDelivery(bad, program="p")
    with pytest.raises(LocalProtocolError, match="length"):
        MessageBatch(ids=[1, 2], payloads=[b""]).columns("s")
