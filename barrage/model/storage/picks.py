"""Where some slots lie in a column's chunks: worked out once for all columns cut alike."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.model.storage.growth import Int64Array

_INT64 = pa.int64()
_TAKE = pc.get_function("array_take")
_UNCHECKED = pc.TakeOptions(boundscheck=False)


class Picks:
    """The places of ``slots`` (any order, repeats allowed, at least one) in chunks that begin at
    ``starts`` and end before ``stop``. Raises IndexError for slots not in any chunk."""

    __slots__ = ("_inverse", "_parts", "_starts", "_stop")

    def __init__(self, slots: Int64Array, starts: list[int], stop: int) -> None:
        low, high = int(slots.min()), int(slots.max())
        first = bisect_right(starts, low) - 1
        if first < 0 or high >= stop:
            raise IndexError(f"slots {low} to {high} are not all held")
        self._starts = tuple(starts)
        self._stop = stop
        self._inverse: pa.Array | None = None
        if first == bisect_right(starts, high) - 1:
            self._parts = [(first, indices(slots - starts[first]))]
            return
        # Arrow's own take on many chunks concatenates all of them first, which costs the whole
        # column.
        if (slots[1:] < slots[:-1]).any():
            order = np.argsort(slots, kind="stable")
            inverse = np.empty(len(order), dtype=np.int64)
            inverse[order] = np.arange(len(order), dtype=np.int64)
            self._inverse = indices(inverse)
            slots = slots[order]
        chunk_of = np.searchsorted(np.array(starts, dtype=np.int64), slots, side="right") - 1
        cuts = np.flatnonzero(chunk_of[1:] != chunk_of[:-1]) + 1
        chunk_numbers = chunk_of[[0, *cuts]].tolist()
        edges = pairwise((0, *cuts.tolist(), len(slots)))
        self._parts = [
            (number, indices(slots[begin:end] - starts[number]))
            for number, (begin, end) in zip(chunk_numbers, edges, strict=True)
        ]

    def fits(self, starts: list[int], stop: int) -> bool:
        """Whether these are the places in chunks that begin at ``starts``, too."""
        return self._stop == stop and self._starts == tuple(starts)

    def taken_from(self, chunks: Sequence[pa.Array]) -> pa.Array:
        """The cells, in the order the slots were given. One Arrow take per chunk touched."""
        parts = [gather(chunks[number], places) for number, places in self._parts]
        gathered = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
        return gathered if self._inverse is None else gather(gathered, self._inverse)


def indices(places: Int64Array) -> pa.Array:
    """A contiguous array of places as Arrow takes it, without copying."""
    return pa.Array.from_buffers(_INT64, len(places), [None, pa.py_buffer(places)])


def gather(values: pa.Array, places: pa.Array) -> pa.Array:
    """``values`` at ``places``, which must be in range: nothing checks them again.

    The kernel is called directly because for a viewport's few rows the usual path through
    ``Array.take`` costs twice as much as the work itself.
    """
    return _TAKE.call([values, places], _UNCHECKED)
