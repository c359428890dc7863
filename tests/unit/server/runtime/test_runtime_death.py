"""The engine thread dies: whoever waits for it is told, now and later."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from barrage.clock import SystemClock
from barrage.engine import AppendOnlyTable
from barrage.errors import BarrageError, EngineError, TransportError, WorkerDiedError
from barrage.limits import Limits
from barrage.server.runtime.runtime import EngineRuntime

HANG_SECONDS = 180
ONE = pa.table({"x": [1]})


class DeadlyClock(SystemClock):
    """Raises on the engine thread once it is told to, at the nth look."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.looks_left = 0

    def monotonic_ns(self) -> int:
        if self.error is not None and threading.current_thread().name == "barrage-engine":
            self.looks_left -= 1
            if self.looks_left < 0:
                raise self.error
        return super().monotonic_ns()


class Recorder:
    """Keeps nothing safe until it is told to."""

    has_pending = False
    synced_ticket = 0
    failure = None

    def record(self, result, wall_ns):
        pass

    def ticket_of(self, tables):
        return 1

    def refusal_of(self, tables):
        return None


def occupied(runtime: EngineRuntime) -> threading.Event:
    """The engine is busy until the event is set."""
    is_busy, may_go_on = threading.Event(), threading.Event()

    def occupy() -> None:
        is_busy.set()
        assert may_go_on.wait(HANG_SECONDS)

    runtime.submit(occupy)
    assert is_busy.wait(HANG_SECONDS)
    return may_go_on


@pytest.mark.parametrize("error", [KeyError("x"), MemoryError(), SystemExit()], ids=repr)
@pytest.mark.parametrize("looks", range(6))
def test_whoever_waits_for_a_dead_engine_is_told(error, looks, caplog):
    """At whichever of its looks at the clock it dies: between commands, before a cycle, in it."""
    clock = DeadlyClock()
    runtime = EngineRuntime(limits=Limits(), clock=clock, recorder=Recorder())
    told: list[WorkerDiedError] = []
    runtime.on_death(told.append)
    table = runtime.submit(lambda: AppendOnlyTable(runtime.graph, ONE.schema)).result(HANG_SECONDS)
    durable = runtime.write(lambda: (table.stage_add(ONE), (table,))[1])
    may_go_on = occupied(runtime)
    futures = [runtime.write(lambda: (table.stage_add(ONE), (table,))[1]) for _ in range(3)]
    clock.looks_left, clock.error = looks, error
    may_go_on.set()
    for future in (durable, *futures):
        with pytest.raises(WorkerDiedError, match="barrage-engine has died: details are logged"):
            future.result(HANG_SECONDS)
    for _ in range(3):
        with pytest.raises(WorkerDiedError):
            runtime.submit(int)
    runtime.post(lambda: None)
    runtime.stop()
    runtime.stop()
    assert len(told) == 1
    assert repr(error)[:8] in caplog.text
    late: list[WorkerDiedError] = []
    runtime.on_death(late.append)
    assert late == told


def test_a_command_that_would_end_the_thread_is_refused_and_the_thread_lives():
    runtime = EngineRuntime(limits=Limits(), clock=SystemClock())

    def leave() -> None:
        raise SystemExit

    with pytest.raises(WorkerDiedError):
        runtime.submit(leave).result(HANG_SECONDS)
    assert runtime.submit(lambda: 7).result(HANG_SECONDS) == 7
    runtime.stop()


def test_a_write_whose_answer_cannot_be_made_leaves_nobody_behind_it_waiting():
    runtime = EngineRuntime(limits=Limits(), clock=SystemClock())
    table = runtime.submit(lambda: AppendOnlyTable(runtime.graph, ONE.schema)).result(HANG_SECONDS)
    may_go_on = occupied(runtime)

    def stage(answer):
        table.stage_add(ONE)
        return (table,), answer

    broken = runtime.write_returning(lambda: stage(lambda _: 1 // 0))
    sound = runtime.write_returning(lambda: stage(lambda step: step))
    may_go_on.set()
    with pytest.raises(EngineError, match="internal error"):
        broken.result(HANG_SECONDS)
    assert sound.result(HANG_SECONDS) == 1
    runtime.stop()


def test_bookkeeping_that_fails_tells_whom_it_was_for():
    runtime = EngineRuntime(limits=Limits(), clock=SystemClock())
    told: list[BarrageError] = []
    runtime.post(lambda: 1 // 0, told.append)
    runtime.submit(int).result(HANG_SECONDS)
    [error] = told
    assert isinstance(error, EngineError)
    runtime.stop()


class HeldUp:
    """A queue whose caller is preempted just before it puts something, while another thread stops
    the engine."""

    def __init__(self, runtime: EngineRuntime) -> None:
        self._queue = runtime._commands
        self._runtime = runtime
        self._was_held_up = False

    def __getattr__(self, name):
        return getattr(self._queue, name)

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, command) -> None:
        if not self._was_held_up:
            self._was_held_up = True
            self._runtime._commands = self._queue
            stopping = threading.Thread(target=self._runtime.stop)
            stopping.start()
            stopping.join(HANG_SECONDS)
            assert not stopping.is_alive()
        self._queue.put(command)


@pytest.mark.parametrize("has_run", [True, False], ids=["running", "never ran"])
def test_a_caller_held_up_before_it_puts_a_command_is_refused_not_forgotten(has_run):
    runtime = EngineRuntime(limits=Limits(), clock=SystemClock())
    if has_run:
        runtime.submit(int).result(HANG_SECONDS)
    runtime._commands = HeldUp(runtime)
    with pytest.raises(TransportError, match="stopped"):
        runtime.submit(lambda: 7).result(60)


def test_a_command_put_while_the_engine_ends_is_done_or_refused():
    """However the two meet: a caller that was held up between its look and its put."""
    for _ in range(200):
        runtime = EngineRuntime(limits=Limits(), clock=SystemClock())
        runtime.submit(int).result(HANG_SECONDS)
        start = threading.Barrier(2)
        outcomes: list[object] = []

        def call(runtime=runtime, start=start, outcomes=outcomes) -> None:
            start.wait(HANG_SECONDS)
            try:
                outcomes.append(runtime.submit(lambda: 7).result(HANG_SECONDS))
            except TransportError as error:
                outcomes.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        start.wait(HANG_SECONDS)
        runtime.stop()
        caller.join(HANG_SECONDS)
        assert len(outcomes) == 1
