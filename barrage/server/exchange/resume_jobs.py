"""Subscriptions that are to be resumed, gathered: who comes back with the same cursor of the same
table shares one plan.

After a broken connection or a restart many clients come back at once with few different cursors.
The first of them opens a *job*; all that ask for the same while it is under way join it, and they
are subscribed together, in one command of the engine thread: one plan, and one message for all that
see the same rows in the same form.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from barrage.proto.resumption import ResumeMode
from barrage.server.exchange.awaited_steps import AwaitedSteps
from barrage.server.exchange.exchange_messages import (
    GiveUpPlan,
    PlanResume,
    Refused,
    ResumePlanned,
    Subscribed,
    SubscribeTogether,
)
from barrage.server.tables.tickets import EXPORT_ROUTE
from barrage.supervision import Role, start_task

if TYPE_CHECKING:
    from collections.abc import Container, Hashable

    from barrage.proto.resumption import ResumeRequest
    from barrage.server.access.session_store import ClientSession
    from barrage.server.exchange.exchange_messages import EnginePort, PlanBuilt, Subscribe

log = logging.getLogger(__name__)

GATHER_SECONDS = 0.01
"""How long a job waits for others before it begins, and again as long as others come: a fraction of
what a client waits before it connects again."""

GATHER_SECONDS_MAX = 0.2
"""How long a job waits at most, however many come."""

AHEAD_SECONDS_MAX = 60.0
"""How long a job waits altogether for a table that comes nearer to its cursor."""

AHEAD_PAUSE_SECONDS = 0.02

JOB = Role("barrage-resume-job", "the subscriptions that are to be resumed together")

_Answer: TypeAlias = Subscribed | Refused


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A stream that waits to be subscribed from its cursor."""

    request: Subscribe
    answer: asyncio.Future[_Answer]


@dataclass(slots=True)
class _Job:
    plan_id: int
    source: Hashable
    """Equal for jobs of one table."""
    version: int
    """Of the cursor."""
    waiting: list[_Waiting] = field(default_factory=list)


