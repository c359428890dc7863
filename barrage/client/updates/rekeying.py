"""From the keys a consumer knows rows by to those of a resumed subscription.

A resumed full subscription begins with the rows under the numbers 0 to n-1, whatever keys they had:
the server cannot know those (they may be of another life of it). Its first update moves the rows to
the keys they have from then on. Consumers know the rows by their keys of before, so that update is
told to them in those: removed rows under the old keys, and shifts from the old keys to the new
ones, which are none at all when the keys are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from barrage.model.update import FullUpdate


class Rekeying:
    """Keys of the rows that are numbered 0 to n-1 now, in order."""

    __slots__ = ("keys",)

    def __init__(self, keys: RowSet) -> None:
        self.keys = keys

    def changes(self, update: FullUpdate) -> tuple[RowSet, RowSetShiftData]:
        """The removed keys and the shifts of the first update for those who know the old keys."""
        removed_positions = update.removed_keys_pre or RowSet.empty()
        kept_positions = RowSet.of_span(0, len(self.keys)) - removed_positions
        removed = self.keys.keys_at(removed_positions)
        kept_before = self.keys.keys_at(kept_positions)
        return removed, shifts_between(kept_before, update.shifts.apply(kept_positions))


def shifts_between(before: RowSet, after: RowSet) -> RowSetShiftData:
    """The shifts that move the i-th key of ``before`` to the i-th of ``after``."""
    if before == after or before.is_empty:
        return RowSetShiftData.empty()
    olds, news = before.to_numpy(), after.to_numpy()
    deltas = news - olds
    is_start = np.empty(len(deltas), dtype=np.bool_)
    is_start[0] = True
    is_start[1:] = deltas[1:] != deltas[:-1]
    starts = np.flatnonzero(is_start)
    stops = np.append(starts[1:], len(deltas)) - 1
    moves = deltas[starts] != 0
    starts, stops = starts[moves], stops[moves]
    return RowSetShiftData.from_arrays(olds[starts], olds[stops], deltas[starts])
