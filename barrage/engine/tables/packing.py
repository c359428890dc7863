"""Packing a table of slots most of which are free: its rows move to the front, some in each cycle.

All at once they would take a second for ten million rows, for which everybody waits because of one
removal. A pass goes through the rows once, from the first to the last; rows that come meanwhile
stand behind the last one and are met in the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.tables.moved_rows import packing_shifts

if TYPE_CHECKING:
    from barrage.rowset import RowSet, RowSetShiftData
    from barrage.rowset.arrays import Int64Array


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows that move from the slots ``was``, in order, to those from ``first`` on. No other row
    stands between the first slot of the one and the last of the other."""

    was: RowSet
    first: int

    @property
    def now(self) -> Int64Array:
        return np.arange(self.first, self.first + len(self.was), dtype=np.int64)

    def applied_to(self, keys: RowSet) -> RowSet:
        """Where rows are that were at ``keys``."""
        moved = keys & self.was
        return (keys - moved) | self.was.positions_of(moved).offset(self.first)

    def shifts_of(self, keys: RowSet) -> RowSetShiftData:
        """The shifts of the rows that were at ``keys``."""
        return packing_shifts(self.was, keys & self.was, first=self.first)


class PackingPass:
    """One pass over the rows of a table."""

    def __init__(self, live: RowSet) -> None:
        is_begun = len(live) > 0 and live.first == 0
        self._packed_upto = int(live.lasts[0]) + 1 if is_begun else 0
        """Packed rows have slots below, which may have become free again."""
        self._met_upto = self._packed_upto
        """Rows from here on have not been met; from the slot above to this one all are free."""

    def step(self, live: RowSet, count: int) -> PackedRows | None:
        """Meet the next rows, ``count`` at most; None when there are none, and the pass is
        over."""
        met = live.rank(self._met_upto)
        was = live.slice(met, met + count)
        if was.is_empty:
            return None
        packed = PackedRows(was, self._packed_upto)
        self._packed_upto += len(was)
        self._met_upto = was.last + 1
        return packed

    def is_over(self, live: RowSet) -> bool:
        """Whether there are no more rows to meet."""
        return live.is_empty or live.last < self._met_upto
