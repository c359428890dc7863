"""Subscriptions that are to be resumed, gathered: who comes back with the same cursor of the same
table shares one plan.

After a broken connection or a restart many clients come back at once with few different cursors.
The first of them opens a *job*; all that ask for the same while it is under way join it, and they
are subscribed together, in one command of the engine thread: one plan, and one message for all that
see the same rows in the same form.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from barrage.proto.resumption import ResumeMode
from barrage.server.resume_desk import ResumeWork, Resumption
from barrage.server.subscription_desk import Applicant
from barrage.server.tickets import EXPORT_ROUTE
from barrage.supervision import Role, WorkerPool, start_task

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from barrage.errors import BarrageError
    from barrage.proto.events import SubscriptionRequested
    from barrage.proto.resumption import ResumeRequest
    from barrage.server.exchange_stream import ExchangeStream, Headers
    from barrage.server.runtime import EngineRuntime
    from barrage.server.subscription_desk import SubscriptionDesk
    from barrage.server.table_lease import TableSource
    from barrage.wire.update_codec import EncodeOptions

GATHER_SECONDS = 0.01
"""How long a job waits for others before it begins, and again as long as others come: a fraction of
what a client waits before it connects again."""

GATHER_SECONDS_MAX = 0.2
"""How long a job waits at most, however many come."""

BUILD_THREADS = 1
"""Threads that read journals for plans. They share the interpreter with the engine's."""

JOB = Role("barrage-resume-job", "the subscriptions that are to be resumed together")


@dataclass(slots=True)
class _Job:
    request: ResumeRequest
    applicants: list[Applicant] = field(default_factory=list)


class ResumeJobs:
    """The jobs of one server. Runs on the event loop."""

    def __init__(
        self,
        runtime: EngineRuntime,
        desk: SubscriptionDesk,
        *,
        is_open: Callable[[ExchangeStream], bool],
    ) -> None:
        """``is_open`` says whether a stream still wants to be subscribed."""
        self._runtime = runtime
        self._desk = desk
        self._is_open = is_open
        self._jobs: dict[Hashable, _Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = WorkerPool(BUILD_THREADS, thread_name_prefix="barrage-resume")

    async def subscribe(
        self,
        stream: ExchangeStream,
        source: TableSource,
        event: SubscriptionRequested,
        options: EncodeOptions,
    ) -> Headers:
        """Subscribe the stream from its cursor, or from a snapshot; the headers of the answer.
        Errors as those of a subscription without a cursor."""
        request = stream.resume
        assert request is not None
        loop = asyncio.get_running_loop()
        applicant = Applicant(stream, source, event, options, loop.create_future())
        key = _key(request, stream, event, options)
        job = self._jobs.get(key)
        if job is None:
            job = self._jobs[key] = _Job(request)
            fail = partial(_fail, job)
            task = start_task(JOB, self._run(key, job), on_death=fail)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        job.applicants.append(applicant)
        return await applicant.answer

    def close(self) -> None:
        """No more jobs; who waits is told by the end of its stream."""
        for task in list(self._tasks):
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, key: Hashable, job: _Job) -> None:
        try:
            await self._gather(job)
            found = await self._prepared(job.applicants[0])
        finally:
            self._jobs.pop(key, None)
        # From here on others begin a job of their own: this one knows nothing of later changes.
        open_ones = [each for each in job.applicants if self._is_open(each.stream)]
        finish = partial(self._desk.subscribe_all, found, open_ones)
        try:
            answers = await asyncio.wrap_future(self._runtime.submit(finish))
        except Exception as error:
            answers = [error] * len(open_ones)
            if isinstance(found, ResumeWork):
                self._runtime.post(partial(self._desk.resume.give_up, found))
        for applicant, answer in zip(open_ones, answers, strict=True):
            if applicant.answer.done():
                continue
            if isinstance(answer, Exception):
                applicant.answer.set_exception(answer)
            else:
                applicant.answer.set_result(answer)

    async def _gather(self, job: _Job) -> None:
        loop = asyncio.get_running_loop()
        latest, count = loop.time() + GATHER_SECONDS_MAX, 0
        while len(job.applicants) > count and loop.time() < latest:
            count = len(job.applicants)
            await asyncio.sleep(GATHER_SECONDS)

    async def _prepared(self, applicant: Applicant) -> ResumeWork | Resumption:
        """The plan as far as it can be made ahead. What is wrong with a subscription is told to
        each applicant when it is subscribed."""
        try:
            survey = partial(self._desk.survey, applicant)
            found: ResumeWork | Resumption = await asyncio.wrap_future(self._runtime.submit(survey))
            if isinstance(found, ResumeWork):
                build = partial(self._desk.resume.build, found)
                await asyncio.get_running_loop().run_in_executor(self._threads, build)
        except Exception as error:
            return Resumption.refused(str(error))
        return found


def _fail(job: _Job, error: BarrageError) -> None:
    """Tell whoever still waits for an answer."""
    for applicant in job.applicants:
        if not applicant.answer.done():
            applicant.answer.set_exception(error)


def _key(
    request: ResumeRequest,
    stream: ExchangeStream,
    event: SubscriptionRequested,
    options: EncodeOptions,
) -> Hashable:
    """What a plan depends on. An export means something within its session only; the updates of
    steps are made for one shape."""
    ticket = bytes(event.ticket or b"")
    session = stream.session if ticket.startswith(EXPORT_ROUTE) else None
    shape = None
    if request.mode is ResumeMode.STEPS:
        shape = (event.columns, event.viewport, event.is_reverse, options.columns_as_list)
    return request, ticket, None if session is None else id(session), stream.types, shape
