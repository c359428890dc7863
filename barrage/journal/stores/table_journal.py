"""The journal of one table: what happened to it, cycle by cycle, and its rows at any version still
reached.

Three threads meet here. The engine's thread hands over changes (:meth:`TableJournal.append`): that
queues them and nothing else. The store's writer turns them into entries (numbering rows), writes
and syncs them. Readers on any thread get entries and states; what is not written yet they get from
memory, numbering it themselves when the writer has not come to it. The lock is held for work on
lists and for numbering, never for IO.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from barrage.errors import (
    HistoryLostError,
    JournalError,
    LimitExceededError,
    RecordRefusedError,
)
from barrage.journal.records.index import EntryIndex, IndexRow, entry_index
from barrage.journal.records.numbering import (
    ByteEstimate,
    EntryBuilder,
    IdTracker,
    PendingChange,
    history_row_count,
)
from barrage.journal.records.table_state import TableState, moved_positions, replayed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy.typing as npt

    from barrage.journal.files.steps import StepGap
    from barrage.journal.records.history import History
    from barrage.journal.records.identity import TableIdentity
    from barrage.journal.records.options import JournalOptions
    from barrage.journal.records.record import Entry
    from barrage.model.row_ids import RowIdMap
    from barrage.model.table_change import TableChange


logger = logging.getLogger(__name__)

NEVER_SYNCED: Final = 2**63 - 1
"""The ticket of a change that came after the journal failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Latest:
    """Facts as of the newest change handed over; replaced as a whole, so readers never see half."""

    version: int
    row_count: int
    next_offset: int
    positions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Hold:
    version: int
    lease_until_ns: int


class Waiting(NamedTuple):
    """A change that was handed over and is not written yet."""

    ticket: int
    journal: TableJournal
    step: int
    size: int
    handed_ns: int


@dataclass(slots=True, eq=False)
class Tail:
    """What comes after a version, in memory also when it is on the disk. The journal's, which reads
    it to who holds it: :meth:`TableJournal.tail`."""

    after: int
    bytes_max: int
    byte_count: int = 0
    entries: list[Entry] = field(default_factory=list)

    @property
    def is_torn(self) -> bool:
        """Whether there was more than it may hold."""
        return self.byte_count > self.bytes_max

    def note(self, entry: Entry) -> None:
        """The next entry of the journal."""
        if entry.step > self.after:
            self.byte_count += entry.rows.nbytes
            self.entries.append(entry)
            if self.is_torn:
                self.entries.clear()


