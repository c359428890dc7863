"""What an update does to viewports, in positions, for all contiguous viewports at once.

Shifts never change the order of rows, so in positions they are invisible: an update removes the
rows at some old positions, adds rows at some new ones, and everything else keeps its order. Number
the survivors 0, 1, 2, … (their *rank*): a window of old positions holds one run of ranks, so does a
window of new positions, and what the subscriber keeps is the intersection of the two runs.

Worked example: viewport 3-8 of a table that loses position 3 (one row added at the end). Old window
3-8: position 3 dies, 4-8 have ranks 3-7. New window 3-8: ranks 3-8. Kept: ranks 3-7, old view
indices 1-5, new view indices 0-4; so view index 0 is removed and view index 5 is added
(barrage-wire.md section 9).

A row that was removed and added again under the same key, or that left the window and came back
inside one update, needs no special treatment: only the two end states of the update matter here,
and a row that survives in both windows is one the subscriber still holds, with all modifications of
the span in the update. So nothing is ever repainted (section 9.2 needs that because its sender cuts
modifications to each step's window).

Cost: a few ``searchsorted`` of all windows' ends, whatever the number of windows that change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from barrage.rowset import RowSet

if TYPE_CHECKING:
    from barrage.model.update import TableUpdate
    from barrage.model.viewport import ColumnSet
    from barrage.rowset.arrays import BoolArray, Int64Array


class PositionDelta:
    """One table update in positions. ``removed`` are positions before it; ``added`` and modified
    ones after it. Everything is computed when it is first asked for: full subscriptions ask for
    nothing."""

    def __init__(self, update: TableUpdate, keys_before: RowSet | None, keys_after: RowSet) -> None:
        """``keys_before`` are worked out from the others where they are not given."""
        self.size_after = len(keys_after)
        self.size_before = (
            self.size_after - len(update.added_keys_post) + len(update.removed_keys_pre)
        )
        self.keys_after = keys_after
        self._update = update
        self._keys_before = keys_before
        self._modified_keys = update.modified_keys_post
        self._modified: dict[RowSet, RowSet] = {}
        self._groups: dict[ColumnSet, list[tuple[RowSet, ColumnSet]]] = {}

    @cached_property
    def removed(self) -> RowSet:
        """Old positions of the rows that left."""
        removed = self._update.removed_keys_pre
        if removed.is_empty:
            return removed
        before = self._keys_before
        if before is None:
            before = self._update.keys_before(self.keys_after)
        return _positions(before, removed)

    @cached_property
    def added(self) -> RowSet:
        """New positions of the rows that came."""
        return _positions(self.keys_after, self._update.added_keys_post)

    def modified(self, column: int) -> RowSet:
        """New positions of the rows modified in ``column``; equal columns give the same object."""
        keys = self._modified_keys[column]
        found = self._modified.get(keys)
        if found is None:
            found = self._modified[keys] = _positions(self.keys_after, keys)
        return found

    def modified_groups(self, columns: ColumnSet) -> list[tuple[RowSet, ColumnSet]]:
        """The columns with modified rows, grouped by equal rows."""
        found = self._groups.get(columns)
        if found is None:
            groups: dict[RowSet, list[int]] = {}
            for column in columns:
                keys = self._modified_keys[column]
                if not keys.is_empty:
                    groups.setdefault(keys, []).append(column)
            found = [(self.modified(members[0]), tuple(members)) for members in groups.values()]
            self._groups[columns] = found
        return found

    @cached_property
    def survivors_before(self) -> RowSet:
        """Old positions of the surviving rows: their rank here is the survivor's number."""
        return RowSet.of_span(0, self.size_before) - self.removed

    @cached_property
    def survivors_after(self) -> RowSet:
        """New positions of the surviving rows."""
        return RowSet.of_span(0, self.size_after) - self.added


def _positions(table_keys: RowSet, keys: RowSet) -> RowSet:
    if keys.is_empty or _is_counted(table_keys, keys.last):
        return keys  # positions are keys
    return table_keys.positions_of(keys)