class ResumeJobs:
    """The jobs of one server. Runs on the event loop."""

    def __init__(self, engine: EnginePort, open_ids: Container[int]) -> None:
        """``open_ids``: the streams that still want to be subscribed."""
        self._engine = engine
        self._open_ids = open_ids
        self._plan_ids = itertools.count(1)
        self._jobs: dict[Hashable, _Job] = {}
        self._awaited: dict[Hashable, AwaitedSteps] = {}
        """By the source of jobs that wait for its table to come to their cursors."""
        self._building: dict[int, asyncio.Future[None]] = {}
        """By the number of their plan, those who wait for one."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def subscribe(
        self, request: Subscribe, resume: ResumeRequest, session: ClientSession | None
    ) -> _Answer:
        """Subscribe a stream from its cursor ``resume``, or from a snapshot. Errors as those of a
        subscription without a cursor."""
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        key = _key(request, resume, session)
        job = self._jobs.get(key)
        if job is None:
            cursor = resume.cursor
            source = cursor.epoch, *_source(request, session)
            job = _Job(next(self._plan_ids), source=source, version=cursor.version)
            self._jobs[key] = job
            fail = partial(_fail, job)
            task = start_task(JOB, self._run(key, job), on_death=fail)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        job.waiting.append(waiting)
        return await waiting.answer

    def plan_built(self, event: PlanBuilt) -> None:
        """A plan is made as far as it can be made ahead."""
        building = self._building.get(event.plan_id)
        if building is not None and not building.done():
            building.set_result(None)

    def close(self) -> None:
        """No more jobs; who waits is told by the end of its stream."""
        for task in list(self._tasks):
            task.cancel()

    async def _run(self, key: Hashable, job: _Job) -> None:
        is_taken = False
        try:
            try:
                await self._gather(job)
                await self._plan(job)
            finally:
                self._jobs.pop(key, None)
            # From here on others begin a job of their own: this one knows nothing of later changes.
            open_ones = [each for each in job.waiting if each.request.stream_id in self._open_ids]
            requests = tuple(each.request for each in open_ones)
            together = SubscribeTogether(plan_id=job.plan_id, subscribes=requests)
            try:
                answers = await asyncio.wrap_future(self._engine.ask(together))
            except Exception as error:
                _fail(job, error)
                return
            is_taken = True
        finally:
            if not is_taken:
                self._engine.tell(GiveUpPlan(plan_id=job.plan_id))
        for waiting, answer in zip(open_ones, answers, strict=True):
            _answer(waiting, answer)

    async def _gather(self, job: _Job) -> None:
        loop = asyncio.get_running_loop()
        latest, count = loop.time() + GATHER_SECONDS_MAX, 0
        while len(job.waiting) > count and loop.time() < latest:
            count = len(job.waiting)
            await asyncio.sleep(GATHER_SECONDS)

    async def _planned(self, job: _Job) -> ResumePlanned | None:
        """Begin the plan, once the table has come to the cursor. None when nobody is left."""
        planned = await self._asked(job, is_patient=True)
        if planned is None or planned.awaits_from is None:
            return planned
        awaited = self._awaited.setdefault(job.source, AwaitedSteps())
        awaited.seen(planned.awaits_from)
        loop = asyncio.get_running_loop()
        end = loop.time() + AHEAD_SECONDS_MAX
        try:
            async with awaited.turn(job.version) as turn:
                while True:
                    is_wanted = any(
                        each.request.stream_id in self._open_ids for each in job.waiting
                    )
                    is_over = awaited.stands_still() or loop.time() >= end
                    is_patient = is_wanted and not is_over
                    planned = await self._asked(job, is_patient=is_patient)
                    if planned is None or planned.awaits_from is None:
                        if is_patient:
                            awaited.seen(job.version)
                        return planned
                    awaited.seen(planned.awaits_from)
                    await asyncio.sleep(AHEAD_PAUSE_SECONDS)
                    await turn.give_way()
        finally:
            if awaited.is_idle:
                self._awaited.pop(job.source, None)

    async def _asked(self, job: _Job, *, is_patient: bool) -> ResumePlanned | None:
        """What the engine says of the plan. Who cannot be subscribed is told so here: others of the
        job may see what it does not, and were its table to come this moment, a subscription would
        begin with a snapshot. None when nobody is left."""
        while job.waiting:
            request = PlanResume(
                plan_id=job.plan_id, subscribe=job.waiting[0].request, is_patient=is_patient
            )
            planned = await asyncio.wrap_future(self._engine.ask(request))
            if planned.refused is None:
                return planned
            _answer(job.waiting.pop(0), planned.refused)
        return None

    async def _plan(self, job: _Job) -> None:
        """Have a plan made as far as it can be made ahead. Without one, subscriptions begin with a
        snapshot."""
        building = asyncio.get_running_loop().create_future()
        self._building[job.plan_id] = building
        try:
            planned = await self._planned(job)
            if planned is not None and planned.is_building:
                await building
        except Exception as error:
            log.info("no plan for those who come back: %s", error)
        finally:
            del self._building[job.plan_id]


def _answer(waiting: _Waiting, answer: _Answer) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(answer)


def _fail(job: _Job, error: Exception) -> None:
    """Tell whoever still waits for an answer."""
    for waiting in job.waiting:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


def _source(request: Subscribe, session: ClientSession | None) -> tuple[Hashable, ...]:
    """What says which table it is. An export means something within its session only."""
    ticket = bytes(request.wanted.ticket or b"")
    owner = session if ticket.startswith(EXPORT_ROUTE) else None
    return ticket, None if owner is None else id(owner), request.types


def _key(request: Subscribe, resume: ResumeRequest, session: ClientSession | None) -> Hashable:
    """What a plan depends on. The updates of steps are made for one shape."""
    shape = None
    if resume.mode is ResumeMode.STEPS:
        wanted, is_list = request.wanted, request.options.columns_as_list
        shape = (wanted.columns, wanted.viewport, wanted.is_reverse, is_list)
    return resume, *_source(request, session), shape
