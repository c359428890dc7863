"""Set algebra through one bit per key, for two fragmented sets that fill much of the same stretch.

Merging range lists costs a sort and several gathers per range; where there are few keys per range
and few gaps between them, marking every key of the stretch and combining the marks is several times
faster. Memory is a few bytes per key of the stretch, bounded by `KEYS_PER_RANGE_MAX` times the
number of ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from barrage.rowset.arrays import as_singles

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from barrage.rowset.arrays import Int64Array, RangeList

    WordArray = npt.NDArray[np.uint64]

_ZERO: Final = np.uint64(0)
_ONE: Final = np.uint64(1)
_TOP: Final = np.uint64(63)

RANGES_MIN: Final = 4096
"""Fewer ranges are merged in microseconds anyway."""

KEYS_PER_RANGE_MAX: Final = 8
"""Longest stretch, in keys per range of both sets together."""

RANGES_RATIO_MAX: Final = 16
"""How many times more ranges one set may have: a short list is looked up in a long one instead."""


def is_dense(a: RangeList, b: RangeList) -> bool:
    """Whether `combine` is the fast way; both lists have members."""
    count_a, count_b = len(a[0]), len(b[0])
    if count_a + count_b < RANGES_MIN:
        return False
    if max(count_a, count_b) > RANGES_RATIO_MAX * min(count_a, count_b):
        return False
    low, high = _stretch(a, b)
    return high - low < KEYS_PER_RANGE_MAX * (count_a + count_b)


def _stretch(a: RangeList, b: RangeList) -> tuple[int, int]:
    return int(min(a[0][0], b[0][0])), int(max(a[1][-1], b[1][-1]))


def combine(
    a: RangeList, b: RangeList, operation: Callable[[WordArray, WordArray], WordArray]
) -> RangeList:
    """``operation`` on the membership bits of every key; two zero bits must give a zero bit."""
    low, high = _stretch(a, b)
    bits = operation(_membership(a, low, high), _membership(b, low, high))
    # A bit that differs from the one before it is a first key or the key behind a last one.
    before = bits << _ONE
    before[1:] |= bits[:-1] >> _TOP
    turns = np.unpackbits((bits ^ before).view(np.uint8), bitorder="little").view(np.bool_)
    changes = np.flatnonzero(turns)
    return as_singles(changes[0::2] + low, changes[1::2] + (low - 1))


def difference_bits(a: WordArray, b: WordArray) -> WordArray:
    """Bits of ``a`` that are not in ``b``."""
    return a & ~b


def _membership(ranges: RangeList, low: int, high: int) -> WordArray:
    """One bit for each key from ``low`` on, in 64-bit words, one or more past ``high``."""
    firsts, lasts = ranges
    turns = np.zeros((high - low + 1) // 64 * 64 + 64, dtype=np.bool_)
    # Ranges do not touch, so every start and every stop has a place of its own.
    turns[firsts - low] = True
    turns[lasts - (low - 1)] = True
    bits = np.packbits(turns, bitorder="little").view("<u8")
    # A key is a member after an odd number of turns: parities within words by doubling, then
    # across words, where a word's own parity is its top bit.
    for shift in (1, 2, 4, 8, 16, 32):
        bits ^= bits << np.uint64(shift)
    odd = bits >> _TOP
    odd_before = (np.cumsum(odd) - odd) & _ONE
    bits ^= _ZERO - odd_before
    return bits


def keys_of(ranges: RangeList, size: int) -> Int64Array:
    """All ``size`` keys of a list with members: steps of one, longer ones at every start."""
    firsts, lasts = ranges
    keys = np.ones(size, dtype=np.int64)
    keys[0] = firsts[0]
    starts = np.cumsum(lasts[:-1] - firsts[:-1] + 1)
    keys[starts] = firsts[1:] - lasts[:-1]
    np.cumsum(keys, out=keys)
    return keys
