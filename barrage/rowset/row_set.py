"""Immutable ordered sets of row keys or positions, kept as maximal closed ranges or as bits.

Ranges cost 16 bytes each, 8 when every range is one key; a set of one range, of 10^9 rows or of
one, is two numbers (see `one_range`). rank and select are O(log ranges) after one prefix sum; the
algebra is vectorised (see `arrays`); appending behind the last key is amortised O(appended) (see
`growth`). A set of all 2^63 keys is legal: `size` tells its size, `len` cannot.

Sets of thousands of ranges that compressed bitmaps hold in a quarter of the bytes are kept so (see
`set_forms` for when, `bit_row_set` for what they do). Whoever makes a set gets the form that suits
it, and both forms do the same, so nobody else has to know.

Which space the members live in (keys or positions, before or after a shift) is the business of the
names that hold a RowSet, not of the class.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from barrage.limits import ROW_KEY_MAX
from barrage.rowset import arrays, checks, set_forms
from barrage.rowset.bits import Bits
from barrage.rowset.growth import NO_ROOMS, Growing, appended

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt

    from barrage.rowset.arrays import BoolArray, Int64Array, RangeList
    from barrage.rowset.growth import Rooms

_REPR_RANGES_MAX: Final = 20
_COMPACT_FRACTION: Final = 4
"""A part smaller than this fraction of its parent is copied, so that it does not keep the parent's
memory.
"""

_PREFIX_BYTES: Final = 8
"""What a range costs more once positions were looked up."""


class RowSet:
    """An immutable set of integers 0 .. 2^63 - 1.

    Invariants: ranges ascend, ``first <= last``, at least one missing key between neighbours;
    arrays are read-only; ``_lasts is _firsts`` only if every range is one key. ``_before[i]``
    counts the keys before range i, computed on first use.
    """

    __slots__ = ("_before", "_firsts", "_hash", "_lasts", "_rooms", "_size", "_steps")

    _firsts: Int64Array
    _lasts: Int64Array
    _before: Int64Array | None
    _size: int
    _hash: int | None
    _rooms: Rooms
    _steps: int
    """Operations until its form is looked at again; not there in small sets."""

    is_bits: ClassVar[bool] = False
    """Whether it is kept as bits, as far as one can see."""
    _of_one: ClassVar[Callable[[int, int], RowSet]]
    """The set that is one range (`one_range`)."""
    _of_bits: ClassVar[Callable[[Bits, int], RowSet]]
    """The set with these members, of at least so many ranges (`bit_row_set`)."""

    def __new__(cls, keys: Iterable[int] = ()) -> RowSet:
        """The set of the given keys, in any order, repeats allowed."""
        if isinstance(keys, RowSet):
            return keys
        values = keys if isinstance(keys, np.ndarray) else list(keys)
        return cls.from_keys(values)

    # -- construction -----------------------------------------------------------------------------

    @classmethod
    def _of(cls, ranges: RangeList, like: RowSet | None = None) -> RowSet:
        """Wrap arrays that already satisfy the invariants and that nobody else will write to.

        ``like``: a set this one may differ little from. Whether bits would be smaller is looked at
        once in so many steps only, as that can cost more than the operation.
        """
        firsts, lasts = ranges
        if len(firsts) == 0:
            return _EMPTY
        if len(firsts) < set_forms.RANGES_MIN:
            return RowSet._wrap(firsts, lasts)
        steps = getattr(like, "_steps", 0)
        if not steps and set_forms.pays(ranges):
            return RowSet._of_bits(Bits.of_ranges(ranges), len(firsts))
        rows = RowSet._wrap(firsts, lasts)
        rows._steps = steps - 1 if steps else set_forms.STEPS_BETWEEN
        return rows

    @classmethod
    def _of_sorted(cls, keys: Int64Array) -> RowSet:
        """From keys that stay the caller's; ValueError unless they ascend strictly."""
        if len(keys) < 2:
            return RowSet._of((keys, keys))
        steps = keys[1:] - keys[:-1]
        if int(steps.min()) < 1:
            raise ValueError("row keys do not ascend strictly")
        if int(keys[-1]) - int(keys[0]) == len(keys) - 1:
            return RowSet.of_range(int(keys[0]), int(keys[-1]))
        is_apart = steps > 1
        count = 1 + int(np.count_nonzero(is_apart))
        if count >= set_forms.RANGES_MIN:
            starts = set_forms.paying_stretches(keys, count)
            if starts is not None:
                return RowSet._of_bits(Bits.of_keys(keys, starts), count)
        if count < len(keys):
            return RowSet._of(arrays.parted(keys, is_apart))
        kept = keys.copy()
        return RowSet._of((kept, kept))

    @classmethod
    def _wrap(cls, firsts: Int64Array, lasts: Int64Array) -> RowSet:
        """The same, as ranges, however many there are."""
        if len(firsts) == 1:
            return cls._of_one(int(firsts[0]), int(lasts[0]))
        self = object.__new__(RowSet)
        firsts.flags.writeable = False
        lasts.flags.writeable = False
        self._firsts = firsts
        self._lasts = lasts
        self._before = None
        self._size = -1
        self._hash = None
        self._rooms = NO_ROOMS
        return self

    @classmethod
    def empty(cls) -> RowSet:
        """The set without members."""
        return _EMPTY

    @classmethod
    def of_range(cls, first: int, last: int) -> RowSet:
        """All keys of the closed range; ValueError unless 0 <= first <= last <= 2^63 - 1."""
        if not 0 <= first <= last <= ROW_KEY_MAX:
            raise ValueError(f"not a range of row keys: {first}..{last}")
        return cls._of_one(int(first), int(last))

    @classmethod
    def of_span(cls, start: int, stop: int) -> RowSet:
        """All keys of the half-open span; empty when ``stop <= start``."""
        return cls.of_range(start, stop - 1) if start < stop else _EMPTY

    @classmethod
    def from_ranges(cls, firsts: npt.ArrayLike, lasts: npt.ArrayLike) -> RowSet:
        """Closed ranges, ascending and disjoint; touching ones are merged. ValueError otherwise."""
        return cls._of(checks.checked_ranges(firsts, lasts))

    @classmethod
    def from_keys(cls, keys: npt.ArrayLike) -> RowSet:
        """Keys in any order, repeats allowed; ValueError for keys outside 0 .. 2^63 - 1."""
        values = checks.checked_keys(keys, is_lent=True)
        if len(values) > 1 and not bool((values[1:] > values[:-1]).all()):
            values = np.unique(values)
        return cls._of_sorted(values)

    @classmethod
    def from_sorted_keys(cls, keys: npt.ArrayLike) -> RowSet:
        """Strictly ascending keys; ValueError otherwise."""
        return cls._of_sorted(checks.checked_keys(keys, is_lent=True))

    @classmethod
    def from_overlapping(cls, firsts: npt.ArrayLike, lasts: npt.ArrayLike) -> RowSet:
        """Closed ranges that ascend by first key but may touch or overlap; ValueError otherwise."""
        starts, ends = checks.checked_keys(firsts), checks.checked_keys(lasts)
        if len(starts) != len(ends) or (starts > ends).any() or (starts[1:] < starts[:-1]).any():
            raise ValueError("ranges must ascend by their first keys")
        return cls._of(arrays.as_singles(*arrays.merged(starts, ends)))

    @classmethod
    def from_trusted_ranges(
        cls, firsts: Int64Array, lasts: Int64Array, *, is_touching: bool
    ) -> RowSet:
        """Ascending disjoint ranges that the caller has checked and gives away. They stay ranges
        until the set is changed.

        ``is_touching``: there may be ranges without a missing key in between, to be merged.
        """
        ranges = arrays.merged(firsts, lasts) if is_touching else (firsts, lasts)
        return RowSet._wrap(*ranges) if len(firsts) else _EMPTY

    @classmethod
    def trusted_pieces(  # noqa: PLR0917  (public)
        cls, firsts: Int64Array, lasts: Int64Array, stops: list[int], sizes: list[int]
    ) -> list[RowSet]:
        """Many small sets out of shared arrays that the caller gives away: piece i is the ranges up
        to ``stops[i]`` from where the piece before ended, and has ``sizes[i]`` keys.

        The ranges of one piece satisfy the invariants; for thousands of sets of a few keys each,
        which cost a third of what they would one by one.
        """
        firsts.flags.writeable = False
        lasts.flags.writeable = False
        first_keys, last_keys = firsts.tolist(), lasts.tolist()
        pieces = []
        start = 0
        for stop, size in zip(stops, sizes, strict=True):
            if start == stop:
                pieces.append(_EMPTY)
                continue
            if stop - start == 1:
                pieces.append(cls._of_one(first_keys[start], last_keys[start]))
                start = stop
                continue
            self = object.__new__(cls)
            self._firsts = part = firsts[start:stop]
            # Writers and readers of row sets have less to do where every range is one key.
            self._lasts = part if size == stop - start else lasts[start:stop]
            self._before = None
            self._size = size
            self._hash = None
            self._rooms = NO_ROOMS
            pieces.append(self)
            start = stop
        return pieces

    @classmethod
    def parse(cls, text: str) -> RowSet:
        """The inverse of :meth:`to_text`: ``0-9,12``; the empty text is the empty set."""
        return cls.from_ranges(*checks.parsed_ranges(text))

    # -- what is in it ----------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """How many keys; up to 2^63."""
        if self._size < 0:
            count = len(self._firsts)
            spans = 0 if self._is_singles else int((self._lasts - self._firsts).sum())
            self._size = spans + count
        return self._size

    def __len__(self) -> int:
        return self.size

    def __bool__(self) -> bool:
        return len(self._firsts) > 0

    @property
    def is_empty(self) -> bool:
        return len(self._firsts) == 0

    @property
    def is_contiguous(self) -> bool:
        """Whether all members form one range; true for the empty set."""
        return len(self._firsts) < 2

    @property
    def _is_singles(self) -> bool:
        return self._lasts is self._firsts

    @property
    def first(self) -> int:
        """Smallest key; ValueError when empty."""
        if self.is_empty:
            raise ValueError("an empty row set has no first key")
        return self._firsts.item(0)

    @property
    def last(self) -> int:
        """Largest key; ValueError when empty."""
        if self.is_empty:
            raise ValueError("an empty row set has no last key")
        return self._lasts.item(-1)

    @property
    def range_count(self) -> int:
        """How many maximal ranges."""
        return len(self._firsts)

    @property
    def firsts(self) -> Int64Array:
        """First key of every range, read-only."""
        return self._firsts

    @property
    def lasts(self) -> Int64Array:
        """Last key of every range, read-only."""
        return self._lasts

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays this set shows; sets may share them."""
        before = 0 if self._before is None else self._before.nbytes
        return self._firsts.nbytes + (0 if self._is_singles else self._lasts.nbytes) + before

    @property
    def bytes_max(self) -> int:
        """What it costs in memory at most: its members, and what looking up positions in it leaves
        behind. Always the same for one set."""
        width = set_forms.KEY_BYTES if self._is_singles else set_forms.RANGE_BYTES + _PREFIX_BYTES
        return set_forms.OBJECT_BYTES + width * self.range_count

    @property
    def range_list(self) -> RangeList:
        """First and last keys of all ranges, read-only; one array where every range is one key. A
        set that is kept as bits makes them anew, once for both."""
        return self._firsts, self._lasts

    def _as_ranges(self) -> RowSet:
        """The same set as ranges."""
        return self

    def packed(self) -> RowSet:
        """The same set in the fewest bytes, to be kept for long; small parts of large sets get
        arrays of their own."""
        if self._firsts.base is not None and self.range_count:
            firsts = self._firsts.copy()
            return RowSet._wrap(firsts, firsts if self._is_singles else self._lasts.copy())
        return self

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Closed ranges in order, as Python integers."""
        firsts, lasts = self.range_list
        return zip(firsts.tolist(), lasts.tolist(), strict=True)

    def to_numpy(self) -> Int64Array:
        """All keys, ascending, as one read-only int64 array of ``size`` elements."""
        if self._is_singles:
            return self._firsts
        keys = arrays.keys_of(self.range_list, self.size)
        keys.flags.writeable = False
        return keys

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in self.ranges())

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, (int, np.integer)) or self.is_empty or not 0 <= key <= ROW_KEY_MAX:
            return False
        index = int(self._firsts.searchsorted(key, side="right")) - 1
        return index >= 0 and bool(key <= self._lasts[index])

    def contains_many(self, keys: npt.ArrayLike) -> BoolArray:
        """Whether each key is a member."""
        return arrays.contains(self.range_list, np.asarray(keys, dtype=np.int64))

    def contains_all(self, other: RowSet) -> bool:
        """Whether ``other`` is a subset."""
        return other is self or arrays.contains_ranges(self.range_list, other.range_list)

    def overlaps(self, other: RowSet) -> bool:
        """Whether the two share a key."""
        if self.is_empty or other.is_empty:
            return False
        if other.is_bits:
            return other.overlaps(self)
        few, many = (self, other) if self.range_count <= other.range_count else (other, self)
        low, high = arrays.overlap_spans(few.range_list, many.range_list)
        return bool((low < high).any())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RowSet):
            return NotImplemented
        if self is other:
            return True
        return np.array_equal(self._firsts, other._firsts) and (
            (self._is_singles and other._is_singles) or np.array_equal(self._lasts, other._lasts)
        )

    def __hash__(self) -> int:
        if self._hash is None:
            if self.size < set_forms.RANGES_BACK:
                self._hash = set_forms.hash_of_ranges(self.range_list)
            else:  # Equal sets may be kept in either form.
                samples = self.some_keys(set_forms.sampled_positions(self.size))
                self._hash = hash((self.size, self.last, *samples))
        return self._hash

    def some_keys(self, positions: list[int]) -> Iterable[int]:
        """The keys at a few positions, in either form without much ado."""
        return map(int, self.select_many(positions))

    def to_text(self) -> str:
        """All ranges as ``0-9,12``."""
        return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in self.ranges())

    def __repr__(self) -> str:
        if self.range_count <= _REPR_RANGES_MAX:
            return f"RowSet({self.to_text()})"
        firsts, lasts = self.range_list
        head = RowSet._of((firsts[:_REPR_RANGES_MAX], lasts[:_REPR_RANGES_MAX])).to_text()
        hidden = self.range_count - _REPR_RANGES_MAX
        return f"RowSet({head},… {hidden} more ranges, last key {self.last})"

    def __reduce__(self) -> tuple[Any, ...]:
        return RowSet.from_ranges, self.range_list

    # -- algebra ----------------------------------------------------------------------------------

    def __or__(self, other: RowSet) -> RowSet:
        large, small = (self, other) if self.range_count >= other.range_count else (other, self)
        if small.is_empty:
            return large
        if small.first > large.last:
            return large._append(small)
        if large.first > small.last and large.range_count < arrays.APPENDED_RANGES_MAX:
            return small._append(large)
        return RowSet._of(arrays.with_ranges(large.range_list, small.range_list), large)

    def _append(self, more: RowSet) -> RowSet:
        """Union with keys that all lie behind the last one; neither is empty."""
        old = Growing(self._firsts, self._lasts, self._before, self._rooms)
        new = appended(old, more.range_list)
        # Its form is looked at as seldom as it is copied.
        if new.rooms[0] is not old.rooms[0] and set_forms.pays(new[:2]):
            return RowSet._of(new[:2])
        grown = RowSet._wrap(new.firsts, new.lasts)
        grown._before, grown._rooms = new.before, new.rooms
        return grown

    def __and__(self, other: RowSet) -> RowSet:
        if self.is_empty or other.is_empty:
            return _EMPTY
        if self is other:
            return self
        return RowSet._of(arrays.intersection(self.range_list, other.range_list), self)

    def __sub__(self, other: RowSet) -> RowSet:
        if self.is_empty or other.is_empty:
            return self
        if self is other:
            return _EMPTY
        if other.first > self.last or other.last < self.first:
            return self
        if other.range_count == 1 and (other.first <= self.first or other.last >= self.last):
            return self._outside(other.first, other.last)
        return RowSet._of(arrays.without_ranges(self.range_list, other.range_list), self)

    def __xor__(self, other: RowSet) -> RowSet:
        return (self | other) - (self & other)

    def clip(self, first: int, last: int) -> RowSet:
        """The members in the closed range; bounds outside the key space are legal."""
        first, last = max(first, 0), min(last, ROW_KEY_MAX)
        if self.is_empty or first > last or first > self.last or last < self.first:
            return _EMPTY
        if first <= self.first and last >= self.last:
            return self
        start = int(self._lasts.searchsorted(first, side="left"))
        stop = int(self._firsts.searchsorted(last, side="right"))
        return self._part(start, stop, first=first, last=last)

    def _outside(self, first: int, last: int) -> RowSet:
        """The members outside the closed range; O(1) for a cut at an end."""
        below, above = self.clip(0, first - 1), self.clip(last + 1, ROW_KEY_MAX)
        if below.is_empty:
            return above
        return below if above.is_empty else below._append(above)

    def _part(self, start: int, stop: int, *, first: int, last: int) -> RowSet:
        """Ranges ``start`` to ``stop``, with the outer two cut at ``first`` and ``last``."""
        if start >= stop:
            return _EMPTY
        firsts, lasts = self._firsts[start:stop], self._lasts[start:stop]
        is_small = len(firsts) * _COMPACT_FRACTION < len(self._firsts)
        if self._is_singles:
            firsts = firsts.copy() if is_small else firsts
            return RowSet._of((firsts, firsts))
        if is_small or firsts[0] < first:
            firsts = firsts.copy()
            firsts[0] = max(int(firsts[0]), first)
        if is_small or lasts[-1] > last:
            lasts = lasts.copy()
            lasts[-1] = min(int(lasts[-1]), last)
        return RowSet._of(arrays.as_singles(firsts, lasts), self)

    # -- positions --------------------------------------------------------------------------------

    def _prefix(self) -> Int64Array:
        """Keys before each range. Never overflows: it is at most the range's first key."""
        if self._before is None:
            before = np.zeros(self.range_count, dtype=np.int64)
            np.cumsum(self._lasts[:-1] - self._firsts[:-1] + 1, out=before[1:])
            self._before = before
        return self._before

    def rank(self, key: int) -> int:
        """How many members are smaller than ``key``."""
        if self.is_empty or key <= 0:
            return 0
        if key > ROW_KEY_MAX:
            return self.size
        index = int(self._firsts.searchsorted(key, side="right")) - 1
        if index < 0:
            return 0
        if self._is_singles:
            return index + int(self._firsts[index] < key)
        first, last = int(self._firsts[index]), int(self._lasts[index])
        return int(self._prefix()[index]) + min(key, last + 1) - first

    def rank_many(self, keys: npt.ArrayLike) -> Int64Array:
        """`rank` of each key."""
        values = np.asarray(keys, dtype=np.int64)
        if self.is_empty:
            return np.zeros(len(values), dtype=np.int64)
        if self._is_singles:
            return self._firsts.searchsorted(values, side="left").astype(np.int64, copy=False)
        index = arrays.range_index(self.range_list, values)
        inside = np.minimum(values - 1, self._lasts[index]) - self._firsts[index] + 1
        return np.where(index >= 0, self._prefix()[index] + inside, 0)

    def select(self, position: int) -> int:
        """The key at a position; IndexError unless 0 <= position < size."""
        if not 0 <= position < self.size:
            raise IndexError(f"position {position} in a row set of {self.size}")
        if self._is_singles:
            return int(self._firsts[position])
        before = self._prefix()
        index = int(before.searchsorted(position, side="right")) - 1
        return int(self._firsts[index]) + position - int(before[index])

    def select_many(self, positions: npt.ArrayLike) -> Int64Array:
        """`select` of each position; IndexError if one is out of range."""
        values = np.asarray(positions, dtype=np.int64)
        if len(values) and (values.min() < 0 or int(values.max()) >= self.size):
            raise IndexError(f"positions outside a row set of {self.size}")
        if self._is_singles:
            return self._firsts[values]
        before = self._prefix()
        index = before.searchsorted(values, side="right") - 1
        return self._firsts[index] + (values - before[index])

    def keys_at(self, positions: RowSet) -> RowSet:
        """The keys at the given positions; positions past the end are ignored."""
        if positions.range_count == 1:
            return self.slice(positions.first, positions.last + 1)
        existing = positions.clip(0, self.size - 1)
        if existing.is_empty:
            return _EMPTY
        if self._is_singles:
            keys = self._firsts[existing.to_numpy()]
            return RowSet._of((keys, keys))
        return RowSet._of(
            arrays.select_ranges(self.range_list, self._prefix(), existing.range_list)
        )

    def positions_of(self, keys: RowSet) -> RowSet:
        """The positions of the given keys; ValueError unless all are members."""
        if keys is self or keys.is_empty:
            return RowSet.of_span(0, keys.size)
        if not self.contains_all(keys):
            raise ValueError("keys that are not in the row set have no position")
        firsts, lasts = keys.range_list
        ranks = self.rank_many(firsts)
        if firsts is lasts:
            return RowSet._of(arrays.from_sorted(ranks))
        return RowSet._of(arrays.merged(ranks, ranks + (lasts - firsts)))

    def slice(self, start: int, stop: int) -> RowSet:
        """The keys at positions ``start`` (inclusive) to ``stop`` (exclusive); the part that
        exists.
        """
        start, stop = max(start, 0), min(stop, self.size)
        if start >= stop:
            return _EMPTY
        return self.clip(self.select(start), self.select(stop - 1))

    # -- moving -----------------------------------------------------------------------------------

    def offset(self, delta: int) -> RowSet:
        """Every key moved by ``delta``; ValueError if one would leave 0 .. 2^63 - 1."""
        if delta == 0 or self.is_empty:
            return self
        if self.first + delta < 0 or self.last + delta > ROW_KEY_MAX:
            raise ValueError(f"moving {self.first}..{self.last} by {delta} leaves the key space")
        firsts = self._firsts + delta
        return RowSet._of((firsts, firsts if self._is_singles else self._lasts + delta), self)

    def mirror(self, size: int) -> RowSet:
        """Position p becomes ``size - 1 - p``; ValueError if a member is ``size`` or more."""
        if self.is_empty:
            return self
        if self.last >= size or size > ROW_KEY_MAX + 1:
            raise ValueError(f"position {self.last} cannot be mirrored in {size} rows")
        firsts = size - 1 - self._lasts[::-1]
        return RowSet._of((firsts, firsts if self._is_singles else size - 1 - self._firsts[::-1]))


_EMPTY: Final = RowSet._wrap(*arrays.NO_RANGES)
