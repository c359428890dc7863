"""Row sets of one range, as two numbers: viewports, the rows of a table nobody has removed from,
what was appended in a cycle. Nearly all sets are such, so they pay for no arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.limits import ROW_KEY_MAX
from barrage.rowset import arrays
from barrage.rowset.row_set import RowSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from barrage.rowset.arrays import Int64Array, RangeList


class OneRange(RowSet):
    """The keys ``first`` to ``last``. Every set of ranges that is one range is of this class."""

    __slots__ = ("_first", "_last", "_ranges")

    _first: int
    _last: int
    _ranges: RangeList | None
    """The same as arrays, made on first use; two threads may both make them."""

    @classmethod
    def of(cls, first: int, last: int) -> RowSet:
        """The closed range, whose ends are Python integers and checked."""
        self = object.__new__(cls)
        self._first = first
        self._last = last
        self._ranges = None
        self._hash = None
        return self

    # -- what is in it ----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return self._last - self._first + 1

    def __bool__(self) -> bool:
        return True

    @property
    def is_empty(self) -> bool:
        return False

    @property
    def is_contiguous(self) -> bool:
        return True

    @property
    def _is_singles(self) -> bool:
        return self._first == self._last

    @property
    def first(self) -> int:
        return self._first

    @property
    def last(self) -> int:
        return self._last

    @property
    def range_count(self) -> int:
        return 1

    @property
    def range_list(self) -> RangeList:
        ranges = self._ranges
        if ranges is None:
            ends = np.array((self._first, self._last), dtype=np.int64)
            ends.flags.writeable = False
            firsts = ends[:1]
            ranges = self._ranges = (firsts, firsts if self._is_singles else ends[1:])
        return ranges

    @property
    def firsts(self) -> Int64Array:
        return self.range_list[0]

    @property
    def lasts(self) -> Int64Array:
        return self.range_list[1]

    @property
    def nbytes(self) -> int:
        return 8 if self._is_singles else 16

    def packed(self) -> RowSet:
        return self

    def ranges(self) -> Iterator[tuple[int, int]]:
        return iter(((self._first, self._last),))

    def to_numpy(self) -> Int64Array:
        keys = arrays.counted(self._first, self.size)
        keys.flags.writeable = False
        return keys

    def __contains__(self, key: object) -> bool:
        return isinstance(key, (int, np.integer)) and bool(self._first <= key <= self._last)

    def contains_all(self, other: RowSet) -> bool:
        return other.is_empty or (self._first <= other.first and other.last <= self._last)

    def overlaps(self, other: RowSet) -> bool:
        if isinstance(other, OneRange):
            return self._first <= other._last and other._first <= self._last
        return super().overlaps(other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OneRange):
            return self._first == other._first and self._last == other._last
        if not isinstance(other, RowSet):
            return NotImplemented
        if not other.is_bits:
            return False
        return other.is_contiguous and (other.first, other.last) == (self._first, self._last)

    __hash__ = RowSet.__hash__

    # -- algebra: what meets bits is for these to do ----------------------------------------------

    def __or__(self, other: RowSet) -> RowSet:
        first, last = self._first, self._last
        if isinstance(other, OneRange):
            if first - 1 <= other._last and other._first <= last + 1:
                return OneRange.of(min(first, other._first), max(last, other._last))
            low, high = (self, other) if first < other._first else (other, self)
            ends = np.array(((low._first, high._first), (low._last, high._last)), dtype=np.int64)
            return RowSet._wrap(ends[0], ends[1])
        if other.is_bits:
            return NotImplemented
        if other.is_empty:
            return self
        other_first, other_last = other.first, other.last
        if first - 1 <= other_first and other_last <= last + 1:
            return OneRange.of(min(first, other_first), max(last, other_last))
        if other_last < first:
            return other._append(self)
        return RowSet._of(arrays.with_one(other.range_list, first, last), other)

    __ror__ = __or__

    def _append(self, more: RowSet) -> RowSet:
        return self | more

    def __and__(self, other: RowSet) -> RowSet:
        if isinstance(other, OneRange):
            first, last = max(self._first, other._first), min(self._last, other._last)
            return OneRange.of(first, last) if first <= last else RowSet.empty()
        return other.clip(self._first, self._last)

    __rand__ = __and__

    def __sub__(self, other: RowSet) -> RowSet:
        if isinstance(other, OneRange):
            return self._outside(other._first, other._last)
        if other.is_bits:
            return NotImplemented
        inside = other.clip(self._first, self._last)
        if inside.is_empty:
            return self
        if isinstance(inside, OneRange):
            return self._outside(inside._first, inside._last)
        return RowSet._of(arrays.gaps(inside.range_list, self._first, self._last))

    def __xor__(self, other: RowSet) -> RowSet:
        return NotImplemented if other.is_bits else super().__xor__(other)

    def clip(self, first: int, last: int) -> RowSet:
        first, last = max(int(first), self._first), min(int(last), self._last)
        return OneRange.of(first, last) if first <= last else RowSet.empty()

    def _outside(self, first: int, last: int) -> RowSet:
        if first <= self._first:
            return self.clip(last + 1, ROW_KEY_MAX)
        below = self.clip(0, first - 1)
        return below if last >= self._last else below | OneRange.of(last + 1, self._last)

    # -- positions --------------------------------------------------------------------------------

    def rank(self, key: int) -> int:
        if key <= self._first:
            return 0
        return (key if key <= self._last else self._last + 1) - self._first

    def rank_many(self, keys: npt.ArrayLike) -> Int64Array:
        values = np.asarray(keys, dtype=np.int64)
        return np.clip(values, self._first, self._last) - self._first + (values > self._last)

    def select(self, position: int) -> int:
        if 0 <= position <= self._last - self._first:
            return self._first + position
        raise IndexError(f"position {position} in a row set of {self.size}")

    def select_many(self, positions: npt.ArrayLike) -> Int64Array:
        values = np.asarray(positions, dtype=np.int64)
        if len(values) and (values.min() < 0 or int(values.max()) > self._last - self._first):
            raise IndexError(f"positions outside a row set of {self.size}")
        return values + self._first

    def keys_at(self, positions: RowSet) -> RowSet:
        return positions.clip(0, self.size - 1).offset(self._first)

    def positions_of(self, keys: RowSet) -> RowSet:
        if not self.contains_all(keys):
            raise ValueError("keys that are not in the row set have no position")
        return keys.offset(-self._first)

    def slice(self, start: int, stop: int) -> RowSet:
        return self.clip(self._first + max(start, 0), self._first + stop - 1)

    # -- moving -----------------------------------------------------------------------------------

    def offset(self, delta: int) -> RowSet:
        first, last = self._first + int(delta), self._last + int(delta)
        if first < 0 or last > ROW_KEY_MAX:
            raise ValueError(f"moving {self._first}..{self._last} by {delta} leaves the key space")
        return OneRange.of(first, last)

    def mirror(self, size: int) -> RowSet:
        if self._last >= size or size > ROW_KEY_MAX + 1:
            raise ValueError(f"position {self._last} cannot be mirrored in {size} rows")
        return OneRange.of(int(size) - 1 - self._last, int(size) - 1 - self._first)


RowSet._of_one = OneRange.of
