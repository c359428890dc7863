"""A sorted view of the parent, kept up to date by moving only the rows that change.

State: the rows in sort order as two parallel arrays, own row keys (ascending, with gaps) and parent
keys, plus the map from parent key to own key. A cycle with m changed rows of n costs m log n
comparisons, plus a few copies of those arrays. Rows that keep their place keep their key; a moved
row is removed and added; where a gap is full a local window is re-spread with shifts
(:mod:`barrage.engine.keys.gaps`). When more than a fraction of the rows changes, the order is
computed anew, which changes the cost and nothing in the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.keys.gaps import assign_keys, fresh_keys
from barrage.engine.keys.key_map import KeyMap
from barrage.engine.operators.sort_order import SortKey, SortOrder, parse_sort_keys
from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work
from barrage.engine.tables.moved_rows import each_once, merged_keys, moves_to_shifts, union_of
from barrage.engine.tables.table import DerivedTable
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.model.storage.hashing import Int64Array

__all__ = ["SortKey", "SortTable", "parse_sort_keys", "sort"]

FULL_SORT_ROWS_MIN = 4096
FULL_SORT_FRACTION = 8
"""Sort everything anew when more than one row in this many changed: about where two sort columns
break even at 10^6 rows (one column does so at a third)."""


class SortTable(DerivedTable):
    """The parent's rows in the order of ``keys``, stable."""

    def __init__(self, parent: Table, keys: tuple[SortKey, ...]) -> None:
        traits = parent.traits.changed(is_append_only=False, is_flat=parent.is_static)
        super().__init__(parent, parent.schema, traits)
        self._sort_keys = keys
        self._sort_order = SortOrder(parent, keys)
        self._parents: Int64Array = self._sort_order.sorted_all()
        count = len(self._parents)
        # A static table never needs room between its rows.
        self._keys: Int64Array = (
            np.arange(count, dtype=np.int64) if parent.is_static else fresh_keys(count)
        )
        self._row_keys = RowSet.from_sorted_keys(self._keys)
        self._own_key = KeyMap()
        if not parent.is_static:
            ascending = np.argsort(self._parents)
            self._own_key.add(self._parents[ascending], self._keys[ascending])

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return SortTable(parents[0], self._sort_keys)

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        self._sort_order.parent = parents[0]

    def advance(self, update: TableUpdate) -> TableUpdate:
        gone = self._forget_removed(update)
        added = update.added_keys_post.to_numpy()
        changed = self._changed_rows(update)
        changed_from = self._own_key.lookup(changed)
        lost = np.concatenate((gone, changed_from))
        stays = np.ones(len(self._keys), dtype=np.bool_)
        stays[np.searchsorted(self._keys, lost)] = False
        rows, gaps = self._place(merged_keys(added, changed), stays)
        is_moved = self._return_unmoved(
            stays, rows, gaps, changed=changed, changed_from=changed_from
        )
        rows, gaps = rows[is_moved], _gaps_after_return(gaps, is_moved)
        return self._commit(update, gone, stays, rows=rows, gaps=gaps)

    def _forget_removed(self, update: TableUpdate) -> Int64Array:
        """Own keys of the rows the parent removed; moves everything else to the parent's new
        keys."""
        removed = update.removed_keys_pre.to_numpy()
        gone = self._own_key.lookup(removed)
        self._own_key.remove(removed)
        self._own_key.shift(update.shifts)
        if not update.shifts.is_empty:
            # Removed rows are still in the array; what becomes of their numbers does not matter.
            self._parents = update.shifts.apply_keys(self._parents)
        return gone

    def _changed_rows(self, update: TableUpdate) -> Int64Array:
        """Parent keys of rows modified in a sort column, ascending."""
        columns = self._sort_order.columns
        return union_of(update.modified_keys_post[column] for column in columns).to_numpy()

    def _place(
        self, rows: Int64Array, stays: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> tuple[Int64Array, Int64Array]:
        """``rows`` in sort order, and before how many staying rows each of them comes."""
        if len(rows) == 0:
            return rows, rows
        kept = self._parents[stays]
        if len(rows) > FULL_SORT_ROWS_MIN and len(rows) * FULL_SORT_FRACTION > len(kept):
            everything = self._sort_order.sorted_all()
            is_row = _is_in(everything, rows)
            places = np.flatnonzero(is_row)
            return everything[places], places - np.arange(len(places))
        ordered = self._sort_order.sorted_rows(rows)
        return ordered, self._sort_order.places(ordered, kept)

    def _return_unmoved(
        self,
        stays: np.ndarray[tuple[int], np.dtype[np.bool_]],
        rows: Int64Array,
        gaps: Int64Array,
        *,
        changed: Int64Array,
        changed_from: Int64Array,
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Let changed rows that still stand between the same neighbours stay; the others' mask.

        Only a row that is alone in its gap is recognised; that is nearly all of them.
        """
        is_moved = np.ones(len(rows), dtype=np.bool_)
        if len(changed) == 0:
            return is_moved
        before = np.searchsorted(self._keys[stays], changed_from)
        where = np.searchsorted(changed, rows)
        where[where == len(changed)] = 0
        is_changed = changed[where] == rows
        is_alone = np.ones(len(rows), dtype=np.bool_)
        same = gaps[1:] == gaps[:-1]
        is_alone[1:] &= ~same
        is_alone[:-1] &= ~same
        is_moved = np.asarray(~(is_changed & is_alone & (before[where] == gaps)))
        stays[np.searchsorted(self._keys, changed_from[where[~is_moved]])] = True
        return is_moved

    def _commit(
        self,
        update: TableUpdate,
        gone: Int64Array,
        stays: np.ndarray[tuple[int], np.dtype[np.bool_]],
        *,
        rows: Int64Array,
        gaps: Int64Array,
    ) -> TableUpdate:
        """Take the rows that do not stay out, put ``rows`` in, and say what that changed."""
        removed = RowSet.from_sorted_keys(self._keys[~stays])
        kept, kept_parents = self._keys[stays], self._parents[stays]
        kept_now, new = assign_keys(kept, gaps)
        shifts = moves_to_shifts(kept, kept_now)
        self._keys = np.insert(kept_now, gaps, new)
        self._parents = np.insert(kept_parents, gaps, rows)
        moved = np.flatnonzero(kept_now != kept)
        self._own_key.assign(kept_parents[moved], kept_now[moved])
        is_added = update.added_keys_post.contains_many(rows)
        self._own_key.assign(rows[~is_added], new[~is_added])
        ascending = np.argsort(rows[is_added])
        self._own_key.add(rows[is_added][ascending], new[is_added][ascending])
        self._row_keys = RowSet.from_sorted_keys(self._keys)
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=removed,
            shifts=shifts,
            added_keys_post=RowSet.from_sorted_keys(new),
            modified_keys_post=each_once(
                update.modified_keys_post, lambda keys: self._unmoved_keys(keys, new)
            ),
        )

    def _unmoved_keys(self, parent_keys: RowSet, moved: Int64Array) -> RowSet:
        """Own keys of parent rows, without the ascending ``moved`` ones."""
        own = np.sort(self._own_key.lookup(parent_keys.to_numpy()))
        return RowSet.from_sorted_keys(own[~_is_in(own, moved)])

    def _parents_of(self, keys: RowSet) -> Int64Array:
        if keys.is_empty:
            return np.empty(0, dtype=np.int64)
        start, stop = np.searchsorted(self._keys, (keys.first, keys.last))
        if stop - start + 1 == len(keys):
            return self._parents[start : stop + 1]
        return self._parents[np.searchsorted(self._keys, keys.to_numpy())]

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.parent.take_cells(self._parents_of(keys), columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.parent.take_cells(self._parents[np.searchsorted(self._keys, keys)], columns)


def _gaps_after_return(
    gaps: Int64Array, is_moved: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> Int64Array:
    """Gap numbers of the moved rows once the unmoved ones are staying rows again.

    Example: gaps 2, 5, 5 of which the first returned: the two others now come after 6 staying rows.
    """
    returned = gaps[~is_moved]
    moved = gaps[is_moved]
    return moved + np.searchsorted(returned, moved, side="left")


def _is_in(keys: Int64Array, wanted: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of ``keys`` occur in the ascending ``wanted``."""
    if len(wanted) == 0:
        return np.zeros(len(keys), dtype=np.bool_)
    where = np.searchsorted(wanted, keys)
    where[where == len(wanted)] = 0
    return np.asarray(wanted[where] == keys)


def sort(table: Table, *keys: str | tuple[str, str] | SortKey) -> Table:
    """Rows in the order of the sort keys, equal ones in the order they have here.

    A key is a column name, ``(name, "ascending" | "descending")``, ``"-name"`` or a ``SortKey``.
    """
    parsed = parse_sort_keys(table.schema, keys)
    return derived(
        (table,),
        ("sort", parsed),
        lambda parent: SortTable(parent, parsed),
        price=work.of_sort(len(parsed)),
    )
