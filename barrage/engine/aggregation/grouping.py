"""Which group every row of a table is in: rows with equal key cells form one group.

A group is a number, handed out in order of first appearance
(:mod:`barrage.engine.keys.key_numbers`). A group that loses its last row is forgotten: when its key
comes again, it is a new group. Numbers are not reused; once more than half of them are free the
groups are packed: they move to lower numbers, in their order. A cycle looks at so many of them, so
that nobody waits for millions to move at once.

The parent's rows are followed in two steps that matter to whoever keeps something per group: rows
that leave (removed, or moved by a changed key), then rows that enter. A group that lost all of its
rows in the first step has *drained*, whether or not others enter it in the second; one that is
still empty after the second was *emptied*.

Cost: a few vector operations over the changed rows. 8 bytes per row and per group; parents that
only append cost nothing per row, since nobody ever asks for the group of an old row.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from barrage.engine.keys.ascending import distinct
from barrage.engine.keys.key_map import KeyMap
from barrage.engine.keys.key_numbers import KeyNumbers
from barrage.engine.tables.cells import EVALUATED_ROWS
from barrage.engine.tables.moved_rows import each_once, moves_to_shifts, union_of
from barrage.model.storage.growth import lengthened, shorten
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from barrage.engine.tables.table import Table
    from barrage.model.storage import ColumnStore
    from barrage.model.storage.hashing import Int64Array
    from barrage.model.update import TableUpdate
    from barrage.rowset import RowSetShiftData

    BoolArray = npt.NDArray[np.bool_]

FREE_GROUPS_MIN = 4096
"""Below this many free numbers groups are never packed."""

PACKED_TOGETHER = 1 << 17
"""Numbers that one cycle looks at to pack groups, beside as many as it handed out: those of a
smaller table all at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange:
    """What one cycle did to the groups. Arrays that belong together have equal lengths."""

    removed_rows_pre: Int64Array
    """Rows the parent removed, ascending, in keys before the cycle."""
    removed_groups: Int64Array
    """The groups they were in."""
    moved_rows: Int64Array
    """Rows that stayed and are in another group now, ascending, in keys after the cycle."""
    moved_from: Int64Array
    moved_to: Int64Array
    added_rows: Int64Array
    """Rows the parent added, ascending."""
    added_groups: Int64Array
    drained: Int64Array
    """Groups that lost all the rows they had, ascending; rows may have entered since."""
    emptied: Int64Array
    """Those of them that have no row now; they are forgotten."""
    first_new: int
    """Groups from here on are new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMoves:
    """Groups that get other numbers, ascending, and which: lower ones, that are free or theirs."""

    groups: Int64Array
    to: Int64Array
    count: int | None = None
    """All numbers are below from here on; None while there are further groups to be looked at."""

    def apply(self, values: npt.NDArray[Any], blank: int) -> None:
        """Move what an array has by number, in place; ``blank`` is what it has for no group."""
        moved = values[self.groups]
        values[self.groups] = blank
        values[self.to] = moved
        if self.count is not None:
            shorten(values, self.count)

    def move_cells(self, stores: Iterable[ColumnStore]) -> None:
        """Move the cells that columns have by number."""
        for store in stores:
            store.write(self.to, store.take(self.groups))
            if self.count is not None:
                store.truncate(self.count)
                store.give_up_unused()

    def of_sets(self, sets: Sequence[RowSet]) -> list[RowSet]:
        """Sets of groups by their numbers after the moves."""
        shifts = moves_to_shifts(self.groups, self.to)
        return list(each_once(sets, shifts.apply))

    def shifts_of(self, kept: RowSet) -> RowSetShiftData:
        """How those of the moved groups that are in ``kept`` move."""
        is_kept = kept.contains_many(self.groups)
        return moves_to_shifts(self.groups[is_kept], self.to[is_kept])


class RowGroups:
    """The groups of a parent's rows by some of its columns; no columns make one group of all."""

    def __init__(self, parent: Table, key_columns: Sequence[int]) -> None:
        self.parent = parent
        self._key_columns = tuple(key_columns)
        types = [parent.schema.field(column).type for column in key_columns]
        # Without columns all rows have the same, invisible key.
        self._numbers = KeyNumbers(types or [pa.int8()])
        self._group_of = None if parent.is_append_only or parent.is_static else KeyMap()
        self._sizes: Int64Array = np.empty(0, dtype=np.int64)
        self._looked_upto = 0
        """While groups are packed: numbers below have been looked at,"""
        self._packed_upto = 0
        """and their groups have numbers below this."""
        self._count_before = 0
        """Numbers handed out up to the cycle before."""

    def pinned(self) -> RowGroups:
        """The groups there are now, for reading their key cells on any thread."""
        copied = copy.copy(self)
        copied._numbers = self._numbers.pinned()
        return copied

    @property
    def count(self) -> int:
        """Numbers handed out so far: every group's number is below."""
        return self._numbers.count

    def key_cells(self, groups: Int64Array) -> list[pa.Array]:
        """The key cells of groups, one array per key column."""
        return self._numbers.cells(groups) if self._key_columns else []

    def sizes(self, groups: Int64Array) -> Int64Array:
        """How many rows groups have."""
        return self._sizes[groups]

    def groups_of(self, rows: Int64Array) -> Int64Array:
        """The groups of rows that exist. Not for parents that only append."""
        assert self._group_of is not None
        return self._group_of.lookup(rows)

    def rows_in(self, groups: Int64Array) -> tuple[Int64Array, Int64Array]:
        """All rows of some groups, ascending, and the group of each: one pass over the numbers of
        all rows. Not for parents that only append."""
        assert self._group_of is not None
        is_wanted = np.zeros(self.count, dtype=np.bool_)
        is_wanted[groups] = True
        return self._group_of.items_with(is_wanted)

    def enter_all(self) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Take in all rows the parent has, in pieces that bound the temporaries: rows and their
        groups."""
        keys = self.parent.row_keys
        for start in range(0, len(keys), EVALUATED_ROWS):
            rows = keys.slice(start, start + EVALUATED_ROWS).to_numpy()
            groups = self._numbers_of(rows)
            self._enter(rows, groups)
            np.add.at(self._sizes, groups, 1)
            self._count_before = self.count
            yield rows, groups

    def _enter(self, rows: Int64Array, groups: Int64Array) -> None:
        if self._group_of is not None:
            self._group_of.add(rows, groups)

    def _numbers_of(self, rows: Int64Array) -> Int64Array:
        """The groups by the key cells rows have now; new combinations make new groups."""
        if not self._key_columns:
            groups = self._numbers.of([pa.nulls(len(rows), pa.int8())])
        else:
            columns = sorted(set(self._key_columns))
            cells = dict(zip(columns, self.parent.take_cells(rows, columns), strict=True))
            groups = self._numbers.of([cells[column] for column in self._key_columns])
        self._sizes = lengthened(self._sizes, self.count, 0)
        return groups

    def advance(self, update: TableUpdate) -> GroupChange:
        """Follow the parent, which has already moved to the state after ``update``."""
        first_new = self.count
        removed, removed_groups = self._leave(update)
        rekeyed = union_of(update.modified_keys_post[column] for column in self._key_columns)
        added = update.added_keys_post
        entering = (added | rekeyed).to_numpy()
        groups = self._numbers_of(entering)
        is_added = added.contains_many(entering)
        added_rows, added_groups = entering[is_added], groups[is_added]
        moved, moved_to = entering[~is_added], groups[~is_added]
        moved_from = moved_to if len(moved) == 0 else self.groups_of(moved)
        is_moved = moved_from != moved_to
        moved, moved_from, moved_to = moved[is_moved], moved_from[is_moved], moved_to[is_moved]
        if len(moved) and self._group_of is not None:
            self._group_of.assign(moved, moved_to)
        self._enter(added_rows, added_groups)
        np.add.at(self._sizes, removed_groups, -1)
        np.add.at(self._sizes, moved_from, -1)
        left = distinct(np.concatenate((removed_groups, moved_from)))
        drained = left[self._sizes[left] == 0]
        np.add.at(self._sizes, moved_to, 1)
        np.add.at(self._sizes, added_groups, 1)
        emptied = drained[self._sizes[drained] == 0]
        self._numbers.forget(emptied)
        return GroupChange(
            removed_rows_pre=removed,
            removed_groups=removed_groups,
            moved_rows=moved,
            moved_from=moved_from,
            moved_to=moved_to,
            added_rows=added_rows,
            added_groups=added_groups,
            drained=drained,
            emptied=emptied,
            first_new=first_new,
        )

    def _leave(self, update: TableUpdate) -> tuple[Int64Array, Int64Array]:
        """Take the removed rows out and move the others to their new keys."""
        removed = update.removed_keys_pre.to_numpy()
        if self._group_of is None:
            return removed, np.empty(0, dtype=np.int64)
        groups = self._group_of.lookup(removed)
        self._group_of.remove(removed)
        self._group_of.shift(update.shifts)
        return removed, groups

    def pack(self, live_count: int) -> GroupMoves | None:
        """Give some of the ``live_count`` groups lower numbers, once many are free and until all
        have been looked at. Their order stays."""
        came, self._count_before = self.count - self._count_before, self.count
        if not self._looked_upto and self.count <= 2 * live_count + FREE_GROUPS_MIN:
            return None
        # As many more as came, or new groups might always stay ahead.
        start = self._looked_upto
        stop = min(start + PACKED_TOGETHER + came, self.count)
        groups = start + np.flatnonzero(self._sizes[start:stop])
        to = self._packed_upto + np.arange(len(groups))
        self._looked_upto, self._packed_upto = stop, self._packed_upto + len(groups)
        is_moved = groups != to
        moves = GroupMoves(groups=groups[is_moved], to=to[is_moved])
        if len(moves.groups):
            if self._group_of is not None:
                rows, where = self.rows_in(moves.groups)
                self._group_of.assign(rows, moves.to[np.searchsorted(moves.groups, where)])
            moves.apply(self._sizes, 0)
            self._numbers.move(moves.groups, moves.to)
        if stop < self.count:
            return moves
        self._numbers.truncate(self._packed_upto)
        shorten(self._sizes, self.count)
        self._looked_upto = self._packed_upto = 0
        self._count_before = self.count
        return replace(moves, count=self.count)


def in_groups(update: TableUpdate, change: GroupChange, column: int) -> Int64Array:
    """Rows modified in ``column`` that stayed in their group, ascending."""
    modified = update.modified_keys_post[column]
    if len(change.moved_rows):
        modified = modified - RowSet.from_sorted_keys(change.moved_rows)
    return modified.to_numpy()
