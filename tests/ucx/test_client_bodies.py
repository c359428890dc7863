"""Our client takes bodies over UCX: the same rows, and inline again for whatever reason."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

import barrage
from barrage.client import Backoff, BodyStatus, BodyWay, State
from barrage.limits import DEFAULT_LIMITS
from barrage.server.settings.config import ServerConfig
from barrage.transport.ucx import UcxSettings
from barrage.transport.ucx.numbered_bodies import UcxBodyReceiver
from tests.end_to_end.test_random_workload import run
from tests.helpers.server_process import ServerProcess, wait_until

WAIT = 20
ROWS = 50_000
PATIENT = replace(
    DEFAULT_LIMITS, ucx_unauthenticated_ns=20_000_000_000, body_deadline_ns=30_000_000_000
)
OUTSIDE = replace(PATIENT, body_inline_bytes_max=0)
TIGHT = replace(OUTSIDE, body_window_bytes=4096, body_window_count=4, body_wait_ns_max=1_000_000)
OVER_UCX = BodyStatus(BodyWay.UCX)
SLOW = Backoff(first_seconds=1000.0, seconds_max=1000.0)


def rows(value):
    return pa.table({"k": np.arange(ROWS), "v": np.full(ROWS, value)})


@pytest.fixture
def server():
    with barrage.Server(config=ServerConfig(bodies="ucx", limits=PATIENT)) as running:
        running.create_table("t", {"k": "int64", "v": "int64"}, key="k", data=rows(0))
        yield running


@pytest.fixture
def session(server):
    with barrage.connect(server.uri, bodies="ucx", limits=PATIENT) as opened:
        yield opened


def shows(live, value):
    return set(live.to_arrow()["v"].to_pylist()) == {value}


@pytest.mark.parametrize(("seed", "limits"), [(21, OUTSIDE), (22, TIGHT)])
def test_every_subscriber_holds_the_rows_of_the_server(seed, limits):
    stats = run(
        seed, revision="1.0.0", rounds=2, subscribers=6, changes=10, bodies="ucx",
        config=ServerConfig(bodies="ucx", limits=limits),
    )  # fmt: skip
    assert sum(each.ucx.count for each in stats) > len(stats)
    assert sum(each.shm.count for each in stats) == 0


def test_updates_and_snapshots(server, session):
    big = pa.table({"n": np.arange(1 << 20)})
    server.create_table("big", data=big, kind="static")
    with (
        session.table("t").subscribe(interval_ms=10) as one,
        session.table("t").subscribe(interval_ms=10, viewport=(0, ROWS)) as two,
    ):
        for live in (one, two):
            live.wait_ready(WAIT)
            assert live.bodies == OVER_UCX
        for value in range(1, 6):
            server.table("t").upsert(rows(value))
        for live in (one, two):
            wait_until(lambda live=live: shows(live, 5))
            assert live.stats.bodies.ucx.bytes > live.stats.bytes // 2
            assert live.stats.reconnects == 0
        progress = []
        assert session.table("big").snapshot(on_progress=progress.append).equals(big)
        assert progress[-1] >= big.nbytes


def test_a_body_that_does_not_come(server, monkeypatch):
    limits = replace(DEFAULT_LIMITS, body_deadline_ns=2_000_000_000)
    with barrage.connect(server.uri, bodies="ucx", limits=limits) as session:
        live = session.table("t").subscribe(interval_ms=10, reconnect=SLOW)
        live.wait_ready(WAIT)
        receive = UcxBodyReceiver.receive

        async def late(self):
            body = await receive(self)
            await asyncio.sleep(5)
            return body

        monkeypatch.setattr(UcxBodyReceiver, "receive", late)
        server.table("t").upsert(rows(1))
        # One body was awaited already; that of the next update is too late.
        wait_until(lambda: shows(live, 1))
        server.table("t").upsert(rows(2))
        wait_until(lambda: shows(live, 2))
        assert live.stats.reconnects == 1
        assert "did not come within 2 seconds" in live.bodies.reason
        assert live.state is State.LIVE


def test_another_release_or_setting(server, monkeypatch):
    monkeypatch.setattr(UcxSettings, "agreement", lambda self: {"CM_USE_ALL_DEVICES": "n"})
    with (
        barrage.connect(server.uri, bodies="ucx") as session,
        session.table("t").subscribe() as live,
    ):
        live.wait_ready(WAIT)
        assert live.bodies.way is BodyWay.INLINE
        assert "CM_USE_ALL_DEVICES" in live.bodies.reason
        assert shows(live, 0)


def test_a_connection_that_is_lost(server, session):
    live = session.table("t").subscribe(interval_ms=10, reconnect=SLOW)
    live.wait_ready(WAIT)
    assert live.bodies == OVER_UCX
    receiver = live._table._stream._outside.receiver

    async def lose():
        await receiver._connection.close()

    session._thread.call(lose(), WAIT)
    for value in range(1, 4):
        server.table("t").upsert(rows(value))
    wait_until(lambda: shows(live, 3))
    assert live.stats.reconnects <= 1
    live.close()


def test_nothing_grows(server, session):
    def once():
        with session.table("t").subscribe() as live:
            live.wait_ready(WAIT)
            assert live.bodies == OVER_UCX

    def settled():
        gc.collect()
        wait_until(lambda: server.stream_count == 0)
        time.sleep(0.1)
        return len(os.listdir("/proc/self/fd"))

    for _ in range(3):
        once()
    before = settled()
    for _ in range(30):
        once()
    wait_until(lambda: settled() <= before)


SCRIPT = """
import sys, threading, numpy as np, pyarrow as pa, barrage
server = barrage.Server(port={port}, bodies="ucx").start()
keys = np.arange(50_000)
book = server.create_table("book", {{"k": "int64", "v": "int64"}}, key="k")
book.upsert(pa.table({{"k": keys, "v": keys * 0 + {life}}}))
sys.stdout.write(server.address + "\\n")
sys.stdout.flush()
for n in range(10_000):
    book.upsert(pa.table({{"k": keys, "v": keys * 0 + {life} + n % 2}}))
    threading.Event().wait(0.01)
"""


def test_a_server_that_is_killed():
    first = ServerProcess(SCRIPT.format(port=0, life=10))
    port = first.address.rpartition(":")[2]
    with first, barrage.connect(first.address, bodies="ucx", limits=PATIENT) as session:
        live = session.table("book").subscribe(
            interval_ms=10, reconnect=Backoff(first_seconds=0.05, seconds_max=0.2)
        )
        live.wait_ready(WAIT)
        assert live.bodies == OVER_UCX
        first.process.kill()
        first.process.wait()
        wait_until(lambda: live.state is State.RECONNECTING)
        with ServerProcess(SCRIPT.format(port=port, life=20)):
            wait_until(
                lambda: (
                    live.state is State.LIVE and set(live.to_arrow()["v"].to_pylist()) <= {20, 21}
                )
            )
        live.close()
