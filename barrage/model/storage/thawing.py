"""A fixed-width column that is overwritten for the first time: its chunks become writable a few
cells at a time.

To copy ten million cells of each column at once takes a second, for which everybody waits because
of one cell. So the chunks stay, and what is written goes into a buffer as large as the column,
whose pages the system hands out when they are used; each write also copies the cells of some more
slots there, and when all of them are there the chunks are given up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from barrage.model.storage.fixed import FixedColumn
from barrage.model.storage.growth import GrowArray

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.model.storage.chunks import ChunkLog
    from barrage.model.storage.growth import Int64Array

THAWED_TOGETHER: Final = 1 << 16
"""Slots whose cells one write copies, at least: as many as it writes, where that is more."""


class ThawingColumn:
    """Cells at slots 0..length-1. Those at ``_thawed_upto`` and behind, as far as the chunks go,
    are in the chunks unless they have been written."""

    __slots__ = ("_chunks", "_frozen_upto", "_is_written", "_thawed_upto", "cells")

    def __init__(self, chunks: ChunkLog, dtype: np.dtype[Any]) -> None:
        self.cells = FixedColumn.blank(chunks.type, dtype, chunks.length)
        """The column that this one becomes."""
        self._chunks = chunks
        self._frozen_upto = chunks.length
        self._thawed_upto = 0
        self._is_written = GrowArray.zeros(np.bool_, chunks.length)

    @property
    def is_thawed(self) -> bool:
        """Whether all cells are in :attr:`cells`."""
        return self._thawed_upto >= self._frozen_upto

    @property
    def type(self) -> pa.DataType:
        return self.cells.type

    @property
    def length(self) -> int:
        return self.cells.length

    @property
    def nbytes(self) -> int:
        return self._chunks.nbytes + self.overwritten_nbytes

    @property
    def overwritten_nbytes(self) -> int:
        return self.cells.nbytes + self._is_written.nbytes

    @property
    def pinning_nbytes(self) -> int:
        return self.cells.pinning_nbytes + self._is_written.pinning_nbytes

    def pinned(self) -> ThawingColumn:
        """The same chunks, and what has been written by now."""
        copied = ThawingColumn.__new__(ThawingColumn)
        copied.cells = self.cells.pinned()
        copied._chunks = self._chunks.pinned()
        copied._frozen_upto, copied._thawed_upto = self._frozen_upto, self._thawed_upto
        copied._is_written = self._is_written.pinned()
        return copied

    def append(self, values: pa.Array) -> None:
        self.cells.append(values)

    def write(self, slots: Int64Array, values: pa.Array) -> None:
        self.cells.write(slots, values)
        self._is_written.write(slots[slots < self._frozen_upto], True)
        self.tidy(max(THAWED_TOGETHER, len(slots)))

    def tidy(self, count: int) -> None:
        """Copy the cells of so many more slots."""
        start = self._thawed_upto
        stop = min(start + count, self._frozen_upto)
        slots = start + np.flatnonzero(~self._is_written.slice(start, stop))
        if len(slots):
            self.cells.write(slots, self._chunks.take(slots), is_first=True)
        self._thawed_upto = stop
        self._chunks.forget_before(stop)

    def truncate(self, length: int) -> None:
        self.cells.truncate(length)
        if length < self._frozen_upto:
            self._frozen_upto = length
            self._thawed_upto = min(self._thawed_upto, length)
            self._chunks.truncate(length)
            self._is_written.truncate(length)

    def _frozen(self, slots: Int64Array) -> Int64Array:
        """The places of those slots whose cells are in the chunks."""
        places = np.flatnonzero((slots >= self._thawed_upto) & (slots < self._frozen_upto))
        return places[~self._is_written.take(slots[places])]

    def take(self, slots: Int64Array) -> pa.Array:
        frozen = self._frozen(slots)
        if len(frozen) == 0:
            return self.cells.take(slots)
        if len(frozen) == len(slots):
            return self._chunks.take(slots)
        return self.cells.take_with(slots, frozen, self._chunks.take(slots[frozen]))

    def slice(self, start: int, stop: int) -> pa.Array | pa.ChunkedArray:
        slots = np.arange(start, stop, dtype=np.int64)
        frozen = self._frozen(slots)
        if len(frozen) == 0:
            return self.cells.slice(start, stop)
        if len(frozen) == len(slots):
            return self._chunks.slice(start, stop)
        return self.cells.take_with(slots, frozen, self._chunks.take(slots[frozen]))
