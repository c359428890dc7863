"""How long a plan waits, in virtual time: for others who come back from the same version, and for a
table that is to come to their cursor."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from barrage.errors import TableNotFoundError
from barrage.model.cursor import Cursor
from barrage.proto.resumption import ResumeMode, ResumeRequest
from barrage.server.exchange.exchange_messages import (
    PlanResume,
    Refused,
    ResumePlanned,
    Subscribed,
)
from barrage.server.exchange.resume_jobs import (
    AHEAD_PAUSE_SECONDS,
    AHEAD_SECONDS_MAX,
    GATHER_SECONDS,
    GATHER_SECONDS_MAX,
    STANDSTILL_SECONDS_MAX,
    ResumeJobs,
    _Job,
    _Waiting,
)
from tests.interleaving.seeded_loop import SeededLoop


def gathered(arrivals_s: list[float]) -> tuple[int, float]:
    """How many of those who come at these times are together in a job, and after how long."""
    loop = SeededLoop(0)
    loop.delay_chance = 0.0
    job = _Job(plan_id=1)

    async def scene() -> tuple[int, float]:
        jobs = ResumeJobs(None, ())  # type: ignore[arg-type]
        for seconds in arrivals_s:
            loop.call_later(seconds, job.waiting.append, None)
        await asyncio.sleep(0)
        await jobs._gather(job)
        jobs.close()
        return len(job.waiting), loop.time()

    try:
        return loop.run_until_complete(scene())
    finally:
        loop.close()


def test_one_who_comes_alone_waits_for_one_turn():
    count, seconds = gathered([0.0])
    assert count == 1
    assert seconds < 3 * GATHER_SECONDS


def test_who_comes_soon_after_another_shares_its_plan_and_who_comes_late_does_not():
    soon = [number * GATHER_SECONDS / 2 for number in range(5)]
    count, _ = gathered([*soon, soon[-1] + 10 * GATHER_SECONDS])
    assert count == 5


def test_those_who_never_cease_to_come_are_not_all_waited_for():
    count, seconds = gathered([number * GATHER_SECONDS / 2 for number in range(10_000)])
    assert GATHER_SECONDS_MAX <= seconds < GATHER_SECONDS_MAX + 2 * GATHER_SECONDS
    assert 1 < count < 10_000


class ComingTable:
    """An engine whose table is behind the cursor, and comes nearer as time goes by."""

    def __init__(self, loop, *, seconds_per_step, steps):
        self.loop = loop
        self.seconds_per_step = seconds_per_step
        self.steps = steps

    def ask(self, request):
        step = min(self.steps, int(self.loop.time() / self.seconds_per_step))
        answer = Future()
        is_awaited = request.is_patient and step < self.steps
        answer.set_result(
            ResumePlanned(
                plan_id=request.plan_id, is_building=False, awaits_from=step if is_awaited else None
            )
        )
        return answer


class OpenStream:
    stream_id = 7


def waited(*, seconds_per_step, steps, open_ids=frozenset({7})):
    """After how long a plan is made, of a table that needs these steps to come to the cursor."""
    loop = SeededLoop(0)
    loop.delay_chance = 0.0

    async def scene():
        table = ComingTable(loop, seconds_per_step=seconds_per_step, steps=steps)
        jobs = ResumeJobs(table, open_ids)
        job = _Job(plan_id=1)
        job.waiting.append(_Waiting(OpenStream(), loop.create_future()))
        await jobs._planned(job)
        jobs.close()
        return loop.time()

    try:
        return loop.run_until_complete(scene())
    finally:
        loop.close()


@pytest.mark.parametrize("seconds_per_step", [0.1, 1.0, 0.9 * STANDSTILL_SECONDS_MAX])
def test_a_table_that_comes_nearer_is_waited_for(seconds_per_step):
    seconds = waited(seconds_per_step=seconds_per_step, steps=10)
    assert 10 * seconds_per_step <= seconds <= 10 * seconds_per_step + 2 * AHEAD_PAUSE_SECONDS


def test_a_table_that_stands_still_is_not_waited_for_longer_than_that():
    seconds = waited(seconds_per_step=1_000.0, steps=1)
    assert STANDSTILL_SECONDS_MAX <= seconds <= STANDSTILL_SECONDS_MAX + 3 * AHEAD_PAUSE_SECONDS


def test_nobody_waits_for_ever_for_a_table_that_never_comes():
    seconds = waited(seconds_per_step=1.0, steps=10_000)
    assert AHEAD_SECONDS_MAX <= seconds <= AHEAD_SECONDS_MAX + 3 * AHEAD_PAUSE_SECONDS


def test_who_has_gone_is_not_waited_for():
    assert waited(seconds_per_step=1.0, steps=10, open_ids=frozenset()) < AHEAD_PAUSE_SECONDS


class PickyEngine:
    """Lets one of the streams see the table."""

    def __init__(self, seen_by):
        self.seen_by = seen_by
        self.subscribed = []

    def ask(self, request):
        answer = Future()
        if isinstance(request, PlanResume):
            stream_id = request.subscribe.stream_id
            refused = None
            if stream_id != self.seen_by:
                refused = Refused(stream_id=stream_id, error=TableNotFoundError("t"))
            answer.set_result(
                ResumePlanned(plan_id=request.plan_id, is_building=False, refused=refused)
            )
        else:
            ids = [each.stream_id for each in request.subscribes]
            self.subscribed += ids
            answer.set_result(tuple(Subscribed(stream_id=each, headers=()) for each in ids))
        return answer

    def tell(self, notice):
        pass


@pytest.mark.parametrize("seen_by", [1, 2, 3, None])
def test_who_cannot_be_subscribed_is_told_so_and_the_others_have_their_plan(seen_by):
    engine = PickyEngine(seen_by)
    ids = (1, 2, 3)
    resume = ResumeRequest(cursor=Cursor("e", 1), mode=ResumeMode.COALESCED)

    def request(stream_id):
        wanted = SimpleNamespace(ticket=b"s/t", columns=None, viewport=None, is_reverse=False)
        return SimpleNamespace(stream_id=stream_id, wanted=wanted, types=None, options=None)

    async def scene():
        jobs = ResumeJobs(engine, ids)
        answers = await asyncio.gather(
            *(jobs.subscribe(request(each), resume, None) for each in ids)
        )
        jobs.close()
        return answers

    for stream_id, answer in zip(ids, asyncio.run(scene()), strict=True):
        # Without a plan nobody is subscribed: it would be from a whole state.
        is_subscribed = isinstance(answer, Subscribed)
        assert answer.stream_id == stream_id
        assert is_subscribed == (stream_id in engine.subscribed)
        assert is_subscribed == (seen_by is not None and stream_id >= seen_by)
