"""Row sets that are kept as bits: thousands of ranges in a fraction of their bytes.

Algebra is done by compressed bitmaps, lookups by containers in numpy (`bits`). What comes out small
is ranges again at once; whether a large result has few ranges is looked at when it is used again,
since counting them costs more than the operation (`set_forms` has the borders). For a set to be
combined with it must be narrow: a range of 2^62 keys is no bitmap, and where one meets bits both
are ranges for that operation.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from barrage.limits import ROW_KEY_MAX
from barrage.rowset import arrays, set_forms
from barrage.rowset.bits import Bits
from barrage.rowset.row_set import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from barrage.rowset.arrays import BoolArray, Int64Array, RangeList

_FORMS_MAX = 3
"""A set has a bitmap and containers, and what these need for lookups, once it was used for
everything: so many times what it had at first, at most."""

_LOOKUPS_DIVISOR = 16
"""More lookups than this part of the ranges are done by going through all of them."""


class BitRowSet(RowSet):
    """An immutable set of many ranges of row keys; see `RowSet` for what it does.

    ``_least``: it has so many ranges at least, as far as is known. ``_plain`` is the same as
    ranges, once that has turned out to be the better form. What is set later is set whole, and two
    threads that both do it set the same.
    """

    __slots__ = ("_bits", "_bytes_max", "_ends", "_least", "_plain", "_range_count")

    is_bits = True

    _bits: Bits
    _least: int
    _plain: RowSet | None
    _range_count: int
    _ends: tuple[int, int] | None
    _bytes_max: int

    @classmethod
    def of_bits(cls, bits: Bits, least: int) -> RowSet:
        """The set with these members, of at least ``least`` ranges; small ones become ranges."""
        if bits.size < set_forms.RANGES_BACK:
            return RowSet._of(arrays.from_sorted(bits.keys())) if bits.size else RowSet.empty()
        self = object.__new__(cls)
        self._bits = bits
        self._least = least
        self._plain = None
        self._range_count = self._bytes_max = -1
        self._ends = None
        self._hash = None
        return self

    # -- what is in it ----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return self._bits.size

    def __bool__(self) -> bool:
        return True

    @property
    def is_empty(self) -> bool:
        return False

    @property
    def is_contiguous(self) -> bool:
        return self.last - self.first + 1 == self.size

    def _first_and_last(self) -> tuple[int, int]:
        ends = self._ends
        if ends is None:
            ends = self._ends = (self._bits.first, self._bits.last)
        return ends

    @property
    def first(self) -> int:
        return self._first_and_last()[0]

    @property
    def last(self) -> int:
        return self._first_and_last()[1]

    @property
    def range_count(self) -> int:
        if self._range_count < 0:
            self._range_count = self._bits.containers.range_count()
        return self._range_count

    @property
    def range_list(self) -> RangeList:
        if self._plain is not None:
            return self._plain.range_list
        if self.range_count == self.size:
            keys = self.to_numpy()
            return keys, keys
        firsts, lasts = self._bits.containers.ranges()
        firsts.flags.writeable = False
        lasts.flags.writeable = False
        return firsts, lasts

    @property
    def firsts(self) -> Int64Array:
        return self.range_list[0]

    @property
    def lasts(self) -> Int64Array:
        return self.range_list[1]

    @property
    def nbytes(self) -> int:
        plain = 0 if self._plain is None else self._plain.nbytes
        return self._bits.nbytes + plain

    @property
    def bytes_max(self) -> int:
        if self._bytes_max < 0:
            self._bytes_max = set_forms.OBJECT_BYTES + _FORMS_MAX * self._bits.nbytes
        return self._bytes_max

    def packed(self) -> RowSet:
        if self._is_better_plain():
            return self._as_ranges()
        return BitRowSet.of_bits(self._bits.packed(), self._least)

    def to_numpy(self) -> Int64Array:
        keys = self._bits.keys()
        keys.flags.writeable = False
        return keys

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (int, np.integer)) or not 0 <= key <= ROW_KEY_MAX:
            return False
        return self._bits.has(int(key))

    def contains_many(self, keys: npt.ArrayLike) -> BoolArray:
        return self._bits.containers.contains_many(np.asarray(keys, dtype=np.int64))

    def contains_all(self, other: RowSet) -> bool:
        if other is self or other.is_empty:
            return True
        if other.first < self.first or other.last > self.last or other.size > self.size:
            return False
        theirs = _bits_of(other)
        if theirs is None:
            return arrays.contains_ranges(self.range_list, other.range_list)
        return theirs.is_within(self._bits)

    def overlaps(self, other: RowSet) -> bool:
        if other.is_empty or other.first > self.last or other.last < self.first:
            return False
        theirs = _bits_of(other)
        if theirs is None:
            return self._as_ranges().overlaps(other._as_ranges())
        return theirs.overlaps(self._bits)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowSet):
            return NotImplemented
        if self is other:
            return True
        if self.size != other.size:
            return False
        if isinstance(other, BitRowSet):
            return self._bits == other._bits
        return self._as_ranges() == other

    __hash__ = RowSet.__hash__

    def some_keys(self, positions: list[int]) -> list[int]:
        return self._bits.some_keys(positions)

    # -- algebra ----------------------------------------------------------------------------------

    def _as_ranges(self) -> RowSet:
        """The same set as ranges."""
        return self._plain if self._plain is not None else RowSet._wrap(*self.range_list)

    def _is_better_plain(self) -> bool:
        """Whether ranges are the better form after all; counts them when it is not known that they
        are many."""
        if self._least >= set_forms.RANGES_BACK:
            return False
        if self._plain is not None:
            return True
        count = self.range_count
        if set_forms.stays(count, self._bits.containers):
            self._least = count
            return False
        self._plain = RowSet._wrap(*self.range_list)
        return True

    def _combined(
        self,
        other: RowSet,
        on_bits: Callable[[Bits, Bits], Bits],
        on_rows: Callable[[RowSet, RowSet], RowSet],
        *,
        is_reflected: bool = False,
    ) -> RowSet:
        """One operation with another set, in the form that both can have."""
        theirs = None if self._is_better_plain() else _bits_of(other)
        if theirs is None:
            mine = self._as_ranges()
            return on_rows(other, mine) if is_reflected else on_rows(mine, other)
        if is_reflected:
            return BitRowSet.of_bits(on_bits(theirs, self._bits), 0)
        result = None
        if not other.is_bits and on_bits is not Bits.intersection:
            result = self._bits.changed(on_bits, theirs, other.range_list)
        if result is None:
            result = on_bits(self._bits, theirs)
        # Each key that comes or goes adds or takes one range at most.
        if on_bits is Bits.symmetric_difference:
            return BitRowSet.of_bits(result, self._least - theirs.size)
        return BitRowSet.of_bits(result, self._least - abs(result.size - self._bits.size))

    def __or__(self, other: RowSet) -> RowSet:
        if other is self or other.is_empty:
            return self
        return self._combined(other, Bits.union, operator.or_)

    __ror__ = __or__

    def __and__(self, other: RowSet) -> RowSet:
        if other is self or other.is_empty:
            return other
        if not other.is_bits:
            if other.first > self.last or other.last < self.first:
                return RowSet.empty()
            if other.is_contiguous:
                return self.clip(other.first, other.last)
        return self._combined(other, Bits.intersection, operator.and_)

    __rand__ = __and__

    def __sub__(self, other: RowSet) -> RowSet:
        if other is self:
            return RowSet.empty()
        if not other.is_bits:
            if other.is_empty or other.first > self.last or other.last < self.first:
                return self
            if other.is_contiguous and set_forms.is_wide(other.range_list):
                return self.clip(0, other.first - 1) | self.clip(other.last + 1, ROW_KEY_MAX)
        return self._combined(other, Bits.difference, operator.sub)

    def __rsub__(self, other: RowSet) -> RowSet:
        if other.is_empty or other.first > self.last or other.last < self.first:
            return other
        return self._combined(other, Bits.difference, operator.sub, is_reflected=True)

    def __xor__(self, other: RowSet) -> RowSet:
        if other is self:
            return RowSet.empty()
        if other.is_empty:
            return self
        return self._combined(other, Bits.symmetric_difference, operator.xor)

    __rxor__ = __xor__

    def clip(self, first: int, last: int) -> RowSet:
        first, last = max(first, 0), min(last, ROW_KEY_MAX)
        if first > last or first > self.last or last < self.first:
            return RowSet.empty()
        if first <= self.first and last >= self.last:
            return self
        return self._between(first, last, self.rank(last + 1) - self.rank(first))

    def _between(self, first: int, last: int, count: int) -> RowSet:
        """The members in a closed range, ``count`` of them."""
        if count < set_forms.RANGES_BACK:
            return RowSet._of(self._bits.containers.ranges_between(first, last))
        bits = self._bits.between(first, last)
        assert bits is not None  # it has ``count`` keys
        return BitRowSet.of_bits(bits, self._least - (self.size - count))

    # -- positions --------------------------------------------------------------------------------

    def rank(self, key: int) -> int:
        if key <= 0:
            return 0
        return self.size if key > ROW_KEY_MAX else self._bits.rank(key)

    def rank_many(self, keys: npt.ArrayLike) -> Int64Array:
        return self._bits.containers.rank_many(np.asarray(keys, dtype=np.int64))

    def select(self, position: int) -> int:
        if not 0 <= position < self._bits.size:
            raise IndexError(f"position {position} in a row set of {self.size}")
        return self._bits.select(position)

    def select_many(self, positions: npt.ArrayLike) -> Int64Array:
        values = np.asarray(positions, dtype=np.int64)
        if len(values) and (values.min() < 0 or int(values.max()) >= self.size):
            raise IndexError(f"positions outside a row set of {self.size}")
        return self._bits.containers.select_many(values)

    def keys_at(self, positions: RowSet) -> RowSet:
        if positions.range_count == 1:
            return self.slice(positions.first, positions.last + 1)
        existing = positions.clip(0, self.size - 1)
        if existing.size * _LOOKUPS_DIVISOR <= self.size:
            keys = self._bits.containers.select_many(existing.to_numpy())
            return RowSet.from_sorted_keys(keys)
        return self._as_ranges().keys_at(existing)

    def slice(self, start: int, stop: int) -> RowSet:
        start, stop = max(start, 0), min(stop, self.size)
        if start >= stop:
            return RowSet.empty()
        if start == 0 and stop == self.size:
            return self
        return self._between(self.select(start), self.select(stop - 1), stop - start)

    # -- moving -----------------------------------------------------------------------------------

    def offset(self, delta: int) -> RowSet:
        if delta == 0:
            return self
        if self.first + delta < 0 or self.last + delta > ROW_KEY_MAX:
            raise ValueError(f"moving {self.first}..{self.last} by {delta} leaves the key space")
        return BitRowSet.of_bits(self._bits.moved(delta), self._least)

    def mirror(self, size: int) -> RowSet:
        return RowSet._of(self._as_ranges().mirror(size).range_list)


def _bits_of(rows: RowSet) -> Bits | None:
    """A set with members as bits, None where it touches too many containers for that."""
    if isinstance(rows, BitRowSet):
        return rows._bits
    ranges = rows.range_list
    return None if set_forms.is_wide(ranges) else Bits.of_ranges(ranges)


RowSet._of_bits = BitRowSet.of_bits
