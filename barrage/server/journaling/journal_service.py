"""The journals of a server's tables: begun with a name, fed after every cycle, read back at start.

The service is the runtime's recorder. On the engine thread it takes what each cycle changed out of
the sources and passes it to the journals; a store of all journals encodes, writes and syncs on a
thread of its own and says how far it got. A journal goes with a published *name* of a source table:
tables without a name, derived tables and tables of class ``none`` have none.

Threads: everything runs on the engine thread but ``journal_named``, ``journal_of``, ``journals``
and ``close``, which may be called from anywhere.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakSet

from barrage.clock import SystemClock
from barrage.engine.tables.source import SourceTable
from barrage.engine.tables.table import DerivedTable
from barrage.errors import (
    MUST_RESTART,
    BarrageError,
    ConfigError,
    JournalError,
    JournalFailedError,
    NoJournalError,
    TableExistsError,
    TableNotFoundError,
)
from barrage.journal.records.identity import TableIdentity
from barrage.journal.records.options import DEFAULT_JOURNAL_OPTIONS
from barrage.journal.stores.memory_history import MemoryHistory
from barrage.journal.stores.store import JournalStore
from barrage.server.journaling.first_states import empty_change, whole_change, whole_state
from barrage.server.journaling.producer_positions import ProducerPositions
from barrage.server.journaling.record_bound import RecordBound
from barrage.server.runtime.failure import unexpected_failure, without_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from barrage.clock import Clock
    from barrage.engine import CycleResult, Table
    from barrage.journal.records.options import JournalClass, JournalOptions
    from barrage.journal.stores.table_journal import TableJournal
    from barrage.limits import Limits
    from barrage.model.table_change import TableChange
    from barrage.server.journaling.producer_positions import ProducerPosition
    from barrage.server.runtime.catalog import Publication

log = logging.getLogger(__name__)

DURABLE, MEMORY, NONE = "durable", "memory", "none"

NEVER = 2**63
"""A ticket no store gets to."""


@dataclass(slots=True)
class _Recorded:
    """A table with a journal, and the ticket of what was recorded of it last."""

    journal: TableJournal
    is_whole: bool
    """Whether the journal needs the whole table next, as it had rows or producers when its history
    began."""
    ticket: int = 0
    bound: RecordBound | None = None
    """Of what one cycle may change, for a journal on disk."""


@dataclass(frozen=True, slots=True)
class _Named:
    """What a published name stands for."""

    journal: TableJournal | None
    is_view: bool
    sources: tuple[str, ...] = ()
    """Of a view: the tables with a journal that it is made of."""


class JournalService:
    """All journals of one server. ``store`` holds those on disk; without one, tables are of class
    ``memory`` or ``none``."""

    def __init__(
        self,
        *,
        limits: Limits,
        clock: Clock | None = None,
        default_class: str = NONE,
        options: JournalOptions | None = None,
        store: JournalStore | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._default_class = default_class
        self._options = options
        self._store = store
        self._is_durable = store is not None
        self._recorded: dict[SourceTable, _Recorded] = {}
        self._declined: WeakSet[SourceTable] = WeakSet()
        self._names: dict[str, _Named] = {}
        self._whole_count = 0
        self._staged_bytes = 0
        """Bytes of rows that the next cycle gives to journals on disk."""
        self._staged_bounds: dict[RecordBound, None] = {}
        """Those that something was staged under since the last cycle."""
        self._ended_ticket = 0
        self._refused: WeakKeyDictionary[Table, BarrageError] = WeakKeyDictionary()
        self.on_refused: Callable[[str, BarrageError], object] = lambda *_: None
        """Told on the engine thread of a name whose table the disk has no room for."""
        self._ended: deque[TableJournal] = deque()
        """Histories that have ended and whose tables do not know yet."""
        self.on_ended: Callable[[SourceTable, BarrageError], object] = lambda *_: None
        """Told on the engine thread of a table whose history has ended."""
        self._failure: BarrageError | None = None
        self._on_failure: list[Callable[[BarrageError], object]] = []
        self.positions = ProducerPositions(limits.producers_max)
        """How far the producers of every table have got, journal or not."""

    # --- any thread ---

    def journal_named(self, name: str) -> TableJournal:
        """The journal of the table of that name; TableNotFoundError, NoJournalError."""
        named = self._names.get(name)
        if named is None:
            raise TableNotFoundError(name, known=list(self._names))
        if named.journal is None:
            raise NoJournalError(name, is_view=named.is_view, sources=named.sources)
        return named.journal

    def journal_of(self, table: Table) -> TableJournal | None:
        """The journal of a table; None when it has none."""
        recorded = self._recorded.get(table) if isinstance(table, SourceTable) else None
        return None if recorded is None else recorded.journal

    @property
    def journals(self) -> Mapping[str, TableJournal]:
        """Every journal by the name of its table. A copy."""
        return {
            name: named.journal
            for name, named in list(self._names.items())
            if named.journal is not None and named.journal.identity.name == name
        }

    @property
    def store(self) -> JournalStore | None:
        """What keeps the journals; None while there are none."""
        return self._store

    def on_failure(self, listener: Callable[[BarrageError], object]) -> None:
        """Call ``listener`` once nothing more can be kept, on the thread that finds it; now, when
        that is so already. It must not block nor raise. To be called before the engine runs, or on
        its thread."""
        self._on_failure.append(listener)
        if self._failure is not None:
            listener(self._failure)
        elif self._store is not None:
            self._store.on_failure(listener)

    def close(self) -> None:
        """Write and sync what has been recorded, then let go of the directory. Idempotent."""
        if self._store is not None:
            self._store.close()

    # --- names come and go ---

    def class_for(self, wanted: str | None) -> str:
        """The journal class of a table for which this was said; ConfigError for a durable one
        without a directory."""
        chosen = self._default_class if wanted is None else wanted
        if chosen == DURABLE and not self._is_durable:
            raise ConfigError(
                "journal='durable' needs a directory to keep it in: start the server with "
                "--data DIR, or Server(data=...)"
            )
        return chosen

    def check_room(self, journal_class: str) -> None:
        """JournalFullError or JournalFailedError when no journal of this class can begin."""
        if journal_class == DURABLE:
            self._check_store()

    def decline(self, table: SourceTable) -> None:
        """This table has no journal, whatever names it gets."""
        self._declined.add(table)

    def begin(
        self, publication: Publication, journal_class: str, staged: pa.Table | None = None
    ) -> None:
        """A name begins to stand for a table. The first name of a source begins its journal;
        LimitExceededError when what it has, and ``staged`` of it, is too much for a record."""
        table = publication.table
        if not isinstance(table, SourceTable):
            sources = self._sources_of(table)
            self._names[publication.name] = _Named(None, is_view=True, sources=sources)
            return
        recorded = self._recorded.get(table)
        if recorded is None and journal_class != NONE and table not in self._declined:
            bound = RecordBound(table) if journal_class == DURABLE else None
            if bound is not None:
                bound.check(
                    [staged if table.size == 0 else None], name=publication.name, is_whole=True
                )
                self._staged_bounds[bound] = None
            recorded = self._begin_journal(publication, table, journal_class)
            recorded.bound = bound
        journal = None if recorded is None else recorded.journal
        self._names[publication.name] = _Named(journal, is_view=False)

    def _sources_of(self, view: Table) -> tuple[str, ...]:
        """Names of the recorded tables a view is made of, in order."""
        found: dict[str, None] = {}
        seen, waiting = {view}, [view]
        while waiting:
            table = waiting.pop()
            recorded = self._recorded.get(table) if isinstance(table, SourceTable) else None
            if recorded is not None:
                found[recorded.journal.identity.name] = None
            parents = table.parents if isinstance(table, DerivedTable) else ()
            fresh = [parent for parent in reversed(parents) if parent not in seen]
            seen.update(fresh)
            waiting += fresh
        return tuple(found)

    def _begin_journal(
        self, publication: Publication, table: SourceTable, journal_class: str
    ) -> _Recorded:
        table.check_alive()
        identity = _identity_of(
            publication, table, "durable" if journal_class == DURABLE else "memory"
        )
        known = self.positions.of(table)
        recorded = _Recorded(
            self._made_store().create(identity, step=table.graph.step),
            is_whole=table.size > 0 or bool(known is not None and known.committed),
        )
        recorded.ticket = recorded.journal.created_ticket
        recorded.journal.on_ended = self._ended.append
        table.start_recording()
        self._recorded[table] = recorded
        self._whole_count += recorded.is_whole
        return recorded

    def follow(self, publication: Publication, epoch: str) -> None:
        """A table that a name is to stand for goes on with another server's history, of this epoch
        and in its versions: in memory, from its present rows on."""
        table = publication.table
        assert isinstance(table, SourceTable)
        identity = _identity_of(publication, table, "memory")
        state = whole_state(table, identity.entry_schema, wall_ns=self._clock.wall_ns())
        store, options = self._made_store(), self._options or DEFAULT_JOURNAL_OPTIONS
        if publication.name in store.journals:
            raise TableExistsError(publication.name)
        journal = store.add(
            identity,
            epoch,
            MemoryHistory(publication.name, state, options),
            state=state,
            has_own_steps=True,
        )
        table.start_recording()
        journal.on_ended = self._ended.append
        self._recorded[table] = _Recorded(journal, is_whole=False)

    def _made_store(self) -> JournalStore:
        """The store; journals in memory need none until the first of them."""
        if self._store is None:
            self._store = JournalStore(
                None,
                self._options or DEFAULT_JOURNAL_OPTIONS,
                clock=self._clock,
                on_synced=lambda _: None,
            )
            for listener in self._on_failure:
                self._store.on_failure(listener)
            self._store.start()
        return self._store

    def end(self, publication: Publication) -> str | None:
        """A name stops standing for a table. The class of the journal that ended with it; None when
        none did."""
        self._names.pop(publication.name, None)
        table = publication.table
        recorded = self._recorded.get(table) if isinstance(table, SourceTable) else None
        if recorded is None or recorded.journal.identity.name != publication.name:
            return None
        assert isinstance(table, SourceTable)
        del self._recorded[table]
        self._whole_count -= recorded.is_whole
        assert self._store is not None
        self._ended_ticket = max(self._ended_ticket, self._store.drop(publication.name))
        return recorded.journal.identity.journal_class

    def adopt(self, publication: Publication, journal: TableJournal) -> None:
        """A table that was made of its journal goes on with it."""
        table = publication.table
        assert isinstance(table, SourceTable)
        table.start_recording()
        journal.on_ended = self._ended.append
        bound = RecordBound(table) if journal.is_durable else None
        self._recorded[table] = _Recorded(journal, is_whole=False, bound=bound)
        self._names[publication.name] = _Named(journal, is_view=False)
        self.positions.restore(table, journal.positions)

    # --- writes ---

    def check_writable(
        self,
        tables: Iterable[SourceTable],
        producer: ProducerPosition | None = None,
        *,
        rows_bytes: Callable[[], int] = int,
    ) -> int:
        """Refuse a write of ``rows_bytes()`` bytes of rows that could not be kept:
        JournalFullError, JournalFailedError. Answers how many of them go to disk, for
        :meth:`take_back`; counting them takes time, so it is only done for a journal on disk.

        A producer whose write was refused for that reason must send it again before later ones:
        SequenceError. Otherwise those would make the refused one look like a resend.
        """
        counted = 0
        for table in tables:
            if producer is not None:
                self.positions.check_order(table, producer)
            recorded = self._recorded.get(table)
            if recorded is None or recorded.journal.identity.journal_class != DURABLE:
                continue
            try:
                byte_count = counted or rows_bytes()
                self._check_store(self._staged_bytes + byte_count)
            except JournalError:
                if producer is not None:
                    self.positions.refuse(table, producer)
                raise
            counted = byte_count
        self._staged_bytes += counted
        return counted

    def check_record(self, table: SourceTable, rows: Iterable[object]) -> None:
        """LimitExceededError when what is staged of a table, ``rows`` being the last of it, does
        not fit in one record."""
        recorded = self._recorded.get(table)
        if recorded is not None and recorded.bound is not None:
            name = recorded.journal.identity.name
            self._staged_bounds[recorded.bound] = None
            recorded.bound.check(rows, name=name, is_whole=recorded.is_whole)

    def take_back(self, byte_count: int, marks: Mapping[SourceTable, int]) -> None:
        """A write that :meth:`check_writable` let through was refused for another reason, and what
        was staged after ``marks`` is taken back."""
        self._staged_bytes -= byte_count
        for table, mark in marks.items():
            recorded = self._recorded.get(table)
            if recorded is not None and recorded.bound is not None:
                recorded.bound.take_back(mark)

    def _check_store(self, byte_count: int = 0) -> None:
        if self._failure is not None:
            raise without_frames(self._failure)
        assert self._store is not None
        self._store.check_writable(byte_count)

    # --- the runtime's recorder ---

    @property
    def has_pending(self) -> bool:
        """Whether a journal waits for the whole of a table that does not change by itself, or a
        producer has moved without changing anything."""
        return self._whole_count > 0 or self.positions.has_staged

    def record(self, result: CycleResult, wall_ns: int) -> None:
        """Give the journals what a cycle changed. Never raises: a failure refuses later writes.

        After one nothing is given any more: a later cycle would take along what the failed one has
        left, half of itself.
        """
        self.tell_ended()
        moved = self.positions.commit(result.failed)
        store = self._store
        if store is None or self._failure is not None:
            return
        self._staged_bytes = 0
        try:
            self._record(result, wall_ns, moved)
            store.step_committed(result.step)
        except Exception as error:
            if isinstance(error, JournalError):
                log.error("step %d could not be recorded: %s", result.step, error)
                cause: BarrageError = error
            else:
                cause = unexpected_failure(log, "a step could not be recorded")
            self._fail(JournalFailedError(f"{cause}; {MUST_RESTART}"))

    def tell_ended(self) -> None:
        """Fail the tables on disk whose histories have ended; those in memory do without."""
        while self._ended:
            journal = self._ended.popleft()
            for table, recorded in list(self._recorded.items()):
                failure = _failure_of(journal)
                if recorded.journal is journal and failure is not None:
                    self.on_ended(table, failure)

    def _fail(self, error: BarrageError) -> None:
        if self._failure is None:
            self._failure = error
            for listener in self._on_failure:
                listener(error)

    def _record(
        self,
        result: CycleResult,
        wall_ns: int,
        moved: Mapping[SourceTable, Mapping[str, int]],
    ) -> None:
        bounds, self._staged_bounds = self._staged_bounds, {}
        for bound in bounds:
            bound.cycle_ended()
        for table, recorded in self._changed(result, moved):
            positions = moved.get(table, {})
            change: TableChange | None
            if recorded.is_whole:
                change = whole_change(table, result.step)
                known = self.positions.of(table)
                positions = positions if known is None else dict(known.committed)
                recorded.is_whole = False
                self._whole_count -= 1
                table.changed_step = result.step
            else:
                change = table.take_change()
            if change is None and positions:
                change = empty_change(table, result.step)
                table.changed_step = result.step
            if change is not None:
                recorded.ticket = recorded.journal.append(
                    change, step=change.update.last_step, wall_ns=wall_ns, positions=positions
                )

    def _changed(
        self, result: CycleResult, moved: Mapping[SourceTable, Mapping[str, int]]
    ) -> list[tuple[SourceTable, _Recorded]]:
        """The tables with a journal of which a cycle has something to record."""
        if self._whole_count:
            return [
                (table, recorded)
                for table, recorded in self._recorded.items()
                if table.failure is None
                and (recorded.is_whole or table in result.updates or table in moved)
            ]
        tables = dict.fromkeys((*result.updates, *moved))
        return [
            (table, recorded)
            for table in tables
            if isinstance(table, SourceTable)
            and (recorded := self._recorded.get(table)) is not None
        ]

    def ticket_of(self, tables: Iterable[Table]) -> int:
        """The ticket of the last change on disk of any of these tables; one that is never reached
        when it could not be recorded."""
        if not self._is_durable:
            return 0
        tickets = [
            recorded.ticket
            for table in tables
            if isinstance(table, SourceTable)
            and (recorded := self._recorded.get(table)) is not None
            and recorded.journal.is_durable
        ]
        if tickets and self._failure is not None:
            return NEVER
        return max(tickets, default=0)

    def refusal_of(self, tables: Iterable[Table]) -> BarrageError | None:
        """Why the journal of one of these tables could not begin. The table goes with it."""
        for table in tables:
            recorded = self._recorded.get(table) if isinstance(table, SourceTable) else None
            if recorded is not None and recorded.journal.refusal is not None:
                self._refused[table] = recorded.journal.refusal
                self.on_refused(recorded.journal.identity.name, recorded.journal.refusal)
            failure = None if recorded is None else _failure_of(recorded.journal)
            if failure is not None:
                return without_frames(failure)
            if table in self._refused:
                return self._refused[table]
        return None

    @property
    def ended_ticket(self) -> int:
        """With which the files of every journal that has ended are gone; one that is never reached
        when they cannot be removed."""
        return NEVER if self._ended_ticket and self._failure is not None else self._ended_ticket

    @property
    def synced_ticket(self) -> int:
        """Everything up to this ticket is on disk."""
        return 0 if self._store is None else self._store.synced_ticket

    @property
    def refusal(self) -> BarrageError | None:
        """Why durable tables take no writes now; None when they do, or there can be none."""
        if self._failure is not None or self._store is None:
            return self._failure
        try:
            self._store.check_writable()
        except JournalError as error:
            return error
        return None

    @property
    def failure(self) -> BarrageError | None:
        """Why nothing more will be on disk."""
        if self._failure is not None or self._store is None:
            return self._failure
        try:
            self._store.check_writable()
        except JournalFailedError as error:
            return error
        except JournalError:
            return None
        return None


def _failure_of(journal: TableJournal) -> BarrageError | None:
    """Why what is written to the table is not kept as it was promised."""
    return journal.failure if journal.is_durable else None


def _identity_of(
    publication: Publication, table: SourceTable, journal_class: JournalClass
) -> TableIdentity:
    return TableIdentity(
        name=publication.name,
        kind=publication.kind,
        key=tuple(table.key_columns),
        capacity=getattr(table, "capacity", None),
        schema=table.schema,
        journal_class=journal_class,
        is_read_only=publication.is_read_only,
    )


class SyncedSignal:
    """Passes on that a store has synced: from its thread to the engine's, one word at a time."""

    def __init__(self) -> None:
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._settle: Callable[[], None] | None = None
        self._is_posted = False

    def connect(
        self, post: Callable[[Callable[[], None]], None], settle: Callable[[], None]
    ) -> None:
        """``post`` takes what the engine thread is to run, ``settle`` is that."""
        self._post, self._settle = post, settle

    def __call__(self, _ticket: int) -> None:
        """On the store's thread: something has been synced, or will never be."""
        if self._post is not None and not self._is_posted:
            self._is_posted = True
            self._post(self._run)

    def _run(self) -> None:
        # First the flag, then the look: what is synced after it posts again.
        self._is_posted = False
        assert self._settle is not None
        self._settle()
