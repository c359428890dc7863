"""The state of a growable array at one moment, which stays what it was while the array goes on.

To copy ten million entries takes tens of milliseconds, and a table has many columns. So nothing is
copied when an array is pinned: the pin reads the buffers of the array, and who overwrites entries
first has every living pin save them as they were. Pinning costs the same for any length; a write
costs what it writes, for each pin; a pin that nobody has any more costs nothing.

Threads: one thread writes the array, and any may read a pin meanwhile. The writer saves entries,
marks them as saved, and overwrites them; a reader reads the buffers, then the marks, then what is
saved of the marked ones. So an entry that it found overwritten, or half so, was marked before it
looked. The steps are calls of their own, which the lock of the interpreter puts in order. What is
saved is put in its place by the reader, who then bears the cost of scattered pages.

Memory of a pin: nothing before the first write; then a bit per entry for the marks, and per saved
entry its own bytes, with 4 more until a reader has put it in its place.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    AnyArray = npt.NDArray[Any]
    BoolArray = npt.NDArray[np.bool_]
    Int64Array = npt.NDArray[np.int64]
    UInt8Array = npt.NDArray[np.uint8]

_BITS: Final[UInt8Array] = np.left_shift(1, np.arange(8)).astype(np.uint8)

SAVED_TOGETHER_MIN: Final = 1 << 6
SAVED_TOGETHER_MAX: Final = 1 << 16
"""Entries a stretch of saved ones has room for: twice what the one before it had, up to this, or as
many as are saved at a time."""

OWN_MEMORY_MIN: Final = 1 << 18
"""Bytes from which on untouched zeros have memory of their own."""

HUGE_PAGES_MIN: Final = 1 << 22
"""Bytes from which on that memory comes in huge pages where the system has them, as numpy's."""


def untouched_zeros(dtype: npt.DTypeLike, length: int) -> AnyArray:
    """``length`` zeros, which cost nothing before they are looked at or written: the system hands
    out pages of zeros as they are touched. The array does not own its memory, so it cannot be
    resized in place.

    ``np.zeros`` promises that only for memory the process has not used before. Once larger arrays
    have come and gone, the C library takes up to 32 MiB from what it keeps, and clears it first.
    """
    dtype = np.dtype(dtype)
    size = length * dtype.itemsize
    if size < OWN_MEMORY_MIN:
        return np.zeros(length, dtype=dtype)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # As many mappings as a process may have, or no memory, which numpy then says.
        return np.zeros(length, dtype=dtype)
    if size >= HUGE_PAGES_MIN and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # A kernel without them.
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=dtype)


