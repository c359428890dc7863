"""The engine thread: the one thread that owns all tables and their producers.

Commands come in through one bounded queue and run between cycles, never inside one. Each turn of
the thread runs the waiting commands, at most one cycle of the update graph, and the propagation
that is due; what comes out of it goes to the event loop in one hand-over, so the cost of crossing
threads is paid per turn, not per message.

The thread keeps out of the event loop's way (both share one interpreter lock): it rests after a
cycle for as long as the cycle took (bounded), which also lets writes gather into larger cycles, and
it propagates nothing while the loop has not taken earlier hand-overs.

After each cycle a recorder is given what it changed. Subscribers may see a change before it is
kept; who wrote it is told when it is.

Threads: ``submit``, ``write`` and ``post`` may be called from anywhere; everything else runs on the
engine thread.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from barrage.engine import UpdateGraph
from barrage.engine.producer import Producer
from barrage.errors import BarrageError, LimitExceededError, TransportError
from barrage.limits import NANOS_PER_MS
from barrage.server.durable_writes import DurableWrites, NoRecorder
from barrage.server.failure import unexpected_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from barrage.clock import Clock
    from barrage.engine import Table
    from barrage.engine.producer import Delivery, Disconnect
    from barrage.limits import Limits
    from barrage.server.durable_writes import Recorder

log = logging.getLogger(__name__)

HANDOVERS_MAX = 2
"""Hand-overs the event loop may have outstanding before the engine stops propagating."""

HANDOVER_ITEMS = 256
"""Items passed on at once while more are being encoded, so that the loop can start writing."""

CYCLES_REMEMBERED = 1024

Staged: TypeAlias = "tuple[tuple[Table, ...], Callable[[int], Any]]"
"""The tables a write changed, and what its future gets, made of the step that committed it."""

FAILED_CYCLE_REST_NS = 1000 * NANOS_PER_MS
"""Pause after a cycle that raised instead of failing its tables."""


class Outlet(Protocol):
    """Where the engine thread puts what is for the event loop."""

    def convert(self, item: Delivery | Disconnect) -> Iterable[object]:
        """Make hand-over items of what a producer said; runs on the engine thread. Never raises."""
        ...

    def hand_over(self, items: Sequence[object]) -> None:
        """Give items to the event loop, in order. Each is followed by one ``handover_taken``."""
        ...


@dataclass(slots=True)
class RuntimeStats:
    """Counters of the engine thread; written by it alone, read from anywhere."""

    cycles: int = 0
    commands: int = 0
    propagations: int = 0
    handovers: int = 0
    propagate_ns_total: int = 0
    cycle_ns_total: int = 0
    cycle_ns_recent: deque[int] = field(default_factory=lambda: deque(maxlen=CYCLES_REMEMBERED))

    def cycle_ns_percentile(self, percent: float) -> int:
        """A percentile of the last cycles' durations; 0 before the first."""
        ordered = sorted(self.cycle_ns_recent)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0


class _Command:
    """A function to run on the engine thread and who waits for it."""

    __slots__ = ("future", "is_write", "run")

    def __init__(
        self,
        run: Callable[[], Any],
        future: Future[Any] | None,
        *,
        is_write: bool = False,
    ) -> None:
        self.run = run
        self.future = future
        self.is_write = is_write


