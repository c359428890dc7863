"""Slices of one column for many record batches at once.

The rows of slice i become the column of batch i. What a codec would do for each slice is done here
for all of them: lengths of every buffer first, then, once it is known where in the common body each
buffer begins, one gather and one scatter per buffer.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from barrage.rowset.arrays import expand

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from barrage.rowset.arrays import BoolArray, Int64Array

    Fill = Callable[[NDArray[np.uint8], Int64Array], None]


_PIECE_BYTES_MIN = 64
"""Bytes of a slice from which on it is copied by itself: to gather a byte takes two indices."""


class Slices:
    """Which rows of a column go into each batch: ``counts[i]`` of them from ``low[i]`` on."""

    def __init__(self, low: Int64Array, counts: Int64Array) -> None:
        self.low = low
        self.counts = counts

    @cached_property
    def rows(self) -> Int64Array:
        """The row of every element, slice by slice."""
        return expand(self.low, self.counts)

    def places(self, starts: Int64Array) -> Int64Array:
        """Where every element goes when the elements of slice i begin at ``starts[i]``."""
        return expand(starts, self.counts)


class SlicedBuffer(NamedTuple):
    """One buffer of every slice: its bytes without padding, and what writes all of them into a
    zeroed body in which they begin at given multiples of eight."""

    lengths: Int64Array
    fill: Fill


class SlicedColumn(NamedTuple):
    """All slices of a column with one node: nulls of each, and its buffers in order."""

    null_counts: Int64Array
    buffers: tuple[SlicedBuffer, ...]


def no_bytes(slices: Slices) -> SlicedBuffer:
    """A buffer that is absent from every slice."""
    return SlicedBuffer(np.zeros(len(slices.counts), dtype=np.int64), _fill_nothing)


def _fill_nothing(body: NDArray[np.uint8], starts: Int64Array) -> None:
    """Nothing is there to be written."""


def fixed_buffer(values: NDArray[np.generic], slices: Slices) -> SlicedBuffer:
    """Elements of 1, 2, 4 or 8 bytes."""
    width = values.dtype.itemsize

    def fill(body: NDArray[np.uint8], starts: Int64Array) -> None:
        body.view(values.dtype)[slices.places(starts // width)] = values[slices.rows]

    return SlicedBuffer(slices.counts * width, fill)


def bit_buffer(
    flags: BoolArray, slices: Slices, *, is_there: BoolArray | None = None
) -> SlicedBuffer:
    """One bit for each element, in whole 64-bit words; ``flags`` has one entry per element of
    ``slices``. Slices that are not ``is_there`` have no such buffer."""
    counts = slices.counts if is_there is None else np.where(is_there, slices.counts, 0)
    word_counts = (counts + 63) >> 6

    def fill(body: NDArray[np.uint8], starts: Int64Array) -> None:
        bits = np.zeros(int(word_counts.sum()) << 6, dtype=np.bool_)
        used = flags if is_there is None else flags[np.repeat(is_there, slices.counts)]
        bits[expand((np.cumsum(word_counts) - word_counts) << 6, counts)] = used
        words = np.packbits(bits, bitorder="little").view(np.uint64)
        body.view(np.uint64)[expand(starts >> 3, word_counts)] = words

    return SlicedBuffer(word_counts << 3, fill)


def sliced_validity(is_valid: BoolArray | None, slices: Slices) -> tuple[Int64Array, SlicedBuffer]:
    """Nulls of each slice, and the bitmap of those that have any. ``is_valid``: by row of the
    column; None where nothing is null."""
    if is_valid is None:
        return np.zeros(len(slices.counts), dtype=np.int64), no_bytes(slices)
    flags = is_valid[slices.rows]
    passed = np.concatenate(((0,), np.cumsum(~flags)))
    stops = np.cumsum(slices.counts)
    null_counts = passed[stops] - passed[stops - slices.counts]
    return null_counts, bit_buffer(flags, slices, is_there=null_counts > 0)


def variable_buffers(
    offsets: NDArray[np.integer], data: NDArray[np.uint8], slices: Slices
) -> tuple[SlicedBuffer, SlicedBuffer]:
    """Offsets of every slice, counted from its first byte, and its bytes. A slice without rows has
    neither."""
    counts, low = slices.counts, slices.low
    offset_counts = np.where(counts > 0, counts + 1, 0)
    begin = offsets[low].astype(np.int64)
    byte_counts = offsets[low + counts].astype(np.int64) - begin
    width = offsets.dtype.itemsize

    def fill_offsets(body: NDArray[np.uint8], starts: Int64Array) -> None:
        found = offsets[expand(low, offset_counts)] - np.repeat(begin, offset_counts)
        body.view(offsets.dtype)[expand(starts // width, offset_counts)] = found

    def fill_bytes(body: NDArray[np.uint8], starts: Int64Array) -> None:
        if byte_counts.sum() < _PIECE_BYTES_MIN * len(byte_counts):
            body[expand(starts, byte_counts)] = data[expand(begin, byte_counts)]
            return
        for start, low, count in zip(
            starts.tolist(), begin.tolist(), byte_counts.tolist(), strict=True
        ):
            body[start : start + count] = data[low : low + count]

    return SlicedBuffer(offset_counts * width, fill_offsets), SlicedBuffer(byte_counts, fill_bytes)
