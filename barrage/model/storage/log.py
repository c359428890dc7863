"""A variable-width column that is overwritten: a log of chunks plus slot -> log position.

Overwriting appends to the log and leaves garbage behind; when a quarter of the log is garbage the
live cells are copied to a new log. Cost of a write of m cells: O(m) plus the amortised copy (at
most four cells per write).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.model.storage.chunks import ChunkLog
from barrage.model.storage.growth import GrowArray

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.model.storage.growth import Int64Array

GARBAGE_ROWS_MIN = 1 << 15
"""Below this much garbage a log is never compacted."""

COPY_ROWS = 1 << 17
"""Rows copied at a time while compacting, so that no second full copy exists and no 32-bit offset
overflows."""


class LogColumn:
    """Cells at slots 0..length-1, all writable, stored behind a 32-bit position each."""

    __slots__ = ("_log", "_positions", "type")

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type
        self._log = ChunkLog(data_type)
        self._positions = GrowArray(np.uint32)

    @property
    def length(self) -> int:
        return self._positions.length

    @property
    def nbytes(self) -> int:
        return self._log.nbytes + self._positions.nbytes

    @property
    def overwritten_nbytes(self) -> int:
        return self._positions.nbytes

    def pinned(self) -> LogColumn:
        """The same chunks behind a copy of the positions."""
        copied = LogColumn(self.type)
        copied._log, copied._positions = self._log.pinned(), self._positions.copy()
        return copied

    def append(self, values: pa.Array) -> None:
        begin = self._log.length
        self._log.append(values)
        self._positions.append(np.arange(begin, begin + len(values), dtype=np.uint32))
        self._collect_garbage()

    def truncate(self, length: int) -> None:
        """The dropped cells become garbage."""
        self._positions.truncate(length)

    def own(self, owned: Callable[[pa.Array], pa.Array]) -> None:
        """See :meth:`ChunkLog.own`."""
        self._log.own(owned)

    def write(self, slots: Int64Array, values: pa.Array) -> None:
        begin = self._log.length
        self._log.append(values)
        self._positions.write(slots, np.arange(begin, begin + len(values), dtype=np.uint32))
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        garbage = self._log.length - self._positions.length
        if garbage > GARBAGE_ROWS_MIN and garbage * 4 > self._log.length:
            self._compact()

    def _compact(self) -> None:
        fresh = ChunkLog(self.type)
        for start in range(0, self.length, COPY_ROWS):
            stop = min(start + COPY_ROWS, self.length)
            fresh.append(self._log.take(self._positions_between(start, stop)))
        self._log = fresh
        self._positions.write(
            np.arange(self.length, dtype=np.int64), np.arange(self.length, dtype=np.uint32)
        )

    def _positions_between(self, start: int, stop: int) -> Int64Array:
        return self._positions.slice(start, stop).astype(np.int64)

    def take(self, slots: Int64Array) -> pa.Array:
        return self._log.take(self._positions.take(slots).astype(np.int64))

    def slice(self, start: int, stop: int) -> pa.Array | pa.ChunkedArray:
        if start >= stop:
            return self._log.slice(0, 0)
        positions = self._positions_between(start, stop)
        first = int(positions[0])
        if int(positions[-1]) - first == stop - start - 1 and bool(np.all(np.diff(positions) == 1)):
            return self._log.slice(first, first + stop - start)
        return self._log.take(positions)
