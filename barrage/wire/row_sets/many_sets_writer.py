"""Many small row sets to bytes in one go (barrage-wire.md section 4).

Nearly every set of a view's rows is a handful of steps of one byte, which make one command, and
nearly every viewport one range that begins far from 0, which makes two. Both are laid out for all
sets together. The few others are written one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from barrage.rowset.arrays import expand
from barrage.wire.row_sets.row_set_codec import encode_row_set
from barrage.wire.row_sets.row_set_writer import BYTE_ARRAY, END, OFFSET, TYPE_OF_WIDTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from barrage.rowset.arrays import BoolArray, Int64Array
    from barrage.rowset.many_sets import ManyRowSets

_BYTE_COUNT_MAX = 127
"""Deltas of a command whose count takes one byte."""

_BYTE_MAX = 127
_TYPES = np.array([TYPE_OF_WIDTH.get(width, 0) for width in range(9)])

_ARRAY = BYTE_ARRAY | TYPE_OF_WIDTH[1]
_VALUE = OFFSET | TYPE_OF_WIDTH[1]


class ManyEncoded(NamedTuple):
    """Encoded row sets: that of set i is ``lengths[i]`` bytes from ``starts[i]`` on."""

    content: NDArray[np.uint8]
    starts: Int64Array
    lengths: Int64Array


def encode_many(sets: ManyRowSets) -> ManyEncoded:
    """The canonical encoding of each set, byte for byte that of :func:`encode_row_set`."""
    deltas, counts = _deltas(sets)
    stops = np.cumsum(counts)
    first = np.zeros(len(counts), dtype=np.int64)
    first[counts > 0] = deltas[(stops - counts)[counts > 0]]
    is_plain = _fits_bytes(deltas, counts) & (counts <= _BYTE_COUNT_MAX)
    is_far = ~is_plain & (counts == 2) & (first > _BYTE_MAX)
    last = deltas[stops[is_far] - 1]
    is_far[is_far] = (last < 0) & (last >= -_BYTE_MAX - 1)
    widths = np.where(first < 1 << 15, 2, np.where(first < 1 << 31, 4, 8))
    lengths = np.where(counts < 2, 2 * counts + 1, counts + 3)  # END, a value and END, an array
    lengths = np.where(is_far, widths + 4, lengths)
    others = np.flatnonzero(~is_plain & ~is_far).tolist()
    written = [encode_row_set(sets[index]) for index in others]
    lengths[others] = [len(each) for each in written]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    content = np.full(int(ends[-1]) if len(ends) else 0, END, dtype=np.uint8)
    _write_plain(content, starts, deltas, counts=counts, is_plain=is_plain)
    far = np.flatnonzero(is_far)
    _write_far(content, starts[far], first[far], last=deltas[stops[far] - 1], widths=widths[far])
    for index, each in zip(others, written, strict=True):
        start = int(starts[index])
        content[start : start + len(each)] = np.frombuffer(each, np.uint8)
    return ManyEncoded(content, starts, lengths)


def _write_plain(
    content: NDArray[np.uint8],
    starts: Int64Array,
    deltas: Int64Array,
    *,
    counts: Int64Array,
    is_plain: BoolArray,
) -> None:
    """Sets whose deltas are one command of bytes."""
    arrays = np.flatnonzero(is_plain & (counts > 1))
    content[starts[arrays]] = _ARRAY
    content[starts[arrays] + 1] = counts[arrays]
    values = np.flatnonzero(is_plain & (counts == 1))
    content[starts[values]] = _VALUE
    at = expand(starts + np.where(counts > 1, 2, 1), np.where(is_plain, counts, 0))
    content[at] = deltas[np.repeat(is_plain, counts)].astype(np.int8).view(np.uint8)


def _write_far(
    content: NDArray[np.uint8],
    starts: Int64Array,
    first: Int64Array,
    *,
    last: Int64Array,
    widths: Int64Array,
) -> None:
    """Sets of one range: a wide step to its first key, and one of a byte to its last."""
    content[starts] = OFFSET | _TYPES[widths]
    for index in range(8):
        is_there = index < widths
        content[starts[is_there] + 1 + index] = (first[is_there] >> (8 * index)) & 0xFF
    content[starts + 1 + widths] = _VALUE
    content[starts + 2 + widths] = last & 0xFF


def _deltas(sets: ManyRowSets) -> tuple[Int64Array, Int64Array]:
    """Distance of every range end from the one before, negative for a last key that is not also a
    first; and how many each set has."""
    firsts, lasts, stops = sets.firsts, sets.lasts, sets.stops
    before = np.empty_like(firsts)
    before[1:] = lasts[:-1]
    range_counts = sets.range_counts
    before[(stops - range_counts)[range_counts > 0]] = 0
    has_last = lasts != firsts
    ends = np.arange(1, len(firsts) + 1) + np.cumsum(has_last)
    deltas = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.int64)
    deltas[ends - 1 - has_last] = firsts - before
    deltas[ends[has_last] - 1] = (firsts - lasts)[has_last]
    passed = np.concatenate(((0,), ends))
    return deltas, np.diff(passed[stops], prepend=0)


def _fits_bytes(deltas: Int64Array, counts: Int64Array) -> BoolArray:
    """Whether all deltas of each set fit into a byte."""
    is_wide = (deltas < -128) | (deltas > 127)
    passed = np.concatenate(((0,), np.cumsum(is_wide)))
    stops = np.cumsum(counts)
    fits: BoolArray = passed[stops] == passed[stops - counts]
    return fits
