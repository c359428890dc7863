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

Should the thread die, everything that was asked of it fails with the WorkerDiedError that later
callers get too, and who listens (:meth:`EngineRuntime.on_death`) ends the subscriptions.

Threads: ``submit``, ``write`` and ``post`` may be called from anywhere; everything else runs on the
engine thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from barrage.engine import UpdateGraph
from barrage.engine.changelog.making import Making, MakingRoom, ViewDelivery
from barrage.engine.propagation.held_bytes import HeldBytes
from barrage.engine.propagation.producer import Producer
from barrage.errors import BarrageError, EngineDiedError, TransportError
from barrage.limits import NANOS_PER_MS
from barrage.server.runtime.command_queue import STOPPED, Command, CommandOutcome, CommandQueue
from barrage.server.runtime.durable_writes import DurableWrites, NoRecorder
from barrage.server.runtime.failure import unexpected_failure
from barrage.server.runtime.measures import Measures, RuntimeStats
from barrage.server.runtime.message_worker import MessageWorker
from barrage.server.runtime.observation import Observation
from barrage.server.runtime.watchdog import NoWatch
from barrage.supervision import Role, contained, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from barrage.clock import Clock
    from barrage.engine import Table
    from barrage.engine.changelog.making import Delivery, Disconnect, ViewAnswered
    from barrage.errors import WorkerDiedError
    from barrage.limits import Limits
    from barrage.model.update import TableUpdate
    from barrage.server.runtime.durable_writes import Recorder
    from barrage.server.runtime.watchdog import Watch

T = TypeVar("T")

log = logging.getLogger(__name__)

ENGINE = Role("barrage-engine", "every command, write and subscription; health")

HANDOVERS_MAX = 2
"""Hand-overs the event loop may have outstanding before the engine stops propagating."""

HANDOVER_ITEMS = 256
"""Items passed on at once while more are being encoded, so that the loop can start writing."""

HANDOVER_VIEWS = 2048
"""The same of views that are told together: the loop writes to them within some 10 ms."""

COMMANDS_NS_MAX = 10 * NANOS_PER_MS
"""Time of commands, but for writes, after which a turn begins no further one: thousands of
subscribers that come together are let in between updates to those that are there."""

Staged: TypeAlias = "tuple[tuple[Table, ...], Callable[[int], Any]]"
"""The tables a write changed, and what its future gets, made of the step that committed it."""

FAILED_CYCLE_REST_NS = 1000 * NANOS_PER_MS
"""Pause after a cycle that raised instead of failing its tables."""


