"""Messages of contiguous views, for all of them at once (barrage-wire.md section 9).

The windows of all views are arrays, the values they need are read from the table once per kind
(added rows, and modified rows per group of equally modified columns), and every message gets
zero-copy slices. What is left per changed view is its row sets and the message object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.propagation.modified_rows import KeptRows, modifications
from barrage.engine.propagation.reader import Column, compact, span
from barrage.engine.propagation.view_messages import view_update
from barrage.engine.viewport_plan import PositionDelta, SpanPlan, union_of_windows

if TYPE_CHECKING:
    from barrage.engine.propagation.reader import Stamp, TableReader
    from barrage.engine.subscription import Shape
    from barrage.model.update import ViewUpdate
    from barrage.model.viewport import ColumnSet
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array


def span_messages(
    reader: TableReader,
    delta: PositionDelta,
    plan: SpanPlan,
    shapes: list[Shape],
    stamp: Stamp,
) -> list[ViewUpdate]:
    """The messages of contiguous views; ``plan`` and ``shapes`` are parallel."""
    columns = tuple(sorted({column for shape in shapes for column in shape.column_indices}))
    ends = _KeptEnds.of(delta, plan)
    removed = _outer_sets(
        delta.removed, plan.old_start, ends.old_first, ends.old_stop, plan.old_stop
    )
    adds = _AddedRows.read(reader, delta, plan, ends, columns)
    kept = KeptRows(start=ends.new_first, stop=ends.new_stop, view_start=plan.new_start)
    modified = modifications(reader, delta, kept, columns)
    messages = []
    for i, shape in enumerate(shapes):
        messages.append(
            view_update(
                stamp,
                is_reverse=shape.is_reverse,
                removed=removed[i],
                added=adds.sets[i],
                added_columns=adds.columns_of(reader, i, shape.column_indices),
                modified=reader.only(modified.rows[i], shape.column_indices, reader.no_rows),
                modified_columns=reader.only(
                    modified.values[i], shape.column_indices, reader.no_values
                ),
            )
        )
    return messages


@dataclass(frozen=True, slots=True, kw_only=True)
class _KeptEnds:
    """Half-open old and new positions between which each view's kept rows lie. Where nothing is
    kept both old ends are the old window's end and both new ends are the new window's end."""

    old_first: Int64Array
    old_stop: Int64Array
    new_first: Int64Array
    new_stop: Int64Array

    @classmethod
    def of(cls, delta: PositionDelta, plan: SpanPlan) -> _KeptEnds:
        if not plan.is_moved.any():
            return cls(
                old_first=plan.old_start,
                old_stop=plan.old_stop,
                new_first=plan.new_start,
                new_stop=plan.new_stop,
            )
        has_kept = plan.kept_stop > plan.kept_first
        first, last = plan.kept_first[has_kept], plan.kept_stop[has_kept] - 1
        old_first, old_stop = plan.old_stop.copy(), plan.old_stop.copy()
        new_first, new_stop = plan.new_stop.copy(), plan.new_stop.copy()
        before, after = delta.survivors_before, delta.survivors_after
        old_first[has_kept] = before.select_many(first)
        old_stop[has_kept] = before.select_many(last) + 1
        new_first[has_kept] = after.select_many(first)
        new_stop[has_kept] = after.select_many(last) + 1
        return cls(old_first=old_first, old_stop=old_stop, new_first=new_first, new_stop=new_stop)


def _outer_sets(
    changed: RowSet,
    start: Int64Array,
    kept_first: Int64Array,
    kept_stop: Int64Array,
    stop: Int64Array,
) -> list[RowSet]:
    """For each view the view indices of all rows that are not kept: those before the first kept
    row, those of ``changed`` (removed or added rows) between kept ones, and those behind the
    last."""
    has_between = (changed.rank_many(kept_stop) > changed.rank_many(kept_first)).tolist()
    heads = (kept_first - start).tolist()
    tails = (kept_stop - start).tolist()
    ends = (stop - start).tolist()
    sets = []
    for i, head in enumerate(heads):
        indices = span(0, head)
        if tails[i] < ends[i]:
            tail = span(tails[i], ends[i])
            indices = indices | tail if head else tail
        if has_between[i]:
            between = changed.clip(int(kept_first[i]), int(kept_stop[i]) - 1)
            indices = indices | between.offset(-int(start[i]))
        sets.append(indices)
    return sets


@dataclass(frozen=True, slots=True, kw_only=True)
class _AddedRows:
    """The rows that enter views, read once for all of them.

    ``sets`` are view indices; view i's rows are [low[i], high[i]) of ``rows`` (new positions)
    unless rows of overlapping views lie among them. ``values`` has one entry per schema column.
    """

    sets: list[RowSet]
    rows: RowSet
    starts: list[int]
    low: list[int]
    high: list[int]
    values: tuple[Column, ...]

    @classmethod
    def read(
        cls,
        reader: TableReader,
        delta: PositionDelta,
        plan: SpanPlan,
        ends: _KeptEnds,
        columns: ColumnSet,
    ) -> _AddedRows:
        sets = _outer_sets(
            delta.added, plan.new_start, ends.new_first, ends.new_stop, plan.new_stop
        )
        rows = union_of_windows(
            np.concatenate((plan.new_start, ends.new_stop)),
            np.concatenate((ends.new_first, plan.new_stop)),
        )
        if not delta.added.is_empty:
            rows = rows | (delta.added & union_of_windows(ends.new_first, ends.new_stop))
        values = reader.no_values
        if not rows.is_empty and columns:
            found = reader.table.read(delta.keys_after.keys_at(rows), columns)
            values = reader.spread(tuple(map(compact, found)), columns)
        first = np.array([0 if s.is_empty else s.first for s in sets], dtype=np.int64)
        stop = np.array([0 if s.is_empty else s.last + 1 for s in sets], dtype=np.int64)
        return cls(
            sets=sets,
            rows=rows,
            starts=plan.new_start.tolist(),
            low=rows.rank_many(plan.new_start + first).tolist(),
            high=rows.rank_many(plan.new_start + stop).tolist(),
            values=values,
        )

    def columns_of(self, reader: TableReader, i: int, columns: ColumnSet) -> tuple[Column, ...]:
        """Values of the rows that enter view ``i``."""
        indices = self.sets[i]
        if indices.is_empty:
            return reader.no_values
        low, count = self.low[i], self.high[i] - self.low[i]
        if count == len(indices):
            found = [self.values[column].slice(low, count) for column in columns]
        else:  # an overlapping view needs rows in between that this one has
            picks = self.rows.positions_of(indices.offset(self.starts[i])).to_numpy()
            found = [self.values[column].take(picks) for column in columns]
        return reader.spread(tuple(found), columns)
