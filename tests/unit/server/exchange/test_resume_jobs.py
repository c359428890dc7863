"""How long a plan waits, in virtual time: for others who come back from the same version, and for a
table that is to come to their cursor."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Future
from types import MappingProxyType, SimpleNamespace

import pytest

from barrage.errors import TableNotFoundError
from barrage.model.cursor import Cursor
from barrage.proto.resumption import ResumeMode, ResumeRequest
from barrage.server.exchange.awaited_steps import STANDSTILL_SECONDS_MAX, AwaitedSteps
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
    ResumeJobs,
    _Job,
    _Waiting,
)
from tests.interleaving.seeded_loop import SeededLoop


def gathered(arrivals_s: list[float]) -> tuple[int, float]:
    """How many of those who come at these times are together in a job, and after how long."""
    loop = SeededLoop(0)
    loop.delay_chance = 0.0
    job = _Job(plan_id=1, source="t", version=9)

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
        job = _Job(plan_id=1, source="t", version=9)
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


class ApproachingTable:
    """A relayed table that comes a step nearer every so often, and whoever asks for it."""

    def __init__(self, loop, *, seconds_per_step):
        self.loop = loop
        self.seconds_per_step = seconds_per_step
        self.asked = []

    def ask(self, request):
        answer = Future()
        if isinstance(request, PlanResume):
            step = int(self.loop.time() / self.seconds_per_step)
            version = request.subscribe.version
            self.asked.append(version)
            is_awaited = request.is_patient and step < version
            answer.set_result(
                ResumePlanned(
                    plan_id=request.plan_id,
                    is_building=False,
                    awaits_from=step if is_awaited else None,
                )
            )
        else:
            answer.set_result(
                tuple(
                    Subscribed(stream_id=each.stream_id, headers=()) for each in request.subscribes
                )
            )
        return answer

    def tell(self, notice):
        pass


def approach(versions, *, seconds_per_step, seed=0, gone=MappingProxyType({})):
    """When each of those who come at once with these cursors is subscribed; the versions asked for.
    ``gone``: after how many seconds the clients at these places go."""
    loop = SeededLoop(seed)
    if seed == 0:
        loop.delay_chance = 0.0
    wanted = SimpleNamespace(ticket=b"s/t", columns=None, viewport=None, is_reverse=False)

    async def scene():
        engine = ApproachingTable(loop, seconds_per_step=seconds_per_step)
        open_ids = set(range(len(versions)))
        jobs = ResumeJobs(engine, open_ids)
        done = {}

        async def one(at, version):
            request = SimpleNamespace(
                stream_id=at, wanted=wanted, types=None, options=None, version=version
            )
            resume = ResumeRequest(cursor=Cursor("e", version), mode=ResumeMode.COALESCED)
            await jobs.subscribe(request, resume, None)
            done[at] = loop.time()

        tasks = [asyncio.create_task(one(*each)) for each in enumerate(versions)]
        for at, seconds in gone.items():
            loop.call_later(seconds, open_ids.discard, at)
            loop.call_later(seconds, tasks[at].cancel)
        await asyncio.wait(tasks, timeout=1_000)
        for task in list(jobs._tasks):
            await task
        assert jobs._awaited == {}
        assert jobs._jobs == {}
        return done, engine.asked

    try:
        return loop.run_until_complete(scene())
    finally:
        loop.close()


def test_those_who_wait_for_one_table_ask_as_often_as_one_does():
    alone, asked_alone = approach([100], seconds_per_step=0.1)
    done, asked = approach(range(51, 101), seconds_per_step=0.1)
    assert len(asked) < len(asked_alone) + 3 * 50
    for at, version in enumerate(range(51, 101)):
        assert 0.1 * version <= done[at] <= 0.1 * version + 5 * AHEAD_PAUSE_SECONDS
    assert alone[0] <= 10 + 5 * AHEAD_PAUSE_SECONDS


def test_a_cursor_that_nothing_will_ever_come_to_holds_up_nobody_else():
    done, _ = approach([10**18, 20, 10], seconds_per_step=0.1)
    assert 1 <= done[2] <= 1 + 5 * AHEAD_PAUSE_SECONDS
    assert 2 <= done[1] <= 2 + 5 * AHEAD_PAUSE_SECONDS
    assert AHEAD_SECONDS_MAX <= done[0] <= AHEAD_SECONDS_MAX + 1


def test_all_learn_at_once_that_their_table_stands_still():
    done, _ = approach(range(1, 51), seconds_per_step=1_000.0)
    assert min(done.values()) >= STANDSTILL_SECONDS_MAX
    assert max(done.values()) <= STANDSTILL_SECONDS_MAX + 5 * AHEAD_PAUSE_SECONDS


@pytest.mark.parametrize("seed", range(1, 21))
def test_whoever_goes_all_others_are_subscribed(seed):
    chance = random.Random(seed)
    versions = [chance.randrange(1, 60) for _ in range(30)]
    gone = {at: chance.uniform(0, 5) for at in range(0, 30, 3)}
    done, _ = approach(versions, seconds_per_step=0.1, seed=seed, gone=gone)
    assert done.keys() >= set(range(30)) - gone.keys()


@pytest.mark.parametrize("seed", range(1, 21))
def test_one_has_the_turn_and_it_is_never_lost_whoever_is_cancelled(seed):
    loop = SeededLoop(seed)
    chance = random.Random(seed)
    holders = []

    async def one(awaited, version):
        async with awaited.turn(version) as turn:
            for _ in range(3):
                assert holders == []
                holders.append(version)
                try:
                    await asyncio.sleep(chance.uniform(0, 0.1))
                finally:
                    holders.pop()
                await turn.give_way()

    async def scene():
        awaited = AwaitedSteps()
        tasks = [asyncio.create_task(one(awaited, chance.randrange(9))) for _ in range(20)]
        for task in tasks[::2]:
            loop.call_later(chance.uniform(0, 3), task.cancel)
        await asyncio.wait(tasks)
        assert awaited.is_idle
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        assert all(not task.cancelled() for task in tasks[1::2])

    try:
        loop.run_until_complete(scene())
    finally:
        loop.close()