class EngineOutlet(Protocol):
    """Where the engine thread puts what is for the event loop."""

    def convert(
        self, item: Delivery | ViewDelivery | ViewAnswered | Disconnect
    ) -> Iterable[object]:
        """Make hand-over items of what a producer said; on the engine thread, or for what is made
        beside it on another one. Never raises."""
        ...

    def hand_over(self, items: Sequence[object]) -> None:
        """Give items to the event loop, in order. Each is followed by one ``handover_taken``."""
        ...


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
        watch: Watch | None = None,
    ) -> None:
        self.graph = UpdateGraph(limits) if graph is None else graph
        self.stats = RuntimeStats()
        self.measures = Measures()
        self.observation = Observation()
        self._limits = limits
        self._watch = NoWatch() if watch is None else watch
        self._clock = clock
        self._rest_ns_max = rest_ns_max
        self._producers: dict[Table, Producer] = {}
        self._held = HeldBytes(limits, self.stats.held)
        self._room = MakingRoom(limits)
        self._makings = MessageWorker(self.post, self._deliver_made)
        self._commands = CommandQueue(limits.command_queue_max)
        self._outlet: EngineOutlet | None = None
        self._items: list[object] = []
        self._recorder: Recorder = NoRecorder() if recorder is None else recorder
        self.turn = 0
        """Counts the turns of the engine thread."""
        self._uncommitted: deque[tuple[Future[Any], Staged]] = deque()
        self._durable = DurableWrites(self._recorder, self._clock, self.measures.engine.commits)
        self._rest_until_ns = 0
        self._handed_over = 0
        self._taken = 0
        self._is_starved = False
        self._has_given_up = False
        self._thread: threading.Thread | None = None
        self._life_lock = threading.Lock()
        self._death: WorkerDiedError | None = None
        self._on_death: list[Callable[[WorkerDiedError], object]] = []

    # --- called from any thread ---

    @property
    def commands_waiting(self) -> int:
        """Commands that have not begun."""
        return len(self._commands)

    def submit(self, run: Callable[[], Any]) -> Future[Any]:
        """Run ``run`` between cycles; the future gets its result. LimitExceededError when the queue
        is full."""
        return self._enqueue(Command(run, Future()))

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
        observer = self.observation.observer
        seen_as = None if observer is None else observer.write_begins()
        command = Command(stage, Future(), outcome=CommandOutcome.COMMITTED, seen_as=seen_as)
        return self._enqueue(command)

    def submit_kept(self, run: Callable[[], tuple[int, T]]) -> Future[T]:
        """Run ``run``, which answers with a ticket of the recorder and a value; the future gets the
        value when recording is safe up to that ticket."""
        return self._enqueue(Command(run, Future(), outcome=CommandOutcome.KEPT))

    def post(
        self,
        run: Callable[[], None],
        on_failure: Callable[[BarrageError], object] | None = None,
    ) -> None:
        """Run ``run`` between cycles and tell nobody, unless it fails: then ``on_failure``. Not
        bounded: for bookkeeping that must not be refused."""
        self._commands.put(Command(run, None, on_failure=on_failure))

    def post_latest(self, key: Hashable, run: Callable[[], None]) -> None:
        """Like :meth:`post`, in place of what was posted under ``key`` before and still waits."""
        self._commands.put(Command(run, None, key=key))

    def handover_taken(self) -> None:
        """The event loop has taken one hand-over."""
        self._taken += 1
        if self._is_starved:
            self._commands.wake()

    def give_up_waiting(self) -> None:
        """Fail the commands somebody waits for and that have not begun: the server stops and has no
        more time. Bookkeeping is still done, since it frees tables. From here on no write begins:
        one must not be applied after one before it was given up."""
        self._has_given_up = True
        _refuse_all(self._commands.take_awaited(), TransportError("the server is stopping"))

    def attach(self, outlet: EngineOutlet | None) -> None:
        """Set where hand-overs go; before the first subscription, or None after the last."""
        self._outlet = outlet

    def on_death(self, listener: Callable[[WorkerDiedError], object]) -> None:
        """Call ``listener`` on the engine thread should it die; now, when it has."""
        with self._life_lock:
            self._on_death.append(listener)
            death = self._death
        if death is not None:
            listener(death)

    def stop(self) -> None:
        """End the thread after the commands already queued; waits for it. Idempotent."""
        self._commands.begin_end()
        with self._life_lock:
            thread = self._thread
        if thread is threading.current_thread():
            return
        if thread is not None:
            thread.join()
        _refuse_all(self._commands.end(TransportError(STOPPED)), TransportError(STOPPED))
        self._makings.close()

    def settle_durable(self) -> None:
        """Tell the writers whose changes have become safe. On the engine thread, or on any once it
        has ended."""
        self._durable.settle()

    def refuse_undurable(self, error: BarrageError) -> None:
        """Fail the writes that wait to become safe. On the engine thread, or on any once it has
        ended."""
        self._durable.refuse(error)

    def _enqueue(self, command: Command) -> Future[Any]:
        if self._thread is None:
            self._start()
        assert command.future is not None
        self._commands.put(command)
        return command.future

    def _start(self) -> None:
        with self._life_lock:
            if self._thread is None and not self._commands.is_ending:
                self._thread = start_thread(ENGINE, self._run, on_death=self._died)

    def _died(self, reason: WorkerDiedError) -> None:
        """On the engine thread, when nothing else runs on it any more."""
        error = EngineDiedError(reason)
        _refuse_all(self._commands.end(error), error)
        self._refuse_uncommitted(error)
        self._durable.refuse(error)
        with self._life_lock:
            self._death = error
            listeners = list(self._on_death)
        for listener in listeners:
            listener(error)

    # --- called on the engine thread, from commands ---

    def producer(self, table: Table) -> Producer:
        """The producer of ``table``, made on first use."""
        producer = self._producers.get(table)
        if producer is None:
            producer = Producer(
                table,
                self._limits,
                step=table.changed_step,
                held=self._held,
                room=self._room,
            )
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

    def flush(self) -> Future[None] | None:
        """Commit what is staged and propagate it now, for a server that is going away. When a
        future is returned, something is still being made beside: flush again when that resolves.

        Intervals are cut short by looking half a stall limit ahead, not more: that must not make
        slow readers of subscribers that have just been held.
        """
        if self._has_pending:
            self._cycle()
        self._propagate(self._clock.monotonic_ns() + self._limits.stall_ns_max // 2)
        # Readers that stand far apart are brought to the present one after the other.
        while self._outlet is not None and self._is_due(self._clock.monotonic_ns()):
            self._propagate(self._clock.monotonic_ns())
        self._hand_over()
        return self._makings.next_one()

    # --- the thread ---

    def _run(self) -> None:
        while True:
            self.turn += 1
            self._commands.wait(self._timeout_ns())
            self._execute_waiting()
            self.graph.weigh_due()
            now_ns = self._clock.monotonic_ns()
            if self._is_cycle_due(now_ns):
                self._watch.begin("a cycle")
                self._cycle()
                self._watch.end()
                now_ns = self._clock.monotonic_ns()
            if not self._loop_is_behind():
                self._watch.begin("a propagation")
                self._propagate(now_ns)
                self._watch.end()
            self._hand_over()
            if self._commands.end_if_empty(TransportError(STOPPED)):
                return

    def _timeout_ns(self) -> int | None:
        """Time until there is something to do without a command; None is never."""
        due: list[int] = []
        is_behind = self._loop_is_behind()
        if self._has_pending and not (is_behind and self._tells_each_step):
            due.append(self._rest_until_ns)
        if not is_behind:
            due.extend(at for p in self._producers.values() if (at := p.next_due_ns()) is not None)
        return min(due) - self._clock.monotonic_ns() if due else None

    def _is_cycle_due(self, now_ns: int) -> bool:
        if not self._has_pending or self._commands.is_ending:
            return self._has_pending
        if now_ns < self._rest_until_ns:
            return False
        # What is not propagated before the next cycle is told together with it.
        return not (self._loop_is_behind() and self._tells_each_step)

    @property
    def _tells_each_step(self) -> bool:
        return any(producer.tells_each_step for producer in self._producers.values())

    def _loop_is_behind(self) -> bool:
        """Whether the event loop has too many hand-overs to take. When it has, its next one wakes
        this thread: the flag is set before the count is read, and the loop counts before it reads
        the flag."""
        self._is_starved = True
        if self._handed_over - self._taken >= HANDOVERS_MAX:
            return True
        self._is_starved = False
        return False

    def _execute_waiting(self) -> None:
        """Run a command, then as many as wait when it is done: writes all, to share a cycle, others
        for as long as those who are told of changes can wait."""
        spent_ns = self._execute()
        for _ in range(len(self._commands)):
            if spent_ns > COMMANDS_NS_MAX:
                break
            spent_ns += self._execute()

    def _execute(self) -> int:
        """Run a command. The nanoseconds that took; none for a write."""
        # No name is kept for the command: its future may hold the last reference to a table.
        command = self._commands.take()
        if command is None:
            return 0
        started_ns = self._clock.monotonic_ns()
        self.stats.commands += 1
        self._watch.begin(command.run)
        self._run_command(command)
        self._watch.end()
        self._commands.finished()
        is_write = command.outcome is CommandOutcome.COMMITTED
        return 0 if is_write else self._clock.monotonic_ns() - started_ns

    def _run_command(self, command: Command) -> None:
        future = command.future
        if future is not None and not future.set_running_or_notify_cancel():
            return
        if command.outcome is not CommandOutcome.DONE and self._has_given_up:
            assert future is not None
            future.set_exception(TransportError("the server is stopping"))
            return
        try:
            result = contained(command.run)
        except Exception as error:
            if future is None:
                self._failed(command)
            else:
                future.set_exception(error)
            return
        if future is None:
            return
        if command.outcome is CommandOutcome.COMMITTED:
            self._uncommitted.append((future, result))
            if command.seen_as is not None:
                self.observation.writes.append(command.seen_as)
        elif command.outcome is CommandOutcome.KEPT:
            ticket, value = result
            self._durable.resolve_at(future, value, ticket)
        else:
            future.set_result(result)

    def _failed(self, command: Command) -> None:
        """A command nobody waits for has raised: bookkeeping, without which something would wait
        for ever."""
        failure = unexpected_failure(log, "a command of the engine thread failed")
        if command.on_failure is not None:
            command.on_failure(failure)

    @property
    def clock(self) -> Clock:
        """What the engine thread reads the time from."""
        return self._clock

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
                self._tell(producer, table, update, wall_ns=wall_ns)
        for table, error in result.failed.items():
            self.fail_subscribers(table, error)
        ended_ns = self._clock.monotonic_ns()
        self._durable.committed_ns = ended_ns
        self._rest_until_ns = ended_ns + min(ended_ns - started_ns, self._rest_ns_max)
        self.stats.cycle_ended(ended_ns - started_ns)
        self.measures.engine.cycle_ended(result, ended_ns - started_ns)
        self.observation.cycle_ended(
            result, self.graph.step, begun_ns=started_ns, ended_ns=ended_ns, wall_ns=wall_ns
        )
        self._settle()

    def _tell(self, producer: Producer, table: Table, update: TableUpdate, *, wall_ns: int) -> None:
        """Have a producer take note of a change. One that cannot ends its subscriptions."""
        try:
            producer.record(update, wall_ns)
        except Exception:
            failure = unexpected_failure(log, "a change could not be kept for its subscribers")
            self.fail_subscribers(table, failure)

    def _refuse_uncommitted(self, error: BarrageError) -> None:
        refused, self._uncommitted = self._uncommitted, deque()
        _refuse_all((future for future, _ in refused), error)

    def _settle(self) -> None:
        """Tell the writers whose changes the cycle committed, or let them wait until these are
        safe."""
        step = self.graph.step
        while self._uncommitted:
            future, (tables, value_at) = self._uncommitted[0]
            failure = next((t.failure for t in tables if t.failure is not None), None)
            try:
                if failure is None:
                    self._durable.resolve(future, value_at(step), tables)
            except Exception:
                failure = unexpected_failure(log, "what a write did could not be told")
            if failure is not None:
                _refuse_all([future], failure)
            self._uncommitted.popleft()
            # A future may hold the last reference to a table.
            del future, tables, value_at

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
        self._room.begin_turn()
        has_run = False
        for table, producer in list(self._producers.items()):
            due_ns = producer.next_due_ns()
            if due_ns is None or due_ns > now_ns:
                continue
            has_run = True
            begun_ns = self._clock.monotonic_ns()
            try:
                propagated = producer.propagate(now_ns)
            except BarrageError as error:
                self.fail_subscribers(table, error)
                continue
            except Exception:
                failure = unexpected_failure(log, "propagation of a table failed")
                self.fail_subscribers(table, failure)
                continue
            self._observe_propagation(table, begun_ns)
            for item in propagated:
                if isinstance(item, Making):
                    self._makings.put(producer, item, outlet.convert)
                    continue
                if isinstance(item, ViewDelivery):
                    for portion in item.portions(HANDOVER_VIEWS):
                        self._pass_on()
                        self._items.extend(outlet.convert(portion))
                    continue
                self._items.extend(outlet.convert(item))
                if len(self._items) >= HANDOVER_ITEMS:
                    self._pass_on()
            self.producer_shrank(table)
        if has_run:
            self.stats.propagations += 1
            self.stats.propagate_ns_total += self._clock.monotonic_ns() - started_ns

    def _observe_propagation(self, table: Table, begun_ns: int) -> None:
        ended_ns = self._clock.monotonic_ns()
        self.measures.engine.propagated(table, ended_ns - begun_ns)
        if self.observation.observer is not None:
            self.observation.observer.propagated(table, begun_ns, ended_ns)

    def _is_due(self, now_ns: int) -> bool:
        due = (producer.next_due_ns() for producer in self._producers.values())
        return any(at is not None and at <= now_ns for at in due)

    def _deliver_made(  # noqa: PLR0917  (a callback)
        self,
        producer: Producer,
        making: Making,
        items: Sequence[object],
        error: BarrageError | None,
    ) -> None:
        """Something has been made beside, or could not be."""
        outlet, ended = self._outlet, producer.made(making, error)
        if outlet is not None:
            self._items.extend(items)
            for item in ended:
                self._items.extend(outlet.convert(item))

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


def _step_of(step: int) -> int:
    return step


def _refuse_all(futures: Iterable[Future[Any]], error: BarrageError) -> None:
    """Fail what will not be done, unless whoever waited for it has gone."""
    for future in futures:
        if not future.done():
            with contextlib.suppress(InvalidStateError):
                future.set_exception(error)
