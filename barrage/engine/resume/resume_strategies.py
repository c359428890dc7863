"""How a resume plan is found: for a source, for other tables as one update, and step by step.

A *strategy* takes the recorded cycles of the sources as they come, on any thread, and is finished
on the engine's thread, when the sources stand where the cycles lead.
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
from barrage.engine.tables.moved_rows import closing_shifts, each_once, union_of
from barrage.errors import BarrageError, LimitExceededError, ResumeRefusedError
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from barrage.engine.changelog.changelog import Message
    from barrage.engine.changelog.subscription import SubscriptionSpec
    from barrage.engine.resume.replay import RecordedEntry, SourceState
    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.source import SourceTable
    from barrage.engine.tables.table import Table
    from barrage.limits import Limits
    from barrage.rowset.arrays import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The end of a strategy; see :class:`~barrage.engine.propagation.open_plans.ResumePlan`."""

    size_before: int
    update: TableUpdate
    shape: Shape | None = None
    earlier: tuple[Message, ...] = ()


class Strategy(Protocol):
    """What all strategies have in common."""

    def extend(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        """Further cycles, oldest first."""

    def finish(self, first_step: int, last_step: int) -> Found:
        """The result; the last update covers these steps unless it stands for fewer."""


def past_rows(
    states: Mapping[SourceTable, SourceState | None], limits: Limits
) -> dict[SourceTable, SourceState]:
    """The old rows of the sources; ResumeRefusedError when some are missing or all are too many."""
    found = {source: state for source, state in states.items() if state is not None}
    if len(found) < len(states):
        raise ResumeRefusedError("the rows of then are not known")
    rows = sum(len(state.keys) for state in found.values())
    if rows > limits.resume_rows_max:
        raise ResumeRefusedError(
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


class SourceStrategy:
    """A source, coalesced: its own updates are the answer, and tell which keys it had."""

    def __init__(self, table: SourceTable) -> None:
        self._table = table
        self._merged: TableUpdate | None = None

    def extend(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        updates = [entry.update for entry in entries.get(self._table, ())]
        known = [] if self._merged is None else [self._merged]
        self._merged = merged([*known, *updates])

    def finish(self, first_step: int, last_step: int) -> Found:
        live = self._table.row_keys
        update = self._merged or TableUpdate.nothing(
            step=last_step, column_count=len(self._table.schema)
        )
        with refusing():
            kept = live - update.added_keys_post
            before = update.removed_keys_pre | update.shifts.unapply(kept)
            if len(before) != len(update.removed_keys_pre) + len(kept):
                raise ResumeRefusedError("the history does not lead to the rows there are")
            found = from_positions(update, before, live, live=live)
        found = replace(found, first_step=first_step, last_step=last_step)
        return Found(size_before=len(before), update=found)


class _TurningTable(ReplayTable):
    """A source as it was, which one cycle turns into the source as it is."""

    _present: SourceTable | None = None
    _turning: tuple[TableUpdate, SourceTable] | None = None

    @property
    def has_pending(self) -> bool:
        return self._turning is not None

    def turn_into(self, present: SourceTable, update: TableUpdate) -> None:
        """Let the next cycle be ``update``, which leads to the rows of ``present``."""
        self._turning = update, present

    def commit(self, step: int) -> TableUpdate:
        assert self._turning is not None
        update, present = self._turning
        self._turning = None
        kept = update.shifts.apply(self._row_keys - update.removed_keys_pre)
        if kept | update.added_keys_post != present.row_keys:
            raise ResumeRefusedError("the history does not lead to the rows there are")
        self._row_keys, self._present = present.row_keys, present
        return update

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        if self._present is not None:
            return self._present.read_cells(keys, columns)
        return super().read_cells(keys, columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        if self._present is not None:
            return self._present.take_cells(keys, columns)
        return super().take_cells(keys, columns)


class CoalescedStrategy:
    """Any table as one update: a copy of the view upon the old rows sees one cycle."""

    def __init__(
        self, table: Table, version: int, states: Mapping[SourceTable, SourceState]
    ) -> None:
        self._table = table
        self._graph = UpdateGraph(table.graph.limits, first_step=version)
        self._merged: dict[SourceTable, TableUpdate] = {}
        with refusing():
            self._past = {
                source: _TurningTable(self._graph, source, state)
                for source, state in states.items()
            }
            self._view = rebuilt(table, self._graph, {**self._past})

    def extend(self, entries: Mapping[SourceTable, Sequence[RecordedEntry]]) -> None:
        for source, found in entries.items():
            known = [self._merged[source]] if source in self._merged else []
            update = merged([*known, *(entry.update for entry in found)])
            if update is not None:
                self._merged[source] = update

    def finish(self, first_step: int, last_step: int) -> Found:
        before = self._view.row_keys
        for source, update in self._merged.items():
            self._past[source].turn_into(source, update)
        with refusing():
            told = self._graph.run_cycle().updates.get(self._view)
            self._view.check_alive()
            if told is None:
                told = TableUpdate.nothing(step=last_step, column_count=len(self._table.schema))
            update = from_positions(told, before, self._view.row_keys, live=self._table.row_keys)
        update = replace(update, first_step=first_step, last_step=last_step)
        return Found(size_before=len(before), update=update)


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

    def finish(self, first_step: int, last_step: int) -> Found:
        # The last update is told by the table itself, as it also says which keys the rows have.
        update = self._last
        if update is None:
            nothing = TableUpdate.nothing(step=last_step, column_count=len(self._table.schema))
            update = replace(nothing, first_step=first_step)
        with refusing():
            before = RowSet.of_span(0, self._size_before)
            update = from_positions(update, before, self._view.row_keys, live=self._table.row_keys)
        return Found(
            size_before=self._size_before,
            update=update,
            shape=self._shape,
            earlier=tuple(self._earlier[:-1]),
        )
