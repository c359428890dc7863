"""How a resume plan is found: for a source, for other tables as one update, and step by step.

A *strategy* takes the recorded cycles of the sources as they come, on any thread. Where they lead
to is noted on the engine's thread (:class:`PresentRows`), and from there on how the table changes.
What leads there is found on any thread again; what is left for the engine's is to merge it with
what has changed since, or to repeat the last few cycles.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from barrage.engine.changelog.subscription import Shape, ShapeBook, ShapeKind
from barrage.engine.changelog.table_changelog import TableChangelog
from barrage.engine.operators.flatten import flatten
from barrage.engine.planning.derivation import merged
from barrage.engine.resume.replay import ReplayTable, rebuilt
from barrage.engine.tables.graph import UpdateGraph
from barrage.engine.tables.moved_rows import (
    changed_rows,
    closing_shifts,
    each_once,
    union_of,
)
from barrage.engine.tables.source import operators_of
from barrage.engine.tables.work import MERGED_BYTES, PLACED, RUN, SORTED_ROW, UNDONE
from barrage.errors import BarrageError, LimitExceededError, MuchMissedError, ResumeRefusedError
from barrage.model.coalesce import coalesce_all
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from barrage.engine.changelog.changelog import Message
    from barrage.engine.changelog.subscription import SubscriptionSpec
    from barrage.engine.resume.replay import RecordedEntry, SourceState
    from barrage.engine.tables.source import SourceTable
    from barrage.engine.tables.table import Table
    from barrage.limits import Limits


CARRIED_BYTES = 12
"""Bytes of the row sets of a large update that one row operation carries over when a small one is
merged with it: of 250,000 rows of a sorted table that moved, 45 MB in 10 to 35 ms."""

REPEATED_ROW = 300
"""Row operations, at most, of an operator per changed row of a cycle that is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The end of a strategy; see :class:`~barrage.engine.propagation.open_plans.ResumePlan`."""

    size_before: int
    update: TableUpdate
    is_of_all_steps: bool = True
    """Whether the update stands for all that were missed, and not for the last one alone."""
    shape: Shape | None = None
    earlier: tuple[Message, ...] = ()


class _Trail(list[TableUpdate]):
    """Updates, as long as their row sets take no more than ``bytes_max``."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._byte_count = 0

    @property
    def is_torn(self) -> bool:
        """Whether there were more, of which nothing is kept."""
        return self._byte_count > self._bytes_max

    def append(self, update: TableUpdate) -> None:
        self._byte_count += update.resident_bytes()
        if self.is_torn:
            self.clear()
        else:
            super().append(update)

    def taken(self) -> list[TableUpdate]:
        """What there is, and make room."""
        found = list(self)
        self.clear()
        if not self.is_torn:
            self._byte_count = 0
        return found


class PresentRows:
    """The rows a plan leads to: those of a table at the moment this is made, on the engine's thread
    between cycles. Until it is closed it keeps the updates of later cycles: row sets, so many bytes
    of each table that the limits allow."""

    def __init__(self, table: Table, sources: Sequence[SourceTable], limits: Limits) -> None:
        self._table = table
        self._sources = sources
        self._bytes_max = limits.resume_bytes_max
        self._trails = {each: _Trail(self._bytes_max) for each in (table, *sources)}
        self.steps: set[int] = set()
        """Later cycles that changed a source, as far as they were taken."""
        self.renew()
        for each, trail in self._trails.items():
            each.trails.append(trail)

    def renew(self) -> None:
        """Be the rows of now."""
        self.taken()
        self.keys = self._table.row_keys
        self.source_keys = {source: source.row_keys for source in self._sources}
        self.source_steps = {source: source.changed_step for source in self._sources}

    @property
    def since(self) -> list[TableUpdate]:
        """The updates of the table since they were taken."""
        return self._trails[self._table]

    @property
    def source_updates(self) -> list[TableUpdate]:
        """The updates of all sources since then."""
        return [update for source in self._sources for update in self._trails[source]]

    def taken(self) -> list[TableUpdate]:
        """The updates of the table since they were last taken."""
        self.steps.update(update.last_step for update in self.source_updates)
        return {each: trail.taken() for each, trail in self._trails.items()}[self._table]

    def check_kept(self) -> None:
        """ResumeRefusedError when more has changed than may be kept."""
        if any(trail.is_torn for trail in self._trails.values()):
            raise ResumeRefusedError(f"more than {self._bytes_max} bytes changed meanwhile")

    def close(self) -> None:
        """Keep nothing more. Idempotent."""
        for each, trail in self._trails.items():
            each.trails[:] = [other for other in each.trails if other is not trail]


