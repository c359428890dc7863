"""Many subscribers that come back at once share the work of finding what they missed."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

import pytest

import barrage
from barrage.client import Backoff, State
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.server.exchange.resume_jobs import ResumeJobs
from barrage.server.exchange.resume_planner import ResumePlanner
from barrage.wire.updates.update_codec import UpdateEncoder
from tests.helpers.cutter import Cutter

SUBSCRIBERS = 200
SOON = Backoff(first_seconds=0.01, seconds_max=0.1)


@pytest.fixture
def work(monkeypatch):
    """Counts plans that are made, and updates that are encoded."""
    counts = Counter()
    finish, plan = ResumePlanner.finish, UpdateEncoder.plan

    def counted_finish(self, *arguments):
        counts["plans"] += 1
        return finish(self, *arguments)

    def counted_plan(self, message, **options):
        if isinstance(message, FullUpdate | ViewUpdate):
            counts["snapshots" if message.is_snapshot else "updates"] += 1
        return plan(self, message, **options)

    async def gather_all(self, job):
        """How long a job waits for others is a matter of time; here it is all of them."""
        await until(lambda: len(job.waiting) == SUBSCRIBERS)

    monkeypatch.setattr(ResumeJobs, "_gather", gather_all)
    monkeypatch.setattr(ResumePlanner, "finish", counted_finish)
    monkeypatch.setattr(UpdateEncoder, "plan", counted_plan)
    return counts


async def until(condition):
    async with asyncio.timeout(60):
        is_met = asyncio.Event()
        while not condition():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_met.wait(), 0.01)


@pytest.mark.further
@pytest.mark.parametrize("viewport", [None, (0, 10)])
def test_a_storm_costs_a_few_plans_and_encodings(work, viewport):
    with barrage.Server(port=0, journal="memory") as server, Cutter(server.address) as cutter:
        table = server.create_table("t", {"k": "int64", "v": "int64"}, key="k")
        table.upsert({"k": range(100), "v": range(100)})

        async def storm():
            async with barrage.aconnect(cutter.uri) as session:
                remote = session.table("t").where("v >= 0").sort("-v")
                lives = [
                    await remote.subscribe(interval_ms=10, reconnect=SOON, viewport=viewport)
                    for _ in range(SUBSCRIBERS)
                ]
                await asyncio.gather(*(live.wait_ready(60) for live in lives))
                await asyncio.to_thread(cutter.close)
                await until(lambda: all(live.state is State.RECONNECTING for live in lives))
                # Nothing of what follows is encoded for a stream whose end was not noticed yet.
                await until(lambda: server.stream_count == 0)
                work.clear()
                for number in range(5):
                    await asyncio.to_thread(table.upsert, {"k": [number], "v": [1000 + number]})
                await asyncio.to_thread(cutter.open)
                await asyncio.gather(*(live.wait_ready(60) for live in lives))
                assert {live.resumption for live in lives} == {"replayed 5 steps"}
                wanted = [{"k": n, "v": 1000 + n} for n in (4, 3, 2, 1, 0)]
                for live in lives:
                    assert live.to_arrow().slice(0, 5).to_pylist() == wanted

        asyncio.run(storm())
        assert work["plans"] == work["updates"] == 1
        assert work["snapshots"] == 0


def test_those_who_come_together_share_one_plan_and_one_message(work):
    with barrage.Server(port=0, journal="memory") as server:
        table = server.create_table("t", {"k": "int64", "v": "int64"}, key="k")
        table.upsert({"k": range(100), "v": range(100)})
        cursor, rows = table.cursor, table.to_arrow()
        table.upsert({"k": [3], "v": [-3]})

        async def storm():
            async with barrage.aconnect(server.uri) as session:
                remote = session.table("t")
                lives = [
                    await remote.subscribe(interval_ms=10, resume_from=cursor, rows=rows)
                    for _ in range(SUBSCRIBERS)
                ]
                await asyncio.gather(*(live.wait_ready(60) for live in lives))
                assert {live.resumption for live in lives} == {"replayed 1 step"}
                assert all(live.to_arrow() == lives[0].to_arrow() for live in lives)

        asyncio.run(storm())
        assert work["plans"] == work["updates"] == 1
