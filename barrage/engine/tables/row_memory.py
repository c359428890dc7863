"""Cells of a parent's rows, kept by an operator that needs to know what they were.

A table has only its cells of now. Whoever has to take back what a row contributed (a sum) keeps a
copy of the cells it used: as much memory as these columns have in the parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.keys.key_map import KeyMap
from barrage.model.storage import ColumnStore, take_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.model.storage.hashing import Int64Array
    from barrage.rowset import RowSetShiftData


class RowMemory:
    """Some columns of all rows of a table that has changed since. All row arguments are distinct;
    those that are entered or forgotten ascend."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._columns = [ColumnStore(data_type) for data_type in types]
        self._slot_of = KeyMap()
        self._free: Int64Array = np.empty(0, dtype=np.int64)
        self._slots_used = 0

    def pinned(self) -> RowMemory:
        """The rows there are now, for :meth:`take` on any thread."""
        copied = RowMemory.__new__(RowMemory)
        copied._columns = [column.pinned() for column in self._columns]
        copied._slot_of = self._slot_of.pinned()
        return copied

    def add(self, rows: Int64Array, cells: Sequence[pa.Array]) -> None:
        """Enter rows, none of them present."""
        reused = self._free[len(self._free) - min(len(rows), len(self._free)) :]
        self._free = self._free[: len(self._free) - len(reused)]
        fresh = len(rows) - len(reused)
        slots = np.concatenate((reused, np.arange(self._slots_used, self._slots_used + fresh)))
        for column, values in zip(self._columns, cells, strict=True):
            column.write(reused, values.slice(0, len(reused)))
            column.append(values.slice(len(reused)))
        self._slots_used += fresh
        self._slot_of.add(rows, slots)

    def take(self, rows: Int64Array, columns: Sequence[int] | None = None) -> tuple[pa.Array, ...]:
        """The cells rows had when they were last told, in all columns or these."""
        return take_cells(self._chosen(columns), self._slot_of.lookup(rows))

    def write(
        self, rows: Int64Array, cells: Sequence[pa.Array], columns: Sequence[int] | None = None
    ) -> None:
        """Replace the cells of rows that are present, in all columns or these."""
        slots = self._slot_of.lookup(rows)
        for column, values in zip(self._chosen(columns), cells, strict=True):
            column.write(slots, values)

    def _chosen(self, columns: Sequence[int] | None) -> list[ColumnStore]:
        return self._columns if columns is None else [self._columns[each] for each in columns]

    def remove(self, rows: Int64Array) -> tuple[pa.Array, ...]:
        """Forget rows; the cells they had."""
        slots = self._slot_of.lookup(rows)
        cells = take_cells(self._columns, slots)
        self._slot_of.remove(rows)
        self._free = np.concatenate((self._free, slots))
        self._pack()
        return cells

    def shift(self, shifts: RowSetShiftData) -> None:
        """Move the rows to their new keys."""
        self._slot_of.shift(shifts)

    def _pack(self) -> None:
        """Give back memory once most of it is unused."""
        if len(self._free) <= 4096 + self._slots_used * 3 // 4:
            return
        rows, slots = self._slot_of.items()
        self._columns = [column.compacted(slots) for column in self._columns]
        self._slot_of.assign(rows, np.arange(len(rows), dtype=np.int64))
        self._slots_used = len(rows)
        self._free = np.empty(0, dtype=np.int64)
