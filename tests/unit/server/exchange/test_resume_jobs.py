"""How long a plan waits for others who come back from the same version, in virtual time."""

from __future__ import annotations

import asyncio

from barrage.server.exchange.resume_jobs import GATHER_SECONDS, GATHER_SECONDS_MAX, ResumeJobs, _Job
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