class TableJournal:
    """History of one table. Made by :class:`~barrage.journal.stores.store.JournalStore` only."""

    def __init__(
        self,
        identity: TableIdentity,
        epoch: str,
        history: History,
        *,
        state: TableState,
        options: JournalOptions,
        gaps: Callable[[], tuple[StepGap, ...]],
        queue: Callable[[TableJournal, int, int], int],
        wall_ns: Callable[[], int],
        committed_step: Callable[[], int],
        has_failed: Callable[[], bool],
        has_own_steps: bool = False,
    ) -> None:
        """``has_own_steps``: another server numbers the versions, which say nothing of cycles
        here. In memory only."""
        self._has_own_steps = has_own_steps
        self.identity = identity
        self.epoch = epoch
        self.history = history
        schema = identity.entry_schema
        self._byte_estimate = ByteEstimate(schema)
        self._options = options
        self._gaps = gaps
        self._queue = queue
        self._wall_ns = wall_ns
        self._committed_step = committed_step
        self._has_failed = has_failed
        self.created_ticket = 0
        """With which its files are there; 0 when they were before."""
        self.refusal: JournalError | None = None
        """Why its files could not be begun."""
        self.failure: RecordRefusedError | None = None
        """Why its history has ended: a change could not be made a record."""
        self.failed_step: int | None = None
        """The first step that is not in the history for that reason."""
        self.on_ended: Callable[[TableJournal], object] = lambda _: None
        """Told of a :attr:`failure`, once, by the thread that finds it; it must not block."""
        self._ends_at: int | None = None
        self.is_dropped = False
        self._latest = _Latest(
            version=state.version,
            row_count=len(state.ids),
            next_offset=state.next_offset,
            positions=state.positions,
        )
        self._durable_version = state.version
        self._builder = EntryBuilder(
            schema, state.ids, state.next_offset, is_blink=identity.is_blink
        )
        self._handed_over: deque[PendingChange] = deque()
        self._built: deque[Entry] = deque()
        self._unwritten: deque[Entry] = deque()
        self._recovered: TableState | None = state
        self._holds: dict[str, _Hold] = {}
        self._listeners: list[Callable[[int], None]] = []
        self._tails: list[Tail] = []
        self._lock = threading.RLock()

    def refuse(self, error: JournalError) -> None:
        """Its files cannot be begun: there is no such table."""
        self.refusal = error
        self.is_dropped = True

    def __repr__(self) -> str:
        return f"<TableJournal {self.identity.name!r} {self.epoch}:{self.latest_version}>"

    # --- facts ------------------------------------------------------------------------------------

    @property
    def is_durable(self) -> bool:
        """Whether the history survives the process."""
        return self.identity.journal_class == "durable"

    @property
    def latest_version(self) -> int:
        """Version last handed over; it may not be on the disk yet. Of a history that has ended, the
        last one in it."""
        ends_at = self._ends_at
        return self._latest.version if ends_at is None else ends_at

    @property
    def durable_version(self) -> int:
        """Version up to which everything is acknowledged; in memory that is the latest."""
        return self._durable_version if self.is_durable else self.latest_version

    @property
    def earliest_version(self) -> int:
        """Oldest version whose state can be had."""
        return self.history.earliest

    @property
    def row_count(self) -> int:
        """Rows at the latest version."""
        return self._latest.row_count

    @property
    def next_offset(self) -> int:
        """Number of the next row of the history."""
        return self._latest.next_offset

    @property
    def positions(self) -> Mapping[str, int]:
        """Producers and the sequence each has come to, at the latest version."""
        return self._latest.positions

    @property
    def byte_count(self) -> int:
        """Bytes of the entries kept."""
        return self.history.index.byte_count

    # --- the engine -------------------------------------------------------------------------------

    def append(
        self,
        change: TableChange,
        *,
        step: int,
        wall_ns: int,
        positions: Mapping[str, int] | None = None,
    ) -> int:
        """Hand over what a cycle did to the table. Steps ascend. Cheap: nothing is copied. It is
        written once the store is told that the cycle is complete.

        Answers the store's ticket: the change is acknowledged when ``store.synced_ticket`` has
        reached it. Tables in memory answer 0, which it always has.
        """
        if self._has_failed():
            # Nothing will ever be acknowledged again: what was recorded so far stays readable.
            return NEVER_SYNCED if self.is_durable else 0
        latest = self._latest
        if step <= latest.version:
            raise ValueError(f"step {step} is not after {latest.version}")
        moved = dict(positions) if positions else {}
        pending = PendingChange(change, step, wall_ns, moved)
        update = change.update
        row_count = latest.row_count + update.added_keys_post.size - update.removed_keys_pre.size
        rows = history_row_count(change, is_blink=self.identity.is_blink)
        self._recovered = None
        self._handed_over.append(pending)
        self._latest = _Latest(
            version=step,
            row_count=row_count,
            next_offset=latest.next_offset + rows,
            positions=moved_positions(latest.positions, moved, self._options.producers_max),
        )
        # Steps of another server are of whatever cycle is next here.
        cycle = 0 if self._has_own_steps else step
        return self._queue(self, cycle, self._byte_estimate.of(change))

    # --- the writer -------------------------------------------------------------------------------

    def build(self, upto: int) -> list[Entry]:
        """Number everything handed over; answers what is to be written of the versions up to
        ``upto``. The writer calls this. A change that cannot be numbered ends the history: see
        :attr:`failure`."""
        with self._lock:
            self._build()
            entries = []
            while self._unwritten and (self._has_own_steps or self._unwritten[0].step <= upto):
                entries.append(self._unwritten.popleft())
            return entries

    def _build(self) -> None:
        while self._handed_over:
            pending = self._handed_over[0]
            if self.failed_step is not None:
                self._handed_over.popleft()
                continue
            try:
                entry = self._builder.build(pending)
            except Exception as error:
                self.fail(pending.step, error)
                continue
            self._built.append(entry)
            self._unwritten.append(entry)
            for tail in self._tails:
                tail.note(entry)
            self._handed_over.popleft()

    def fail(self, step: int, cause: Exception) -> None:
        """The history ends before ``step``, which cannot be recorded, or not in all of its tables.
        What was recorded before stays readable."""
        with self._lock:
            if self.failed_step is not None and self.failed_step <= step:
                return
            self.failed_step = step
            for entries in (self._built, self._unwritten):
                while entries and entries[-1].step >= step:
                    entries.pop()
            for tail in self._tails:
                tail.entries = [entry for entry in tail.entries if entry.step < step]
            self._ends_at = self._built[-1].step if self._built else self._durable_or_kept()
            if self.failure is not None:
                return
            self.failure = RecordRefusedError(self.identity.name, step=step, cause=cause)
        logger.error("%s", self.failure, exc_info=cause)
        self.on_ended(self)

    def publish(self, version: int) -> None:
        """Everything up to ``version`` is on the disk: tell readers and listeners."""
        with self._lock:
            self.history.publish()
            while self._built and self._built[0].step <= version:
                self._built.popleft()
        self.history.attest()
        with self._lock:
            self._durable_version = version
            listeners = list(self._listeners)
        for listener in listeners:
            listener(version)

    # --- readers ----------------------------------------------------------------------------------

    def on_durable(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call ``listener`` with each new durable version, from the writer's thread; it must not
        block nor raise. Answers how to stop it."""
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return stop

    def entries(self, after: int, upto: int) -> Iterator[Entry]:
        """The entries of versions in ``(after, upto]``, oldest first.

        HistoryLostError when they do not all exist (any more); JournalCorruptError, while
        iterating, for a record that is not what was written.
        """
        rows, built = self._span(after, upto)
        return itertools.chain(self.history.read(rows), built)

    def tail(self, *, bytes_max: int) -> Tail:
        """Keep at hand what comes after the latest version, for who may not read files, as long as
        it is no more than ``bytes_max``; until :meth:`drop_tail`. The engine's thread."""
        with self._lock:
            tail = Tail(self._latest.version, bytes_max)
            self._tails.append(tail)
            return tail

    def tail_entries(self, tail: Tail) -> list[Entry]:
        """The entries after ``tail.after``, oldest first. HistoryLostError when they are too
        large."""
        with self._lock:
            self._build()
            if tail.is_torn:
                raise HistoryLostError(
                    self.identity.name,
                    asked=f"{self.epoch}:{tail.after}",
                    reason=f"more than {tail.bytes_max} bytes changed meanwhile",
                )
            return list(tail.entries)

    def drop_tail(self, tail: Tail) -> None:
        """Nobody needs it any more. Idempotent."""
        with self._lock:
            if tail in self._tails:
                self._tails.remove(tail)

    def _span(self, after: int, upto: int) -> tuple[npt.NDArray[np.int64], list[Entry]]:
        """Rows of the index for what is kept, entries for what is not published yet."""
        with self._lock:
            self._check_reach(after, upto)
            rows = self.history.index.span(after, upto)
            if upto > self._durable_or_kept():
                self._build()
                # What was looked up above is had, though it may have been forgotten meanwhile.
                if self._ends_at is not None:
                    self._check_reach(after, upto)
            built = [entry for entry in self._built if after < entry.step <= upto]
            return rows, built

    def _durable_or_kept(self) -> int:
        last = self.history.index.last
        return self.earliest_version if last is None else last.step

    def _check_reach(self, after: int, upto: int) -> None:
        earliest, latest = self.earliest_version, self.latest_version
        if after < earliest:
            raise HistoryLostError(
                self.identity.name,
                asked=f"{self.epoch}:{after}",
                reason=f"the oldest version kept is {earliest}",
            )
        if upto > latest and not self.is_known(upto):
            raise HistoryLostError(
                self.identity.name,
                asked=f"{self.epoch}:{upto}",
                reason=f"the newest version is {latest}",
            )

    def index(self, after: int, upto: int) -> EntryIndex:
        """Facts of the entries of versions in ``(after, upto]``, without reading them."""
        rows, built = self._span(after, upto)
        if built:
            more = [_index_row(entry) for entry in built]
            rows = np.concatenate((rows, np.array(more, dtype=np.int64)))
        return entry_index(rows)

    def version_at_time(self, wall_ns: int) -> int:
        """The newest version committed at or before a moment; HistoryLostError when that is before
        the history kept."""
        earliest = self.earliest_version
        index = self.index(earliest, self.latest_version)
        # Wall clocks step back now and then; versions do not.
        times = np.maximum.accumulate(index.wall_ns) if len(index) else index.wall_ns
        place = int(np.searchsorted(times, wall_ns, side="right"))
        if place:
            return int(index.steps[place - 1])
        base = self.history.base_for(earliest)
        if base.wall_ns > wall_ns:
            raise HistoryLostError(
                self.identity.name,
                asked=f"time {wall_ns} ns",
                reason=f"the oldest version kept, {earliest}, is of {base.wall_ns} ns",
            )
        return earliest

    def state_at(self, version: int) -> TableState:
        """The rows at a version: those of the newest entry at or before it. HistoryLostError."""
        recovered = self._recovered
        if recovered is not None and version == recovered.version:
            # For who makes the table anew; kept longer, it would keep a copy of all rows.
            self._recovered = None
            return recovered
        with self._lock:
            self._check_reach(version, version)
        base = self.history.base_for(version)
        upto = min(version, self.latest_version)
        entries = self.entries(base.version, upto)
        return replayed(base, entries, producers_max=self._options.producers_max)

    def row_ids_at(self, version: int) -> RowIdMap:
        """Which row is under which key at a version. HistoryLostError."""
        with self._lock:
            if version >= self.latest_version and self.is_known(version):
                self._build()
                # Of a history that has ended more was numbered than there is in it.
                if self.failed_step is None:
                    return self._builder.ids
                version = min(version, self.latest_version)
            self._check_reach(version, version)
        base = self.history.base_for(version)
        tracker = IdTracker(base.ids)
        for entry in self.entries(base.version, version):
            tracker.apply(entry.update, entry.first_added_id)
        return tracker.ids

    def base_state(self, version: int) -> TableState:
        """The kept state at or before ``version`` that is nearest to it, to go forward from with
        :meth:`entries`. HistoryLostError."""
        with self._lock:
            self._check_reach(version, version)
        return self.history.base_for(version)

    def is_known(self, version: int) -> bool:
        """Whether ``version`` names a state of this epoch that the history reaches: false before
        the earliest, and for steps that a crash may have taken away."""
        earliest, ends_at = self.earliest_version, self._ends_at
        if version == earliest:
            return True
        if ends_at is not None and version > ends_at:
            return False
        if self._has_own_steps:
            return self._was_told(version)
        if not earliest < version <= max(self.latest_version, self._committed_step()):
            return False
        steps = self.history.index.steps
        for gap in self._gaps():
            if gap.known_upto < version < gap.next_step:
                # This table's own records may reach further than what is sure for all tables.
                place = int(np.searchsorted(steps, gap.next_step))
                if place == 0 or int(steps[place - 1]) < version:
                    return False
        return True

    def _was_told(self, version: int) -> bool:
        """Whether another server told us the state of just this version. One between two that it
        told may have had rows that came with a later one, or that it lost in a crash."""
        with self._lock:
            self._build()
            if any(entry.step == version for entry in self._built):
                return True
            steps = self.history.index.steps
        place = int(np.searchsorted(steps, version))
        return version >= self.earliest_version and version in steps[place : place + 1]

    # --- consumers --------------------------------------------------------------------------------

    def hold(self, consumer: str, version: int, lease_until_ns: int) -> None:
        """Keep the history after ``version`` for a consumer until the lease ends (wall time),
        within ``hold_bytes_max``. A consumer's newer hold replaces its older one."""
        with self._lock:
            self._drop_ended_holds()
            if consumer not in self._holds and len(self._holds) >= self._options.holds_max:
                raise LimitExceededError(
                    f"consumers of table {self.identity.name!r}",
                    actual=len(self._holds) + 1,
                    maximum=self._options.holds_max,
                    unit="consumers",
                )
            self._holds[consumer] = _Hold(version, lease_until_ns)

    def release(self, consumer: str) -> None:
        """The consumer needs the history no longer."""
        with self._lock:
            self._holds.pop(consumer, None)

    def _drop_ended_holds(self) -> None:
        now = self._wall_ns()
        for name in [name for name, each in self._holds.items() if each.lease_until_ns <= now]:
            del self._holds[name]

    def _keep_from(self) -> int:
        with self._lock:
            self._drop_ended_holds()
            return min((each.version for each in self._holds.values()), default=2**63 - 1)

    def maintain(self) -> None:
        """Checkpoints and retention; called by the store."""
        self.history.maintain(self._keep_from, self._wall_ns())


def _index_row(entry: Entry) -> IndexRow:
    return IndexRow(
        step=entry.step,
        wall_ns=entry.wall_ns,
        first_offset=entry.first_offset,
        row_count=entry.rows.num_rows,
        byte_count=entry.rows.nbytes,
        segment=0,
        place=0,
        before_count=entry.before_count,
    )
