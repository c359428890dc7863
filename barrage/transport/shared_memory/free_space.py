"""Which parts of one segment are free: best fit with coalescing, memory that was used before first.

Pages of a new segment cost several times a copy when they are touched first, so the part of the
segment that was never given out is only cut into when nothing used before fits.

``take`` is a binary search, ``give`` two look-ups and an insertion, over a list of free blocks that
has at most one entry per live region. Pure; the owner has the lock.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort


class FreeSpace:
    """Free bytes of ``[start, stop)``. Free blocks are disjoint and never touch each other; all
    lie below ``untouched``, from where on nothing was ever given out."""

    def __init__(self, start: int, stop: int) -> None:
        self._stop = stop
        self._first = start
        self._untouched = start
        self._by_size: list[tuple[int, int]] = []
        """(size, start), ordered."""
        self._size_at: dict[int, int] = {}
        """Size by start."""
        self._start_before: dict[int, int] = {}
        """Start by end."""
        self.bytes_free = stop - start

    def take(self, size: int) -> int | None:
        """Offset of ``size`` bytes that are the caller's from now on; None: no room."""
        if size > self.bytes_free:
            return None
        place = bisect_left(self._by_size, (size, 0))
        if place < len(self._by_size):
            start = self._by_size[place][1]
            self._cut(start, size)
        else:
            grown = self._grow(size)
            if grown is None:
                return None
            start = grown
        self.bytes_free -= size
        return start

    def give(self, start: int, size: int) -> None:
        """Take back what :meth:`take` gave out."""
        self.bytes_free += size
        stop = start + size
        before = self._start_before.get(start)
        if before is not None:
            self._remove(before)
            start = before
        if stop in self._size_at:
            stop += self._remove(stop)
        self._insert(start, stop - start)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is given out."""
        return self.bytes_free == self._stop - self._first

    def validate(self) -> None:
        """Raise AssertionError when the invariants do not hold."""
        blocks = sorted(self._size_at.items())
        assert [start + size for start, size in blocks] == sorted(self._start_before)
        assert sorted((size, start) for start, size in blocks) == self._by_size
        for (start, size), (after, _) in itertools.pairwise(blocks):
            assert start + size < after, "free blocks overlap or touch"
        assert all(size > 0 and start >= self._first for start, size in blocks)
        assert all(start + size <= self._untouched for start, size in blocks)
        free = sum(size for _, size in blocks) + self._stop - self._untouched
        assert free == self.bytes_free

    def _cut(self, start: int, size: int) -> None:
        """Take the first ``size`` bytes of the free block at ``start``."""
        rest = self._remove(start) - size
        if rest:
            self._insert(start + size, rest)

    def _grow(self, size: int) -> int | None:
        """Take what was never given out, beginning with the free block just before it."""
        start = self._start_before.get(self._untouched, self._untouched)
        if start + size > self._stop:
            return None
        if start != self._untouched:
            self._remove(start)
        self._untouched = start + size
        return start

    def _insert(self, start: int, size: int) -> None:
        insort(self._by_size, (size, start))
        self._size_at[start] = size
        self._start_before[start + size] = start

    def _remove(self, start: int) -> int:
        size = self._size_at.pop(start)
        del self._start_before[start + size]
        del self._by_size[bisect_left(self._by_size, (size, start))]
        return size