def _is_counted(table_keys: RowSet, key: int) -> bool:
    """Whether all keys from 0 to this one are members."""
    if table_keys.is_empty or table_keys.first != 0 or table_keys.is_bits:
        return False
    return key <= int(table_keys.range_list[1][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewDelta:
    """What one view is told: ``removed`` are old view indices, the others new ones. ``window`` are
    the new positions shown, ``kept`` those among them whose rows the subscriber has already."""

    window: RowSet
    kept: RowSet
    removed: RowSet
    added: RowSet


def view_delta(delta: PositionDelta, before: RowSet, after: RowSet) -> ViewDelta:
    """The delta of one view of any form: ``before`` and ``after`` are its windows, in positions."""
    ranks_before = delta.survivors_before.positions_of(before - delta.removed)
    ranks_after = delta.survivors_after.positions_of(after - delta.added)
    kept_ranks = ranks_before & ranks_after
    kept = delta.survivors_after.keys_at(kept_ranks)
    gone = before - delta.survivors_before.keys_at(kept_ranks)
    return ViewDelta(
        window=after,
        kept=kept,
        removed=before.positions_of(gone),
        added=after.positions_of(after - kept),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Contiguous viewports as arrays: positions [start, stop), counted from the end where
    ``is_reverse``."""

    start: Int64Array
    stop: Int64Array
    is_reverse: BoolArray

    def windows(self, table_size: int | Int64Array) -> tuple[Int64Array, Int64Array]:
        """Half-open forward windows in a table of ``table_size`` rows, or each in one of its own
        size; empty ones have equal ends."""
        low = np.where(self.is_reverse, table_size - self.stop, self.start)
        high = np.where(self.is_reverse, table_size - self.start, self.stop)
        return _within(low, table_size), _within(high, table_size)


def _within(positions: Int64Array, size: int | Int64Array) -> Int64Array:
    """``np.clip`` from nought on, without what it looks up at every call."""
    return np.minimum(np.maximum(positions, 0), size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanPlan:
    """What an update does to many contiguous viewports; every array has one element per viewport.

    Windows are half-open positions. Kept rows have ranks [kept_first, kept_stop), empty when equal.
    """

    old_start: Int64Array
    old_stop: Int64Array
    new_start: Int64Array
    new_stop: Int64Array
    kept_first: Int64Array
    kept_stop: Int64Array
    is_moved: BoolArray
    """Whether rows leave or enter the window."""

    @classmethod
    def of(cls, delta: PositionDelta, spans: Spans) -> SpanPlan:
        old_start, old_stop = spans.windows(delta.size_before)
        new_start, new_stop = spans.windows(delta.size_after)
        first = np.maximum(_ranks(delta.removed, old_start), _ranks(delta.added, new_start))
        stop = np.minimum(_ranks(delta.removed, old_stop), _ranks(delta.added, new_stop))
        stop = np.maximum(first, stop)
        kept = stop - first
        return cls(
            old_start=old_start,
            old_stop=old_stop,
            new_start=new_start,
            new_stop=new_stop,
            kept_first=first,
            kept_stop=stop,
            is_moved=(kept != old_stop - old_start) | (kept != new_stop - new_start),
        )

    def pick(self, which: Int64Array) -> SpanPlan:
        """The plan of some of the viewports."""
        return SpanPlan(
            old_start=self.old_start[which],
            old_stop=self.old_stop[which],
            new_start=self.new_start[which],
            new_stop=self.new_stop[which],
            kept_first=self.kept_first[which],
            kept_stop=self.kept_stop[which],
            is_moved=self.is_moved[which],
        )

    def has_any(self, rows: RowSet) -> BoolArray:
        """Whether any of ``rows`` (new positions) lies in each new window."""
        return rows.rank_many(self.new_stop) > rows.rank_many(self.new_start)


def _ranks(dead: RowSet, positions: Int64Array) -> Int64Array:
    """Survivors before each of ``positions``, where the rows at ``dead`` positions are none."""
    return positions if dead.is_empty else positions - dead.rank_many(positions)


def union_of_windows(starts: Int64Array, stops: Int64Array) -> RowSet:
    """All positions in any of the half-open windows, given in any order."""
    is_real = starts < stops
    starts, stops = starts[is_real], stops[is_real]
    order = np.argsort(starts, kind="stable")
    return RowSet.from_overlapping(starts[order], stops[order] - 1)
