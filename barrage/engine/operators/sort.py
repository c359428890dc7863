"""A sorted view of the parent, kept up to date by moving only the rows that change.

State: the rows in sort order as two parallel arrays, own row keys (ascending, with gaps) and parent
keys, plus the map from parent key to own key. A cycle with m changed rows of n costs m log n
comparisons, plus one copy of those arrays: a nanosecond a row for a few changes, five for many.
Rows that keep their place keep their key; a moved row is removed and added; where a gap is full a
local window is re-spread with shifts (:mod:`barrage.engine.keys.gaps`). When more than a fraction
of the rows changes, the order is computed anew, which changes the cost and nothing in the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.keys.ascending import is_among, places_in, replaced, without
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

    import numpy.typing as npt
    import pyarrow as pa

    from barrage.engine.keys.ascending import Entries
    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.model.storage.hashing import Int64Array

    BoolArray = npt.NDArray[np.bool_]

__all__ = ["SortKey", "SortTable", "parse_sort_keys", "sort"]

FULL_SORT_ROWS_MIN = 4096
FULL_SORT_FRACTION = 4
"""Sort everything anew when more than one row in this many changed: either way costs about the
same between a half and a quarter of the rows."""

NOWHERE = -1
"""In place of where a row stood: it was not there."""

CLOSE = 32
CLOSE_ROWS_MIN = 4096
"""The keys of so many rows, with fewer than so many keys for each, may be kept in less room."""


class SortTable(DerivedTable):
    """The parent's rows in the order of ``keys``, stable."""

    def __init__(self, parent: Table, keys: tuple[SortKey, ...]) -> None:
        traits = parent.traits.changed(is_append_only=False, is_flat=parent.is_static)
        super().__init__(parent, parent.schema, traits)
        self._sort_keys = keys
        self._sort_order = SortOrder(parent, keys)
        ascending, order = self._sort_order.sorted_all()
        self._parents: Int64Array = ascending[order]
        count = len(self._parents)
        # A static table never needs room between its rows.
        self._keys: Int64Array = (
            np.arange(count, dtype=np.int64) if parent.is_static else fresh_keys(count)
        )
        self._is_apart = False
        self._hold(self._keys)
        self._own_key = KeyMap()
        if not parent.is_static:
            own_keys = np.empty(count, dtype=np.int64)
            own_keys[order] = self._keys
            self._own_key.add(ascending, own_keys)

    def _hold(self, keys: Int64Array, places: Int64Array | None = None) -> None:
        """Have these own keys, of which only those at ``places`` are others than before. Where all
        have room between them they are the ranges of their set as they are; nobody may write to
        them from here on."""
        self._is_apart = _are_apart(keys, places if self._is_apart else None)
        self._keys = keys
        self._row_keys = (
            RowSet.from_trusted_ranges(keys, keys, is_touching=False)
            if self._is_apart
            else RowSet.from_sorted_keys(keys)
        )

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return SortTable(parents[0], self._sort_keys)

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        self._sort_order.parent = parents[0]

    def advance(self, update: TableUpdate) -> TableUpdate:
        gone = self._forget_removed(update)
        changed = self._changed_rows(update)
        changed_at, stood_at, lost_at = self._lost(self._own_key.lookup(changed), gone)
        rows = merged_keys(update.added_keys_post.to_numpy(), changed)
        was_at = _scattered(rows, changed, changed_at)
        before = _scattered(rows, changed, stood_at)
        kept_parents = without(self._parents, lost_at)
        picks, gaps = self._place(rows, kept_parents)
        is_moved = _moved(gaps, before[picks])
        if not is_moved.all():
            returned = np.sort(was_at[picks[~is_moved]])
            lost_at = np.delete(lost_at, np.searchsorted(lost_at, returned))
            kept_parents = without(self._parents, lost_at)
            picks, gaps = picks[is_moved], _gaps_after_return(gaps, is_moved)
        is_added = was_at[picks] == NOWHERE
        return self._commit(
            update, lost_at, kept_parents, rows=rows[picks], is_added=is_added, gaps=gaps
        )

    def _lost(
        self, changed_from: Int64Array, gone: Int64Array
    ) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Where changed rows stand, and behind how many of the rows that neither changed nor are
        gone; and where all that changed or are gone stand, ascending. Rows are given by own key."""
        order = np.argsort(changed_from)
        at = np.searchsorted(self._keys, changed_from[order])
        lost_at = at
        if len(gone):
            lost_at = merged_keys(at, np.searchsorted(self._keys, np.sort(gone)))
        places = np.empty((2, len(order)), dtype=np.int64)
        places[0, order] = at
        places[1, order] = at - np.searchsorted(lost_at, at)
        return places[0], places[1], lost_at

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

    def _place(self, rows: Int64Array, kept: Entries) -> tuple[Int64Array, Int64Array]:
        """The ascending ``rows`` in sort order, as places among them, and before how many staying
        rows each of them comes."""
        if len(rows) == 0:
            return rows, rows
        if len(rows) > FULL_SORT_ROWS_MIN and len(rows) * FULL_SORT_FRACTION > len(kept):
            return self._sort_order.placed_among_all(rows)
        return self._sort_order.placed(rows, kept)

    def _commit(
        self,
        update: TableUpdate,
        lost_at: Int64Array,
        kept_parents: Entries,
        *,
        rows: Int64Array,
        is_added: BoolArray,
        gaps: Int64Array,
    ) -> TableUpdate:
        """Take the rows at ``lost_at`` out, put ``rows`` in, and say what that changed."""
        removed = RowSet.from_sorted_keys(self._keys[lost_at])
        kept = without(self._keys, lost_at)
        moved, moved_to, new = assign_keys(kept, gaps)
        shifts = moves_to_shifts(kept[moved], moved_to, moved)
        self._own_key.assign(kept_parents[moved], moved_to)
        self._own_key.assign(rows[~is_added], new[~is_added])
        ascending = np.argsort(rows[is_added])
        self._own_key.add(rows[is_added][ascending], new[is_added][ascending])
        self._parents = replaced(self._parents, lost_at, gaps, entries=rows)
        if len(lost_at) or len(gaps):
            keys = replaced(self._keys, lost_at, gaps, entries=new)
            moved_at = moved + np.searchsorted(gaps, moved, side="right")
            keys[moved_at] = moved_to
            new_at = gaps + np.arange(len(gaps))
            self._hold(keys, np.concatenate((new_at, moved_at)))
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
        return RowSet.from_sorted_keys(own[~is_among(own, moved)])

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
        return self.parent.take_cells(self._parents[places_in(self._keys, keys)], columns)


def _are_apart(keys: Int64Array, places: Int64Array | None = None) -> bool:
    """Whether ascending keys have room between them and do not lie so close together that a set of
    them may take less room in another form. With ``places`` only those are looked at, and what is
    beside them."""
    if len(keys) < CLOSE_ROWS_MIN or int(keys[-1] - keys[0]) < CLOSE * len(keys):
        return False
    if places is None:
        return bool(np.all(keys[1:] > keys[:-1] + 1))
    near = keys[places]
    below, above = keys[np.maximum(places - 1, 0)], keys[np.minimum(places + 1, len(keys) - 1)]
    is_close = ((near == below + 1) & (places > 0)) | (near == above - 1)
    return not is_close.any()


def _scattered(rows: Int64Array, some: Int64Array, values: Int64Array) -> Int64Array:
    """The values of some of the rows (both ascending), ``NOWHERE`` for the others."""
    if len(some) == len(rows):
        return values
    scattered = np.full(len(rows), NOWHERE)
    scattered[np.searchsorted(rows, some)] = values
    return scattered


def _moved(gaps: Int64Array, before: Int64Array) -> BoolArray:
    """Which rows do not stand where they stood, between the same neighbours.

    Only a row that is alone in its gap is recognised; that is nearly all of them.
    """
    is_moved = before != gaps
    same = gaps[1:] == gaps[:-1]
    is_moved[1:] |= same
    is_moved[:-1] |= same
    return np.asarray(is_moved)


def _gaps_after_return(gaps: Int64Array, is_moved: BoolArray) -> Int64Array:
    """Gap numbers of the moved rows once the unmoved ones are staying rows again.

    Example: gaps 2, 5, 5 of which the first returned: the two others now come after 6 staying rows.
    """
    returned = gaps[~is_moved]
    moved = gaps[is_moved]
    return moved + np.searchsorted(returned, moved, side="left")


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
