"""All journals of a server: one queue, one writer, group commit.

:meth:`JournalStore.pump` does one round: number, encode, write and sync everything that waits, one
sync per touched file. It needs no thread, which is how the simulator runs it; :meth:`start` gives
it one. A round is due when ``group_bytes`` wait or the oldest change has waited ``group_ns``, and
at once when nothing was synced during the last ``group_ns``, so that an idle journal acknowledges
without delay.

A round takes cycles whole: what was handed over becomes due when the engine says that its cycle is
complete (:meth:`step_committed`). A cycle that changed several tables on disk counts once all their
files are synced and the commit says so (:mod:`.commits`).

A disk without room is no failure: what waits is written with the help of a reserve, then writes are
refused (:meth:`check_writable`) until there is room again. Any other error of the storage is final
until a restart: after a failed sync nobody knows what is on the disk. So is a directory that was
removed or replaced, and the death of a thread. Upkeep that fails is counted, logged, tried again.
A change that cannot be made a record fails its table and no other (:mod:`.rounds`).
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter, deque
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from barrage.clock import SystemClock
from barrage.errors import (
    MUST_RESTART,
    JournalCorruptError,
    JournalFailedError,
    JournalFullError,
    TableExistsError,
    TableNotFoundError,
)
from barrage.histogram import Histogram
from barrage.journal.disk.room import NO_ROOM, StorageRoom, full_error
from barrage.journal.files.file_history import FileHistory
from barrage.journal.files.opening import TABLES, open_directory
from barrage.journal.files.steps import Steps
from barrage.journal.records.identity import TableIdentity, TableRecord, directory_of
from barrage.journal.records.index import Index
from barrage.journal.records.options import DEFAULT_JOURNAL_OPTIONS, JournalOptions
from barrage.journal.records.table_state import TableState
from barrage.journal.stores.memory_history import MemoryHistory
from barrage.journal.stores.orders import Order, begin_files, carry_out, end_files, rewind_all
from barrage.journal.stores.rounds import built, write_all
from barrage.journal.stores.table_journal import TableJournal, Waiting
from barrage.journal.stores.upkeep import Upkeep
from barrage.supervision import Role, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from barrage.clock import Clock
    from barrage.journal.disk.storage import Storage
    from barrage.journal.files.commits import CommitLog
    from barrage.journal.files.opening import OnDamage, OnTable
    from barrage.journal.records.history import History

    T = TypeVar("T")

logger = logging.getLogger(__name__)

WRITER = Role("barrage-journal", "writes to durable tables; health")
KEEPER = Role("barrage-journal-upkeep", "writes to durable tables; health")

UPKEEP_SECONDS: Final = 1.0
"""How often checkpoints and retention are looked at, when little is written."""

RECORD_GROWTH: Final = 4
"""How many times as large as the rows written a record may be, with cells of before, ids, head."""

_ROOM_CHECK_NS: Final = 200_000_000
"""How often a full disk is looked at again."""


class JournalStore:
    """Creates, recovers, writes and drops the journals of a server."""

    def __init__(
        self,
        storage: Storage | None = None,
        options: JournalOptions = DEFAULT_JOURNAL_OPTIONS,
        *,
        clock: Clock | None = None,
        on_synced: Callable[[int], None] | None = None,
        new_epoch: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._storage = storage
        self._options = options
        self._clock = clock or SystemClock()
        self._on_synced = on_synced
        self._new_epoch = new_epoch
        self._journals: dict[str, TableJournal] = {}
        self._steps = Steps(first_step=0, reserved=2**62, is_clean=True)
        self._committed_step = 0
        self._frontier = 0
        self._last_ticket = 0
        self._synced_ticket = 0
        self._cycle: list[Waiting] = []
        """What was handed over of cycles that are not complete yet. The engine's thread only."""
        self._waiting: deque[Waiting] = deque()
        self._orders: deque[Order] = deque()
        self.measured_bytes = 0
        """Room on the disk as it was measured last."""
        self._waiting_bytes = 0
        self._joint_steps: set[int] = set()
        """Cycles among those waiting that changed several tables on disk."""
        self._commits: CommitLog | None = None
        self._synced_at_ns: int | None = None
        self._failure: JournalFailedError | None = None
        self._room = None if storage is None else StorageRoom(storage, options.reserve_bytes)
        self._room_check_ns = 0
        self._wake = threading.Condition()
        self._pump_lock = threading.Lock()
        self._keeping = Upkeep(self._clock)
        self.write_times = Histogram()
        self._on_failure: list[Callable[[JournalFailedError], object]] = []
        self._damaged: set[str] = set()
        self._threads: list[threading.Thread] = []
        self._upkeep_wake = threading.Event()
        self._upkeep_bytes = 0
        self._is_closing = False
        self._is_open = storage is None

    # --- opening and closing ----------------------------------------------------------------------

    def open_all(
        self,
        *,
        on_damage: OnDamage | None = None,
        on_table: OnTable | None = None,
    ) -> list[TableJournal]:
        """Lock the directory and read every table back. ConfigError when another process has the
        directory, JournalCorruptError when something acknowledged is not as it was written; with
        ``on_damage`` that is told of the table, whose files are left as they are, and the others
        are opened. ``on_table`` is told before each table is read: its name, how many have been,
        and how many there are."""
        storage = self._storage
        if storage is None or self._is_open:
            return list(self._journals.values())
        storage.lock()
        try:
            self._open(storage, on_damage, on_table)
        except BaseException:
            storage.unlock()
            raise
        return list(self._journals.values())

    def _open(
        self,
        storage: Storage,
        on_damage: OnDamage | None,
        on_table: OnTable | None,
    ) -> None:
        assert self._room is not None
        opened = open_directory(
            storage, self._options, self._room, on_damage=on_damage, on_table=on_table
        )
        self._steps, self._commits = opened.steps, opened.commits
        self._damaged = opened.damaged
        self._committed_step = self._frontier = self._steps.first_step
        for table in opened.tables:
            history = table.history(storage, self._options, first_step=self.first_step)
            self.add(table.record.identity, table.record.epoch, history, state=table.state)
        self._is_open = True
        self._look_for_room()

    def start(self) -> None:
        """Pump, and look after checkpoints and retention, in two threads of our own."""
        if self._threads:
            return
        self.open_all()
        self._measure()
        for role, work in ((WRITER, self._run), (KEEPER, self._upkeep)):
            self._threads.append(start_thread(role, work, on_death=self._fail))

    def on_failure(self, listener: Callable[[JournalFailedError], object]) -> None:
        """Call ``listener`` when the store fails for good, on the thread that finds it; now, when
        it has. It must not block nor raise."""
        with self._wake:
            self._on_failure.append(listener)
            failure = self._failure
        if failure is not None:
            listener(failure)

    def close(self) -> None:
        """Write and sync every whole cycle that waits, then release files and the directory."""
        with self._wake:
            if self._is_closing:
                return
            self._is_closing = True
            self._wake.notify_all()
        self._upkeep_wake.set()
        for thread in self._threads:
            thread.join()
        with self._pump_lock:
            if self._failure is None:
                self._contained(lambda: self._round(self._clock.monotonic_ns()))
            for journal in self._journals.values():
                self._contained(journal.history.close)
            if self._storage is not None and self._is_open:
                if self._failure is None and not self._is_full:
                    self._steps.end_cleanly(self._storage, self._committed_step)
                self._storage.unlock()

    # --- tables -----------------------------------------------------------------------------------

    @property
    def journals(self) -> Mapping[str, TableJournal]:
        """Journals by table name."""
        return MappingProxyType(self._journals)

    def create(self, identity: TableIdentity, *, step: int | None = None) -> TableJournal:
        """Begin the history of a table without rows; ``step`` is the graph's of now.

        TableExistsError; JournalFullError and JournalFailedError as :meth:`check_writable`;
        ValueError for a durable table in a store without storage.
        """
        if identity.name in self._journals:
            raise TableExistsError(identity.name)
        record = TableRecord(
            identity=identity,
            epoch=self._new_epoch(),
            created_step=self._committed_step if step is None else step,
            created_wall_ns=self._clock.wall_ns(),
        )
        state = TableState.nothing(
            identity.entry_schema, version=record.created_step, wall_ns=record.created_wall_ns
        )
        if identity.journal_class == "memory":
            history: History = MemoryHistory(identity.name, state, self._options)
            return self.add(identity, record.epoch, history, state=state)
        if self._storage is None:
            raise ValueError("durable tables need a storage")
        self.open_all()
        self.check_writable()
        directory = f"{TABLES}/{directory_of(identity.name)}"
        if directory in self._damaged:
            raise JournalCorruptError(
                directory, offset=0, reason="its files are kept as they are; move them away first"
            )
        history = FileHistory(
            self._storage,
            directory,
            record,
            options=self._options,
            first_step=self.first_step,
            index=Index(),
            checkpoints=[],
            end=None,
        )
        journal = self.add(identity, record.epoch, history, state=state)
        try:
            begin = partial(begin_files, self._storage, directory, record)
            journal.created_ticket = self._order(begin, journal)
        except OSError as error:
            del self._journals[identity.name]
            if error.errno in NO_ROOM:
                raise self._no_room() from error
            raise JournalFailedError(f"table {identity.name!r}: {error}") from error
        return journal

    def _order(self, work: Callable[[], None], journal: TableJournal | None = None) -> int:
        """Have the files of a table begun or removed before anything handed over from now on is
        written; the ticket with which that is done. Without threads it is done now, and raises."""
        if not self._threads:
            with self._pump_lock:
                work()
            return 0
        with self._wake:
            self._last_ticket += 1
            if self._failure is None:
                self._orders.append(Order(self._last_ticket, work, journal))
                self._wake.notify_all()
            return self._last_ticket

    def add(
        self,
        identity: TableIdentity,
        epoch: str,
        history: History,
        *,
        state: TableState,
        has_own_steps: bool = False,
    ) -> TableJournal:
        """Keep a history that exists; ``has_own_steps``: of another server, in its versions."""
        journal = TableJournal(
            identity,
            epoch,
            history,
            state=state,
            options=self._options,
            gaps=lambda: self._steps.gaps,
            queue=self._enqueue,
            wall_ns=self._clock.wall_ns,
            committed_step=lambda: self._committed_step,
            has_failed=lambda: self._failure is not None,
            has_own_steps=has_own_steps,
        )
        self._journals[identity.name] = journal
        return journal

    def drop(self, name: str) -> int:
        """End a history and remove its files; the ticket with which they are gone, or 0.
        TableNotFoundError."""
        journal = self._journals.get(name)
        if journal is None:
            raise TableNotFoundError(name, known=self._journals)
        del self._journals[name]
        journal.is_dropped = True
        directory = f"{TABLES}/{directory_of(name)}"
        ticket = self._order(partial(end_files, self._storage, directory, journal))
        return ticket if journal.is_durable else 0

    # --- the engine's side ------------------------------------------------------------------------

    @property
    def first_step(self) -> int:
        """The step the graph continues after."""
        return self._steps.first_step

    @property
    def last_ticket(self) -> int:
        """Ticket of the change handed over last."""
        return self._last_ticket

    @property
    def synced_ticket(self) -> int:
        """All changes with tickets up to this one are acknowledged."""
        return self._synced_ticket

    @property
    def waiting_bytes(self) -> int:
        """Bytes handed over and not yet written."""
        return self._waiting_bytes

    def _enqueue(self, journal: TableJournal, step: int, size: int) -> int:
        self._last_ticket += 1
        now_ns = self._clock.monotonic_ns()
        self._cycle.append(Waiting(self._last_ticket, journal, step, size, now_ns))
        return self._last_ticket if journal.is_durable else 0

    def step_committed(self, step: int) -> None:
        """The engine has handed over every change of the cycles up to ``step``: they are written in
        the next round, each whole or not at all."""
        cycle = [item for item in self._cycle if item.step <= step]
        self._cycle = [item for item in self._cycle if item.step > step]
        durable = Counter(item.step for item in cycle if item.journal.is_durable)
        with self._wake:
            if self._failure is not None:
                # Whoever waits for these finds the failure; nobody would write them.
                return
            self._committed_step = step
            if self._lacks_steps:
                self._wake.notify_all()
            if not cycle:
                return
            self._joint_steps.update(each for each, count in durable.items() if count > 1)
            was_idle = not self._waiting
            was_short = self._waiting_bytes < self._options.group_bytes
            self._waiting.extend(cycle)
            self._waiting_bytes += sum(item.size for item in cycle)
            if was_idle or (was_short and self._waiting_bytes >= self._options.group_bytes):
                self._wake.notify_all()

    def check_writable(self, byte_count: int = 0) -> None:
        """Raise JournalFullError or JournalFailedError when durable tables take no writes, or none
        of so many bytes of rows beside what waits already: what has been taken must fit."""
        if self._failure is not None:
            raise JournalFailedError(str(self._failure)) from self._failure
        if self._is_full or self._committed_step >= self._steps.reserved:
            raise self._full_error()
        if byte_count and self._storage is not None:
            room = self._free_bytes() + self._options.reserve_bytes // 2
            if self._waiting_bytes + RECORD_GROWTH * byte_count > room:
                raise self._full_error()

    @property
    def _is_full(self) -> bool:
        return self._room is not None and self._room.is_full

    def _free_bytes(self) -> int:
        """Room as it was measured last: whoever asks must not wait for a disk."""
        return self.measured_bytes if self._threads else self._measure()

    def _measure(self) -> int:
        if self._storage is not None:
            self.measured_bytes = self._storage.free_bytes()
        return self.measured_bytes

    def _no_room(self) -> JournalFullError:
        """The writer looks for room again and again from now on."""
        if self._room is not None:
            with self._wake:
                self._room.is_full = True
                self._wake.notify_all()
        return self._full_error()

    def _look_for_room(self) -> None:
        if self._room is not None:
            self._room.look()

    def _full_error(self) -> JournalFullError:
        return full_error("the disk" if self._storage is None else self._storage.name)

    # --- the writer -------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closing:
            due_ns = self.pump(self._clock.monotonic_ns())
            with self._wake:
                if self._is_closing or self._failure is not None:
                    return
                if due_ns is None:
                    if not self._waiting and not self._orders and not self._lacks_steps:
                        self._wake.wait()
                elif not self._orders:
                    wait_ns = due_ns - self._clock.monotonic_ns()
                    if wait_ns > 0 and self._waiting_bytes < self._options.group_bytes:
                        self._wake.wait(wait_ns / 1e9)

    def pump(self, now_ns: int) -> int | None:
        """Do one round if it is due; answers when the next one is, None when nothing waits."""
        with self._pump_lock:
            due_ns = (
                None if self._failure is not None else self._contained(lambda: self._pump(now_ns))
            )
        if not self._threads:
            self.maintain()
        return due_ns

    def _pump(self, now_ns: int) -> int | None:
        due_ns = self._due_ns()
        if self._is_full and now_ns >= self._room_check_ns:
            self._room_check_ns = now_ns + _ROOM_CHECK_NS
            self._look_for_room()
        if due_ns is not None and due_ns <= now_ns:
            self._round(now_ns)
            due_ns = self._due_ns()
        self._reserve_steps()
        if self._is_full and self._failure is None:
            return self._room_check_ns if due_ns is None else min(due_ns, self._room_check_ns)
        return due_ns

    def _contained(self, work: Callable[[], T]) -> T | None:
        """Do ``work``; whatever it raises fails the store, and the answer is None."""
        try:
            return work()
        except Exception as error:
            self._fail(error)
            return None

    def _due_ns(self) -> int | None:
        with self._wake:
            if self._failure is not None:
                return None
            if self._orders:
                return 0
            if not self._waiting:
                return None
            if self._waiting_bytes >= self._options.group_bytes or self._synced_at_ns is None:
                return 0
            oldest_ns = self._waiting[0].handed_ns
            return min(oldest_ns, self._synced_at_ns) + self._options.group_ns

    def _round(self, now_ns: int) -> None:
        """Write and sync everything that waits."""
        with self._wake:
            committed_step = self._committed_step
            items = list(self._waiting)
            self._waiting.clear()
            joint_steps, self._joint_steps = self._joint_steps, set()
            size = sum(item.size for item in items)
            orders = list(self._orders)
            self._orders.clear()
        self._check_place()
        if orders:
            try:
                carry_out(orders, self._no_room)
            except Exception as error:
                self._fail(error)
                return
        if items:
            begun_ns = self._clock.monotonic_ns()
            try:
                living = self._write(items, committed_step, joint_steps)
            except Exception as error:
                self._fail(error)
                return
            with self._wake:
                self._waiting_bytes -= size
            self._upkeep_bytes += size
            if self._upkeep_bytes >= self._options.upkeep_bytes:
                self._upkeep_wake.set()
            self._synced_at_ns = now_ns
            self.write_times.observe(self._clock.monotonic_ns() - begun_ns)
            self._keeping.touch(living)
        done = [each[-1].ticket for each in (items, orders) if each]
        self._synced_ticket = max([self._synced_ticket, *done])
        self._frontier = committed_step
        if self._room is not None and self._is_open:
            self._room.is_full |= self._measure() < self._options.reserve_bytes
        if (items or orders) and self._on_synced is not None:
            self._on_synced(self._synced_ticket)

    def _write(self, items: list[Waiting], step: int, joint_steps: set[int]) -> list[TableJournal]:
        """Have it on the disk, and say so. The tables that were written to."""
        work = built(items, step, joint_steps)
        living = [journal for journal, _ in work]
        write = partial(write_all, work, self._frontier, joint_steps)
        if self._room is None:
            write()
        else:
            self._room.with_reserve(write, before_again=lambda: rewind_all(living))
        for journal, entries in work:
            if entries:
                journal.history.sync()
        self._check_place()
        if joint_steps and self._commits is not None:
            self._commits.commit(step)
        for journal, entries in work:
            if entries:
                journal.publish(entries[-1].step)
        return living

    def _check_place(self) -> None:
        """OSError when the files that are written are not those of the data directory any more."""
        if self._storage is not None and self._is_open:
            self._storage.check_place()

    def _fail(self, error: Exception) -> None:
        """Nothing more is acknowledged: whoever waits is told. The first reason counts."""
        with self._wake:
            if self._failure is not None:
                return
            self._failure = failure = JournalFailedError(
                f"the journal could not be written, {MUST_RESTART}, nothing is acknowledged until "
                f"a restart: {error or type(error).__name__}"
            )
            self._waiting.clear()
            self._orders.clear()
            self._waiting_bytes = 0
            listeners = list(self._on_failure)
            self._wake.notify_all()
        logger.error("journal failed: %s", error, exc_info=error)
        if self._on_synced is not None:
            # Who waits for more than this must be told that it will not come.
            self._on_synced(self._synced_ticket)
        for listener in listeners:
            listener(failure)

    @property
    def _lacks_steps(self) -> bool:
        """Whether step numbers are to be set aside: for cycles that change nothing on disk as well,
        since the next one that does is seen before it is written."""
        if self._is_full or self._failure is not None:
            return False
        return self._steps.are_short(self._committed_step, self._options.reserved_steps)

    def _reserve_steps(self) -> None:
        if self._lacks_steps and self._storage is not None and self._room is not None:
            upto = self._committed_step + self._options.reserved_steps
            self._steps = self._steps.set_aside(self._storage, self._room, upto)

    # --- upkeep -----------------------------------------------------------------------------------

    def _upkeep(self) -> None:
        while not self._is_closing:
            self._upkeep_wake.wait(UPKEEP_SECONDS)
            self._upkeep_wake.clear()
            self._contained(self._check_place)
            if self._failure is None:
                self._measure()
                self.maintain()

    def maintain(self) -> None:
        """Make the checkpoints that are due and forget what may be forgotten."""
        self._upkeep_bytes = 0
        if self._failure is None:
            self._keeping.run()

    def upkeep_trouble(self, journal: TableJournal) -> tuple[int, str | None]:
        """How often in a row upkeep of a table has failed, and of what the last time."""
        return self._keeping.trouble(journal)
