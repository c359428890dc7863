"""Row key -> number, for operators that keep something per parent row.

Two forms. Dense: an array indexed by key, for parents whose keys are close together; every change
costs O(changed), and it grows in place. Sparse: two arrays sorted by key, for parents with wide
gaps; keys that come or go copy both arrays, about a millisecond per million rows. A map becomes
sparse when its keys get too wide and then stays so.

To pin a map copies nothing. The arrays of a sparse one are copied when they are next written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from barrage.engine.keys.ascending import places_in, replaced, spans
from barrage.model.storage.growth import GrowArray

if TYPE_CHECKING:
    from barrage.rowset import RowSetShiftData

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ABSENT = -1
"""Never a value; values are non-negative."""

DENSE_SLACK = 1 << 16
DENSE_ENTRIES_PER_ROW = 4

SPANNED_DIVISOR = 4
"""Shifts that span more than this part of a dense form have all of it looked at."""


class KeyMap:
    """A map from row keys to non-negative numbers. All key arguments are distinct keys."""

    def __init__(self) -> None:
        self._dense: GrowArray | None = GrowArray(np.int64)
        self._keys: Int64Array = np.empty(0, dtype=np.int64)
        self._values: Int64Array = np.empty(0, dtype=np.int64)
        self._is_shared = False
        """Whether a pinned map may have the same two arrays."""
        self.count = 0

    def pinned(self) -> KeyMap:
        """The map as it is now, to be read on any thread and never changed."""
        copied = KeyMap()
        copied._dense = None if self._dense is None else self._dense.pinned()
        copied._keys, copied._values = self._keys, self._values
        copied.count = self.count
        self._is_shared = True
        return copied

    def lookup(self, keys: Int64Array) -> Int64Array:
        """The numbers of keys that are all present."""
        if self._dense is not None:
            return self._dense.take(keys)
        return self._values[places_in(self._keys, keys)]

    def items(self) -> tuple[Int64Array, Int64Array]:
        """All keys in ascending order and their numbers."""
        if self._dense is None:
            return self._keys, self._values
        dense = self._dense.peek()
        keys = np.flatnonzero(dense != ABSENT)
        return keys, dense[keys]

    def items_with(self, is_wanted: BoolArray) -> tuple[Int64Array, Int64Array]:
        """The keys, ascending, whose numbers ``is_wanted`` (one flag per number) names, and the
        numbers: one pass over all keys."""
        if self._dense is None:
            chosen = np.flatnonzero(is_wanted[self._values])
            return self._keys[chosen], self._values[chosen]
        # Places without a key hold -1 and find the flag at the end.
        dense = self._dense.peek()
        chosen = np.flatnonzero(np.append(is_wanted, False)[dense])
        return chosen, dense[chosen]

    def _own_arrays(self) -> None:
        """Have arrays of a sparse form that may be written to."""
        if self._is_shared:
            self._keys, self._values = self._keys.copy(), self._values.copy()
            self._is_shared = False

    def assign(self, keys: Int64Array, values: Int64Array) -> None:
        """Change the numbers of keys that are all present."""
        if self._dense is not None:
            self._dense.write(keys, values)
        else:
            self._own_arrays()
            self._values[places_in(self._keys, keys)] = values

    def remove(self, keys: Int64Array) -> None:
        """Forget keys that are all present."""
        self.count -= len(keys)
        if self._dense is not None:
            self._dense.write(keys, ABSENT)
        elif len(keys):
            self._replace(np.sort(places_in(self._keys, keys)), keys[:0], keys[:0])

    def add(self, keys: Int64Array, values: Int64Array) -> None:
        """Enter keys, ascending, none of them present."""
        if len(keys) == 0:
            return
        self.count += len(keys)
        if self._dense is not None and self._has_room(int(keys[-1])):
            self._dense.write(keys, values)
            return
        self._make_sparse()
        self._replace(keys[:0], keys, values)

    def _replace(self, left_out: Int64Array, keys: Int64Array, values: Int64Array) -> None:
        """Take the entries at some places out of the sparse form, or put others in."""
        gaps = np.searchsorted(self._keys, keys)
        self._keys = replaced(self._keys, left_out, gaps, entries=keys)
        self._values = replaced(self._values, left_out, gaps, entries=values)

    def _has_room(self, key: int) -> bool:
        """Grow the dense form so that it covers ``key``, unless that would waste too much."""
        assert self._dense is not None
        missing = key + 1 - self._dense.length
        if missing <= 0:
            return True
        if key > DENSE_ENTRIES_PER_ROW * self.count + DENSE_SLACK:
            return False
        self._dense.append_constant(ABSENT, missing)
        return True

    def _make_sparse(self) -> None:
        if self._dense is not None:
            keys, values = self.items()
            self._keys, self._values = keys, values
            self._dense = None

    def shift(self, shifts: RowSetShiftData) -> None:
        """Move the keys as the shifts say."""
        if shifts.is_empty:
            return
        if self._dense is None:
            starts = np.searchsorted(self._keys, shifts.firsts)
            counts = np.searchsorted(self._keys, shifts.lasts, side="right") - starts
            self._own_arrays()
            self._keys[spans(starts, counts)] += np.repeat(shifts.deltas, counts)
            return
        keys, moved = self._moved(shifts)
        values = self._dense.take(keys)
        self._dense.write(keys, ABSENT)
        if len(moved) and not self._has_room(int(moved[-1])):
            self._make_sparse()
            self._replace(keys[:0], moved, values)
        else:
            self._dense.write(moved, values)

    def _moved(self, shifts: RowSetShiftData) -> tuple[Int64Array, Int64Array]:
        """The keys of the dense form that move, ascending, and where to. Only those are looked at
        that shifts span, unless these are most."""
        assert self._dense is not None
        limit = self._dense.length
        starts, stops = np.minimum(shifts.firsts, limit), np.minimum(shifts.lasts, limit - 1) + 1
        if int((stops - starts).sum()) * SPANNED_DIVISOR > limit:
            keys = np.flatnonzero(self._dense.peek() != ABSENT)
            moved = shifts.apply_keys(keys)
            is_moved = moved != keys
            return keys[is_moved], moved[is_moved]
        keys = spans(starts, stops - starts)
        is_present = self._dense.take(keys) != ABSENT
        deltas = np.repeat(shifts.deltas, stops - starts)[is_present]
        return keys[is_present], keys[is_present] + deltas