class EngineRuntime:
    """Runs the update graph and its producers on a thread of its own.

    Invariant: ``graph``, ``producers`` and every table are touched by the engine thread only.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        clock: Clock,
        rest_ns_max: int = 5 * NANOS_PER_MS,
        graph: UpdateGraph | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.graph = UpdateGraph(limits) if graph is None else graph
        self.stats = RuntimeStats()
        self._limits = limits
        self._clock = clock
        self._rest_ns_max = rest_ns_max
        self._producers: dict[Table, Producer] = {}
        self._commands: queue.SimpleQueue[_Command | None] = queue.SimpleQueue()
        self._outlet: Outlet | None = None
        self._items: list[object] = []
        self._recorder: Recorder = NoRecorder() if recorder is None else recorder
        self._uncommitted: list[tuple[Future[Any], Staged]] = []
        self._durable = DurableWrites(self._recorder)
        self._rest_until_ns = 0
        self._handed_over = 0
        self._taken = 0
        self._is_starved = False
        self._is_stopping = False
        self._has_given_up = False
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()

    # --- called from any thread ---

    def submit(self, run: Callable[[], Any]) -> Future[Any]:
        """Run ``run`` between cycles; the future gets its result. LimitExceededError when the queue
        is full."""
        return self._enqueue(_Command(run, Future()))

    def write(self, stage: Callable[[], tuple[Table, ...]]) -> Future[int]:
        """Run ``stage``, which stages changes and returns the tables it changed; the future gets
        the step of the cycle that committed them, or the error that refused them. It gets it when
        everything these tables have recorded is safe."""
        return self.write_returning(lambda: (stage(), _step_of))

    def write_returning(
        self, stage: Callable[[], tuple[tuple[Table, ...], Callable[[int], Any]]]
    ) -> Future[Any]:
        """Like :meth:`write`, for a ``stage`` that returns a function too: the future gets what it
        makes of the step that committed the changes. It runs on the engine thread after the cycle
        and must not fail."""
        return self._enqueue(_Command(stage, Future(), is_write=True))

    def post(self, run: Callable[[], None]) -> None:
        """Run ``run`` between cycles and tell nobody. Not bounded: for bookkeeping that must not be
        refused."""
        self._commands.put(_Command(run, None))

    def handover_taken(self) -> None:
        """The event loop has taken one hand-over."""
        self._taken += 1
        if self._is_starved:
            self._commands.put(None)

    def give_up_waiting(self) -> None:
        """Fail the commands somebody waits for and that have not begun: the server stops and has no
        more time. Bookkeeping is still done, since it frees tables. From here on no write begins:
        one must not be applied after one before it was given up."""
        self._has_given_up = True
        kept = []
        for _ in range(self._commands.qsize()):
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                break
            if command is None or command.future is None:
                kept.append(command)
            else:
                _refuse(command.future, TransportError("the server is stopping"))
        for command in kept:
            self._commands.put(command)

    def attach(self, outlet: Outlet | None) -> None:
        """Set where hand-overs go; before the first subscription, or None after the last."""
        self._outlet = outlet

    def stop(self) -> None:
        """End the thread after the commands already queued; waits for it. Idempotent."""
        with self._start_lock:
            self._is_stopping = True
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._commands.put(None)
            thread.join()
        self._refuse_waiting()

    def settle_durable(self) -> None:
        """Tell the writers whose changes have become safe. On the engine thread, or on any once it
        has ended."""
        self._durable.settle()

    def refuse_undurable(self, error: BarrageError) -> None:
        """Fail the writes that wait to become safe. On the engine thread, or on any once it has
        ended."""
        self._durable.refuse(error)

    def _enqueue(self, command: _Command) -> Future[Any]:
        waiting = self._commands.qsize()
        if waiting >= self._limits.command_queue_max:
            raise LimitExceededError(
                "engine command queue",
                actual=waiting + 1,
                maximum=self._limits.command_queue_max,
                unit="commands",
            )
        if self._thread is None:
            self._start()
        if self._is_stopping:
            raise TransportError("the server has stopped")
        assert command.future is not None
        self._commands.put(command)
        return command.future

    def _start(self) -> None:
        with self._start_lock:
            if self._thread is None and not self._is_stopping:
                self._thread = threading.Thread(
                    target=self._run, name="barrage-engine", daemon=True
                )
                self._thread.start()

    # --- called on the engine thread, from commands ---

    def producer(self, table: Table) -> Producer:
        """The producer of ``table``, made on first use."""
        producer = self._producers.get(table)
        if producer is None:
            producer = Producer(table, self._limits, step=table.changed_step)
            self._producers[table] = producer
        return producer

    def existing_producer(self, table: Table) -> Producer | None:
        """The producer of ``table`` if it has subscribers."""
        return self._producers.get(table)

    def producer_shrank(self, table: Table) -> None:
        """Drop the producer of ``table`` if nobody subscribes any more."""
        producer = self._producers.get(table)
        if producer is not None and producer.subscription_count == 0:
            del self._producers[table]

    def emit(self, items: Iterable[object]) -> None:
        """Hand ``items`` to the event loop at the end of this turn, before anything propagated in
        it."""
        self._items.extend(items)

    def flush(self) -> None:
        """Commit what is staged and propagate it now, for a server that is going away.

        Intervals are cut short by looking half a stall limit ahead, not more: that must not make
        slow readers of subscribers that have just been held.
        """
        if self._has_pending:
            self._cycle()
        self._propagate(self._clock.monotonic_ns() + self._limits.stall_ns_max // 2)
        self._hand_over()

    # --- the thread ---

    def _run(self) -> None:
        while True:
            # No name is kept for the command: its future may hold the last reference to a table.
            self._execute_waiting(self._wait())
            now_ns = self._clock.monotonic_ns()
            if self._has_pending and (now_ns >= self._rest_until_ns or self._is_stopping):
                self._cycle()
                now_ns = self._clock.monotonic_ns()
            if not self._loop_is_behind():
                self._propagate(now_ns)
            self._hand_over()
            if self._is_stopping and self._commands.empty():
                return

    def _wait(self) -> _Command | None:
        timeout_ns = self._timeout_ns()
        try:
            if timeout_ns is None:
                return self._commands.get()
            if timeout_ns <= 0:
                return self._commands.get_nowait()
            return self._commands.get(timeout=timeout_ns / 1e9)
        except queue.Empty:
            return None

    def _timeout_ns(self) -> int | None:
        """Time until there is something to do without a command; None is never."""
        due: list[int] = []
        if self._has_pending:
            due.append(self._rest_until_ns)
        if not self._loop_is_behind():
            due.extend(at for p in self._producers.values() if (at := p.next_due_ns()) is not None)
        return min(due) - self._clock.monotonic_ns() if due else None

    def _loop_is_behind(self) -> bool:
        """Whether the event loop has too many hand-overs to take. When it has, its next one wakes
        this thread: the flag is set before the count is read, and the loop counts before it reads
        the flag."""
        self._is_starved = True
        if self._handed_over - self._taken >= HANDOVERS_MAX:
            return True
        self._is_starved = False
        return False

    def _execute_waiting(self, command: _Command | None) -> None:
        for _ in range(self._commands.qsize() + 1):
            if command is not None:
                self._execute(command)
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
        if command is not None:
            self._execute(command)

    def _execute(self, command: _Command) -> None:
        self.stats.commands += 1
        future = command.future
        if future is not None and not future.set_running_or_notify_cancel():
            return
        if command.is_write and self._has_given_up:
            assert future is not None
            future.set_exception(TransportError("the server is stopping"))
            return
        try:
            result = command.run()
        except BaseException as error:
            if future is None:
                log.exception("a command of the engine thread failed")
            else:
                future.set_exception(error)
            return
        if command.is_write:
            assert future is not None
            self._uncommitted.append((future, result))
        elif future is not None:
            future.set_result(result)

    @property
    def _has_pending(self) -> bool:
        """Whether there is work for a cycle."""
        return self.graph.has_pending or self._recorder.has_pending

    def _cycle(self) -> None:
        started_ns = self._clock.monotonic_ns()
        try:
            result = self.graph.run_cycle()
        except Exception:
            # The graph promises to contain failures; if it ever breaks that, nobody may hang.
            self._rest_until_ns = started_ns + FAILED_CYCLE_REST_NS
            self._refuse_uncommitted(unexpected_failure(log, "a cycle failed"))
            return
        wall_ns = self._clock.wall_ns()
        self._recorder.record(result, wall_ns)
        for table, update in result.updates.items():
            producer = self._producers.get(table)
            if producer is not None:
                producer.record(update, wall_ns)
        for table, error in result.failed.items():
            self.fail_subscribers(table, error)
        ended_ns = self._clock.monotonic_ns()
        self._rest_until_ns = ended_ns + min(ended_ns - started_ns, self._rest_ns_max)
        self._count_cycle(ended_ns - started_ns)
        self._settle()

    def _refuse_uncommitted(self, error: BarrageError) -> None:
        refused, self._uncommitted = self._uncommitted, []
        for future, _ in refused:
            future.set_exception(error)

    def _count_cycle(self, took_ns: int) -> None:
        self.stats.cycles += 1
        self.stats.cycle_ns_total += took_ns
        self.stats.cycle_ns_recent.append(took_ns)

    def _settle(self) -> None:
        """Tell the writers whose changes the cycle committed, or let them wait until these are
        safe."""
        settled, self._uncommitted = self._uncommitted, []
        step = self.graph.step
        for future, (tables, value_at) in settled:
            failure = next((t.failure for t in tables if t.failure is not None), None)
            if failure is not None:
                future.set_exception(failure)
            else:
                self._durable.resolve(future, value_at(step), tables)

    def fail_subscribers(self, table: Table, error: BarrageError) -> None:
        """End every subscription of ``table``."""
        producer = self._producers.pop(table, None)
        if producer is not None and self._outlet is not None:
            for item in producer.fail(error):
                self._items.extend(self._outlet.convert(item))

    def _propagate(self, now_ns: int) -> None:
        outlet = self._outlet
        if outlet is None:
            return
        started_ns = self._clock.monotonic_ns()
        has_run = False
        for table, producer in list(self._producers.items()):
            due_ns = producer.next_due_ns()
            if due_ns is None or due_ns > now_ns:
                continue
            has_run = True
            try:
                propagated = producer.propagate(now_ns)
            except BarrageError as error:
                self.fail_subscribers(table, error)
                continue
            except Exception:
                failure = unexpected_failure(log, "propagation of a table failed")
                self.fail_subscribers(table, failure)
                continue
            for item in propagated:
                self._items.extend(outlet.convert(item))
                if len(self._items) >= HANDOVER_ITEMS:
                    self._pass_on()
            self.producer_shrank(table)
        if has_run:
            self.stats.propagations += 1
            self.stats.propagate_ns_total += self._clock.monotonic_ns() - started_ns

    def _hand_over(self) -> None:
        if not self._uncommitted_is_pending():
            self._settle()
        self._pass_on()

    def _pass_on(self) -> None:
        if not self._items or self._outlet is None:
            return
        items, self._items = self._items, []
        self._handed_over += 1
        self.stats.handovers += 1
        self._outlet.hand_over(items)

    def _uncommitted_is_pending(self) -> bool:
        """Whether writers still wait for a cycle; a write that changes nothing leaves nothing
        pending."""
        return not self._uncommitted or self._has_pending

    def _refuse_waiting(self) -> None:
        """Fail the commands nobody will run any more."""
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                return
            if command is not None and command.future is not None:
                _refuse(command.future, TransportError("the server has stopped"))


def _step_of(step: int) -> int:
    return step


def _refuse(future: Future[Any], error: BarrageError) -> None:
    """Fail a command that has not begun, unless whoever waited for it has gone."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
