"""Row sets, shifts, and the mapping between row keys and positions. No IO, no clock."""

import barrage.rowset.bit_row_set  # noqa: F401  RowSet makes sets of that class and the next
import barrage.rowset.one_range  # noqa: F401
from barrage.rowset.builder import RowSetBuilder
from barrage.rowset.row_set import RowSet
from barrage.rowset.shift import RowSetShiftData, Shift

__all__ = ["RowSet", "RowSetBuilder", "RowSetShiftData", "Shift"]
