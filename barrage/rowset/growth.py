"""Appending to immutable arrays without copying them: spare room behind the last element.

Several arrays may be views of the front of one buffer. Only the array that ends where the buffer is
filled may grow in place; everybody else copies. The right to fill is one token in a list, taken
with ``list.pop``, which is atomic: two threads that append to the same array can never write the
same slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array, RangeList

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


Rooms: TypeAlias = tuple[Room | None, Room | None, Room | None]
NO_ROOMS: Final[Rooms] = (None, None, None)


class Growing(NamedTuple):
    """Ranges, the keys before each of them where that is known, and the rooms behind the three
    arrays."""

    firsts: Int64Array
    lasts: Int64Array
    before: Int64Array | None
    rooms: Rooms


def appended(old: Growing, more: RangeList) -> Growing:
    """``old`` followed by ranges that all lie behind its last key; neither is empty."""
    firsts, lasts = more
    first_room, last_room, before_room = old.rooms
    old_lasts = old.lasts
    was_single = old.lasts is old.firsts
    is_single = was_single and firsts is lasts
    if int(old_lasts[-1]) + 1 == int(firsts[0]):
        # The last range grows: its end changes, so ends are copied and starts are not.
        firsts, old_lasts, last_room, is_single = firsts[1:], old_lasts[:-1], None, False
    elif was_single:
        last_room = None
    new_firsts, first_room = extended(old.firsts, first_room, firsts)
    if is_single:
        return Growing(new_firsts, new_firsts, None, (first_room, None, None))
    new_lasts, last_room = extended(old_lasts, last_room, lasts)
    before = old.before
    if before is not None and len(firsts):
        at = len(old.firsts) - 1
        counted = int(before[at]) + int(new_lasts[at]) - int(new_firsts[at]) + 1
        ends = np.cumsum(lasts[-len(firsts) :] - firsts + 1)
        further = np.concatenate(([0], ends[:-1])) + counted
        before, before_room = extended(before, before_room, further)
    return Growing(new_firsts, new_lasts, before, (first_room, last_room, before_room))
