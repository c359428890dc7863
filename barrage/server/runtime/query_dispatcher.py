"""What clients have derived, so that nobody else waits for it.

A *query* is a function that applies operators on the engine thread. Before each is made it is known
how much work that is (:mod:`barrage.engine.tables.work`):

* Little work is done at once. All queries together get ``turn_work_max`` in one turn of the engine
  thread; those that are left go on in the next, after a cycle and what it propagates.
* More is done beside the engine thread (:mod:`barrage.engine.planning.derivation`), by one thread:
  it shares the interpreter and the processors with the engine's. Clients take turns there. When the
  operator has joined the graph, the query is run again and finds it. Whoever wants an operator that
  is under way waits for the same one.
* Too much is refused, and so is too much at a time, or kept
  (:mod:`barrage.engine.planning.cycle_work`).

A query nobody waits for any more (its future was cancelled) ends soon, and what it had made goes.

Threads: ``run`` and ``close`` may be called from anywhere. The thread of the worker runs ``_work``
and what it calls; everything else runs on the engine thread.
"""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from barrage.engine.planning.cycle_work import CycleWork
from barrage.engine.planning.derivation import Derivation, DerivationGivenUpError
from barrage.engine.planning.operator_plan import HeavyOperatorError
from barrage.engine.planning.work_meter import (
    HeavyPreparationError,
    Preparation,
    TurnBudget,
    TurnSpentError,
    WorkMeter,
)
from barrage.errors import BarrageError, LimitExceededError, TransportError
from barrage.server.runtime.failure import without_frames
from barrage.server.runtime.turns import Turns, check_room
from barrage.supervision import Role, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from barrage.limits import Limits
    from barrage.server.runtime.runtime import EngineRuntime


QUERIES = Role("barrage-queries", "heavy queries under way; a new thread begins with the next one")

THE_SERVER: Final = object()
"""Stands for the program that runs the server: what it keeps does not count."""

Result = TypeVar("Result")


class _Query(Generic[Result]):
    """One request: what it does, who waits for it, and its account."""

    def __init__(self, work: Callable[[], Result], owner: Hashable, meter: WorkMeter) -> None:
        self.work: Callable[[], Result] | None = work
        self.owner = owner
        self.meter = meter
        self.future: Future[Result] = Future()

    def succeed(self, result: Result) -> None:
        self.close()
        with suppress(InvalidStateError):  # Cancelled meanwhile.
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Any thread, once the engine's has no part in the query any more."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)

    def close(self) -> None:
        """Engine thread: let go of all tables."""
        self.work = None
        self.meter.close()


@dataclass(slots=True, eq=False)
class _Job:
    """An operator that is made beside, or what it needs to know of its texts, and the queries that
    wait for it."""

    key: Hashable
    owner: Hashable
    task: Derivation | Preparation[Any]
    queries: list[_Query[Any]] = field(default_factory=list)

    def meet(self) -> bool:
        """Engine thread: whether the operator has joined the graph. It is kept by its queries:
        the worker's thread must not hold the last reference."""
        if isinstance(self.task, Preparation):
            for query in self.queries:
                query.meter.know(self.task)
            return True
        plan, made = self.task.plan, self.task.meet()
        if made is None:
            return False
        for query in self.queries:
            query.meter.keep(plan.key, made)
            query.meter.made_beside(plan.work)
        return True


