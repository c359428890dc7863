"""A variable-width column that is overwritten: a log of chunks plus slot -> log position.

Overwriting appends to the log and leaves garbage behind. When a quarter of the log is garbage, each
write also copies the live cells of some more slots to the end of the log, until those of all slots
are there and what was before is given up. So no write costs more than a few times what it brings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from barrage.model.storage.chunks import ChunkLog
from barrage.model.storage.growth import AnyArray, GrowArray

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.model.storage.growth import Int64Array

GARBAGE_ROWS_MIN = 1 << 15
"""Below this much garbage a log is never cleaned."""

CLEANED_PER_CELL: Final = 2
"""Slots whose cells are copied for each cell that is written while a log is cleaned."""

CLEANED_TOGETHER = 1 << 12
"""Slots that are cleaned together: each time has a cost of its own."""

COPY_ROWS = 1 << 14
"""Rows copied at a time, so that no 32-bit offset of Arrow's overflows."""

REBASED_POSITIONS_MIN = 1 << 31
"""A log that has handed out so many positions begins again at 0 when it has been cleaned, well
before they do not fit 32 bits."""


class LogColumn:
    """Cells at slots 0..length-1, all writable, stored behind a 32-bit position each.

    Kept is how far the position is from the slot, modulo 2^32: 0 for all cells of a log that nobody
    has overwritten, and zeros cost nothing to make.
    """

    __slots__ = ("_cleaned_upto", "_distances", "_due", "_garbage_upto", "_log", "type")

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type
        self._log = ChunkLog(data_type)
        self._distances = GrowArray(np.uint32)
        self._garbage_upto: int | None = None
        """While the log is cleaned: positions before are garbage once all slots are cleaned."""
        self._cleaned_upto = 0
        """Slots before have no cell in that part."""
        self._due = 0
        """Slots that are due to be cleaned."""

    @classmethod
    def of_chunks(cls, chunks: ChunkLog) -> LogColumn:
        """A column that takes over the chunks, which hold all their cells. Costs the same for any
        length."""
        made = cls(chunks.type)
        made._log = chunks
        made._distances = GrowArray.zeros(np.uint32, chunks.length)
        return made

    @property
    def length(self) -> int:
        return self._distances.length

    @property
    def nbytes(self) -> int:
        return self._log.nbytes + self._distances.nbytes

    @property
    def overwritten_nbytes(self) -> int:
        return self._distances.nbytes

    @property
    def pinning_nbytes(self) -> int:
        return self._distances.pinning_nbytes

    def pinned(self) -> LogColumn:
        """The same chunks behind the positions of now, for reading only."""
        copied = LogColumn(self.type)
        copied._log, copied._distances = self._log.pinned(), self._distances.pinned()
        return copied

    def append(self, values: pa.Array) -> None:
        distance = (self._log.length - self.length) % (1 << 32)
        self._log.append(values)
        self._distances.append_constant(distance, len(values))
        self._clean_for(len(values))

    def truncate(self, length: int) -> None:
        """The dropped cells become garbage."""
        self._distances.truncate(length)
        self._cleaned_upto = min(self._cleaned_upto, length)

    def tidy(self, cell_count: int) -> None:
        """Clean so many slots, if there is much garbage: what was truncated is more than later
        writes may ever pay for."""
        self._distances.tidy(cell_count)
        self._clean_for(cell_count // CLEANED_PER_CELL)

    def own(self, owned: Callable[[pa.Array], pa.Array]) -> None:
        """See :meth:`ChunkLog.own`."""
        self._log.own(owned)

    def write(self, slots: Int64Array, values: pa.Array) -> None:
        self._put(slots, values)
        self._clean_for(len(values))

    def _put(self, slots: Int64Array, values: pa.Array) -> None:
        begin = self._log.length
        self._log.append(values)
        positions = np.arange(begin, begin + len(values), dtype=np.int64)
        self._distances.write(slots, (positions - slots).astype(np.uint32))

    def _clean_for(self, cell_count: int) -> None:
        """Clean as much as so many new cells pay for, if there is much garbage."""
        if self._garbage_upto is None:
            held = self._log.length - self._log.base
            garbage = held - self.length
            if garbage <= GARBAGE_ROWS_MIN or garbage * 4 <= held:
                return
            self._garbage_upto, self._cleaned_upto = self._log.length, 0
        self._due += CLEANED_PER_CELL * cell_count
        if self._due >= CLEANED_TOGETHER:
            count, self._due = self._due, 0
            for start in range(0, count, COPY_ROWS):
                if self._garbage_upto is not None:
                    self._clean(self._garbage_upto, min(COPY_ROWS, count - start))

    def _clean(self, garbage_upto: int, count: int) -> None:
        start = self._cleaned_upto
        stop = min(start + count, self.length)
        positions = _positions(np.arange(start, stop), self._distances.slice(start, stop))
        places = np.flatnonzero(positions < garbage_upto)
        if len(places):
            self._put(start + places, self._log.take(positions[places]))
        self._cleaned_upto = stop
        if stop == self.length:
            self._log.forget_before(garbage_upto)
            self._garbage_upto = None
            if self._log.length >= REBASED_POSITIONS_MIN:
                self._distances.add(-self._log.rebase() % (1 << 32))

    def take(self, slots: Int64Array) -> pa.Array:
        return self._log.take(_positions(slots, self._distances.take(slots)))

    def slice(self, start: int, stop: int) -> pa.Array | pa.ChunkedArray:
        if start >= stop:
            return self._log.slice(0, 0)
        distances = self._distances.slice(start, stop)
        if (distances == distances[0]).all():
            first = (start + int(distances[0])) % (1 << 32)
            return self._log.slice(first, first + stop - start)
        return self._log.take(_positions(np.arange(start, stop), distances))


def _positions(slots: Int64Array, distances: AnyArray) -> Int64Array:
    return (slots.astype(np.uint32) + distances).astype(np.int64)
