"""Sets of row keys as compressed bitmaps: the only module that knows pyroaring.

A set is kept as a bitmap, for algebra, or as containers (:mod:`barrage.rowset.containers`), for
lookups and for entry from arrays, or as both. Each is made of the other through the portable
format. Bitmaps are never changed once a set holds them, so sets may be shared between threads; two
threads that both want the missing form may both make it, and either is as good.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap64

from barrage.rowset import container_changes, portable
from barrage.rowset.arrays import expand
from barrage.rowset.containers import KEY_BITS, LOW, Containers

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.rowset.arrays import Int64Array, RangeList

_KEYS_ADDED_MAX: Final = 1024
"""More keys go into a bitmap by way of containers."""

_RANGES_ADDED_MAX: Final = 16
"""Up to so many wide ranges are added one by one."""

_NARROW_CONTAINERS_MAX: Final = 64
"""A bitmap walks its containers for a rank: a microsecond for so many."""

CONTAINERS_MANY: Final = 1024
TOUCHED_DIVISOR: Final = 8
"""Of so many containers, up to this part is changed without the others."""

_CONTAINER_BYTES: Final = 80
"""What a container costs in a bitmap beside its content, about: measured with CRoaring 5.2."""


class Bits:
    """An immutable set of keys 0 .. 2^63 - 1."""

    __slots__ = ("_bitmap", "_containers", "size")

    _bitmap: BitMap64 | None
    _containers: Containers | None
    size: int
    """How many keys."""

    def __init__(self, form: BitMap64 | Containers) -> None:
        """Either of the two; nobody else changes it."""
        if isinstance(form, Containers):
            self._bitmap = None
            self._containers = form
            self.size = form.size
        else:
            self._bitmap = form
            self._containers = None
            self.size = len(form)

    @classmethod
    def of_ranges(cls, ranges: RangeList) -> Bits:
        """From maximal ranges; what that costs depends on how many containers they touch."""
        firsts, lasts = ranges
        if len(firsts) <= _RANGES_ADDED_MAX:
            bitmap = BitMap64()
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
                bitmap.add_range(first, last + 1)
            return cls(bitmap)
        if len(firsts) <= _KEYS_ADDED_MAX:
            keys = firsts if lasts is firsts else _few_keys(firsts, lasts)
            if keys is not None:
                return cls(BitMap64(array("Q", keys.tobytes())))
        return cls(portable.of_ranges(ranges))

    @classmethod
    def of_keys(cls, keys: Int64Array, starts: Int64Array) -> Bits:
        """From ascending keys, few of which are neighbours, and where their stretches start."""
        return cls(portable.of_keys(keys, starts))

    @property
    def bitmap(self) -> BitMap64:
        """As a bitmap, which must not be changed."""
        bitmap = self._bitmap
        if bitmap is None:
            bitmap = self._bitmap = BitMap64.deserialize(portable.to_portable(self.containers))
        return bitmap

    @property
    def containers(self) -> Containers:
        """As containers; the set has members."""
        containers = self._containers
        if containers is None:
            assert self._bitmap is not None
            serialized: bytes = self._bitmap.serialize()
            containers = self._containers = portable.from_portable(serialized)
        return containers

    def rank(self, key: int) -> int:
        """How many keys are smaller than a positive one; the set has members."""
        containers = self._containers
        if containers is None:
            if self._is_narrow():
                return int(self.bitmap.rank(key - 1))
            containers = self.containers
        return containers.rank(key)

    def select(self, position: int) -> int:
        """The key at a position, which exists."""
        containers = self._containers
        if containers is None:
            if self._is_narrow():
                return int(self.bitmap[position])
            containers = self.containers
        return containers.select(position)

    def _is_narrow(self) -> bool:
        """Whether a bitmap has few containers, and looks one key or position up well enough: made
        into containers, the set would cost twice as much."""
        bitmap = self.bitmap
        first, last = int(bitmap.min()), int(bitmap.max())
        return (last >> KEY_BITS) - (first >> KEY_BITS) < _NARROW_CONTAINERS_MAX

    def some_keys(self, positions: list[int]) -> list[int]:
        """The keys at a few positions, from whichever form there is."""
        bitmap = self._bitmap
        if bitmap is None:
            return [self.containers.select(each) for each in positions]
        return [bitmap[each] for each in positions]

    @property
    def first(self) -> int:
        """The smallest key; the set has members."""
        if self._containers is not None:
            return self._containers.select(0)
        return int(self.bitmap.min())

    @property
    def last(self) -> int:
        """The largest key; the set has members."""
        if self._containers is not None:
            return self._containers.select(self.size - 1)
        return int(self.bitmap.max())

    @property
    def nbytes(self) -> int:
        """Bytes of the forms there are."""
        containers, bitmap = self._containers, self._bitmap
        nbytes = 0 if containers is None else containers.nbytes
        return nbytes if bitmap is None else nbytes + bitmap_bytes(bitmap)

    def packed(self) -> Bits:
        """The same set in one form, the smaller one."""
        return Bits(self.containers.bare())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bits):
            return NotImplemented
        return self.size == other.size and bool(self.bitmap == other.bitmap)

    __hash__ = None  # type: ignore[assignment]

    def has(self, key: int) -> bool:
        """Whether a key is in the set."""
        if self._bitmap is not None:
            return key in self._bitmap
        return self.containers.rank(key + 1) > self.containers.rank(key)

    def keys(self) -> Int64Array:
        """All keys, ascending."""
        return np.frombuffer(self.bitmap.to_array(), dtype=np.int64)

    def union(self, other: Bits) -> Bits:
        """The keys in either."""
        return Bits(self.bitmap | other.bitmap)

    def intersection(self, other: Bits) -> Bits:
        """The keys in both."""
        return Bits(self.bitmap & other.bitmap)

    def difference(self, other: Bits) -> Bits:
        """The keys that are not in the other."""
        return Bits(self.bitmap - other.bitmap)

    def symmetric_difference(self, other: Bits) -> Bits:
        """The keys in exactly one of the two."""
        return Bits(self.bitmap ^ other.bitmap)

    def changed(
        self, on_bits: Callable[[Bits, Bits], Bits], other: Bits, ranges: RangeList
    ) -> Bits | None:
        """An operation that changes keys of the other set only, whose ranges these are, done on
        those of many containers that it touches; None where there are not many containers, or it
        touches more than a few."""
        containers = self._containers
        if containers is None or len(containers.highs) < CONTAINERS_MANY:
            return None
        if portable.container_count(ranges) * TOUCHED_DIVISOR > len(containers.highs):
            return None
        highs = container_changes.touched_by(ranges)
        part = container_changes.picked(containers, highs)
        own = Bits(BitMap64() if part is None else part)
        result = on_bits(own, other)
        new = result.containers if result.size else container_changes.NONE
        return Bits(container_changes.replaced(containers, highs, new))

    def is_within(self, other: Bits) -> bool:
        """Whether the other has all keys of this one."""
        return bool(self.bitmap.issubset(other.bitmap))

    def overlaps(self, other: Bits) -> bool:
        """Whether the two share a key."""
        return bool(self.bitmap.intersect(other.bitmap))

    def moved(self, delta: int) -> Bits:
        """Every key moved by ``delta``; none leaves the key space."""
        return Bits(self.bitmap.shift(delta))

    def between(self, first: int, last: int) -> Bits | None:
        """The keys in a closed range, or None; costs what the containers in it cost."""
        part = self.containers.part(first, last)
        if part is None:
            return None
        serialized = portable.to_portable(part)
        bitmap = BitMap64.deserialize(serialized)  # private: not part of a set yet
        bitmap.remove_range(first & ~LOW, first)
        bitmap.remove_range(last + 1, (last >> KEY_BITS) + 1 << KEY_BITS)
        return Bits(bitmap)


def _few_keys(firsts: Int64Array, lasts: Int64Array) -> Int64Array | None:
    """All keys of ranges, or None where they are many."""
    counts = lasts - firsts + 1
    return expand(firsts, counts) if int(counts.max()) <= _KEYS_ADDED_MAX // 16 else None


def bitmap_bytes(bitmap: BitMap64) -> int:
    """What a bitmap costs in memory, about."""
    statistics = bitmap.get_statistics()
    content = (
        statistics["n_bytes_array_containers"],
        statistics["n_bytes_run_containers"],
        statistics["n_bytes_bitset_containers"],
    )
    return sum(content) + _CONTAINER_BYTES * statistics["n_containers"]
