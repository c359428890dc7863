"""The server's side of resumed subscriptions: from journals to plans.

A client that comes back names the state it holds by a cursor. Where the journals of the table's
sources reach back to it, a plan (:class:`~barrage.engine.propagation.open_plans.ResumePlan`) is
made of their entries and the subscription goes on from there; otherwise it begins with a snapshot
and the client is told why. Nothing here fails a subscription.

The work is done in three parts. :meth:`ResumePlanner.survey` looks whether it can and should be
done, ``build`` reads the journals and finds what leads to the rows of that moment, on a thread of
its own, and :meth:`ResumePlanner.finish` adds what happened meanwhile. Where that is much, the
thread goes up to a later moment first, ``query_rounds_max`` times at most; what is then too much
for one turn of the engine is refused. The loop knows a plan by its number.

**Epochs.** A source has that of its journal. A view has one of its own, made of the epochs of its
sources and of the operators between, so that it means the same rows after a restart and a cursor of
one view is never taken for one of another.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from barrage.engine.changelog.subscription import Shape
from barrage.engine.operators.restrict import rests_on_part
from barrage.engine.resume.replay import RecordedEntry
from barrage.engine.resume.resume import (
    ResumeBuilder,
    SourceHistory,
    changing_sources,
    refusal_of,
)
from barrage.engine.resume.resume_strategies import PresentRows
from barrage.engine.tables.source import SourceTable, sources_of
from barrage.engine.tables.table import GRAPH_TIMELINE, DerivedTable
from barrage.errors import BarrageError, HistoryLostError, MuchMissedError, ResumeRefusedError
from barrage.proto.resumption import Outcome, ResumeMode
from barrage.server.runtime.failure import unexpected_failure
from barrage.supervision import WorkerPool, contained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from barrage.engine.changelog.subscription import SubscriptionSpec
    from barrage.engine.propagation.open_plans import ResumePlan
    from barrage.engine.tables.table import Table
    from barrage.journal.records.record import Entry
    from barrage.journal.stores.table_journal import TableJournal, Tail
    from barrage.limits import Limits
    from barrage.model.cursor import Cursor
    from barrage.proto.resumption import ResumeRequest
    from barrage.server.journaling.journal_service import JournalService
    from barrage.server.runtime.runtime import EngineRuntime

log = logging.getLogger(__name__)

NO_JOURNAL = "the table has no journal"
OTHER_EPOCH = "the cursor is of another history"
FROM_THE_FUTURE = "the cursor is ahead of the server"
LOST_STEP = "the server lost that step in a crash"
MUCH_MISSED = "more was missed than a snapshot is"
OTHER_TABLE = "the name stands for another table now"
NOT_MADE = "the plan could not be made"

BUILD_THREADS = 1
"""Threads that read journals for plans. They share the interpreter with the engine's."""


@dataclass(slots=True)
class _Source:
    """One source of a view, and how far its journal is read by the thread that builds."""

    table: SourceTable
    journal: TableJournal
    upto: int
    tail: Tail | None = None
    """What happens to it while a stepwise plan is made: in memory, for the engine thread reads no
    files."""
    missed: list[Entry] = field(default_factory=list)
    """What the thread that builds goes through next."""

    def read(self, version: int) -> Iterable[Entry]:
        """The entries after ``version``, from files."""
        return self.journal.entries(version, self.upto) if self.upto > version else ()

    def follow(self, bytes_max: int) -> None:
        """Keep what happens from now on; what did since the last time was missed."""
        if self.tail is not None:
            self.missed = self.journal.tail_entries(self.tail)
            self.journal.drop_tail(self.tail)
        self.tail = self.journal.tail(bytes_max=bytes_max)


