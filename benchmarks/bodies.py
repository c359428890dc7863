"""Bodies outside their stream: a Barrage subscription and a snapshot by shared memory against the
same inline, both ends on one host in two processes; and the subscription by UCX on tcp.

*Updates*: a blink table gets 2 MiB of rows in every cycle, a client subscribed to all of it applies
each of them, with a few under way. Reported: bytes of rows per second, and the CPU seconds of
server and client per GB. The same with 16 MiB, where the work per update that is not copying no
longer counts. *Snapshot*: 10^7 rows x 10 columns to a Python client as one Arrow table. The ways
take turns in one run; medians are compared.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig
from barrage.transport.ucx.examination import run_self_test
from benchmarks import shapes
from benchmarks.processes import Child, child, shared_semaphore
from benchmarks.report import Measurement, compared, result, skipped

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Semaphore

    from barrage.client.updates.update_queue import UpdateIterator

WAYS = ("inline", "shm")
UCX_WAYS = ("inline", "ucx")
MIB = 1024 * 1024
COLUMNS = 8
SCHEMA = pa.schema(
    [(f"i{n}", pa.int64()) for n in range(4)] + [(f"x{n}", pa.float64()) for n in range(4)]
)
BATCHES = 16
"""Different batches the writer takes turns with."""
SNAPSHOT_ROWS = 10_000_000
SNAPSHOT_BATCH_ROWS = 250_000


@dataclass(frozen=True, slots=True)
class Load:
    """Updates of one size."""

    mib: int
    under_way: int
    """Updates that are written and not applied yet; the writer waits for the reader at that, and is
    told of half as many at once."""
    updates: int
    """In one round."""

    @property
    def update_bytes(self) -> int:
        return self.mib * MIB

    @property
    def rows(self) -> int:
        return self.update_bytes // (8 * COLUMNS)


SMALL, LARGE = Load(2, 8, 500), Load(16, 4, 80)


def server_config(load: Load, bodies: str) -> ServerConfig:
    """Nothing but the work itself holds an update back. ``bodies``: what the server offers."""
    limits = replace(
        DEFAULT_LIMITS,
        interval_ns_min=1_000,
        interval_ns_default=1_000,
        exchange_outbox_updates_max=2 * load.under_way,
        exchange_outbox_bytes_max=2 * load.under_way * load.update_bytes,
    )
    return ServerConfig(bodies=bodies, cycle_rest_ms_max=0, deephaven=False, limits=limits)


def update_batch(number: int, rows: int) -> pa.Table:
    """The rows of one update; the first column says which."""
    draw = np.random.default_rng(number)
    columns = [np.full(rows, number), *(draw.integers(0, 2**62, rows) for _ in range(3))]
    columns += [draw.random(rows) for _ in range(4)]
    return pa.table([pa.array(column) for column in columns], schema=SCHEMA)


def serve_updates(pipe: Connection, applied: Semaphore, load: Load, bodies: str) -> None:
    """A word is how many updates to make, each as soon as one of the last few is applied."""
    with barrage.Server(config=server_config(load, bodies)) as server:
        table = server.create_table("blink", SCHEMA, kind="blink")
        batches = [update_batch(number, load.rows) for number in range(BATCHES)]
        pipe.send(server.uri)
        word = pipe.recv()
        while word is not None:
            for number in range(word):
                applied.acquire()
                table.add(batches[number % BATCHES])
            pipe.send(word)
            word = pipe.recv()


def read_updates(pipe: Connection, uri: str, applied: Semaphore, load: Load) -> None:
    """A word is a way: subscribe, say "ready", apply the updates of a round, answer the
    figures."""
    asyncio.run(_read_updates(pipe, uri, applied, load))


async def _read_updates(pipe: Connection, uri: str, applied: Semaphore, load: Load) -> None:
    pipe.send("started")
    while (way := await asyncio.to_thread(pipe.recv)) is not None:
        async with (
            barrage.aconnect(uri, bodies=way) as session,
            session.table("blink").subscribe() as live,
        ):
            await live.wait_ready(10)
            updates = live.updates()
            await anext(updates)
            pipe.send("ready")
            answer = await _follow(updates, applied, load)
            by_way = dict(live.stats.bodies.by_way())
            answer["outside"] = by_way["shm"].bytes + by_way["ucx"].bytes
            pipe.send(answer)


async def _follow(updates: UpdateIterator, applied: Semaphore, load: Load) -> dict[str, Any]:
    """Take the batches of one round, however many updates bring them."""
    taken, untold, update_count = 0, 0, 0
    started, cpu = time.perf_counter(), time.process_time()
    async for update in updates:
        rows = len(update.added_rows)
        if not rows:
            continue  # The rows of a cycle go away in the next one.
        taken += rows // load.rows
        assert update.added.column(0)[rows - 1].as_py() == (taken - 1) % BATCHES
        update_count += 1
        untold += rows // load.rows
        if untold >= load.under_way // 2 or taken == load.updates:
            for _ in range(untold):
                applied.release()
            untold = 0
        if taken == load.updates:
            break
    return {
        "seconds": time.perf_counter() - started,
        "cpu": time.process_time() - cpu,
        "updates": update_count,
    }


def serve_snapshot(pipe: Connection, rows: int) -> None:
    """The table of every other benchmark, appended batch by batch."""
    with barrage.Server(bodies="shm") as server:
        table = server.create_table("wide", shapes.SCHEMA, kind="append_only")
        for first in range(0, rows, SNAPSHOT_BATCH_ROWS):
            table.add(shapes.batch(first, min(SNAPSHOT_BATCH_ROWS, rows - first)))
        pipe.send(server.uri)
        pipe.recv()


def read_snapshot(pipe: Connection, uri: str) -> None:
    """A word is a way; the answer what one snapshot took."""
    with ExitStack() as stack:
        sessions = {way: stack.enter_context(barrage.connect(uri, bodies=way)) for way in WAYS}
        pipe.send("ready")
        while (way := pipe.recv()) is not None:
            started, cpu = time.perf_counter(), time.process_time()
            table = sessions[way].table("wide").snapshot()
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            pipe.send({"seconds": seconds, "cpu": cpu, "bytes": table.nbytes, "rows": len(table)})
            del table
            gc.collect()


def measure_updates(
    load: Load, *, rounds: int, ways: tuple[str, str] = WAYS
) -> dict[str, list[dict[str, float]]]:
    """The figures of every round by way, the second of which the server offers."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    applied = shared_semaphore(load.under_way)
    with (
        child(serve_updates, applied, load, ways[1]) as server,
        child(read_updates, server.ready, applied, load) as reader,
    ):
        for _ in range(1 + rounds):
            for way in ways:
                found[way].append(_one_round(server, reader, way, load))
    return {way: answers[1:] for way, answers in found.items()}


