"""An append-only column: immutable Arrow chunks, zero copy in and out.

Small chunks are merged four at a time into the next size class, so a row is copied about
log4(frozen / batch) times in its life and one-row appends at 10 Hz stay cheap. A chunk of
``FROZEN_ROWS`` rows or ``FROZEN_BYTES`` bytes is never copied again. 10^8 rows therefore live in a
few hundred chunks and a read is one bisection and one slice per column. The pieces of one large
append are not merged either: a snapshot of 10^7 rows would stand in memory twice while they are.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.model.storage.picks import Picks

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.model.storage.growth import Int64Array

FROZEN_ROWS = 1 << 16
FROZEN_BYTES = 1 << 24
MERGE_WIDTH = 4
"""How many chunks of one size class are merged into one."""

BULK_PIECE_ROWS_MIN = 1 << 12
"""Pieces of a large append that are on average shorter than this are merged after all."""

PINNED_BYTES_SLACK = 1 << 16
"""A chunk may keep this many bytes alive that are not its own before it is copied."""


class ChunkLog:
    """Arrow chunks addressed by slot. ``base`` is the first slot still held, ``length`` one past
    the last."""

    __slots__ = (
        "_cell_bytes",
        "_chunks",
        "_frozen_count",
        "_owned",
        "_starts",
        "base",
        "length",
        "type",
    )

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type
        self._cell_bytes = _cell_bytes(data_type)
        self.base = 0
        self.length = 0
        self._chunks: list[pa.Array] = []
        self._starts: list[int] = []
        self._frozen_count = 0
        """So many chunks at the front are not merged any more."""
        self._owned = 0
        """Slots below are in memory :meth:`own` has looked at."""

    @property
    def nbytes(self) -> int:
        return sum(chunk.nbytes for chunk in self._chunks)

    overwritten_nbytes = pinning_nbytes = 0
    """Chunks never change."""

    def pinned(self) -> ChunkLog:
        """A log of the same chunks."""
        copied = ChunkLog(self.type)
        copied.base, copied.length = self.base, self.length
        copied._chunks, copied._starts = list(self._chunks), list(self._starts)
        copied._frozen_count, copied._owned = self._frozen_count, self._owned
        return copied

    def append(self, values: pa.Array) -> None:
        if len(values) == 0:
            return
        self._chunks.append(_unpinned(values, self._cell_bytes))
        self._starts.append(self.length)
        self.length += len(values)
        if len(values) >= FROZEN_ROWS:
            self._frozen_count = len(self._chunks)
        elif len(self._chunks) - self._frozen_count >= MERGE_WIDTH:
            self._merge_tail()

    def append_pieces(self, values: pa.ChunkedArray) -> None:
        """Append all chunks; those of a large batch stay as they are."""
        pieces = values.chunks
        is_bulk = len(values) >= max(FROZEN_ROWS, BULK_PIECE_ROWS_MIN * len(pieces))
        for piece in pieces:
            self.append(piece)
            if is_bulk:
                self._frozen_count = len(self._chunks)

    def _merge_tail(self) -> None:
        while len(self._chunks) - self._frozen_count >= MERGE_WIDTH:
            level = _size_class(self._chunks[-1])
            if level is None:
                return
            count = 0
            for chunk in reversed(self._chunks[self._frozen_count :]):
                other = _size_class(chunk)
                if other is None or other > level:
                    break
                count += 1
            if count < MERGE_WIDTH:
                return
            merged = pa.concat_arrays(self._chunks[-count:])
            del self._chunks[-count:], self._starts[1 - count :]
            self._chunks.append(merged)

    def truncate(self, length: int) -> None:
        """Drop the slots from ``length`` on."""
        while self._starts and self._starts[-1] >= length:
            del self._chunks[-1], self._starts[-1]
        if self._chunks:
            self._chunks[-1] = self._chunks[-1].slice(0, length - self._starts[-1])
        self._frozen_count = min(self._frozen_count, len(self._chunks))
        self._owned = min(self._owned, length)
        self.base = min(self.base, length)
        self.length = length

    def forget_before(self, slot: int) -> None:
        """Let go of every chunk that ends at or before ``slot``; slot numbers stay as they are."""
        keep = 0
        while keep < len(self._chunks) and self._starts[keep] + len(self._chunks[keep]) <= slot:
            keep += 1
        del self._chunks[:keep], self._starts[:keep]
        self._frozen_count = max(self._frozen_count - keep, 0)
        self.base = max(self.base, min(slot, self.length))

    def rebase(self) -> int:
        """Number the slots that are still held from 0 on; how far they have moved down."""
        moved = self.base
        if self._starts and self._starts[0] < moved:
            self._chunks[0] = self._chunks[0].slice(moved - self._starts[0])
            self._starts[0] = moved
        self._starts = [start - moved for start in self._starts]
        self.base, self.length = 0, self.length - moved
        self._owned = max(self._owned - moved, 0)
        return moved

    def own(self, owned: Callable[[pa.Array], pa.Array]) -> None:
        """Hold ``owned(chunk)``, the same cells perhaps in other memory, for every chunk that has
        come since the last time."""
        for index in range(len(self._chunks) - 1, -1, -1):
            chunk = self._chunks[index]
            if self._starts[index] + len(chunk) <= self._owned:
                break
            self._chunks[index] = owned(chunk)
        self._owned = self.length

    def slice(self, start: int, stop: int) -> pa.Array | pa.ChunkedArray:
        """Slots ``start..stop-1`` without copying; chunked only when they cross a chunk border."""
        if start >= stop:
            return _empty(self.type)
        index = bisect_right(self._starts, start) - 1
        chunk = self._chunks[index]
        begin = self._starts[index]
        rows = len(chunk)
        if start == begin and stop == begin + rows:
            return chunk
        if stop <= begin + rows:
            return chunk.slice(start - begin, stop - start)
        parts = []
        while start < stop:
            chunk = self._chunks[index]
            begin = self._starts[index]
            end = min(stop, begin + len(chunk))
            parts.append(chunk.slice(start - begin, end - start))
            start = end
            index += 1
        return pa.chunked_array(parts, type=self.type)

    def picks(self, slots: Int64Array) -> Picks:
        """Where ``slots``, at least one, lie in the chunks."""
        return Picks(slots, self._starts, self.length)

    def take(self, slots: Int64Array, picks: Picks | None = None) -> pa.Array:
        """The cells at ``slots``, in the order given; ``picks`` are those of another column."""
        if len(slots) == 0:
            return _empty(self.type)
        if picks is None or not picks.fits(self._starts, self.length):
            picks = self.picks(slots)
        return picks.taken_from(self._chunks)

    def chunks(self) -> list[pa.Array]:
        """All chunks in slot order."""
        return list(self._chunks)


def _size_class(chunk: pa.Array) -> int | None:
    """Class k holds 4^k..4^(k+1)-1 rows; None for chunks too large to be copied again."""
    rows = len(chunk)
    if rows >= FROZEN_ROWS:
        return None
    # Arrow's count of the bytes that are used costs thirty times as much as that of those held.
    if chunk.get_total_buffer_size() >= FROZEN_BYTES and chunk.nbytes >= FROZEN_BYTES:
        return None
    return (rows.bit_length() - 1) >> 1


def _cell_bytes(data_type: pa.DataType) -> int:
    """Bytes every cell takes at least; 0 where Arrow does not say."""
    try:
        return int(data_type.bit_width) >> 3
    except ValueError:
        return 0


def _unpinned(values: pa.Array, cell_bytes: int) -> pa.Array:
    """``values``, copied if it is a thin slice that would keep a much larger buffer alive."""
    held = values.get_total_buffer_size()
    # See _size_class: those held are counted first.
    if held <= 2 * cell_bytes * len(values) + PINNED_BYTES_SLACK:
        return values
    if held <= 2 * values.nbytes + PINNED_BYTES_SLACK:
        return values
    return values.take(pa.array(np.arange(len(values), dtype=np.int64)))


def _empty(data_type: pa.DataType) -> pa.Array:
    return pa.nulls(0, data_type)
