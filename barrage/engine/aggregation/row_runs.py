"""A run of row keys for each group, in one pool of numbers: what shows some rows of every group.

Each group has a stretch of the pool with some room behind its rows. A run that outgrows its stretch
gets a new one at the end of the pool; once most of the pool is unused it is written anew. All of it
is done for many groups at a time.

Cost: a few vector operations over the rows of the groups in question, and over all rows kept when
the parent's rows are shifted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.keys.ascending import spans
from barrage.model.storage.growth import lengthened

if TYPE_CHECKING:
    from barrage.engine.aggregation.grouping import GroupMoves
    from barrage.model.storage.hashing import Int64Array
    from barrage.rowset import RowSetShiftData

UNUSED_MIN = 4096
"""A pool with less unused than this is never written anew."""


class RowRuns:
    """Row keys by number of their group. Group arguments are distinct."""

    def __init__(self) -> None:
        # Each grows in place, so they may not be one.
        self._pool: Int64Array = np.empty(0, dtype=np.int64)
        self._start: Int64Array = np.empty(0, dtype=np.int64)
        self._room: Int64Array = np.empty(0, dtype=np.int64)
        self._count: Int64Array = np.empty(0, dtype=np.int64)
        self._used = 0
        self._kept = 0

    def reach(self, group_count: int) -> None:
        """Have a run for every group below that number."""
        self._start = lengthened(self._start, group_count, 0)
        self._room = lengthened(self._room, group_count, 0)
        self._count = lengthened(self._count, group_count, 0)

    def counts(self, groups: Int64Array) -> Int64Array:
        """How many rows groups have here."""
        return self._count[groups]

    def rows_of(self, groups: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The rows of groups, one run after another, and the group of each."""
        counts = self._count[groups]
        return self._pool[spans(self._start[groups], counts)], np.repeat(groups, counts)

    def put(self, groups: Int64Array, counts: Int64Array, rows: Int64Array) -> None:
        """Replace the runs of groups by so many of ``rows`` each."""
        self._kept += len(rows) - int(self._count[groups].sum())
        outgrown = groups[counts > self._room[groups]]
        if len(outgrown):
            room = counts[counts > self._room[groups]]
            room += room // 2
            starts = self._used + np.cumsum(room) - room
            self._used += int(room.sum())
            self._pool = lengthened(self._pool, self._used, 0)
            self._start[outgrown], self._room[outgrown] = starts, room
        self._count[groups] = counts
        self._pool[spans(self._start[groups], counts)] = rows
        if self._used > UNUSED_MIN + 4 * self._kept:
            self._rewrite(np.flatnonzero(self._count))

    def shift(self, shifts: RowSetShiftData) -> None:
        """Move the rows to their new keys."""
        if not shifts.is_empty:
            self._pool[: self._used] = shifts.apply_keys(self._pool[: self._used])

    def move(self, moves: GroupMoves) -> None:
        """Move groups to other numbers. The runs stay where they are."""
        for array in (self._start, self._room, self._count):
            moves.apply(array, 0)

    def _rewrite(self, groups: Int64Array) -> None:
        """Write the pool anew with the runs of ``groups``, which are all that have rows."""
        rows, _ = self.rows_of(groups)
        counts = self._count[groups]
        self._room[:] = 0
        self._room[groups] = counts
        self._start[groups] = np.cumsum(counts) - counts
        self._pool, self._used, self._kept = rows, len(rows), len(rows)