def _one_round(server: Child, reader: Child, way: str, load: Load) -> dict[str, float]:
    reader.ask(way)
    server_cpu = server.cpu_seconds()
    server.pipe.send(load.updates)
    answer: dict[str, float] = reader.receive()
    assert server.receive() == load.updates
    assert (answer["outside"] > 0) == (way != "inline"), f"{way}: bodies came another way"
    server_cpu = server.cpu_seconds() - server_cpu
    gigabytes = load.updates * load.update_bytes / 1e9
    answer["mb_per_second"] = 1000 * gigabytes / answer["seconds"]
    answer["server_cpu_per_gb"] = server_cpu / gigabytes
    answer["client_cpu_per_gb"] = answer["cpu"] / gigabytes
    answer["cpu_per_gb"] = (server_cpu + answer["cpu"]) / gigabytes
    return answer


def measure_snapshots(*, rounds: int, rows: int) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with child(serve_snapshot, rows) as server, child(read_snapshot, server.ready) as reader:
        for _ in range(1 + rounds):
            for way in WAYS:
                server_cpu = server.cpu_seconds()
                answer = reader.ask(way)
                assert answer["rows"] == rows, "a snapshot was not complete"
                answer["server_cpu"] = server.cpu_seconds() - server_cpu
                found[way].append(answer)
    return {way: answers[1:] for way, answers in found.items()}


def median(answers: list[dict[str, float]], name: str) -> float:
    return statistics.median(answer[name] for answer in answers)


def run(*, quick: bool = False) -> dict[str, Any]:
    measurements: list[Measurement] = []
    for load in (SMALL, LARGE):
        shorter = replace(load, updates=load.updates // 5) if quick else load
        found = measure_updates(shorter, rounds=3 if quick else 9)
        measurements += _update_lines(load, found)
    measurements.append(_ucx_line(quick=quick))
    rows = 1_000_000 if quick else SNAPSHOT_ROWS
    snapshots = measure_snapshots(rounds=3 if quick else 7, rows=rows)
    return result("bodies", [*measurements, *_snapshot_lines(snapshots, rows)])


def _update_lines(load: Load, found: dict[str, list[dict[str, float]]]) -> list[Measurement]:
    inline, shm = found["inline"], found["shm"]
    return [
        compared(
            f"updates of {load.mib} MiB by shared memory",
            median(shm, "mb_per_second"),
            "MB/s",
            baseline="inline",
            baseline_value=median(inline, "mb_per_second"),
            at_least=8.0 if load is SMALL else None,
            detail={"inline": inline, "shm": shm},
        ),
        compared(
            "the same: CPU of server and client",
            median(shm, "cpu_per_gb"),
            "s/GB",
            baseline="inline",
            baseline_value=median(inline, "cpu_per_gb"),
            at_most=0.5 if load is SMALL else None,
        ),
    ]


def _ucx_line(*, quick: bool) -> Measurement:
    """Updates by tagged messages, on tcp: what one gets without RDMA."""
    tried, _ = run_self_test()
    if tried["library"]["error"]:
        return skipped("updates by UCX: no UCX library (pip install 'barrage[ucx]')")
    load = replace(SMALL, updates=SMALL.updates // (5 if quick else 2))
    found = measure_updates(load, rounds=3 if quick else 9, ways=UCX_WAYS)
    inline, ucx = found["inline"], found["ucx"]
    return compared(
        f"updates of {load.mib} MiB by UCX on tcp",
        median(ucx, "mb_per_second"),
        "MB/s",
        baseline="inline",
        baseline_value=median(inline, "mb_per_second"),
        detail={"inline": inline, "ucx": ucx},
    )


def _snapshot_lines(found: dict[str, list[dict[str, float]]], rows: int) -> list[Measurement]:
    inline, shm = found["inline"], found["shm"]
    return [
        compared(
            f"snapshot of {rows:,} rows x 10 columns by shared memory",
            median(shm, "seconds"),
            "s",
            baseline="inline",
            baseline_value=median(inline, "seconds"),
            detail={"inline": inline, "shm": shm},
        ),
        compared(
            "the same: CPU of server and client",
            median(shm, "cpu") + median(shm, "server_cpu"),
            "s",
            baseline="inline",
            baseline_value=median(inline, "cpu") + median(inline, "server_cpu"),
        ),
    ]


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
