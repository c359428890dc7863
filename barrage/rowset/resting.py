"""Row sets that nobody reads for a while, compressed.

A range list is written as the steps between its ends, one plane per byte of them, and the planes
are compressed by zstd: the high bytes of steps are zero almost everywhere and vanish, the low ones
cost about their entropy. For 10^6 rows of a sorted table (keys with gaps) that is 0.5 bytes a row,
where bits take 2; for keys drawn from all 2^63 under 6. Sets that are kept as bits rest as they
are, without what was made for lookups.

Cost: about 10 ms per 10^6 ranges in each direction; none for bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.rowset.row_set import RowSet
from barrage.rowset.set_forms import OBJECT_BYTES

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array

SMALL_RANGES_MAX = 64
"""Sets up to so many ranges stay as they are."""

_CODEC = pa.Codec("zstd", compression_level=1)


class RestingRows:
    """An immutable row set in compressed form; :meth:`rows` is what it was made of."""

    __slots__ = ("_first", "_gaps", "_kept", "_lengths", "nbytes", "size")

    def __init__(self, rows: RowSet) -> None:
        self.size = rows.size
        self._kept: RowSet | None = None
        self._gaps: _Steps | None = None
        self._lengths: _Steps | None = None
        self._first = 0
        if rows.is_bits or rows.range_count <= SMALL_RANGES_MAX:
            self._kept = rows.packed()
            self.nbytes = OBJECT_BYTES + self._kept.nbytes
            return
        firsts, lasts = rows.range_list
        self._first = int(firsts[0])
        self._gaps = _Steps(firsts[1:] - lasts[:-1])
        self.nbytes = OBJECT_BYTES + self._gaps.nbytes
        if firsts is not lasts:
            self._lengths = _Steps(lasts - firsts)
            self.nbytes += self._lengths.nbytes

    def rows(self) -> RowSet:
        """The set; made anew every time, unless it rests as it is."""
        if self._kept is not None:
            return self._kept.packed()
        assert self._gaps is not None
        gaps = self._gaps.numbers()
        firsts = np.empty(len(gaps) + 1, dtype=np.int64)
        firsts[0] = self._first
        if self._lengths is None:
            np.cumsum(gaps, out=firsts[1:])
            firsts[1:] += self._first
            return RowSet.from_trusted_ranges(firsts, firsts, is_touching=False)
        lengths = self._lengths.numbers()
        np.cumsum(gaps + lengths[:-1], out=firsts[1:])
        firsts[1:] += self._first
        return RowSet.from_trusted_ranges(firsts, firsts + lengths, is_touching=False)


class _Steps:
    """Numbers that are not negative, compressed."""

    __slots__ = ("_content", "_count", "_width")

    def __init__(self, numbers: Int64Array) -> None:
        self._count = len(numbers)
        self._width = (int(numbers.max()).bit_length() + 7) // 8
        planes = numbers.astype("<i8", copy=False).view(np.uint8).reshape(-1, 8)[:, : self._width]
        self._content: bytes = _CODEC.compress(np.ascontiguousarray(planes.T), asbytes=True)

    @property
    def nbytes(self) -> int:
        return OBJECT_BYTES + len(self._content)

    def numbers(self) -> Int64Array:
        size = self._count * self._width
        planes = np.frombuffer(_CODEC.decompress(self._content, size), dtype=np.uint8)
        numbers = np.zeros((self._count, 8), dtype=np.uint8)
        numbers[:, : self._width] = planes.reshape(self._width, self._count).T
        return numbers.view("<i8").reshape(-1).astype(np.int64, copy=False)
