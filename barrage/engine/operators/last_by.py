"""The last row for each combination of key values: a keyed view of any table.

Row key == number of the group, handed out in order of first appearance; a group that loses its last
row is forgotten. When more than half of the numbers are free they are compacted with shifts. A
group whose last row goes away finds its new one by one pass over the group number of every parent
row (vectorised); parents that only append never need that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.hashing import Int64Array, UInt64Array, hash_rows
from barrage.engine.key_index import KeyIndex
from barrage.engine.key_map import KeyMap
from barrage.engine.keyed import check_key_columns
from barrage.engine.row_sets import packing_shifts, union_of
from barrage.engine.table import DerivedTable
from barrage.model.storage import ColumnStore, cells_differ
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.table import Cells, Table

NO_ROW = -1
FREE_GROUPS_MIN = 4096


def parse_key_columns(schema: pa.Schema, columns: Sequence[str]) -> tuple[str, ...]:
    """The names, checked; SchemaError when one is unknown or cannot be a key."""
    check_key_columns(schema, columns)
    return tuple(columns)


class LastByTable(DerivedTable):
    """One row per group, showing the group's last row in the parent. Null is a key value like
    others."""

    def __init__(self, parent: Table, key_columns: tuple[str, ...]) -> None:
        traits = parent.traits.changed(is_append_only=False, is_flat=False, key_columns=key_columns)
        super().__init__(parent, parent.schema, traits)
        self._key_indices = check_key_columns(parent.schema, key_columns)
        self._key_cells = [ColumnStore(parent.schema.field(i).type) for i in self._key_indices]
        self._index = KeyIndex(lambda: self._key_cells)
        self._group_of = KeyMap()
        self._last_row: Int64Array = np.empty(0, dtype=np.int64)
        rows = parent.row_keys.to_numpy()
        groups = self._groups_of(rows)
        self._group_of.add(rows, groups)
        self._last_row[groups] = rows
        self._row_keys = RowSet.of_span(0, len(self._last_row))

    def _groups_of(self, rows: Int64Array) -> Int64Array:
        """Group numbers of existing parent rows; new combinations get new numbers."""
        keys = self._keys_of(rows)
        hashes = hash_rows(keys)
        groups = self._index.lookup(keys, hashes)
        missing = np.flatnonzero(groups < 0)
        while len(missing):
            # One row per hash is surely a new combination of its own; rows that only share its hash
            # are still missing afterwards and go into the next round.
            _, first = np.unique(hashes[missing], return_index=True)
            self._add_groups(keys, hashes, missing[np.sort(first)])
            picked = pa.array(missing)
            groups[missing] = self._index.lookup(
                [column.take(picked) for column in keys], hashes[missing]
            )
            missing = missing[groups[missing] < 0]
        return groups

    def _keys_of(self, rows: Int64Array) -> list[pa.Array]:
        """The key columns of parent rows, in the order they were named."""
        columns = sorted(self._key_indices)
        cells = dict(zip(columns, self.parent.take_cells(rows, columns), strict=True))
        return [cells[index] for index in self._key_indices]

    def _add_groups(self, keys: Sequence[pa.Array], hashes: UInt64Array, rows: Int64Array) -> None:
        start = len(self._last_row)
        picked = pa.array(rows)
        for store, column in zip(self._key_cells, keys, strict=True):
            store.append(column.take(picked))
        self._index.add(hashes[rows], np.arange(start, start + len(rows), dtype=np.int64))
        self._last_row = np.concatenate(
            (self._last_row, np.full(len(rows), NO_ROW, dtype=np.int64))
        )

    def advance(self, update: TableUpdate) -> TableUpdate:
        before = self._row_keys
        bereft = self._forget_removed(update)
        self._last_row = _shifted(self._last_row, update.shifts)
        bereft = np.concatenate((bereft, self._regroup(update)))
        shown = self._last_row.copy()
        self._last_row[bereft] = NO_ROW
        self._find_last(update, bereft)
        live = RowSet.from_sorted_keys(np.flatnonzero(self._last_row != NO_ROW))
        kept, removed, added = before & live, before - live, live - before
        modified = self._modified(update, shown, kept)
        self._forget_groups(removed.to_numpy())
        self._row_keys = live
        shifts = RowSetShiftData.empty()
        if len(self._last_row) > 2 * len(live) + FREE_GROUPS_MIN:
            shifts = packing_shifts(live, kept)
            added = live.positions_of(added)
            modified = [live.positions_of(keys) for keys in modified]
            self._renumber(live)
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=removed,
            shifts=shifts,
            added_keys_post=added,
            modified_keys_post=tuple(modified),
        )

    def _forget_removed(self, update: TableUpdate) -> Int64Array:
        """Take out the parent's removed rows; the groups that lost the row they showed."""
        rows = update.removed_keys_pre.to_numpy()
        groups = self._group_of.lookup(rows)
        self._group_of.remove(rows)
        self._group_of.shift(update.shifts)
        bereft = groups[self._last_row[groups] == rows]
        self._last_row[bereft] = NO_ROW
        return np.asarray(bereft)

    def _regroup(self, update: TableUpdate) -> Int64Array:
        """Take in added rows and rows whose key cells changed; the groups that lost their row."""
        changed = self._rekeyed(update).to_numpy()
        left = self._group_of.lookup(changed)
        now = self._groups_of(changed)
        self._group_of.assign(changed, now)
        added = update.added_keys_post.to_numpy()
        self._group_of.add(added, self._groups_of(added))
        return np.asarray(left[(self._last_row[left] == changed) & (left != now)])

    def _rekeyed(self, update: TableUpdate) -> RowSet:
        """Parent rows with a modified key cell."""
        return union_of(update.modified_keys_post[column] for column in self._key_indices)

    def _find_last(self, update: TableUpdate, bereft: Int64Array) -> None:
        """Bring ``_last_row`` up to date for groups that lost or gained rows."""
        if len(bereft):
            is_bereft = np.zeros(len(self._last_row), dtype=np.bool_)
            is_bereft[bereft] = True
            rows, groups = self._group_of.items()
            chosen = is_bereft[groups]
            # Rows come in ascending order and the last assignment to a group stands.
            self._last_row[groups[chosen]] = rows[chosen]
        rows = (update.added_keys_post | self._rekeyed(update)).to_numpy()
        groups = self._group_of.lookup(rows)
        is_later = rows > self._last_row[groups]
        self._last_row[groups[is_later]] = rows[is_later]

    def _modified(self, update: TableUpdate, shown: Int64Array, kept: RowSet) -> list[RowSet]:
        """Per column: kept groups that show another cell now. ``shown`` is the row each showed
        before."""
        groups = kept.to_numpy()
        switched = groups[shown[groups] != self._last_row[groups]]
        # The cells of a row that is gone or was modified are unknown; such groups count as changed.
        known = switched[shown[switched] != NO_ROW]
        unknown = RowSet.from_sorted_keys(switched[shown[switched] == NO_ROW])
        old_rows, new_rows = shown[known], self._last_row[known]
        modified = []
        for column, keys in enumerate(update.modified_keys_post):
            if column in self._key_indices:
                modified.append(RowSet.empty())
                continue
            changed = unknown
            if len(known):
                (old,) = self.parent.take_cells(old_rows, [column])
                (new,) = self.parent.take_cells(new_rows, [column])
                differ = cells_differ(old, new) | keys.contains_many(old_rows)
                changed = changed | RowSet.from_sorted_keys(known[differ])
            if not keys.is_empty:
                rows = keys.to_numpy()
                where = self._group_of.lookup(rows)
                changed = changed | RowSet.from_keys(where[self._last_row[where] == rows])
            modified.append(changed & kept)
        return modified

    def _forget_groups(self, groups: Int64Array) -> None:
        if len(groups):
            hashes = hash_rows([store.take(groups) for store in self._key_cells])
            self._index.remove(hashes, groups)

    def _renumber(self, live: RowSet) -> None:
        groups = live.to_numpy()
        renumbered = np.full(len(self._last_row), NO_ROW, dtype=np.int64)
        renumbered[groups] = np.arange(len(groups))
        rows, old = self._group_of.items()
        self._group_of.assign(rows, renumbered[old])
        self._last_row = self._last_row[groups]
        self._key_cells = [store.compacted(groups) for store in self._key_cells]
        self._index.rebuild(np.arange(len(groups), dtype=np.int64))
        self._row_keys = RowSet.of_span(0, len(groups))

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.parent.take_cells(self._last_row[keys.to_numpy()], columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.parent.take_cells(self._last_row[keys], columns)


def _shifted(rows: Int64Array, shifts: RowSetShiftData) -> Int64Array:
    """Rows after the shifts; groups without a row keep that mark."""
    if shifts.is_empty:
        return rows
    present = np.flatnonzero(rows != NO_ROW)
    moved = rows.copy()
    moved[present] = shifts.apply_keys(rows[present])
    return moved
