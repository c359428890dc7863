"""Appending to immutable arrays without copying them: spare room behind the last element.

Several arrays may be views of the front of one buffer. Only the array that ends where the buffer is
filled may grow in place; everybody else copies. The right to fill is one token in a list, taken
with ``list.pop``, which is atomic: two threads that append to the same array can never write the
same slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array

_ROOM_ELEMENTS_MIN = 4096
"""Shorter arrays are simply copied."""

_GROWTH_DIVISOR = 4
"""A new buffer has a quarter more room than it needs; untouched pages cost address space only."""


class Room:
    """A buffer and how much of it is filled."""

    __slots__ = ("_buffer", "_filled")

    def __init__(self, buffer: Int64Array, filled: int) -> None:
        self._buffer = buffer
        self._filled = [filled]

    def extend(self, length: int, more: Int64Array) -> Int64Array | None:
        """The first ``length`` elements followed by ``more``, or None if somebody was faster or it
        is full.
        """
        try:
            filled = self._filled.pop()
        except IndexError:
            return None
        stop = length + len(more)
        if filled != length or stop > len(self._buffer):
            self._filled.append(filled)
            return None
        self._buffer[length:stop] = more
        self._filled.append(stop)
        return self._buffer[:stop]


def extended(
    array: Int64Array, room: Room | None, more: Int64Array
) -> tuple[Int64Array, Room | None]:
    """``array`` followed by ``more``, amortised O(len(more)), and the room to pass in next time."""
    if room is not None:
        grown = room.extend(len(array), more)
        if grown is not None:
            return grown, room
    length = len(array) + len(more)
    if length < _ROOM_ELEMENTS_MIN:
        return np.concatenate((array, more)), None
    buffer = np.empty(length + length // _GROWTH_DIVISOR, dtype=np.int64)
    buffer[: len(array)] = array
    buffer[len(array) : length] = more
    return buffer[:length], Room(buffer, length)
