"""What it costs a server to tell about itself: CPU with the tables ``_server`` and
``_subscriptions`` and a scrape every five seconds, against the same work without, in turns.

1,000 different views of 50 rows of one table at 10 Hz. Rounds without and with take turns in one
server, and the cost is the median of the differences of neighbours: the machine may do other things
meanwhile. Tracing is compared in the same way; what it costs while it is off is a comparison in
each place where an observer would be told.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import timeit
import urllib.request
from typing import TYPE_CHECKING, Any

import barrage
from barrage.server import ServerConfig
from barrage.server.runtime.observation import Observation
from benchmarks import shapes
from benchmarks.fan_out import ROWS_SHOWN
from benchmarks.peers import counting_client
from benchmarks.peers.counting_client import request_bytes
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, result

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from multiprocessing.connection import Connection

ROWS = 100_000
VIEWS = 1000
HERTZ = 10.0
SCRAPE_SECONDS = 5.0
CORES_MAX = 0.02
"""Of a core, for tables and metrics together."""

PLACES_PER_UPDATE = 3
"""Comparisons with an observer for one update of one view, at most: cycle, propagation, delivery
are for all views together."""

OFF, TABLES, TRACED, LOOKS = "off", "tables", "traced", "looks"


def serve(pipe: Connection) -> None:
    """Words are (what is told meanwhile, seconds): tick for so long; the answer is the CPU seconds
    of this process. Or (LOOKS, count): look so often at all streams; the same answer."""
    with barrage.Server(config=ServerConfig(metrics_port=0)) as server:
        table = server.create_table("keyed", shapes.SCHEMA, key=["id"], data=shapes.batch(0, ROWS))
        changes = [shapes.batch(0, ROWS // 10, seed=seed + 1) for seed in range(5)]
        pipe.send(server.uri)
        while (word := pipe.recv()) is not None:
            what, amount = word
            if what == LOOKS:
                begun_s = time.process_time()
                on_loop(server, look(server, amount))
            else:
                on_loop(server, switch(server, what))
                begun_s = time.process_time()
                tick(server, table, changes, seconds=amount, is_scraped=what == TABLES)
            pipe.send(time.process_time() - begun_s)


def on_loop(server: barrage.Server, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(work, server._loop).result(600)


async def switch(server: barrage.Server, what: str) -> None:
    """From now on that is told and nothing else."""
    operations = server._running.operations
    telling = operations.statistics
    if telling._task is not None:
        telling._task.cancel()
        telling._task = None
    operations.traces._end()
    if what == TABLES:
        await telling.begin_tables()
        telling.start()
    if what == TRACED:
        operations.traces.begin(3600)


async def look(server: barrage.Server, count: int) -> None:
    """Look so often at streams that have all changed."""
    telling = server._running.operations.statistics
    for _ in range(count):
        for stream in telling._hub.streams:
            stream.sending.bytes_sent += 1
        await telling.refresh()


def tick(
    server: barrage.Server, table: Any, changes: list[Any], *, seconds: float, is_scraped: bool
) -> None:
    """The work, and a scrape now and then."""
    started = scraped = time.perf_counter()
    for number in range(int(HERTZ * seconds)):
        pause = started + number / HERTZ - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        table.upsert(changes[number % len(changes)])
        if is_scraped and time.perf_counter() - scraped >= SCRAPE_SECONDS:
            scraped = time.perf_counter()
            url = f"http://127.0.0.1:{server.metrics_port}/metrics"
            with urllib.request.urlopen(url) as answer:
                answer.read()


def cores(server: Child, what: str, seconds: float) -> float:
    """CPU seconds of the server in a second, while that is told."""
    used: float = server.ask((what, seconds))
    return used / seconds


def cost(server: Child, what: str, *, rounds: int, seconds: float) -> tuple[float, float]:
    """What it costs in cores, and what the server takes without."""
    differences, without = [], []
    for _ in range(rounds):
        before = cores(server, OFF, seconds)
        during = cores(server, what, seconds)
        after = cores(server, OFF, seconds)
        differences.append(during - (before + after) / 2)
        without += [before, after]
    return statistics.median(differences), statistics.median(without)


def off_ns() -> float:
    """What a comparison with an observer that is not there takes."""
    observation = Observation()
    count = 1_000_000
    with_it = timeit.timeit(
        "observation.observer is not None",
        globals={"observation": observation},
        number=count,
        timer=time.process_time,
    )
    empty = timeit.timeit("None is not None", number=count, timer=time.process_time)
    return (with_it - empty) / count * 1e9


def run(*, quick: bool = False) -> dict[str, Any]:
    """All lines."""
    rounds, seconds = (1, 3.0) if quick else (3, 10.0)
    requests = [
        request_bytes("keyed", view * (ROWS // 10 // VIEWS), ROWS_SHOWN, interval_ms=50)
        for view in range(VIEWS)
    ]
    with child(serve) as server, child(counting_client.serve) as client:
        client.ask(("open", server.ready, requests))
        client.pipe.send(("watch",))
        cores(server, OFF, 3.0)
        told, without = cost(server, TABLES, rounds=rounds, seconds=seconds)
        traced, _ = cost(server, TRACED, rounds=rounds, seconds=seconds)
        looks = 5 if quick else 50
        look_s = server.ask((LOOKS, looks)) / looks
        client.pipe.send("begin")
        client.ask("end")
        client.ask(("close",))
    measurements = [
        Measurement(
            line="tables and metrics at 1,000 subscriptions",
            value=told * 100,
            unit="% of a core",
            goal=f"≤ {CORES_MAX:.0%} of a core",
            met=None if quick else told <= CORES_MAX,
            detail={"cores_without": without},
        ),
        Measurement(
            line="CPU of one look at 1,000 streams that have all changed",
            value=look_s * 1000,
            unit="ms",
        ),
        Measurement(line="the same server without", value=without * 100, unit="% of a core"),
        Measurement(line="tracing while it is on", value=traced * 100, unit="% of a core"),
        Measurement(
            line="tracing while it is off, an update of a view",
            value=PLACES_PER_UPDATE * off_ns(),
            unit="ns",
        ),
    ]
    return result("statistics_cost", measurements)