def shortened(zeros: AnyArray, length: int) -> AnyArray:
    """The first entries of an array that does not own its memory, of :func:`untouched_zeros`. The
    system has the pages of the others back."""
    whole: Any = zeros.base if isinstance(zeros.base, np.ndarray) else zeros
    memory: mmap.mmap = whole.base.obj
    kept = -(-length * zeros.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
    if kept < len(memory) and hasattr(mmap, "MADV_DONTNEED"):
        with contextlib.suppress(OSError):  # Memory that the process has locked.
            memory.madvise(mmap.MADV_DONTNEED, kept, len(memory) - kept)
    return zeros[:length]


class Buffers(NamedTuple):
    """Where the entries of an array are: in ``buffer``, but in ``leaving`` those that are to move
    from there and have not, the ones from ``moved_upto`` on."""

    buffer: AnyArray
    leaving: AnyArray | None = None
    moved_upto: int = 0

    def take(self, slots: Int64Array) -> AnyArray:
        """A copy of the entries at ``slots``."""
        taken = self.buffer.take(slots)
        if self.leaving is not None:
            places = np.flatnonzero(self.are_leaving(slots))
            taken[places] = self.leaving.take(slots[places])
        return taken

    def are_leaving(self, slots: Int64Array) -> BoolArray:
        """Whether each of these entries has still to move."""
        assert self.leaving is not None
        return (slots >= self.moved_upto) & (slots < len(self.leaving))

    def slice(self, start: int, stop: int) -> AnyArray:
        """A copy of the entries ``start..stop-1``."""
        taken = self.buffer[start:stop].copy()
        if self.leaving is not None:
            first, last = max(start, self.moved_upto), min(stop, len(self.leaving))
            if first < last:
                taken[first - start : last - start] = self.leaving[first:last]
        return taken


class _Marks:
    """A bit for each entry. One thread sets them, others may look meanwhile."""

    __slots__ = ("_bytes",)

    def __init__(self, length: int) -> None:
        self._bytes: UInt8Array = untouched_zeros(np.uint8, (length + 7) >> 3)

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    def set(self, slots: Int64Array) -> None:
        np.bitwise_or.at(self._bytes, slots >> 3, _BITS[slots & 7])

    def are_set(self, slots: Int64Array) -> BoolArray:
        are_set: BoolArray = (self._bytes.take(slots >> 3) & _BITS[slots & 7]) != 0
        return are_set

    def set_between(self, start: int, stop: int) -> Int64Array:
        """How far behind ``start`` those are that are set."""
        bits = np.unpackbits(self._bytes[start >> 3 : (stop + 7) >> 3], bitorder="little")
        return np.flatnonzero(bits[start & 7 : (start & 7) + stop - start])


class _SavedStretch:
    """Entries that were saved one after the other; of its room ``used`` has been filled."""

    __slots__ = ("placed", "slots", "used", "values")

    def __init__(self, room: int, *, slot_type: npt.DTypeLike, dtype: npt.DTypeLike) -> None:
        self.slots = np.empty(room, dtype=slot_type)
        self.values: AnyArray = np.empty(room, dtype=dtype)
        self.used = 0
        self.placed = 0
        """So many have been put in their places, at least."""

    @property
    def nbytes(self) -> int:
        return int(self.slots.nbytes + self.values.nbytes)

    def append(self, slots: Int64Array, values: AnyArray) -> None:
        stop = self.used + len(slots)
        self.slots[self.used : stop] = slots
        self.values[self.used : stop] = values
        self.used = stop  # From here on readers see them.

    def place(self, values: AnyArray) -> None:
        """Reader: put what is new in its place."""
        start, stop = self.placed, self.used
        if start < stop:
            values[self.slots[start:stop]] = self.values[start:stop]
            self.placed = stop


class PinnedEntries:
    """The entries 0..length-1 of an array when it was pinned."""

    __slots__ = (
        "__weakref__",
        "_buffers",
        "_first_unplaced",
        "_marks",
        "_stretches",
        "_values",
        "length",
    )

    def __init__(self, buffers: Buffers, length: int) -> None:
        self._buffers = buffers
        self.length = length
        self._marks: _Marks | None = None
        self._stretches: list[_SavedStretch] = []
        self._first_unplaced = 0
        """What the stretches before had is in its places, and was given up."""
        self._values: AnyArray | None = None
        """Saved entries in their places."""

    @property
    def nbytes(self) -> int:
        """Bytes held, those shared with the array included."""
        buffers = self._buffers
        held = [buffers.buffer, buffers.leaving, self._marks, self._values]
        saved = sum(stretch.nbytes for stretch in list(self._stretches))
        return saved + sum(int(each.nbytes) for each in held if each is not None)

    def is_in(self, buffers: Buffers) -> bool:
        """Whether all entries are in these buffers, and none was overwritten."""
        own = self._buffers
        return (
            self._marks is None
            and own.buffer is buffers.buffer
            and own.leaving is buffers.leaving
            and own.moved_upto == buffers.moved_upto
        )

    def reads(self, buffer: AnyArray) -> bool:
        """Whether a buffer that is written, other than one that is being left, is among its own."""
        return self._buffers.buffer is buffer

    def save(self, slots: Int64Array) -> Int64Array:
        """Writer: entries at ``slots``, which are distinct, are about to be overwritten. Returns
        those that a pin made before this one may have to save, too."""
        is_held = slots < self.length
        held = slots if is_held.all() else slots[is_held]
        if self._marks is not None:
            held = held[~self._marks.are_set(held)]
            slots = held if is_held.all() else np.concatenate((held, slots[~is_held]))
        if len(held):
            self._stretch_for(len(held)).append(held, self._buffers.take(held))
            if self._marks is None:
                self._values = untouched_zeros(self._buffers.buffer.dtype, self.length)
                self._marks = _Marks(self.length)
            self._marks.set(held)
        return slots

    def _stretch_for(self, count: int) -> _SavedStretch:
        stretches = self._stretches
        room = SAVED_TOGETHER_MIN
        if stretches:
            last = stretches[-1]
            if last.used + count <= len(last.slots):
                return last
            room = min(2 * len(last.slots), SAVED_TOGETHER_MAX)
        stretch = _SavedStretch(
            max(room, count),
            slot_type=np.uint32 if self.length <= 1 << 32 else np.int64,
            dtype=self._buffers.buffer.dtype,
        )
        stretches.append(stretch)
        return stretch

    def take(self, slots: Int64Array) -> AnyArray:
        """A copy of the entries at ``slots`` (each 0..length-1, any order)."""
        taken = self._buffers.take(slots)
        marks = self._marks  # Looked at after the buffers, see the top.
        if marks is not None:
            places = np.flatnonzero(marks.are_set(slots))
            if len(places):
                taken[places] = self._placed().take(slots[places])
        return taken

    def slice(self, start: int, stop: int) -> AnyArray:
        """A copy of the entries ``start..stop-1``."""
        start, stop = min(start, self.length), min(stop, self.length)
        taken = self._buffers.slice(start, stop)
        marks = self._marks
        if marks is not None:
            places = marks.set_between(start, stop)
            if len(places):
                taken[places] = self._placed().take(start + places)
        return taken

    def _placed(self) -> AnyArray:
        """What is saved, in its places.

        Several threads may be here at a time: each entry is saved once, so they write the same. A
        stretch is given up when it is full and all of it is in its place.
        """
        first = self._first_unplaced
        stretches = self._stretches[first:]
        assert self._values is not None
        for stretch in stretches:
            stretch.place(self._values)
        # Those before the last were full, because there was another one.
        for number in range(first, first + len(stretches) - 1):
            self._stretches[number] = _NONE_SAVED
        self._first_unplaced = first + max(0, len(stretches) - 1)
        return self._values


_NONE_SAVED: Final = _SavedStretch(0, slot_type=np.uint32, dtype=np.uint8)