@dataclass(slots=True)
class ResumeWork:
    """One plan in the making. Belongs to the engine thread, and while it is built to the thread
    that builds it; refers to tables, so it is emptied on the engine's."""

    table: Table | None
    version: int
    steps_for: SubscriptionSpec | None
    sources: list[_Source] = field(default_factory=list)
    changed_rows: int = 0
    """Rows recorded since the version."""
    rows: int = 0
    """Rows that count as pending until the work is finished."""
    present: PresentRows | None = None
    builder: ResumeBuilder | None = None
    rounds: int = 0
    """How often the builder has gone up to a later moment."""
    refusal: str | None = None

    @property
    def has_cells(self) -> bool:
        """Whether rows are derived, which takes their values; otherwise row sets are enough."""
        return self.steps_for is not None or not isinstance(self.table, SourceTable)


@dataclass(frozen=True, slots=True)
class Resumption:
    """What becomes of a cursor: a plan, or the reason why there is none."""

    plan: ResumePlan | None
    outcome: Outcome

    @classmethod
    def refused(cls, reason: str) -> Resumption:
        return cls(None, Outcome.resnapshot(reason))

    @classmethod
    def of(cls, plan: ResumePlan, missed_steps: int) -> Resumption:
        if missed_steps == 0:
            return cls(plan, Outcome.live())
        return cls(plan, Outcome.replayed(missed_steps, plan.update_count))


