"""Queries whose results are kept: made beside the calls that ask for them.

A job resolves its ticket (a heavy query is derived beside the engine thread), holds the table as it
is at one step, and reads it part by part; each part can be fetched as soon as it is there. Whoever
polls is told when there is something new. The result outlives the job until its time is up; an
unfinished job ends with the time of its result, which stands still while somebody waits for it.

    DERIVING ──► READING ──► FINISHED
        └───────────┴──────► FAILED | CANCELLED
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from barrage.errors import BarrageError, LimitExceededError, TransportError
from barrage.server.access.query import QueryProgress
from barrage.server.results.pinned_results import (
    PinnedResults,
    ResultCancelledError,
    ResultNotFoundError,
    ResultPart,
    ResultShape,
)
from barrage.server.runtime.failure import without_frames
from barrage.supervision import Role, start_task
from barrage.wire.messages import SnapshotOptions
from barrage.wire.updates.update_codec import EncodeOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import ClientSession
    from barrage.server.exchange.exchange_driver import ExchangeHub
    from barrage.server.exchange.exchange_messages import SnapshotBegun
    from barrage.server.identity.caller import Caller, Owner
    from barrage.server.results.pinned_results import PinnedResult
    from barrage.transport.flight_messages import Descriptor

JOB = Role("barrage-query-job", "the result that it makes: who polls for it is told")

DERIVED = 0.5
"""Progress of a query that is derived and not read yet."""


class JobState(Enum):
    """Where a job stands."""

    DERIVING = auto()
    READING = auto()
    FINISHED = auto()
    FAILED = auto()
    CANCELLED = auto()


_J = JobState

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    _J.DERIVING: frozenset({_J.READING, _J.FAILED, _J.CANCELLED}),
    _J.READING: frozenset({_J.FINISHED, _J.FAILED, _J.CANCELLED}),
    _J.FINISHED: frozenset({_J.CANCELLED}),
    _J.FAILED: frozenset(),
    _J.CANCELLED: frozenset(),
}
"""A finished job is cancelled by giving up its result."""

_UNDER_WAY = (_J.DERIVING, _J.READING)


class ResultOptions(NamedTuple):
    """What a caller wants of a result."""

    endpoint_rows: int
    lifetime_ns: int


class QueryJob:
    """One query. Belongs to the event loop."""

    def __init__(
        self,
        result: PinnedResult,
        descriptor: Descriptor,
        *,
        options: ResultOptions,
        on_done: Callable[[QueryJob], None],
    ) -> None:
        """``on_done`` is told once that it is not under way any more."""
        self._on_done = on_done
        self.result = result
        self.descriptor = descriptor
        """What was asked for."""
        self.options = options
        self.state = JobState.DERIVING
        self.version = 0
        """Another one whenever there is something new to tell."""
        self.progress: float | None = None
        self.error: BarrageError | None = None
        self.task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def is_under_way(self) -> bool:
        return self.state in _UNDER_WAY

    def move(self, state: JobState) -> bool:
        """Go to a state, and tell; False when there is no way there, and nothing happens."""
        if state not in TRANSITIONS[self.state]:
            return False
        was_under_way = self.is_under_way
        self.state = state
        if was_under_way and not self.is_under_way:
            self._on_done(self)
        self.tell()
        return True

    def tell(self, progress: float | None = None) -> None:
        """There is something new."""
        if progress is not None:
            self.progress = progress
        self.version += 1
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def news(self, version: int, wait_ns: int) -> None:
        """Wait until there is something newer than ``version``, or for so long."""
        try:
            async with asyncio.timeout(wait_ns / 1e9):
                while self.is_under_way and self.version <= version:
                    await self._news.wait()
        except TimeoutError:
            return

    def check(self) -> None:
        """The error it has ended with; ResultCancelledError."""
        if self.state is JobState.CANCELLED:
            raise ResultCancelledError(self.result.id)
        if self.error is not None:
            raise self.error


class QueryJobs:
    """All jobs of one server, and their results. On the event loop."""

    def __init__(
        self,
        hub: ExchangeHub,
        resolver: TicketResolver,
        results: PinnedResults,
        *,
        limits: Limits,
        clock: Clock,
    ) -> None:
        self.results = results
        self._hub = hub
        self._resolver = resolver
        self._limits = limits
        self._clock = clock
        self._jobs: dict[str, QueryJob] = {}
        self._running: Counter[Owner] = Counter()
        self._loop = asyncio.get_running_loop()

    @property
    def running_count(self) -> int:
        """Jobs that are not done."""
        return self._running.total()

    def begin(
        self,
        ticket: bytes,
        descriptor: Descriptor,
        session: ClientSession | None,
        *,
        caller: Caller,
        options: ResultOptions,
    ) -> QueryJob:
        """Begin a job, as the call that is being served. LimitExceededError."""
        limits, owner = self._limits, caller.owner
        if self.results.is_full(caller):
            self.sweep()
        _check("number of queries under way", self.running_count, limits.result_jobs_max)
        most = limits.result_jobs_per_caller_max
        _check("number of queries of one caller under way", self._running[owner], most)
        result = self.results.open(caller, options.lifetime_ns)
        job = QueryJob(result, descriptor, options=options, on_done=self._done)
        self._jobs[result.id] = job
        self._running[owner] += 1
        work = self._work(job, ticket, session)
        job.task = start_task(JOB, work, on_death=lambda error: self._fail(job, error))
        return job

    def _done(self, job: QueryJob) -> None:
        owner = job.result.caller.owner
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]

    def find(self, job_id: str, caller: Caller) -> QueryJob:
        """A job of this caller, done or not; ResultNotFoundError."""
        self.results.find(job_id, caller)
        job = self._jobs.get(job_id)
        if job is None:
            raise ResultNotFoundError(job_id)
        return job

    def cancel(self, job: QueryJob) -> None:
        """End a job and free its result; its name is known until its time is up."""
        if job.move(JobState.CANCELLED) and job.task is not None:
            job.task.cancel()
        self.results.clear(job.result)

    def give_up(self, job: QueryJob) -> None:
        """Nobody was told of it: forget it at once."""
        self.cancel(job)
        self.results.drop(job.result)
        self._jobs.pop(job.result.id, None)

    def sweep(self) -> None:
        """Forget what has run out, and end the jobs among it."""
        self.results.sweep()
        for job_id, job in list(self._jobs.items()):
            if not job.result.is_known:
                del self._jobs[job_id]
                self.cancel(job)

    def revoke(self, is_meant: Callable[[Caller], bool], _error: BarrageError) -> None:
        """Some callers are none any more, or may see other things than before."""
        self.results.drop_all(is_meant)
        self.sweep()

    def close(self, reason: BarrageError | None = None) -> None:
        """The server stops: end all of them."""
        error = reason or TransportError("the server is stopping")
        for job in list(self._jobs.values()):
            if job.is_under_way:
                self._fail(job, error)
                if job.task is not None:
                    job.task.cancel()
        self.results.drop_all(lambda _caller: True)
        self._jobs.clear()

    # --- one job ---

    async def _work(self, job: QueryJob, ticket: bytes, session: ClientSession | None) -> None:
        try:
            await self._make(job, ticket, session)
        except BarrageError as error:
            self._fail(job, error)

    def _fail(self, job: QueryJob, error: BarrageError) -> None:
        if job.state in (JobState.DERIVING, JobState.READING):
            job.error = without_frames(error)
            job.move(JobState.FAILED)
            self.results.clear(job.result)

    async def _make(self, job: QueryJob, ticket: bytes, session: ClientSession | None) -> None:
        def told(done: float) -> None:
            self._loop.call_soon_threadsafe(job.tell, done * DERIVED)

        source = await self._resolver.source(ticket, session, progress=QueryProgress(told))
        options = replace(EncodeOptions.for_snapshot(SnapshotOptions(), self._limits), is_bulk=True)
        async with self._hub.held(source, session, options, is_parted=True) as begun:
            del source  # What is held is enough.
            await self._read(job, begun)

    async def _read(self, job: QueryJob, begun: SnapshotBegun) -> None:
        rows = begun.work.row_count
        job.result.shape = ResultShape(
            encoder=begun.encoder, step=begun.work.step, epoch=begun.epoch, row_count=rows
        )
        job.progress = DERIVED
        job.move(JobState.READING)
        each = max(job.options.endpoint_rows, -(-rows // self._limits.endpoints_max))
        for start in range(0, max(rows, 1), each):
            stop = min(start + each, rows)
            read = partial(begun.work.read_rows, start, stop)
            updates = await self._hub.read_beside(read)
            size = sum(int(column.nbytes) for update in updates for column in update.added_columns)
            part = ResultPart(start=start, stop=stop, updates=updates, byte_count=size)
            self.results.add(job.result, part)
            if stop < rows:
                job.tell(DERIVED + (1 - DERIVED) * stop / rows)
        job.progress = 1.0
        # Its time begins now: nobody could read all of it before.
        self.results.renew(job.result)
        job.move(JobState.FINISHED)


def _check(what: str, there: int, maximum: int) -> None:
    if there >= maximum:
        raise LimitExceededError(what, actual=there + 1, maximum=maximum, unit="queries")
