"""Updates of contiguous views, for all of them at once (barrage-wire.md section 9).

The windows of all views are arrays, and the values they need are read from the table once per kind:
added rows, and modified rows per group of equally modified columns. Nothing is left to be done for
each view: what it is told are slices (:class:`barrage.model.view_updates.ViewUpdates`).

Often columns differ in a few modified rows only, because a write left some cells as they were: so
wherever a column was modified in every modified row of a view, it shares one row set with all other
such columns of that view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.changelog.reader import taken, whole
from barrage.engine.changelog.subscription import POSITION_STOP_MAX, ShapeKind
from barrage.engine.changelog.viewport_plan import Spans, union_of_windows
from barrage.engine.tables.moved_rows import union_of
from barrage.model.view_updates import ViewRows, ViewUpdates
from barrage.rowset.many_sets import ManyRowSets

if TYPE_CHECKING:
    from collections.abc import Hashable

    from barrage.engine.changelog.reader import Column, Stamp, TableReader
    from barrage.engine.changelog.subscription import Shape
    from barrage.engine.changelog.viewport_plan import PositionDelta, SpanPlan
    from barrage.model.viewport import ColumnSet
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array

SPARSE_FACTOR = 2
"""Rows outside all views are read along as long as they are at most this many times the rows
inside."""


def span_updates(
    reader: TableReader,
    delta: PositionDelta,
    plan: SpanPlan,
    *,
    columns: ColumnSet,
    is_reverse: bool,
    stamp: Stamp,
) -> ViewUpdates:
    """The updates of contiguous views of equal columns and one direction; those of ``plan``."""
    is_moved = bool(plan.is_moved.any())
    ends = _KeptEnds.of(delta, plan)
    groups = [
        (seen, members)
        for rows, members in delta.modified_groups(columns)
        if not (seen := _seen(rows, ends)).is_empty
    ]
    every = union_of(rows for rows, _ in groups) if groups else None
    return ViewUpdates(
        first_step=stamp.first_step,
        last_step=stamp.last_step,
        count=len(plan.new_start),
        is_snapshot=False,
        is_effective_reverse=is_reverse,
        effective_columns=None,
        effective_viewports=None,
        table_size=stamp.table_size,
        source_time_ns=stamp.source_time_ns,
        no_values=reader.no_values,
        removed=_removed(delta, plan, ends) if is_moved else None,
        added=_added(reader, delta, plan, ends=ends, columns=columns) if is_moved else None,
        modified=tuple(
            _modified(reader, delta, plan, ends=ends, rows=rows, columns=members)
            for rows, members in groups
        ),
        modified_rows=None if every is None else _kept_rows(every, plan, ends),
    )


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

    def ranks(self, rows: RowSet) -> tuple[Int64Array, Int64Array]:
        """Half-open numbers, among ``rows`` (new positions), of those between each view's ends."""
        return rows.rank_many(self.new_first), rows.rank_many(self.new_stop)


def _removed(delta: PositionDelta, plan: SpanPlan, ends: _KeptEnds) -> ManyRowSets:
    """Old view indices of the rows that leave."""
    return _outer_sets(
        delta.removed,
        start=plan.old_start,
        kept_first=ends.old_first,
        kept_stop=ends.old_stop,
        stop=plan.old_stop,
    )


def _outer_sets(
    changed: RowSet,
    *,
    start: Int64Array,
    kept_first: Int64Array,
    kept_stop: Int64Array,
    stop: Int64Array,
) -> ManyRowSets:
    """For each view the view indices of all rows that are not kept: those before the first kept
    row, those of ``changed`` (removed or added rows) between kept ones, and those behind the last.
    The first and the last kept row lie between the three, so they never touch."""
    between = ManyRowSets.of_windows(changed, kept_first, kept_stop, bases=start)
    return between.enclosed(kept_first - start, kept_stop - start, stop - start)


def _added(
    reader: TableReader,
    delta: PositionDelta,
    plan: SpanPlan,
    *,
    ends: _KeptEnds,
    columns: ColumnSet,
) -> ViewRows:
    """The rows that enter views, read once for all of them."""
    sets = _outer_sets(
        delta.added,
        start=plan.new_start,
        kept_first=ends.new_first,
        kept_stop=ends.new_stop,
        stop=plan.new_stop,
    )
    rows = union_of_windows(
        np.concatenate((plan.new_start, ends.new_stop)),
        np.concatenate((ends.new_first, plan.new_stop)),
    )
    if not delta.added.is_empty:
        rows = rows | (delta.added & union_of_windows(ends.new_first, ends.new_stop))
    if rows.is_empty:
        columns = ()
    values = _read(reader, delta.keys_after.keys_at(rows), columns)
    sizes = sets.sizes
    low = rows.rank_many(plan.new_start + sets.first_keys)
    high = rows.rank_many(plan.new_start + sets.last_keys + 1)
    if (high - low != sizes)[sizes > 0].any():
        # A view lacks rows between its own that an overlapping one gets: each has its own copy.
        positions = np.repeat(plan.new_start, sizes) + sets.keys()
        picks = rows.rank_many(positions)
        values = tuple(taken(column, picks, sizes) for column in values)
        low = np.cumsum(sizes) - sizes
    return ViewRows(columns=columns, rows=sets, sizes=sizes, low=low, values=values)