class QueryDispatcher:
    """The queries of one server."""

    def __init__(self, runtime: EngineRuntime, limits: Limits) -> None:
        self._runtime = runtime
        self._limits = limits
        self._turns: Turns[_Query[Any]] = Turns()
        self._budget = TurnBudget()
        self.cycle_work = CycleWork(limits)
        """What clients keep. The engine thread only."""
        self._turn = -1
        self._jobs: dict[Hashable, _Job] = {}
        self._beside: Turns[_Job] = Turns()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    @property
    def beside_count(self) -> int:
        """Operators that are being made beside, or wait for that."""
        return len(self._jobs)

    # --- any thread ---

    def run(self, work: Callable[[], Result], owner: Hashable = None) -> Future[Result]:
        """Run ``work`` between cycles; it may be begun several times before it is done. The future
        gets what it returns. ``owner`` stands for the client.

        LimitExceededError also when it is too much work, or too much is under way.
        """
        cycle_work = None if owner is THE_SERVER else self.cycle_work
        query = _Query(work, owner, WorkMeter(self._limits, self._budget, cycle_work, owner=owner))
        # A future keeps its callbacks for good: with the query itself in one, its result would stay
        # until the next collection of garbage, and a table with it.
        query.future.add_done_callback(partial(self._done, weakref.ref(query)))
        self._turns.put(owner, query)
        try:
            self._ask_for_turn()
        except BarrageError:
            self._turns.discard(owner, query)
            raise
        return query.future

    def close(self) -> None:
        """Refuse what waits and end the thread soon. Before the engine ends."""
        with self._lock:
            self._is_closed = True
        self._beside.end()
        self._runtime.post(self._give_up_all)

    def _done(self, reference: weakref.ref[_Query[Any]], future: Future[Any]) -> None:
        query = reference() if future.cancelled() else None
        if query is not None:
            self._runtime.post(partial(self._forget, query))

    def _ask_for_turn(self) -> None:
        """There is one command per query that waits for a turn."""
        self._runtime.submit(self._take_turn).add_done_callback(self._turn_refused)

    def _turn_refused(self, turn: Future[None]) -> None:
        """The engine ends, or is broken: there is a query for which no turn comes."""
        error = TransportError("the server is stopping") if turn.cancelled() else turn.exception()
        if error is not None:
            query = self._turns.take_now()
            if query is not None:
                query.fail(error)

    # --- engine thread: turns ---

    def _take_turn(self) -> None:
        """Run the query whose turn it is, unless enough was done since the last cycle."""
        if self._turn != self._runtime.turn:
            self._turn = self._runtime.turn
            self._budget.spent = 0
        if self._budget.spent >= self._limits.turn_work_max:
            self._ask_for_turn()
            return
        query = self._turns.take_now()
        if query is None:
            return
        if query.work is None or query.future.done():
            query.close()
            return
        try:
            with self._runtime.graph.metered(query.meter):
                result = query.work()
        except TurnSpentError:
            self._budget.spent = self._limits.turn_work_max
            self._continue(query)
        except HeavyOperatorError as heavy:
            plan = heavy.plan
            is_new = self._begin_beside(query, plan.key, lambda: Derivation(plan, self._limits))
            if is_new and query.owner is not THE_SERVER:
                self.cycle_work.reserve(plan.key, query.owner, plan.cycle_work)
        except HeavyPreparationError as heavy:
            preparation = heavy.preparation
            self._begin_beside(query, preparation.key, lambda: preparation)
        except BaseException as error:
            query.close()
            query.fail(error)
        else:
            query.succeed(result)

    def _continue(self, query: _Query[Any]) -> None:
        self._turns.put(query.owner, query)
        try:
            self._ask_for_turn()
        except BarrageError as error:
            self._turns.discard(query.owner, query)
            query.close()
            query.fail(error)

    def _begin_beside(
        self,
        query: _Query[Any],
        key: Hashable,
        begin: Callable[[], Derivation | Preparation[Any]],
    ) -> bool:
        """Whether something was begun for the query that was not under way before."""
        job = self._jobs.get(key)
        is_begun = job is None
        try:
            if job is None:
                self._check_room(query.owner)
                job = _Job(key, query.owner, begin())
                job.queries.append(query)
                self._jobs[key] = job
                self._beside.put(job.owner, job)
                self._ensure_thread()
            else:
                job.queries.append(query)
        except BarrageError as error:
            if job is not None and self._jobs.pop(key, None) is not None:
                self._beside.discard(job.owner, job)
            query.close()
            query.fail(error)
            return False
        return is_begun

    def _check_room(self, owner: Hashable) -> None:
        if self._is_closed:
            raise TransportError("the server is stopping")
        limits = self._limits
        check_room("number of heavy queries", len(self._jobs), limits.queries_beside_max)
        own = sum(job.owner == owner for job in self._jobs.values())
        maximum = limits.queries_beside_per_client_max
        check_room("number of heavy queries of one client", own, maximum)

    def _forget(self, query: _Query[Any]) -> None:
        """The client has gone: nobody else may want what is made for it."""
        self._turns.discard(query.owner, query)
        for job in list(self._jobs.values()):
            if query in job.queries:
                job.queries.remove(query)
                if not job.queries:
                    self._give_up(job)
        query.close()

    def _give_up(self, job: _Job) -> None:
        """Nobody who comes from here on joins the job."""
        self._leave(job)
        job.task.give_up()
        if self._beside.discard(job.owner, job):
            job.task.close()

    def _leave(self, job: _Job) -> None:
        if self._jobs.get(job.key) is job:
            del self._jobs[job.key]
            self.cycle_work.release(job.key)

    def _give_up_all(self) -> None:
        for job in list(self._jobs.values()):
            for query in job.queries:
                query.close()
                query.fail(TransportError("the server is stopping"))
            job.queries.clear()
            self._give_up(job)

    def _finish(self, job: _Job, error: BaseException | None) -> None:
        """An operator has joined the graph, or will not: its queries go on."""
        self._leave(job)
        job.task.close()
        queries, job.queries = job.queries, []
        for query in queries:
            if error is not None:
                # The query is told where it asks for the operator, so that it can say which it was.
                query.meter.refuse(job.key, error)
            self._continue(query)

    # --- the worker's own thread ---

    def _ensure_thread(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = start_thread(QUERIES, self._work, on_death=self._died)

    def _work(self) -> None:
        while (job := self._beside.take()) is not None:
            self._carry_out(job)
            del job  # While waiting for the next one, nothing of the last is kept.

    def _carry_out(self, job: _Job) -> None:
        error: BaseException | None = None
        try:
            self._on_engine(job.task.begin)
            job.task.make()
            while not self._on_engine(job.meet):
                job.task.follow()
        except DerivationGivenUpError as given_up:
            error = without_frames(given_up)
        except Exception as failure:
            error = without_frames(failure)
        self._end(job, error)

    def _on_engine(self, work: Callable[[], Result]) -> Result:
        result: Result = self._runtime.submit(work).result()
        return result

    def _end(self, job: _Job, error: BaseException | None) -> None:
        """Have the queries of a job go on; without an engine they fail."""
        finish = partial(self._finish, job, error)
        try:
            told = self._runtime.submit(finish)
        except LimitExceededError:
            self._runtime.post(finish)
        except BarrageError as gone:
            _fail_all(job, gone)
        else:
            told.add_done_callback(partial(self._ended, job))

    def _ended(self, job: _Job, told: Future[None]) -> None:
        error = TransportError("the server is stopping") if told.cancelled() else told.exception()
        if error is not None:
            self._runtime.post(partial(self._finish, job, error))
            _fail_all(job, error)

    def _died(self, error: BarrageError) -> None:
        """What was under way fails; the next heavy query begins a new thread."""
        self._runtime.post(partial(self._fail_jobs, error))

    def _fail_jobs(self, error: BarrageError) -> None:
        for job in list(self._jobs.values()):
            self._beside.discard(job.owner, job)
            job.task.give_up()
            self._finish(job, error)


def _fail_all(job: _Job, error: BaseException) -> None:
    for query in list(job.queries):
        query.fail(error)
