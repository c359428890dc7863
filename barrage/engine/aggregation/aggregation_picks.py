"""One row per group that stands for it: the first, the last, the one with the least or the
greatest cell.

Only the number of that row is kept; its cell is read from the parent. A group needs a new row when
its row leaves or gets a cell that may no longer be the best; then the group's rows are found by one
pass over the group numbers of all rows, and only these are compared. Rows that come or change
elsewhere cost one comparison with the group's row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.aggregation.group_folds import Segments
from barrage.engine.keys.ascending import distinct
from barrage.model.storage.fixed import fixed_dtype, read_fixed, read_valid
from barrage.model.storage.growth import lengthened

if TYPE_CHECKING:
    import numpy.typing as npt

    from barrage.engine.aggregation.grouping import GroupChange, GroupMoves
    from barrage.engine.tables.table import Table
    from barrage.model.storage.hashing import Int64Array
    from barrage.rowset import RowSetShiftData

    BoolArray = npt.NDArray[np.bool_]

NO_ROW = -1
_LOWEST = np.iinfo(np.int64).min


class GroupPicks:
    """The picked row of every group."""

    def __init__(self, parent: Table, function: str, column: int) -> None:
        self.column = column
        self.is_by_cell = function in ("min", "max")
        """Whether cells decide, not the order of the rows."""
        self.parent = parent
        self._is_greatest = function in ("max", "last")
        self._row: Int64Array = np.empty(0, dtype=np.int64)

    def grow(self, size: int) -> None:
        """Make room for groups below ``size``."""
        self._row = lengthened(self._row, size, NO_ROW)

    def move(self, moves: GroupMoves) -> None:
        """Move groups to other numbers."""
        moves.apply(self._row, NO_ROW)

    def cells(self, groups: Int64Array) -> pa.Array:
        """The cells the groups show; null where no row was picked."""
        rows = self._row[groups]
        is_missing = rows == NO_ROW
        if not is_missing.any():
            return self.parent.take_cells(rows, [self.column])[0]
        (cells,) = self.parent.take_cells(rows[~is_missing], [self.column])
        return cells.take(pa.array(np.cumsum(~is_missing) - 1, mask=is_missing))

    def lose(self, change: GroupChange, shifts: RowSetShiftData) -> Int64Array:
        """Forget rows that left their group and move the others; the groups that have no row
        now."""
        groups = change.removed_groups
        gone = groups[self._row[groups] == change.removed_rows_pre[: len(groups)]]
        self._row[gone] = NO_ROW
        if not shifts.is_empty:
            present = np.flatnonzero(self._row != NO_ROW)
            self._row[present] = shifts.apply_keys(self._row[present])
        left = change.moved_from
        left = left[self._row[left] == change.moved_rows]
        self._row[left] = NO_ROW
        return np.concatenate((gone, left))

    def weakened(self, rows: Int64Array, groups: Int64Array, shown: pa.Array) -> Int64Array:
        """Groups whose picked row got a worse cell; they have no row from here on.

        ``rows`` are picked rows with modified cells, ``shown`` the cells they had.
        """
        (cells,) = self.parent.take_cells(rows, [self.column])
        codes = self._codes(pa.concat_arrays([_plain(shown), _plain(cells)]))
        worse = groups[(codes[len(rows) :] > codes[: len(rows)]) | ~_valid(cells)]
        self._row[worse] = NO_ROW
        return worse

    def is_picked(self, rows: Int64Array, groups: Int64Array) -> BoolArray:
        """Which rows are the picked ones of their groups."""
        return np.asarray(self._row[groups] == rows)

    def offer(self, rows: Int64Array, groups: Int64Array) -> None:
        """Pick the best of these rows and the rows picked so far."""
        if len(rows) == 0:
            return
        rivals = distinct(groups)
        rivals = rivals[self._row[rivals] != NO_ROW]
        rows = np.concatenate((self._row[rivals], rows))
        groups = np.concatenate((rivals, groups))
        if not self.is_by_cell:
            codes = ~rows if self._is_greatest else rows
        else:
            (cells,) = self.parent.take_cells(rows, [self.column])
            valid = read_valid(cells)
            if valid is not None:
                cells = cells.filter(pa.array(valid))
                rows, groups = rows[valid], groups[valid]
            if len(rows) == 0:
                return
            codes = self._codes(_plain(cells))
        segments = Segments(groups)
        self._row[segments.groups] = rows[segments.first_least(codes)]

    def _codes(self, cells: pa.Array) -> Int64Array:
        """Numbers in the order of the cells, the best one least. NaN is better than all others.
        What stands for a null means nothing."""
        codes = order_codes(cells)
        if self._is_greatest:
            codes = ~codes
        if pa.types.is_floating(cells.type):
            is_nan = np.asarray(pc.is_nan(cells).fill_null(False).to_numpy(zero_copy_only=False))
            codes[is_nan] = _LOWEST
        return codes


def _plain(cells: pa.Array) -> pa.Array:
    return cells.dictionary_decode() if pa.types.is_dictionary(cells.type) else cells


def _valid(cells: pa.Array) -> BoolArray:
    valid = read_valid(cells)
    return np.ones(len(cells), dtype=np.bool_) if valid is None else valid


def order_codes(cells: pa.Array) -> Int64Array:
    """Whole numbers that stand in the order of the cells. For numbers and times they follow from
    each cell alone, with -0.0 below 0.0; for others they are ranks among these cells."""
    dtype = fixed_dtype(cells.type)
    if dtype is None or dtype.kind == "V":
        return _ranks(cells)
    if pa.types.is_floating(cells.type):
        return _float_codes(cells)
    bits = read_fixed(cells, dtype)
    if dtype.kind == "b":
        return bits.astype(np.int64)
    if pa.types.is_unsigned_integer(cells.type):
        return np.asarray((bits.astype(np.uint64) ^ np.uint64(1 << 63)).view(np.int64))
    return bits.view(dtype.str.replace("u", "i")).astype(np.int64)


def _float_codes(cells: pa.Array) -> Int64Array:
    """The bits of a double are ordered like a whole number with a sign and a magnitude."""
    values = cells.cast(pa.float64())
    bits = read_fixed(values, np.dtype("u8")).view(np.int64)
    return np.where(bits < 0, ~bits ^ _LOWEST, bits)


def _ranks(cells: pa.Array) -> Int64Array:
    encoded = cells.dictionary_encode()
    ranks = pc.rank(encoded.dictionary, tiebreaker="dense").to_numpy().astype(np.int64)
    codes = encoded.indices.fill_null(0).to_numpy().astype(np.int64)
    return np.asarray(ranks[codes]) if len(ranks) else codes
