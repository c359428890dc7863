"""Which rows each of many contiguous views is told were modified, per column, with their values.

Columns modified in the same rows are read together. Often columns differ in a few rows only,
because a write left some cells as they were: so wherever a column was modified in every modified
row of a view, it shares one row set with all other such columns of that view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from barrage.engine.propagation.reader import Column, compact
from barrage.engine.row_sets import union_of
from barrage.engine.viewport_plan import union_of_windows, window_sets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.propagation.reader import TableReader
    from barrage.engine.viewport_plan import PositionDelta
    from barrage.model.viewport import ColumnSet
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array

SPARSE_FACTOR = 2
"""Rows outside all views are read along as long as they are at most this many times the rows
inside."""


class KeptRows(NamedTuple):
    """Half-open positions between which each view's kept rows lie, and where the view starts."""

    start: Int64Array
    stop: Int64Array
    view_start: Int64Array

    def ranks(self, rows: RowSet) -> tuple[Int64Array, Int64Array]:
        """Half-open numbers, among ``rows``, of those each view keeps."""
        return rows.rank_many(self.start), rows.rank_many(self.stop)


class Modifications(NamedTuple):
    """One entry per view: its row sets (view indices) and values, one per schema column each."""

    rows: Sequence[tuple[RowSet, ...]]
    values: Sequence[tuple[Column, ...]]


def modifications(
    reader: TableReader, delta: PositionDelta, kept: KeptRows, columns: ColumnSet
) -> Modifications:
    """What was modified in ``columns`` among the rows each view keeps."""
    count = len(kept.start)
    groups = [
        (seen, members)
        for rows, members in delta.modified_groups(columns)
        if not (seen := _seen(rows, kept)).is_empty
    ]
    if not groups:
        return Modifications([reader.no_rows] * count, [reader.no_values] * count)
    sets: list[list[RowSet]] = [[none] * count for none in reader.no_rows]
    values: list[list[Column]] = [[none] * count for none in reader.no_values]
    shared = _SharedSets(union_of(rows for rows, _ in groups), kept)
    for rows, members in groups:
        low, high = kept.ranks(rows)
        group_sets = shared.sets_of(rows, high - low)
        found = reader.table.read(delta.keys_after.keys_at(rows), members)
        for column, column_values in zip(members, found, strict=True):
            sets[column] = group_sets
            values[column] = _pieces(compact(column_values), low, high, reader.no_values[column])
    return Modifications(list(zip(*sets, strict=True)), list(zip(*values, strict=True)))


def _seen(rows: RowSet, kept: KeptRows) -> RowSet:
    """``rows`` if views keep a good part of them, otherwise those that views keep."""
    low, high = kept.ranks(rows)
    needed = int((high - low).sum())
    if len(rows) <= SPARSE_FACTOR * needed:
        return rows
    return rows & union_of_windows(kept.start, kept.stop)


class _SharedSets:
    """Each view's members of ``every``, all rows modified in any column."""

    def __init__(self, every: RowSet, kept: KeptRows) -> None:
        self._kept = kept
        self._every = every
        self._sets = window_sets(every, *kept)
        low, high = kept.ranks(every)
        self._counts = high - low

    def sets_of(self, rows: RowSet, counts: Int64Array) -> list[RowSet]:
        """Each view's members of ``rows``, a part of ``every``; ``counts`` tells how many."""
        if rows is self._every:
            return self._sets
        start, stop, view_start = self._kept
        is_every = counts == self._counts
        own = window_sets(rows, start, np.where(is_every, start, stop), view_start)
        pairs = zip(is_every.tolist(), self._sets, own, strict=True)
        return [shared if is_shared else mine for is_shared, shared, mine in pairs]


def _pieces(values: Column, low: Int64Array, high: Int64Array, nothing: Column) -> list[Column]:
    """Rows [low[i], high[i]) of ``values`` for every i, without copying."""
    cut = values.slice
    return [
        cut(start, count) if count else nothing
        for start, count in zip(low.tolist(), (high - low).tolist(), strict=True)
    ]
