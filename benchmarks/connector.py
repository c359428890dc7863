"""Messages of 100 bytes by the connector protocol: how many a second, at which cost, how soon they
are safe, and what a thousand streams cost.

One connection of the SDK, which hands over batches of 4,096 messages; the table is append-only and
has a column for each part of a message, once without a journal and once with one on disk. The
baseline is the same rows by DoPut, from a writer of the client, in the same run. Latency is from
the hand-over of a batch to the acknowledgement of its last message.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa

import barrage
from barrage.connector import MessageBatch, Source, WorkerDelivery, run_sources
from barrage.server import ServerConfig
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result

PAYLOAD = b"x" * 100
BATCH = 4_096
PAYLOADS = pa.array([PAYLOAD] * BATCH, pa.binary())
PER_CORE_GOAL = 250_000
P99_MS_GOAL = 50.0
PACED_PER_SECOND = 10_000
PACED_MS = 10


def serve(pipe: Connection, data: str | None) -> None:
    """Answers with the number of rows of a table."""
    config = ServerConfig(connector="127.0.0.1:0", data=data)
    with barrage.Server(config=config) as server:
        pipe.send((server.uri, server.connector_port))
        while (name := pipe.recv()) is not None:
            pipe.send(len(server.table(name).to_arrow()))


class Prepared(Source):
    """``count`` messages that were made before, in batches."""

    def __init__(self, name: str, count: int, batch: int = BATCH) -> None:
        self.name = name
        self._count = count
        self._batch = batch

    async def read(self, after: int | None):
        for first in range(0, self._count, self._batch):
            size = min(self._batch, self._count - first)
            ids = np.arange(first + 1, first + size + 1, dtype=np.uint64)
            yield MessageBatch(ids=ids, payloads=PAYLOADS[:size])


class Paced(Source):
    """So many messages a second for some seconds; keeps how long each batch took to be safe."""

    name = "paced"

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._sent: dict[int, float] = {}
        self.latencies_ms: list[float] = []

    async def read(self, after: int | None):
        size = PACED_PER_SECOND * PACED_MS // 1000
        payloads = pa.array([PAYLOAD] * size, pa.binary())
        started = time.perf_counter()
        for turn in range(int(self._seconds * 1000 / PACED_MS)):
            pause = started + turn * PACED_MS / 1000 - time.perf_counter()
            await asyncio.sleep(max(0.0, pause))
            first = turn * size + 1
            self._sent[first + size - 1] = time.perf_counter()
            yield MessageBatch(ids=np.arange(first, first + size), payloads=payloads)

    async def acknowledged(self, last: int) -> None:
        now = time.perf_counter()
        for number in [each for each in self._sent if each <= last]:
            self.latencies_ms.append(1000 * (now - self._sent.pop(number)))


def produce(pipe: Connection, uri: str, port: int) -> None:
    """Words are (kind, program, count, streams); answers with what was measured."""
    pipe.send("ready")
    while (word := pipe.recv()) is not None:
        kind, program, count, streams = word
        started, cpu = time.perf_counter(), time.process_time()
        told: dict[str, Any] = {}
        if kind == "put":
            _put(uri, program, count)
        elif kind == "paced":
            source = Paced(count)
            asyncio.run(run_sources(source, WorkerDelivery(f"127.0.0.1:{port}", program=program)))
            told["latencies_ms"] = source.latencies_ms
        else:
            each = count // streams
            sources = [Prepared(f"s{n}", each, min(BATCH, each)) for n in range(streams)]
            delivery = WorkerDelivery(f"127.0.0.1:{port}", program=program)
            asyncio.run(run_sources(sources, delivery))
        told |= {"seconds": time.perf_counter() - started, "cpu": time.process_time() - cpu}
        pipe.send(told)


def _put(uri: str, table: str, count: int) -> None:
    """The rows that the messages become."""
    with barrage.connect(uri) as session, session.writer(table, producer="p") as writer:
        for first in range(0, count, BATCH):
            size = min(BATCH, count - first)
            rows = pa.table(
                {
                    "stream": pa.repeat("s0", size),
                    "message_id": np.arange(first + 1, first + size + 1, dtype=np.uint64),
                    "event_time": np.zeros(size, np.int64),
                    "key": pa.repeat(pa.scalar(b"", pa.binary()), size),
                    "payload": pa.array([PAYLOAD] * size, pa.binary()),
                }
            )
            writer.write(rows)


def _run(server: Child, producer: Child, word: tuple[Any, ...]) -> dict[str, Any]:
    """One word to the producer; with the CPU of both, which the one of their clocks counts."""
    before = server.cpu_seconds()
    told = producer.ask(word)
    told["cores_seconds"] = told["cpu"] + server.cpu_seconds() - before
    return told


def run(*, quick: bool = False) -> dict[str, Any]:
    count = 200_000 if quick else 2_000_000
    with tempfile.TemporaryDirectory() as where:
        lines = [*_rates("no journal", None, count), *_rates("journal on disk", where, count)]
        lines += _latency(where, 3 if quick else 15)
    return result("connector", lines)


def _rates(what: str, data: str | None, count: int) -> list[Measurement]:
    with child(serve, data) as server:
        with child(produce, *server.ready) as producer:
            _run(server, producer, ("messages", "warm", 50_000, 1))
            one = _run(server, producer, ("messages", "one", count, 1))
            put = _run(server, producer, ("put", "put", count, 1))
            many = _run(server, producer, ("messages", "many", count, 1000))
        assert server.ask("one") == count
        assert server.ask("many") == count
    rate, put_rate = count / one["seconds"], count / put["seconds"]
    per_core = count / one["cores_seconds"]
    return [
        compared(
            f"messages a second, one stream, {what}",
            rate,
            "messages/s",
            baseline="rows by DoPut",
            baseline_value=put_rate,
            detail={"put_rows_per_core": count / put["cores_seconds"]},
        ),
        compared(
            f"messages a second and core, server and producer together, {what}",
            per_core,
            "messages/s",
            baseline="the goal",
            baseline_value=PER_CORE_GOAL,
            at_least=1.0,
        ),
        compared(
            f"CPU of 1,000 streams, {what}",
            many["cores_seconds"],
            "s",
            baseline="one stream",
            baseline_value=one["cores_seconds"],
            at_most=1.5,
        ),
    ]


def _latency(where: str, seconds: int) -> list[Measurement]:
    with child(serve, where) as server, child(produce, *server.ready) as producer:
        _run(server, producer, ("messages", "warm", 50_000, 1))
        told = _run(server, producer, ("paced", "paced", seconds, 1))
    p99 = float(np.percentile(told["latencies_ms"], 99))
    return [
        compared(
            "p99 from hand-over to acknowledgement at 10,000/s, journal on disk",
            p99,
            "ms",
            baseline="the goal",
            baseline_value=P99_MS_GOAL,
            at_most=1.0,
            detail={"p50_ms": float(np.percentile(told["latencies_ms"], 50))},
        )
    ]
