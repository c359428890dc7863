"""Executors on the server's host read journals through its shared memory, when both want it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest

import barrage
from barrage.server.statistics.body_statistics import body_rows
from barrage.spark import register
from tests.helpers.server_process import wait_until
from tests.spark.feeds import Collected
from tests.spark.serving import options_for, serving

ROWS = 400_000
SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string()), ("t", pa.timestamp("ns", tz="UTC"))])
WAIT = 60


@pytest.fixture
def sharing():
    with serving(journal="memory", bodies="shm") as running:
        fill(running)
        yield running


def fill(server: barrage.Server) -> None:
    table = server.create_table("numbers", SCHEMA, key="x")
    for first in range(0, ROWS, ROWS // 4):
        table.upsert(rows(first))
    table.upsert(rows(0, -1))


def rows(first: int, sign: int = 1) -> pa.Table:
    numbers = np.arange(first, first + ROWS // 4)
    times = pa.array(sign * numbers * 1000).cast(SCHEMA.field("t").type)
    return pa.table([numbers, [f"s{number % 100}" for number in numbers], times], schema=SCHEMA)


def facts(server: barrage.Server) -> dict:
    found = server._app.bodies
    (row,) = body_rows(found.facts(), found.arena).to_pylist()
    return row


def read(spark, server, **options: str):
    register(spark)
    reader = spark.read.format("barrage").options(**options_for(server), **options)
    return reader.load("numbers")


def sums(frame) -> tuple:
    return frame.selectExpr("count(*)", "sum(x)", "count(distinct s)", "min(t)").first()[:]


def is_all_given_back(server: barrage.Server) -> bool:
    found = facts(server)
    return not (found["streams"] or found["pending"] or found["arena_bytes"])


def test_rows_come_through_shared_memory_and_are_the_same(spark, sharing):
    inline = sums(read(spark, sharing, bodies="inline"))
    assert inline[:3] == (ROWS, ROWS * (ROWS - 1) // 2, 100)
    assert facts(sharing)["bodies_out"] == 0
    assert sums(read(spark, sharing)) == inline
    found = facts(sharing)
    assert found["bodies_out"] > 0
    assert found["bytes_out"] > ROWS * 16
    assert found["fallbacks"] == found["refusals"] == 0
    # A quarter of the rows changed, but for that of zero.
    changes = read(spark, sharing, bodies="shm", readChangeFeed="true")
    assert sums(changes)[0] == ROWS * 5 // 4 - 1
    assert facts(sharing)["bytes_out"] > 2 * found["bytes_out"]
    wait_until(lambda: is_all_given_back(sharing), WAIT)


def test_a_stream_takes_every_change_once(spark, sharing, checkpoint):
    collected = Collected()
    stream = spark.readStream.format("barrage").options(**options_for(sharing))
    query = (
        stream.option("maxRowsPerTrigger", ROWS // 2)
        .load("numbers")
        .select("_change_type", "_commit_version", "_commit_timestamp", "_row_id", "x")
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        query.processAllAvailable()
        sharing.table("numbers").remove(list(range(1000)))
        sharing.table("numbers").upsert(rows(0, 2))
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(row["x"] for row in collected.state().values()) == list(range(ROWS))
    assert facts(sharing)["bodies_out"] > 0
    wait_until(lambda: is_all_given_back(sharing), WAIT)


def test_a_server_that_has_it_off(spark, server):
    fill(server)
    assert sums(read(spark, server, bodies="shm"))[:2] == (ROWS, ROWS * (ROWS - 1) // 2)


def readers() -> list[psutil.Process]:
    """Spark's Python processes that have a server's memory mapped."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            maps = Path(f"/proc/{process.pid}/maps").read_text()
        except OSError:
            continue
        if "/dev/shm/barrage-" in maps:
            found.append(process)
    return found


def test_a_killed_executor_loses_no_row_and_keeps_no_memory(spark, sharing, tmp_path):
    seen = tmp_path / "seen"

    def slow(batches):
        for batch in batches:
            seen.touch()
            time.sleep(0.3)
            yield batch

    expected = sums(read(spark, sharing, bodies="inline"))
    frame = read(spark, sharing, minPartitions="2").mapInArrow(
        slow, "x long, s string, t timestamp"
    )
    killed = []

    def kill() -> None:
        wait_until(seen.exists, WAIT)
        for process in readers():
            os.kill(process.pid, signal.SIGKILL)
            killed.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert sums(frame) == expected
    finally:
        killer.join(WAIT)
    assert killed
    wait_until(lambda: is_all_given_back(sharing), WAIT)


def test_a_query_that_stops_early_gives_everything_back(spark, sharing):
    assert len(read(spark, sharing).limit(3).collect()) == 3
    wait_until(lambda: is_all_given_back(sharing), WAIT)


def test_nothing_stays_when_the_server_has_stopped(spark):
    with serving(journal="memory", bodies="shm") as server:
        fill(server)
        arena = server._app.bodies.arena.name
        assert sums(read(spark, server))[0] == ROWS
        assert facts(server)["bodies_out"] > 0
        assert list(Path("/dev/shm").glob(f"{arena}*"))
    assert not list(Path("/dev/shm").glob(f"{arena}*"))