def _modified(
    reader: TableReader,
    delta: PositionDelta,
    plan: SpanPlan,
    *,
    ends: _KeptEnds,
    rows: RowSet,
    columns: ColumnSet,
) -> ViewRows:
    low, high = ends.ranks(rows)
    return ViewRows(
        columns=columns,
        rows=_kept_rows(rows, plan, ends),
        sizes=high - low,
        low=low,
        values=_read(reader, delta.keys_after.keys_at(rows), columns),
    )


def _kept_rows(rows: RowSet, plan: SpanPlan, ends: _KeptEnds) -> ManyRowSets:
    """For each view the view indices of those of ``rows`` that it keeps."""
    return ManyRowSets.of_windows(rows, ends.new_first, ends.new_stop, bases=plan.new_start)


def _seen(rows: RowSet, ends: _KeptEnds) -> RowSet:
    """``rows`` if views keep a good part of them, otherwise those that views keep."""
    low, high = ends.ranks(rows)
    needed = int((high - low).sum())
    if len(rows) <= SPARSE_FACTOR * needed:
        return rows
    return rows & union_of_windows(ends.new_first, ends.new_stop)


def _read(reader: TableReader, keys: RowSet, columns: ColumnSet) -> tuple[Column, ...]:
    """Values as one array each, if one can hold them: slices of all views are cut from it."""
    return tuple(map(whole, reader.table.read(keys, columns))) if columns else ()


# --- first states ---------------------------------------------------------------------------------


def first_kind(shape: Shape) -> Hashable | None:
    """What views have in common whose first states can be told together; None for a shape that is
    told by itself."""
    if shape.kind is not ShapeKind.SPAN or not shape.start < shape.stop < POSITION_STOP_MAX:
        return None
    return shape.columns, shape.is_reverse


def window_sizes(shapes: list[Shape], table_sizes: list[int]) -> Int64Array:
    """How many rows contiguous views show of tables of these sizes, each of its own."""
    start, stop = _spans_of(shapes).windows(np.array(table_sizes, dtype=np.int64))
    return stop - start


def _spans_of(shapes: list[Shape]) -> Spans:
    return Spans(
        start=np.array([shape.start for shape in shapes], dtype=np.int64),
        stop=np.array([shape.stop for shape in shapes], dtype=np.int64),
        is_reverse=np.array([shape.is_reverse for shape in shapes], dtype=np.bool_),
    )


def first_views(
    reader: TableReader,
    shapes: list[Shape],
    *,
    stamp: Stamp,
    held_sizes: Int64Array | None = None,
) -> ViewUpdates:
    """The snapshots of ``shapes``, which are of one :func:`first_kind`, in their order: everybody
    who joins in one turn is told from one reading of the table (section 9.1). With ``held_sizes``
    their subscribers hold so many rows each of other views, all of which go."""
    first = shapes[0]
    spans = _spans_of(shapes)
    start, stop = spans.start, spans.stop
    window_start, window_stop = spans.windows(stamp.table_size)
    sizes = window_stop - window_start
    rows = union_of_windows(window_start, window_stop)
    columns = () if rows.is_empty else first.column_indices
    return ViewUpdates(
        first_step=stamp.first_step,
        last_step=stamp.last_step,
        count=len(shapes),
        is_snapshot=True,
        is_effective_reverse=first.is_reverse,
        effective_columns=reader.all_columns if first.columns is None else first.columns,
        effective_viewports=ManyRowSets.of_spans(start, stop),
        table_size=stamp.table_size,
        source_time_ns=stamp.source_time_ns,
        no_values=reader.no_values,
        removed=None if held_sizes is None else _from_nought(held_sizes),
        added=ViewRows(
            columns=columns,
            rows=_from_nought(sizes),
            sizes=sizes,
            low=rows.rank_many(window_start),
            values=_read(reader, reader.table.row_keys.keys_at(rows), columns),
        ),
        modified=(),
        modified_rows=None,
    )


def _from_nought(sizes: Int64Array) -> ManyRowSets:
    """For each view all of the indices of so many rows."""
    return ManyRowSets.of_spans(np.zeros_like(sizes), sizes)
