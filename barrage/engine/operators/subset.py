"""What filters, heads and tails share: they show some of the parent's rows under the parent's
keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.tables.moved_rows import each_once
from barrage.engine.tables.table import DerivedTable
from barrage.model.update import TableUpdate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.tables.cells import Cells
    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array


class SubsetTable(DerivedTable):
    """Keeps only a row set; cells are read from the parent."""

    def choose(self, update: TableUpdate, survivors: RowSet) -> tuple[RowSet, RowSet]:
        """Which rows leave and which enter, in keys after the update.

        ``survivors`` are the rows shown before that the parent still has. The first result is a
        subset of them, the second disjoint from them.
        """
        raise NotImplementedError

    def advance(self, update: TableUpdate) -> TableUpdate:
        before, shifts = self._row_keys, update.shifts
        removed = before & update.removed_keys_pre
        survivors_pre = before - removed
        survivors = survivors_pre if shifts.is_empty else shifts.apply(survivors_pre)
        left, entered = self.choose(update, survivors)
        kept = survivors - left
        self._row_keys = kept | entered
        if not left.is_empty:
            left_pre = left if shifts.is_empty else shifts.unapply(left)
            removed = removed | left_pre
            survivors_pre = survivors_pre - left_pre
        return TableUpdate(
            first_step=update.first_step,
            last_step=update.last_step,
            removed_keys_pre=removed,
            shifts=shifts if shifts.is_empty else shifts.restrict(survivors_pre),
            added_keys_post=entered,
            modified_keys_post=each_once(update.modified_keys_post, lambda keys: keys & kept),
        )

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.parent.read_cells(keys, columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.parent.take_cells(keys, columns)
