"""The last row for each combination of key values: a keyed view of any table.

Row key == number of the group (:mod:`barrage.engine.aggregation.grouping`). When more than half of
the numbers are free, groups move to lower ones with shifts. A group whose last row goes away finds
its new one by one pass over the group number of every parent row (vectorised); parents that only
append never need that.

The last rows of a blink table are those of the current cycle: rows of cycles before are gone. The
result is an ordinary table, which shows nothing after a cycle without rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.engine.aggregation.grouping import GroupChange, RowGroups
from barrage.engine.keys.ascending import distinct
from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables import work
from barrage.engine.tables.keyed import check_key_columns
from barrage.engine.tables.table import DerivedTable
from barrage.model.storage import cells_differ
from barrage.model.storage.growth import lengthened
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.model.storage.hashing import Int64Array

NO_ROW = -1


def parse_key_columns(schema: pa.Schema, columns: Sequence[str]) -> tuple[str, ...]:
    """The names, checked; SchemaError when one is unknown or cannot be a key."""
    check_key_columns(schema, columns)
    return tuple(columns)


class LastByTable(DerivedTable):
    """One row per group, showing the group's last row in the parent. Null is a key value like
    others."""

    is_summary = True

    def __init__(self, parent: Table, key_columns: tuple[str, ...]) -> None:
        traits = parent.traits.changed(
            is_append_only=False, is_blink=False, is_flat=False, key_columns=key_columns
        )
        super().__init__(parent, parent.schema, traits)
        self._key_indices = check_key_columns(parent.schema, key_columns)
        # 0.0 and -0.0 are one key, so the last row of a group may show another one than before.
        self._fixed_keys = [
            i for i in self._key_indices if not _is_floating(parent.schema.types[i])
        ]
        self._groups = RowGroups(parent, self._key_indices)
        self._last_row: Int64Array = np.empty(0, dtype=np.int64)
        """Per group; longer than there are groups, so that it rarely grows."""
        for rows, groups in self._groups.enter_all():
            self._last_row = lengthened(self._last_row, self._groups.count, NO_ROW)
            # Rows come in ascending order and the last assignment to a group stands.
            self._last_row[groups] = rows
        self._row_keys = RowSet.of_span(0, self._groups.count)

    @property
    def order_is_reproducible(self) -> bool:
        """Groups stand in order of first appearance, which the present rows only tell where none
        was ever removed."""
        return super().order_is_reproducible and (
            self.parent.is_append_only or self.parent.is_static
        )

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return LastByTable(parents[0], self.key_columns)

    def stand_upon(self, parents: Sequence[Table]) -> None:
        super().stand_upon(parents)
        self._groups.parent = parents[0]

    def _pin(self, known: dict[int, Table]) -> None:
        super()._pin(known)
        self._last_row = self._last_row.copy()

    def advance(self, update: TableUpdate) -> TableUpdate:
        before = self._row_keys
        change = self._groups.advance(update)
        self._last_row = lengthened(self._last_row, self._groups.count, NO_ROW)
        bereft = self._lose_rows(update, change)
        touched = _touched(change)
        shown = self._last_row[touched]
        self._last_row[bereft] = NO_ROW
        self._find_last(change, bereft)
        removed = RowSet.from_sorted_keys(change.emptied)
        added = RowSet.of_span(change.first_new, self._groups.count)
        kept = before - removed
        live = kept | added
        modified = self._modified(update, touched, shown, kept=kept)
        self._row_keys = live
        shifts = RowSetShiftData.empty()
        moves = self._groups.pack(len(live))
        if moves is not None:
            shifts = moves.shifts_of(kept)
            self._row_keys, added, *modified = moves.of_sets([live, added, *modified])
            moves.apply(self._last_row, NO_ROW)
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=removed,
            shifts=shifts,
            added_keys_post=added,
            modified_keys_post=tuple(modified),
        )

    def _lose_rows(self, update: TableUpdate, change: GroupChange) -> Int64Array:
        """Groups that lost the row they showed. Those whose row is gone show none from here on,
        those whose row went to another group still show it."""
        groups = change.removed_groups
        rows = change.removed_rows_pre[: len(groups)]
        gone = groups[self._last_row[groups] == rows]
        self._last_row[gone] = NO_ROW
        self._last_row = _shifted(self._last_row, update.shifts)
        left = change.moved_from
        return np.concatenate((gone, left[self._last_row[left] == change.moved_rows]))

    def _find_last(self, change: GroupChange, bereft: Int64Array) -> None:
        """Bring ``_last_row`` up to date for groups that lost or gained rows."""
        if len(bereft):
            self.spend(work.LOOKED_THROUGH * int(self._groups.sizes(bereft).sum()))
            rows, groups = self._groups.rows_in(bereft)
            self._last_row[groups] = rows
        for rows, groups in (
            (change.moved_rows, change.moved_to),
            (change.added_rows, change.added_groups),
        ):
            is_later = rows > self._last_row[groups]
            self._last_row[groups[is_later]] = rows[is_later]

    def _modified(
        self, update: TableUpdate, touched: Int64Array, shown: Int64Array, *, kept: RowSet
    ) -> list[RowSet]:
        """Per column: kept groups that show another cell now. ``shown`` is the row each of the
        ``touched`` ones showed before; no others may show another one."""
        is_switched = (shown != self._last_row[touched]) & kept.contains_many(touched)
        switched, shown = touched[is_switched], shown[is_switched]
        # The cells of a row that is gone or was modified are unknown; such groups count as changed.
        known, old_rows = switched[shown != NO_ROW], shown[shown != NO_ROW]
        unknown = RowSet.from_sorted_keys(switched[shown == NO_ROW])
        new_rows = self._last_row[known]
        modified = []
        for column, keys in enumerate(update.modified_keys_post):
            if column in self._fixed_keys:
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
                where = self._groups.groups_of(rows)
                changed = changed | RowSet.from_keys(where[self._last_row[where] == rows])
            modified.append(changed & kept)
        return modified

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.parent.take_cells(self._last_row[keys.to_numpy()], columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.parent.take_cells(self._last_row[keys], columns)


def _touched(change: GroupChange) -> Int64Array:
    """Groups that rows left or entered, ascending."""
    groups = (change.removed_groups, change.moved_from, change.moved_to, change.added_groups)
    return distinct(np.concatenate(groups))


def _is_floating(data_type: pa.DataType) -> bool:
    if pa.types.is_dictionary(data_type):
        return _is_floating(data_type.value_type)
    return bool(pa.types.is_floating(data_type))


def _shifted(rows: Int64Array, shifts: RowSetShiftData) -> Int64Array:
    """Rows after the shifts; groups without a row keep that mark."""
    if shifts.is_empty:
        return rows
    present = np.flatnonzero(rows != NO_ROW)
    moved = rows.copy()
    moved[present] = shifts.apply_keys(rows[present])
    return moved


def last_by(table: Table, *columns: str) -> Table:
    """The last row for each combination of values in ``columns``; these become the key columns."""
    names = parse_key_columns(table.schema, columns)
    return derived(
        (table,),
        ("last_by", names),
        lambda parent: LastByTable(parent, names),
        price=work.of_groups(len(names)),
    )
