"""Rows brought together by group, and what can be folded over each group at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from barrage.model.storage.hashing import Int64Array

    FloatArray = npt.NDArray[np.float64]

SMALL_GROUPS_MAX = 1 << 16
"""Numpy sorts 16-bit numbers in linear time."""


class Segments:
    """A batch of rows sorted by group, stable. ``order`` sorts arrays with one entry per row."""

    def __init__(self, groups: Int64Array) -> None:
        is_small = len(groups) > 0 and int(groups.max()) < SMALL_GROUPS_MAX
        by = groups.astype(np.uint16) if is_small else groups
        self.order: Int64Array = np.argsort(by, kind="stable")
        ordered = groups[self.order]
        is_first = np.ones(len(groups), dtype=np.bool_)
        is_first[1:] = ordered[1:] != ordered[:-1]
        self.starts: Int64Array = np.flatnonzero(is_first)
        """Where each group begins in the sorted order."""
        self.groups: Int64Array = ordered[self.starts]
        """The groups that occur, ascending."""

    @property
    def lengths(self) -> Int64Array:
        """Rows of each group."""
        return np.diff(self.starts, append=len(self.order))

    def sums(self, values: Int64Array) -> Int64Array:
        """Per group the sum of whole numbers; the caller knows that it fits."""
        return np.asarray(np.add.reduceat(values[self.order], self.starts))

    def first_least(self, values: Int64Array) -> Int64Array:
        """Per group the row with the least number, the first of several."""
        ordered = values[self.order]
        least = np.minimum.reduceat(ordered, self.starts)
        group = np.repeat(np.arange(len(self.starts)), self.lengths)
        found = np.flatnonzero(ordered == least[group])
        _, first = np.unique(group[found], return_index=True)
        return self.order[found[first]]


class PairSum:
    """Floating sums kept as the unevaluated sum of two numbers, about 106 bits, with a bound of
    what was rounded away nevertheless.

    ``high`` is the sum rounded to a double. Each addition is exact in the two-sum of Knuth (TAOCP
    volume 2, section 4.2.2) except for the low parts; what these lose is added up in ``lost``.
    """

    __slots__ = ("high", "lost", "low")

    def __init__(self, high: FloatArray, low: FloatArray, lost: FloatArray) -> None:
        self.high = high
        self.low = low
        self.lost = lost

    @classmethod
    def zeros(cls, count: int) -> PairSum:
        return cls(np.zeros(count), np.zeros(count), np.zeros(count))

    @classmethod
    def of(cls, high: FloatArray, low: FloatArray | None) -> PairSum:
        zeros = np.zeros(len(high))
        return cls(high, zeros if low is None else low, zeros)

    def at(self, places: Any) -> PairSum:
        return PairSum(self.high[places], self.low[places], self.lost[places])

    def put(self, places: Int64Array, other: PairSum) -> None:
        self.high[places] = other.high
        self.low[places] = other.low
        self.lost[places] = other.lost

    def plus(self, other: PairSum) -> PairSum:
        rough, first = two_sum(self.high, other.high)
        low, second = two_sum(self.low, other.low)
        low, third = two_sum(low, first)
        high, low = two_sum(rough, low)
        lost = self.lost + other.lost + np.abs(second) + np.abs(third)
        is_over = ~np.isfinite(rough)
        if is_over.any():
            high[is_over], low[is_over], lost[is_over] = rough[is_over], 0.0, np.inf
        return PairSum(high, low, lost)

    def folded(self, segments: Segments) -> PairSum:
        """Per group the sum over its rows, added up in pairs, pairs of pairs and so on."""
        terms, starts = self.at(segments.order), segments.starts
        lengths = segments.lengths
        while len(terms.high) > len(starts):
            halves = (lengths + 1) // 2
            new_starts = np.cumsum(halves) - halves
            group = np.repeat(np.arange(len(starts)), halves)
            rank = 2 * (np.arange(len(group)) - new_starts[group])
            first = starts[group] + rank
            is_paired = np.flatnonzero(rank + 1 < lengths[group])
            result = terms.at(first)
            result.put(is_paired, result.at(is_paired).plus(terms.at(first[is_paired] + 1)))
            terms, starts, lengths = result, new_starts, halves
        return terms


def two_sum(left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The rounded sum and exactly what the rounding lost."""
    total = left + right
    part = total - left
    return total, (left - (total - part)) + (right - part)


_SPLITTER = float(2**27 + 1)


def two_product(left: FloatArray, right: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The rounded product and what the rounding lost (Dekker 1971); exact short of overflow and
    underflow."""
    product = left * right
    left_high, left_low = _halves(left)
    right_high, right_low = _halves(right)
    error = left_high * right_high - product
    error += left_high * right_low + left_low * right_high
    error += left_low * right_low
    return product, np.where(np.isfinite(error), error, 0.0)


def _halves(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Two numbers of 26 bits each whose sum is the value."""
    scaled = values * _SPLITTER
    high = scaled - (scaled - values)
    return high, values - high
