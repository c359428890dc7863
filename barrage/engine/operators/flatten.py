"""The parent's rows under the keys 0 to size-1: key and position are the same number.

State: the parent's keys. An update is told in positions; its shifts are read off the removed and
the added positions, so a cycle costs a few operations per changed range of rows, not per row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.planning.operator_plan import derived
from barrage.engine.tables.moved_rows import closing_shifts, each_once, union_of
from barrage.engine.tables.table import DerivedTable
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.tables.cells import Cells
    from barrage.engine.tables.table import Table
    from barrage.rowset.arrays import Int64Array


class FlattenTable(DerivedTable):
    """The same rows, densely numbered."""

    def __init__(self, parent: Table) -> None:
        super().__init__(parent, parent.schema, parent.traits.changed(is_flat=True))
        self._parent_keys = parent.row_keys
        self._row_keys = RowSet.of_span(0, parent.size)

    def _like_this(self, parents: tuple[Table, ...]) -> DerivedTable:
        return FlattenTable(parents[0])

    def advance(self, update: TableUpdate) -> TableUpdate:
        before, self._parent_keys = self._parent_keys, self.parent.row_keys
        self._row_keys = RowSet.of_span(0, len(self._parent_keys))
        return densely(update, before, self._parent_keys)

    def read_cells(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        return self.parent.read_cells(self._parent_keys.keys_at(keys), columns)

    def take_cells(self, keys: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return self.parent.take_cells(self._parent_keys.select_many(keys), columns)


def densely(update: TableUpdate, before: RowSet, after: RowSet) -> TableUpdate:
    """An update of rows that had the keys ``before`` and have the keys ``after``, told of the same
    rows under the keys 0 to size-1."""
    removed = before.positions_of(update.removed_keys_pre)
    added = after.positions_of(update.added_keys_post)
    kept = RowSet.of_span(0, len(before)) - removed
    shifts = closing_shifts(kept, RowSet.of_span(0, len(after)) - added)
    return TableUpdate(
        first_step=update.first_step,
        last_step=update.last_step,
        removed_keys_pre=removed,
        shifts=shifts,
        added_keys_post=added,
        modified_keys_post=_positions(update.modified_keys_post, after),
    )


def _positions(sets: Sequence[RowSet], rows: RowSet) -> tuple[RowSet, ...]:
    """The positions in ``rows`` of several subsets, which mostly have the same keys: those of all
    are looked up once, and each is found among them."""
    union = union_of(sets)
    placed = rows.positions_of(union)

    def position(keys: RowSet) -> RowSet:
        if len(keys) == len(union):
            return placed
        return placed.keys_at(union.positions_of(keys))

    return each_once(sets, position)


def flatten(table: Table) -> Table:
    """The same rows under the keys 0 to size-1."""
    return table if table.is_flat else derived((table,), "flatten", FlattenTable)