class Strategy(Protocol):
    """What all strategies have in common."""

    def extend(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        """Further cycles, oldest first."""

    def reach(self, present: PresentRows) -> None:
        """Find what leads to these rows, once the cycles do. Only reads what never changes."""

    def follow(self, updates: Sequence[TableUpdate]) -> None:
        """Go on from what was found, by updates of the table."""

    def lag(self, present: PresentRows) -> int:
        """Row operations of what has come since, which would be done on any thread by going on."""

    def rest(self, present: PresentRows) -> int:
        """Row operations of :meth:`finish`, on the engine's thread."""

    def finish(self, present: PresentRows) -> Found:
        """The result, which leads to the rows there are now."""


def past_rows(
    states: Mapping[SourceTable, SourceState | None], limits: Limits
) -> dict[SourceTable, SourceState]:
    """The old rows of the sources; ResumeRefusedError when some are missing or all are too many."""
    found = {source: state for source, state in states.items() if state is not None}
    if len(found) < len(states):
        raise ResumeRefusedError("the rows of then are not known")
    rows = sum(len(state.keys) for state in found.values())
    if rows > limits.resume_rows_max:
        raise MuchMissedError(
            f"{rows} rows of then would have to be looked at; at most "
            f"{limits.resume_rows_max} are (limit resume_rows_max)"
        )
    return found


def from_positions(
    update: TableUpdate, before: RowSet, after: RowSet, *, live: RowSet
) -> TableUpdate:
    """``update``, which leads from rows ``before`` to ``after``, for somebody who numbers the
    former 0 to n-1 and is to call the latter by the keys ``live``, in the same order."""
    if len(after) != len(live):
        raise ResumeRefusedError("the history does not lead to the rows there are")
    removed = before.positions_of(update.removed_keys_pre)
    added = live.keys_at(after.positions_of(update.added_keys_post))
    return replace(
        update,
        removed_keys_pre=removed,
        shifts=closing_shifts(RowSet.of_span(0, len(before)) - removed, live - added),
        added_keys_post=added,
        modified_keys_post=each_once(
            update.modified_keys_post, lambda keys: live.keys_at(after.positions_of(keys))
        ),
    )


@contextmanager
def refusing() -> Iterator[None]:
    """Whatever cannot be computed from the rows of then is no failure of the table of now."""
    try:
        yield
    except ResumeRefusedError:
        raise
    except (BarrageError, pa.ArrowException, ValueError) as error:
        raise ResumeRefusedError(f"what was shown then cannot be found: {error}") from error


class _MergedStrategy:
    """One update: what leads to the rows of a moment, and those of the table since."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._found: Found | None = None

    def follow(self, updates: Sequence[TableUpdate]) -> None:
        self._found = self._with(updates)

    def lag(self, present: PresentRows) -> int:
        return 2 * sum(update.resident_bytes() for update in present.since) // MERGED_BYTES

    def rest(self, present: PresentRows) -> int:
        if not present.since:
            return 0
        return self.lag(present) + self._reached.update.resident_bytes() // CARRIED_BYTES

    def finish(self, present: PresentRows) -> Found:
        return self._with(present.since)

    def _with(self, updates: Sequence[TableUpdate]) -> Found:
        found = self._reached
        if not updates:
            return found
        with refusing():
            return replace(found, update=coalesce_all([found.update, *updates]))

    @property
    def _reached(self) -> Found:
        assert self._found is not None
        return self._found


class SourceStrategy(_MergedStrategy):
    """A source, coalesced: its own updates are the answer, and tell which keys it had."""

    def __init__(self, table: SourceTable) -> None:
        super().__init__(table)
        self._source = table
        self._merged: TableUpdate | None = None

    def extend(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        updates = [entry.update for entry in entries.get(self._source, ())]
        known = [] if self._merged is None else [self._merged]
        self._merged = merged([*known, *updates])

    def reach(self, present: PresentRows) -> None:
        update = self._merged or _nothing(self._table)
        live = present.keys
        with refusing():
            kept = live - update.added_keys_post
            before = update.removed_keys_pre | update.shifts.unapply(kept)
            if len(before) != len(update.removed_keys_pre) + len(kept):
                raise ResumeRefusedError("the history does not lead to the rows there are")
            found = from_positions(update, before, live, live=live)
        self._found = Found(size_before=len(before), update=found)


class CoalescedStrategy(_MergedStrategy):
    """Any table as one update: a copy of the view upon the old rows sees all cycles as one."""

    def __init__(
        self, table: Table, version: int, states: Mapping[SourceTable, SourceState]
    ) -> None:
        super().__init__(table)
        self._graph = UpdateGraph(table.graph.limits, first_step=version)
        with refusing():
            self._past = {
                source: ReplayTable(self._graph, source, state) for source, state in states.items()
            }
            self._view = rebuilt(table, self._graph, {**self._past})

    def extend(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        with refusing():
            for source, found in entries.items():
                for entry in found:
                    self._past[source].stage_entry(entry)

    def reach(self, present: PresentRows) -> None:
        before = self._view.row_keys
        with refusing():
            told = self._graph.run_cycle().updates.get(self._view)
            self._view.check_alive()
            for source, past in self._past.items():
                past.check_alive()
                if past.row_keys != present.source_keys[source]:
                    raise ResumeRefusedError("the history does not lead to the rows there are")
            update = told or _nothing(self._table)
            update = from_positions(update, before, self._view.row_keys, live=present.keys)
        self._found = Found(size_before=len(before), update=update)


def _nothing(table: Table) -> TableUpdate:
    """An update that changes nothing; its steps are of no account."""
    return TableUpdate.nothing(step=0, column_count=len(table.schema))


class StepwiseStrategy:
    """Any table, one update per cycle that changed it: a copy upon the old rows goes through the
    recorded cycles. Its rows are numbered by position."""

    def __init__(
        self,
        table: Table,
        version: int,
        states: Mapping[SourceTable, SourceState],
        *,
        spec: SubscriptionSpec,
        limits: Limits,
    ) -> None:
        self._table = table
        self._limits = limits
        self._shape = Shape.of_spec(spec, column_count=len(table.schema))
        if self._shape.kind is ShapeKind.KEYED_VIEW:
            raise ResumeRefusedError("a viewport in row keys cannot be resumed")
        self._rows = 0
        self._earlier: list[Message] = []
        self._last: TableUpdate | None = None
        self._found: Found | None = None
        self._graph = UpdateGraph(table.graph.limits, first_step=version)
        with refusing():
            self._past = {
                source: ReplayTable(self._graph, source, state) for source, state in states.items()
            }
            self._view = flatten(rebuilt(table, self._graph, {**self._past}))
        self._size_before = self._view.size
        self._book = ShapeBook()
        self._number = self._book.take(self._shape)
        self._changelog = TableChangelog(self._view, limits, step=version)
        self._point = self._changelog.join(1)

    def extend(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        by_step: dict[int, list[tuple[SourceTable, RecordedEntry]]] = {}
        for source, found in entries.items():
            for entry in found:
                by_step.setdefault(entry.update.last_step, []).append((source, entry))
        for step in sorted(by_step):
            for source, entry in by_step[step]:
                self._past[source].stage_entry(entry)
                self._count(entry)
            wall_ns = max(entry.wall_ns for _, entry in by_step[step])
            with refusing():
                self._repeat(step, wall_ns)

    def _count(self, entry: RecordedEntry) -> None:
        update = entry.update
        self._rows += len(update.added_keys_post) + len(union_of(update.modified_keys_post))
        if self._rows > self._limits.resume_rows_max:
            raise ResumeRefusedError("too many rows changed to tell them step by step")

    def _repeat(self, step: int, wall_ns: int) -> None:
        """One cycle; what it changed in the view is told as it would have been then."""
        size_before = self._view.size
        update = self._graph.run_cycle(step).updates.get(self._view)
        self._view.check_alive()
        if update is None:
            return
        self._last, self._size_before = update, size_before
        self._changelog.record(update, wall_ns)
        answer = self._changelog.messages(self._point, np.array([self._number]), self._book)
        message = answer.message(int(answer.which[0]))
        if isinstance(message, LimitExceededError):
            raise message
        self._earlier.append(message)
        self._point = self._changelog.advance(self._point, 1)

    def reach(self, present: PresentRows) -> None:
        # The last update is told by the table itself, as it also says which keys the rows have.
        update = self._last or _nothing(self._table)
        with refusing():
            before = RowSet.of_span(0, self._size_before)
            update = from_positions(update, before, self._view.row_keys, live=present.keys)
        self._found = Found(
            size_before=self._size_before,
            update=update,
            is_of_all_steps=self._last is None,
            shape=self._shape,
            earlier=tuple(self._earlier[:-1]),
        )

    def follow(self, updates: Sequence[TableUpdate]) -> None:
        """Updates of the table are no cycles of its sources."""

    def rest(self, present: PresentRows) -> int:
        return self.lag(present)

    def lag(self, present: PresentRows) -> int:
        updates = present.source_updates
        if not updates:
            return 0
        operators = operators_of(self._view)
        rows = sum(map(changed_rows, updates)) * len(operators) * REPEATED_ROW
        rows += present.keys.range_count * (PLACED + UNDONE)
        sizes = sum(table.size for table in (*operators, *self._past.values()))
        cycles = len({update.last_step for update in updates})
        return rows + cycles * (RUN * len(operators) + SORTED_ROW * sizes)

    def finish(self, present: PresentRows) -> Found:
        assert self._found is not None
        return self._found
