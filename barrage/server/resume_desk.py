"""The server's side of resumed subscriptions: from journals to plans.

A client that comes back names the state it holds by a cursor. Where the journals of the table's
sources reach back to it, a :class:`~barrage.engine.resume.ResumePlan` is made of their entries and
the subscription goes on from there; otherwise it begins with a snapshot and the client is told why.
Nothing here fails a subscription.

The work is done in three parts. :meth:`ResumeDesk.survey` looks whether it can and should be done,
:meth:`ResumeDesk.build` reads the journals and computes the view of before, off the engine's
thread, and :meth:`ResumeDesk.finish` adds what happened meanwhile.

**Epochs.** A source has that of its journal. A view has one of its own, made of the epochs of its
sources and of the operators between, so that it means the same rows after a restart and a cursor of
one view is never taken for one of another.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from barrage.engine.replay import RecordedEntry, sources_of
from barrage.engine.resume import ResumeBuilder, SourceHistory, refusal_of
from barrage.engine.source import SourceTable
from barrage.engine.subscription import Shape
from barrage.engine.table import DerivedTable
from barrage.errors import BarrageError, HistoryLostError, ResumeRefusedError
from barrage.proto.resumption import Outcome, ResumeMode
from barrage.server.failure import unexpected_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.resume import ResumePlan
    from barrage.engine.subscription import SubscriptionSpec
    from barrage.engine.table import Table
    from barrage.journal.record import Entry
    from barrage.journal.table_journal import TableJournal
    from barrage.limits import Limits
    from barrage.proto.resumption import ResumeRequest
    from barrage.server.journal_service import JournalService
    from barrage.server.runtime import EngineRuntime

log = logging.getLogger(__name__)

NO_JOURNAL = "the table has no journal"
OTHER_EPOCH = "the cursor is of another history"
FROM_THE_FUTURE = "the cursor is ahead of the server"
LOST_STEP = "the server lost that step in a crash"
OTHER_TABLE = "the name stands for another table now"


@dataclass(slots=True)
class _Source:
    """One source of a view, and how far its journal has been read."""

    table: SourceTable
    journal: TableJournal
    upto: int


@dataclass(slots=True)
class ResumeWork:
    """One plan in the making. Refers to tables, so it is emptied on the engine's thread."""

    table: Table | None
    version: int
    steps_for: SubscriptionSpec | None
    sources: list[_Source] = field(default_factory=list)
    changed_rows: int = 0
    """Rows recorded since the version."""
    rows: int = 0
    """Rows that count as pending until the work is finished."""
    builder: ResumeBuilder | None = None
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


class ResumeDesk:
    """Makes plans of cursors. All methods but :meth:`build` run on the engine thread."""

    def __init__(self, runtime: EngineRuntime, journals: JournalService, limits: Limits) -> None:
        self._runtime = runtime
        self._journals = journals
        self._limits = limits
        self._token = secrets.token_hex(8)
        """Stands for what another process would have otherwise."""
        self._rows_pending = 0
        self._epochs: WeakKeyDictionary[Table, tuple[tuple[str, ...], str]] = WeakKeyDictionary()

    # --- epochs ---

    def epoch_of(self, table: Table) -> str | None:
        """The epoch of a table's history; None when it has none."""
        if isinstance(table, SourceTable):
            journal = self._journals.journal_of(table)
            return None if journal is None else journal.epoch
        names = []
        for source in sources_of(table):
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
            if version > self._runtime.graph.step:
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
            return Resumption.refused(_reason(error))
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

    def give_up(self, work: ResumeWork) -> None:
        """Forget work that will not be finished. Idempotent."""
        self._rows_pending -= work.rows
        work.rows = 0
        work.sources, work.builder, work.table = [], None, None

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
            raise ResumeRefusedError(
                f"{steps} steps were missed, the limit is {limits.resume_steps_max}"
            )
        if rows > limits.resume_rows_max:
            raise ResumeRefusedError(
                f"{rows} rows changed, the limit is {limits.resume_rows_max} rows"
            )
        if size_bytes > limits.resume_bytes_max:
            raise ResumeRefusedError(
                f"{size_bytes} bytes of changes, the limit is {limits.resume_bytes_max} bytes"
            )
        size = sum(source.table.size for source in work.sources)
        if work.steps_for is None and rows > max(size, limits.resume_rows_free):
            raise ResumeRefusedError(f"{rows} rows changed, more than the {size} there are")
        work.changed_rows = rows
        return steps

    def build(self, work: ResumeWork) -> None:
        """Read the journals and compute what can be computed ahead. On a thread of its own."""
        try:
            self._build(work)
        except (ResumeRefusedError, HistoryLostError) as error:
            work.refusal = _reason(error)
        except BarrageError as error:
            log.warning("a subscription cannot be resumed: %s", error)
            work.refusal = f"the journal cannot be read: {error}"
        except Exception:
            work.refusal = str(unexpected_failure(log, "a subscription could not be resumed"))

    def _build(self, work: ResumeWork) -> None:
        assert work.table is not None
        has_cells = work.has_cells
        histories = {
            source.table: SourceHistory(
                state=source.journal.state_at(work.version) if has_cells else None,
                entries=_recorded(source, work.version, source.upto, has_cells=has_cells),
            )
            for source in work.sources
        }
        work.builder = ResumeBuilder(
            work.table,
            work.version,
            histories,
            steps_for=work.steps_for,
            limits=self._limits,
        )

    def finish(self, work: ResumeWork) -> Resumption:
        """The plan up to the present. The work is empty afterwards."""
        builder, refusal = work.builder, work.refusal
        has_cells, sources = work.has_cells, work.sources
        self.give_up(work)
        if builder is None:
            return Resumption.refused(refusal or "the server is stopping")
        try:
            for source in sources:
                if self._journals.journal_of(source.table) is not source.journal:
                    raise ResumeRefusedError(OTHER_EPOCH)
            builder.extend(
                {
                    source.table: _recorded(
                        source,
                        source.upto,
                        source.journal.latest_version,
                        has_cells=has_cells,
                    )
                    for source in sources
                }
            )
            plan = builder.plan()
            return Resumption.of(plan, plan.missed_steps)
        except BarrageError as error:
            return Resumption.refused(_reason(error))


def _check_reach(journal: TableJournal, version: int) -> None:
    if version < journal.earliest_version:
        raise ResumeRefusedError(f"the journal begins at step {journal.earliest_version}")
    if not journal.is_known(version):
        raise ResumeRefusedError(LOST_STEP)


def _recorded(
    source: _Source, after: int, upto: int, *, has_cells: bool
) -> Sequence[RecordedEntry]:
    """The entries of (after, upto] as the engine wants them."""
    if upto <= after:
        return ()
    is_blink = source.table.is_blink
    return [
        recorded_entry(entry, is_blink=is_blink, has_cells=has_cells)
        for entry in source.journal.entries(after, upto)
    ]


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
