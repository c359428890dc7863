"""Row key -> number, for operators that keep something per parent row.

Two forms. Dense: an array indexed by key, for parents whose keys are close together; every change
costs O(changed). Sparse: two arrays sorted by key, for parents with wide gaps; a change copies both
arrays, about a millisecond per million rows. A map becomes sparse when its keys get too wide and
then stays so.

To pin a map copies nothing. Numbers of a sparse one are copied when they are next assigned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from barrage.model.storage.growth import GrowArray

if TYPE_CHECKING:
    from barrage.rowset import RowSetShiftData

Int64Array = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

ABSENT = -1
"""Never a value; values are non-negative."""

DENSE_SLACK = 1 << 16
DENSE_ENTRIES_PER_ROW = 4


class KeyMap:
    """A map from row keys to non-negative numbers. All key arguments are distinct keys."""

    def __init__(self) -> None:
        self._dense: GrowArray | None = GrowArray(np.int64)
        self._keys: Int64Array = np.empty(0, dtype=np.int64)
        self._values: Int64Array = np.empty(0, dtype=np.int64)
        self._is_shared = False
        """Whether a pinned map has the same array of values."""
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
        return self._values[np.searchsorted(self._keys, keys)]

    def items(self) -> tuple[Int64Array, Int64Array]:
        """All keys in ascending order and their numbers."""
        if self._dense is None:
            return self._keys, self._values
        dense = self._dense.slice(0, self._dense.length)
        keys = np.flatnonzero(dense != ABSENT)
        return keys, dense[keys]

    def items_with(self, is_wanted: BoolArray) -> tuple[Int64Array, Int64Array]:
        """The keys, ascending, whose numbers ``is_wanted`` (one flag per number) names, and the
        numbers: one pass over all keys."""
        if self._dense is None:
            chosen = np.flatnonzero(is_wanted[self._values])
            return self._keys[chosen], self._values[chosen]
        # Places without a key hold -1 and find the flag at the end.
        dense = self._dense.slice(0, self._dense.length)
        chosen = np.flatnonzero(np.append(is_wanted, False)[dense])
        return chosen, dense[chosen]

    def assign(self, keys: Int64Array, values: Int64Array) -> None:
        """Change the numbers of keys that are all present."""
        if self._dense is not None:
            self._dense.write(keys, values)
        else:
            if self._is_shared:
                self._values, self._is_shared = self._values.copy(), False
            self._values[np.searchsorted(self._keys, keys)] = values

    def remove(self, keys: Int64Array) -> None:
        """Forget keys that are all present."""
        self.count -= len(keys)
        if self._dense is not None:
            self._dense.write(keys, ABSENT)
        elif len(keys):
            stays = np.ones(len(self._keys), dtype=np.bool_)
            stays[np.searchsorted(self._keys, keys)] = False
            self._keys, self._values = self._keys[stays], self._values[stays]

    def add(self, keys: Int64Array, values: Int64Array) -> None:
        """Enter keys, ascending, none of them present."""
        if len(keys) == 0:
            return
        self.count += len(keys)
        if self._dense is not None and self._has_room(int(keys[-1])):
            self._dense.write(keys, values)
            return
        self._make_sparse()
        places = np.searchsorted(self._keys, keys)
        self._keys = np.insert(self._keys, places, keys)
        self._values = np.insert(self._values, places, values)

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
        keys, values = self.items()
        moved = shifts.apply_keys(keys)
        if self._dense is None:
            self._keys = moved
            return
        if len(moved) and not self._has_room(int(moved[-1])):
            self._dense = None
            self._keys, self._values = moved, values
            return
        self._dense.write(keys, ABSENT)
        self._dense.write(moved, values)