class ResumePlanner:
    """Makes plans of cursors. Everything runs on the engine thread, except :meth:`close` and what
    is under "the thread that builds"."""

    def __init__(
        self,
        runtime: EngineRuntime,
        journals: JournalService,
        limits: Limits,
        *,
        on_built: Callable[[int], object],
    ) -> None:
        """``on_built`` is told on the engine thread that the building of a plan is over."""
        self._runtime = runtime
        self._journals = journals
        self._limits = limits
        self._on_built = on_built
        self._token = secrets.token_hex(8)
        """Stands for what another process would have otherwise."""
        self._rows_pending = 0
        self._epochs: WeakKeyDictionary[Table, tuple[tuple[str, ...], str]] = WeakKeyDictionary()
        self._plans: dict[int, ResumeWork | Resumption] = {}
        self._building: set[int] = set()
        self._given_up: set[int] = set()
        self._threads = WorkerPool(BUILD_THREADS, thread_name_prefix="barrage-resume")

    # --- epochs ---

    def epoch_of(self, table: Table) -> str | None:
        """The epoch of a table's history; None when it has none."""
        if isinstance(table, SourceTable):
            journal = self._journals.journal_of(table)
            return None if journal is None else journal.epoch
        sources = sources_of(table)
        if table.timeline == GRAPH_TIMELINE and any(source.timeline for source in sources):
            return None  # Its steps are ours, those of its sources are not.
        names = []
        for source in sources:
            name = self._name_of(source)
            if name is None:
                return None
            names.append(name)
        known = self._epochs.get(table)
        if known is not None and known[0] == tuple(names):
            return known[1]
        epoch = self._digest(table, {})[:16]
        self._epochs[table] = (tuple(names), epoch)
        return epoch

    def _name_of(self, source: SourceTable) -> str | None:
        """What stands for a source: its epoch, and for one that never changes, itself."""
        journal = self._journals.journal_of(source)
        if journal is not None:
            return journal.epoch
        return f"{self._token}/{source.serial}" if source.is_static else None

    def _digest(self, table: Table, known: dict[Table, str]) -> str:
        """A number of what a table is: its sources and what is done to them. Operators may stand
        150 deep, which :class:`~barrage.limits.Limits` bounds, so this may call itself."""
        found = known.get(table)
        if found is not None:
            return found
        if isinstance(table, DerivedTable):
            below = [self._digest(parent, known) for parent in table.parents]
            text = repr((type(table).__name__, self._words_of(table), below))
        else:
            assert isinstance(table, SourceTable)
            text = str(self._name_of(table))
        found = known[table] = hashlib.blake2b(text.encode()).hexdigest()
        return found

    def _words_of(self, table: DerivedTable) -> str:
        """The arguments of an operator as a text, the same in every process."""
        if table.description is not None:
            text = repr(table.description)
            return f"{self._token}{text}" if " at 0x" in text else text
        # Nobody else can ask for it by what it is.
        return f"{self._token}/{table.serial}"

    # --- plans ---

    def is_ahead(self, table: Table, cursor: Cursor) -> bool:
        """Whether a cursor names a state that is still to come: of a history another server tells,
        somebody else may have heard more."""
        is_told = table.timeline != GRAPH_TIMELINE and cursor.version > table.present_step
        return is_told and self.epoch_of(table) == cursor.epoch

    def survey(
        self, table: Table, request: ResumeRequest, spec: SubscriptionSpec
    ) -> ResumeWork | Resumption:
        """Whether the cursor can be resumed at a reasonable price: the work to be done, or a plan
        that others are following now, or why not."""
        version = request.cursor.version
        try:
            epoch = self.epoch_of(table)
            if epoch is None:
                raise ResumeRefusedError(NO_JOURNAL)
            reason = refusal_of(table)
            if reason is not None:
                raise ResumeRefusedError(reason)
            if epoch != request.cursor.epoch:
                raise ResumeRefusedError(OTHER_EPOCH)
            if version > table.present_step:
                raise ResumeRefusedError(FROM_THE_FUTURE)
            is_stepwise = request.mode is ResumeMode.STEPS
            work = ResumeWork(table, version, spec if is_stepwise else None)
            for source in sources_of(table):
                journal = self._journals.journal_of(source)
                if journal is not None:
                    _check_reach(journal, version)
                    work.sources.append(_Source(source, journal, journal.latest_version))
            steps = self._check_price(work)
            joined = self._open_plan(work)
            if joined is not None:
                return Resumption.of(joined, steps)
            self._take_room(work)
        except (ResumeRefusedError, HistoryLostError) as error:
            return Resumption.refused(told_reason(table, error))
        return work

    def _take_room(self, work: ResumeWork) -> None:
        """Count what is to be read and derived; many different plans for large tables at once are
        worse than snapshots. One alone always has room."""
        rows = work.changed_rows
        if work.has_cells:
            rows += sum(source.table.size for source in work.sources)
        most = self._limits.resume_rows_pending_max
        if self._rows_pending and self._rows_pending + rows > most:
            raise ResumeRefusedError("too many subscriptions are resumed at the moment")
        work.rows = rows
        self._rows_pending += rows

    def _empty(self, work: ResumeWork) -> None:
        """Let go of what the work was about. Idempotent."""
        for source in work.sources:
            if source.tail is not None:
                source.journal.drop_tail(source.tail)
        if work.present is not None:
            work.present.close()
        self._rows_pending -= work.rows
        work.rows = 0
        work.sources, work.builder, work.table, work.present = [], None, None, None

    def _open_plan(self, work: ResumeWork) -> ResumePlan | None:
        """A plan from the same version that others are following now."""
        assert work.table is not None
        producer = self._runtime.existing_producer(work.table)
        if producer is None:
            return None
        shape = None
        if work.steps_for is not None:
            shape = Shape.of_spec(work.steps_for, column_count=len(work.table.schema))
        for plan in producer.open_plans():
            # What happened since a plan was made comes merged with its last update.
            is_exact = shape is None or plan.step == work.table.changed_step
            if plan.version == work.version and plan.shape == shape and is_exact:
                return plan
        return None

    def _check_price(self, work: ResumeWork) -> int:
        """Replaying more rows than there are costs more than a snapshot and tells the client
        nothing it asked for. Returns the number of steps missed."""
        rows, size_bytes, steps_of = 0, 0, [np.empty(0, dtype=np.int64)]
        for source in work.sources:
            if source.upto > work.version:
                index = source.journal.index(work.version, source.upto)
                rows += int(index.row_counts.sum())
                size_bytes += int(index.byte_counts.sum())
                steps_of.append(index.steps)
        steps = len(np.unique(np.concatenate(steps_of)))
        limits = self._limits
        if steps > limits.resume_steps_max:
            raise MuchMissedError(
                f"{steps} steps were missed, the limit is {limits.resume_steps_max}"
            )
        if rows > limits.resume_rows_max:
            raise MuchMissedError(
                f"{rows} rows changed, the limit is {limits.resume_rows_max} rows"
            )
        if size_bytes > limits.resume_bytes_max:
            raise MuchMissedError(
                f"{size_bytes} bytes of changes, the limit is {limits.resume_bytes_max} bytes"
            )
        size = sum(source.table.size for source in work.sources)
        if work.steps_for is None and rows > max(size, limits.resume_rows_free):
            raise MuchMissedError(f"{rows} rows changed, more than the {size} there are")
        work.changed_rows = rows
        return steps

    def begin(self, plan_id: int, found: ResumeWork | Resumption) -> bool:
        """Keep what a survey has found in this turn until it is finished or given up. True when it
        is built meanwhile."""
        self._plans[plan_id] = found
        if isinstance(found, Resumption):
            return False
        if found.table is not None:
            sources = changing_sources(found.table)
            found.present = PresentRows(found.table, sources, self._limits)
        if found.steps_for is not None:
            for source in found.sources:
                source.follow(self._limits.resume_bytes_max)
        return self._begin_part(plan_id, found, self.build)

    def _begin_part(
        self, plan_id: int, work: ResumeWork, part: Callable[[ResumeWork], None]
    ) -> bool:
        """Let the thread do some of the work; False, and no plan, when there is none to do it."""
        try:
            building = self._threads.submit(self._beside, part, work)
        except RuntimeError as error:  # The server stops, or the system has no thread left.
            self._empty(work)
            self._plans[plan_id] = Resumption.refused(str(error))
            return False
        self._building.add(plan_id)
        over = partial(self._built, plan_id)
        building.add_done_callback(lambda _: self._runtime.post(over))
        return True

    def _built(self, plan_id: int) -> None:
        self._building.discard(plan_id)
        if plan_id in self._given_up:
            self._given_up.discard(plan_id)
            self.give_up(plan_id)
        elif plan_id in self._plans and not self._goes_on(plan_id):
            self._on_built(plan_id)

    def _goes_on(self, plan_id: int) -> bool:
        """Whether the thread goes up to the rows of now, as much has happened meanwhile."""
        work = self._plans[plan_id]
        if isinstance(work, Resumption) or work.builder is None or work.builder.is_near():
            return False
        if work.rounds == self._limits.query_rounds_max:
            return False
        work.rounds += 1
        try:
            if work.steps_for is not None:
                for source in work.sources:
                    source.follow(self._limits.resume_bytes_max)
        except HistoryLostError as error:
            work.builder, work.refusal = None, _reason(error)
            return False
        work.builder.take()
        return self._begin_part(plan_id, work, self.follow)

    def finish(self, plan_id: int) -> Resumption:
        """The plan up to the present, which is forgotten here."""
        found = self._plans.pop(plan_id, None) or Resumption.refused(NOT_MADE)
        return found if isinstance(found, Resumption) else self._finished(found)

    def _finished(self, work: ResumeWork) -> Resumption:
        builder = work.builder
        try:
            if builder is None:
                return Resumption.refused(work.refusal or "the server is stopping")
            for source in work.sources:
                if self._journals.journal_of(source.table) is not source.journal:
                    raise ResumeRefusedError(OTHER_EPOCH)
            builder.check_rest()
            if work.steps_for is not None:
                builder.extend({source.table: self._missed(source) for source in work.sources})
            plan = builder.plan()
            return Resumption.of(plan, plan.missed_steps)
        except BarrageError as error:
            return Resumption.refused(told_reason(work.table, error))
        except Exception:
            return unforeseen()
        finally:
            self._empty(work)

    def _missed(self, source: _Source) -> Sequence[RecordedEntry]:
        """What happened to a source while a stepwise plan was made."""
        assert source.tail is not None
        return _recorded(source, source.journal.tail_entries(source.tail), has_cells=True)

    def give_up(self, plan_id: int) -> None:
        """Forget a plan that will not be finished; one that is being built, after that."""
        if plan_id in self._building:
            self._given_up.add(plan_id)
            return
        found = self._plans.pop(plan_id, None)
        if isinstance(found, ResumeWork):
            self._empty(found)

    def close(self) -> None:
        """Any thread: build nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- the thread that builds ---

    def _beside(self, part: Callable[[ResumeWork], None], work: ResumeWork) -> None:
        try:
            contained(part, work)
        except BarrageError as error:
            work.builder, work.refusal = None, str(error)

    def build(self, work: ResumeWork) -> None:
        """Read the journals and find what leads to the rows that were noted."""
        self._try(self._build, work)

    def follow(self, work: ResumeWork) -> None:
        """Go up to the rows of a later moment."""
        self._try(self._follow, work)

    def _try(self, part: Callable[[ResumeWork], None], work: ResumeWork) -> None:
        try:
            part(work)
            return
        except (ResumeRefusedError, HistoryLostError) as error:
            work.refusal = told_reason(work.table, error)
        except BarrageError as error:
            log.warning("a subscription cannot be resumed: %s", error)
            work.refusal = f"the journal cannot be read: {error}"
        except Exception:
            work.refusal = unforeseen().outcome.reason
        work.builder = None

    def _follow(self, work: ResumeWork) -> None:
        assert work.builder is not None
        entries = {
            source.table: _recorded(source, source.missed, has_cells=True)
            for source in work.sources
        }
        work.builder.follow(entries)
        for source in work.sources:
            source.missed = []

    def _build(self, work: ResumeWork) -> None:
        assert work.table is not None
        has_cells = work.has_cells
        histories = {
            source.table: SourceHistory(
                state=source.journal.state_at(work.version) if has_cells else None,
                entries=_recorded(source, source.read(work.version), has_cells=has_cells),
            )
            for source in work.sources
        }
        work.builder = ResumeBuilder(
            work.table,
            work.version,
            histories,
            steps_for=work.steps_for,
            present=work.present,
            limits=self._limits,
        )


def unforeseen() -> Resumption:
    """No plan, for the exception that is being handled: details are logged, an id is told."""
    return Resumption.refused(str(unexpected_failure(log, "a subscription could not be resumed")))


def told_reason(table: Table | None, error: BarrageError) -> str:
    """Why not. Counts are of whole tables: who sees a part of one is not told them."""
    is_count = isinstance(error, MuchMissedError)
    if is_count and table is not None and rests_on_part(table):
        return MUCH_MISSED
    return _reason(error)


def _check_reach(journal: TableJournal, version: int) -> None:
    if version < journal.earliest_version:
        raise ResumeRefusedError(f"the journal begins at step {journal.earliest_version}")
    if not journal.is_known(version):
        raise ResumeRefusedError(LOST_STEP)


def _recorded(
    source: _Source, entries: Iterable[Entry], *, has_cells: bool
) -> Sequence[RecordedEntry]:
    """Entries as the engine wants them."""
    is_blink = source.table.is_blink
    return [recorded_entry(entry, is_blink=is_blink, has_cells=has_cells) for entry in entries]


def recorded_entry(entry: Entry, *, is_blink: bool, has_cells: bool) -> RecordedEntry:
    """An entry of a journal as the engine takes it; its cells where they are needed."""
    if not has_cells:
        return RecordedEntry(update=entry.update, added=(), after=())
    rows, update = entry.rows, entry.update
    removed = 0 if is_blink else len(update.removed_keys_pre)
    added = len(update.added_keys_post)
    columns = rows.columns[2:]
    first_added = rows.num_rows - added
    return RecordedEntry(
        update=update,
        added=[column.slice(first_added) for column in columns],
        after=_every_second(columns, removed + 1, first_added),
    )


def _every_second(columns: Sequence[pa.Array], start: int, stop: int) -> list[pa.Array]:
    """Old and new values of modified rows alternate; these are the new ones."""
    if stop <= start:
        return [column.slice(0, 0) for column in columns]
    places = pa.array(np.arange(start, stop, 2))
    return [column.take(places) for column in columns]


def _reason(error: BarrageError) -> str:
    return error.reason if isinstance(error, HistoryLostError) else str(error)
