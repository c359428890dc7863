"""Growable numpy buffers: plain values and packed bits.

Memory: one reallocation grows a buffer by an eighth, or by 2^18 entries. Large blocks are moved by
the C library by remapping pages, not by copying, so growing never holds two copies. Nothing outside
the owner may hold a view of the buffer, since a reallocation would leave it dangling; every reader
therefore gets a copy. Only pins (:mod:`.pinning`) read the buffer themselves: while one lives, a
buffer is not reallocated, and when it is full its entries move into another one, a few with each
that comes. So do those of a buffer that was made of untouched zeros. Plain arrays that have one
owner grow in place (:func:`lengthened`).
"""

from __future__ import annotations

import weakref
from typing import Any, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt

from barrage.model.storage.pinning import Buffers, PinnedEntries, shortened, untouched_zeros

SLACK_ROWS_MIN = 64
"""Smallest number of spare entries a growing buffer reserves."""

SLACK_ROWS_MAX = 1 << 18
"""Largest number: the new part is filled with zeros, and many columns grow together."""

SPARE_FACTOR_MAX = 2
"""A buffer that is truncated is made smaller when it has so many times the room it needs."""

COPIED_ENTRIES_MAX = 1 << 14
"""Arrays of so many entries, or fewer, are copied when they are pinned."""

PINS_MAX = 8
"""So many states of an array are pinned at a time without being copied: every write saves what it
overwrites for each of them."""

MOVED_TOGETHER = 1 << 16
"""Entries that each write moves out of a buffer that is left, at least."""

MOVED_PER_ENTRY = 4
"""Entries that move for each one that is appended, where that is more."""

AnyArray = npt.NDArray[Any]
NumberArray = TypeVar("NumberArray", bound=npt.NDArray[Any])
BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
UInt8Array = npt.NDArray[np.uint8]


def grown_capacity(length: int) -> int:
    """Entries to reserve when ``length`` are needed: an eighth more, so appends are amortised O(1);
    of large buffers less, which are not copied when they grow."""
    return length + min(length // 8, SLACK_ROWS_MAX) + SLACK_ROWS_MIN


def lengthened(values: NumberArray, length: int, filler: int = 0) -> NumberArray:
    """The array, with ``length`` entries at least and some more, so that it rarely grows; the new
    ones hold ``filler``. It grows in place, hence nobody may have a view of it, and only the new
    part is written."""
    before = len(values)
    if length <= before:
        return values
    grown = values if values.flags.owndata else values.copy()
    shape = (length + min(length // 8, SLACK_ROWS_MAX), *values.shape[1:])
    grown.resize(shape, refcheck=False)
    if filler:
        grown[before:] = filler
    return grown


def shorten(values: npt.NDArray[Any], length: int) -> None:
    """Give back, in place, what an array from :func:`lengthened` has beyond ``length`` entries, if
    that is most of it."""
    if values.flags.owndata and len(values) > SPARE_FACTOR_MAX * grown_capacity(length):
        values.resize((grown_capacity(length), *values.shape[1:]), refcheck=False)


class GrowArray:
    """One growable array of a fixed numpy dtype, written by one thread."""

    __slots__ = ("_buffer", "_leaving", "_moved_upto", "_pins", "length")

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._buffer: AnyArray = np.empty(0, dtype=dtype)
        self._leaving: AnyArray | None = None
        """A buffer from which entries are moving, because it was full and could not grow where it
        was."""
        self._moved_upto = 0
        """Its entries before are in the buffer; the others are written where they are."""
        self._pins: list[weakref.ref[PinnedEntries]] = []
        """Those that read what this array still writes, as far as they live, oldest first."""
        self.length = 0

    @classmethod
    def zeros(cls, dtype: npt.DTypeLike, length: int) -> GrowArray:
        """``length`` zeros, which cost nothing before they are looked at or written; see
        :func:`~.pinning.untouched_zeros`."""
        made = cls(dtype)
        made._buffer = untouched_zeros(dtype, grown_capacity(length))
        made.length = length
        return made

    @property
    def nbytes(self) -> int:
        leaving = 0 if self._leaving is None else self._leaving.nbytes
        return int(self._buffer.nbytes + leaving)

    @property
    def pinning_nbytes(self) -> int:
        """Bytes that :meth:`pinned` copies now."""
        if self.length > COPIED_ENTRIES_MAX:
            pins = self._living_pins()
            if len(pins) < PINS_MAX or self._pin_of_now(pins) is not None:
                return 0
        return self.length * self._buffer.itemsize

    def pinned(self) -> GrowArray:
        """The entries there are now, which stay, to be read on any thread and never written."""
        return _PinnedArray(self._pin(), self._buffer.dtype)

    def _pin(self) -> PinnedEntries:
        pins = self._living_pins()
        pin = self._pin_of_now(pins)
        if pin is None and self.length > COPIED_ENTRIES_MAX and len(pins) < PINS_MAX:
            pin = PinnedEntries(self._buffers, self.length)
            self._pins = [weakref.ref(each) for each in (*pins, pin)]
        return pin or PinnedEntries(Buffers(self.slice(0, self.length)), self.length)

    def _pin_of_now(self, pins: list[PinnedEntries]) -> PinnedEntries | None:
        """One of the pins that has the entries there are now, in the buffers there are now: first
        values are only written there."""
        for pin in pins:
            if pin.length == self.length and pin.is_in(self._buffers):
                return pin
        return None

    @property
    def _buffers(self) -> Buffers:
        return Buffers(self._buffer, self._leaving, self._moved_upto)

    def _living_pins(self) -> list[PinnedEntries]:
        return [pin for pin in (each() for each in self._pins) if pin is not None]

    def _save(self, slots: Int64Array) -> None:
        """Have the pins save entries that are about to be overwritten."""
        pins = self._living_pins()
        for pin in reversed(pins):
            # What the newer ones have saved before, the older ones have, too.
            slots = pin.save(slots)
        if len(pins) < len(self._pins):
            self._pins = [weakref.ref(pin) for pin in pins]

    def _is_buffer_pinned(self) -> bool:
        return any(pin.reads(self._buffer) for pin in self._living_pins())

    def reserve(self, length: int) -> None:
        """Make room for ``length`` entries."""
        if length <= len(self._buffer):
            return
        if self._leaving is not None:
            # There was room for half of its entries more, and four move for each that comes.
            self._move(len(self._leaving))
        if self._is_buffer_pinned() or not self._buffer.flags.owndata:
            self._leave(length)
        else:
            # No view of the buffer ever leaves this class but to pins, hence refcheck may be off.
            self._buffer.resize(grown_capacity(length), refcheck=False)

    def _leave(self, length: int) -> None:
        """Go on in another buffer, with room for ``length`` entries and half as many more; those
        there are follow."""
        other = np.empty(length + max(length // 2, SLACK_ROWS_MIN), dtype=self._buffer.dtype)
        self._leaving, self._moved_upto = self._buffer[: self.length], 0
        self._buffer = other
        self._move(MOVED_TOGETHER)

    def _move(self, count: int) -> None:
        """Move so many more entries out of the buffer that is left."""
        if self._leaving is None:
            return
        start, stop = self._moved_upto, min(self._moved_upto + count, len(self._leaving))
        self._buffer[start:stop] = self._leaving[start:stop]
        self._moved_upto = stop
        if stop >= len(self._leaving):
            self._leaving, self._moved_upto = None, 0
            pins = [pin for pin in self._living_pins() if pin.reads(self._buffer)]
            self._pins = [weakref.ref(pin) for pin in pins]

    def append(self, values: AnyArray) -> None:
        self._extend(values, len(values))

    def append_constant(self, value: Any, count: int) -> None:
        """Append ``count`` times the same value."""
        self._extend(value, count)

    def _extend(self, values: Any, count: int) -> None:
        start, stop = self.length, self.length + count
        self.reserve(stop)
        if self._pins:
            # Entries that were truncated, and that pins still have.
            overwritten = max((pin.length for pin in self._living_pins()), default=0)
            self._save(np.arange(start, min(stop, overwritten)))
        self._buffer[start:stop] = values
        self.length = stop
        self._move(max(MOVED_TOGETHER, MOVED_PER_ENTRY * count))

    def truncate(self, length: int) -> None:
        """Drop the entries from ``length`` (at most what there is) on. A buffer that is mostly
        spare then becomes smaller."""
        self.length = length
        if self._leaving is not None:
            self._leaving = self._leaving[:length]
            self._move(0)
        self._give_up_spare()

    def _give_up_spare(self) -> None:
        capacity = grown_capacity(self.length)
        if len(self._buffer) <= SPARE_FACTOR_MAX * capacity or self._is_buffer_pinned():
            return
        if self._buffer.flags.owndata:
            self._buffer.resize(capacity, refcheck=False)
        else:
            self._buffer = shortened(self._buffer, capacity)

    def tidy(self, count: int) -> None:
        """Go on with moving, by so many entries, and give back room that pins have kept."""
        self._move(count)
        self._give_up_spare()

    def write(self, slots: Int64Array, values: Any, *, is_first: bool = False) -> None:
        """Overwrite the entries at ``slots``, which are distinct. ``is_first``: they had no value
        that anybody may read, so that no pin needs it."""
        if self._pins and not is_first:
            self._save(slots)
        if self._leaving is None:
            self._buffer[slots] = values
            return
        values = np.broadcast_to(values, len(slots))
        stays = self._buffers.are_leaving(slots)
        self._leaving[slots[stays]] = values[stays]
        self._buffer[slots[~stays]] = values[~stays]
        self._move(max(MOVED_TOGETHER, len(slots)))

    def add(self, number: int) -> None:
        """Add to every entry, modulo the size of its type."""
        if self._pins:
            self._save(np.arange(self.length))
        if self._leaving is not None:
            self._move(len(self._leaving))
        self._buffer[: self.length] += self._buffer.dtype.type(number)

    def take(self, slots: Int64Array) -> AnyArray:
        """A copy of the entries at ``slots`` (each 0..length-1, any order)."""
        if self._leaving is None:
            return self._buffer.take(slots)
        return self._buffers.take(slots)

    def slice(self, start: int, stop: int) -> AnyArray:
        """A copy of the entries ``start..stop-1``."""
        return self._buffers.slice(start, stop)

    def peek(self) -> AnyArray:
        """All entries, to be looked at before anything else happens to the array: no copy of them,
        where there need be none."""
        if self._leaving is None:
            return self._buffer[: self.length]
        return self.slice(0, self.length)


class _PinnedArray(GrowArray):
    """An array as it was when it was pinned, which is only read."""

    __slots__ = ("_entries",)

    def __init__(self, entries: PinnedEntries, dtype: np.dtype[Any]) -> None:
        super().__init__(dtype)
        self._entries = entries
        self.length = entries.length

    @property
    def nbytes(self) -> int:
        return self._entries.nbytes

    @property
    def pinning_nbytes(self) -> int:
        return 0

    def pinned(self) -> GrowArray:
        return self

    def take(self, slots: Int64Array) -> AnyArray:
        return self._entries.take(slots)

    def slice(self, start: int, stop: int) -> AnyArray:
        return self._entries.slice(start, stop)

    def peek(self) -> AnyArray:
        return self.slice(0, self.length)

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("what was pinned is not written")

    reserve = _extend = truncate = tidy = write = add = _refuse


class BitArray:
    """Growable packed bits, least significant first, as Arrow packs booleans and validity."""

    __slots__ = ("_bytes", "length")

    def __init__(self) -> None:
        self._bytes = GrowArray(np.uint8)
        self.length = 0

    @classmethod
    def zeros(cls, length: int) -> BitArray:
        """``length`` bits that are not set; see :meth:`GrowArray.zeros`."""
        made = cls()
        made._bytes = GrowArray.zeros(np.uint8, (length + 7) >> 3)
        made.length = length
        return made

    @property
    def nbytes(self) -> int:
        return self._bytes.nbytes

    @property
    def pinning_nbytes(self) -> int:
        """Bytes that :meth:`pinned` copies now."""
        return self._bytes.pinning_nbytes

    def pinned(self) -> BitArray:
        """The bits there are now; see :meth:`GrowArray.pinned`."""
        copied = BitArray()
        copied._bytes = self._bytes.pinned()
        copied.length = self.length
        return copied

    def append(self, bits: BoolArray) -> None:
        """Append one bit per entry; refills the partial last byte first."""
        used = self.length & 7
        if used:
            first = self._bytes.slice(self.length >> 3, (self.length >> 3) + 1)
            head = np.unpackbits(first, bitorder="little")[:used].view(np.bool_)
            bits = np.concatenate((head, bits))
            self._bytes.truncate(self.length >> 3)
            self.length -= used
        self._bytes.append(np.packbits(bits, bitorder="little"))
        self.length += len(bits)

    def append_constant(self, bit: bool, count: int) -> None:
        head = min(-self.length & 7, count)
        self.append(np.full(head, bit, dtype=np.bool_))
        self._bytes.append_constant(0xFF if bit else 0, (count - head + 7) >> 3)
        self.length += count - head

    def truncate(self, length: int) -> None:
        """Drop the bits from ``length`` (at most what there is) on."""
        self._bytes.truncate((length + 7) >> 3)
        self.length = length

    def tidy(self, count: int) -> None:
        """See :meth:`GrowArray.tidy`."""
        self._bytes.tidy((count + 7) >> 3)

    def take(self, slots: Int64Array) -> BoolArray:
        packed = self._bytes.take(slots >> 3)
        return ((packed >> (slots & 7).astype(np.uint8)) & 1).view(np.bool_)

    def slice(self, start: int, stop: int) -> BoolArray:
        if start >= stop:
            return np.zeros(0, dtype=np.bool_)
        packed = self._bytes.slice(start >> 3, (stop + 7) >> 3)
        bits = np.unpackbits(packed, bitorder="little").view(np.bool_)
        return bits[start & 7 : (start & 7) + stop - start]

    def write(self, slots: Int64Array, bits: BoolArray, *, is_first: bool = False) -> None:
        """Set the bits at ``slots``, which must be distinct; see :meth:`GrowArray.write`.

        Eight passes, one per bit of a byte: within a pass every byte index occurs once, so plain
        indexed assignment is exact.
        """
        lanes = slots & 7
        for lane in range(8):
            chosen = np.flatnonzero(lanes == lane)
            if len(chosen):
                where = slots[chosen] >> 3
                kept = self._bytes.take(where) & np.uint8(0xFF ^ (1 << lane))
                fresh = kept | (bits[chosen].view(np.uint8) << np.uint8(lane))
                self._bytes.write(where, fresh, is_first=is_first)


def pack_bits(bits: BoolArray) -> UInt8Array:
    """Arrow's bitmap of ``bits``."""
    return np.packbits(bits, bitorder="little")


def unpack_bits(buffer: Any, offset: int, length: int) -> BoolArray:
    """Bits ``offset..offset+length-1`` of an Arrow bitmap buffer."""
    first = offset >> 3
    stop = (offset + length + 7) >> 3
    packed = np.frombuffer(buffer, dtype=np.uint8, count=stop - first, offset=first)
    return np.unpackbits(packed, bitorder="little").view(np.bool_)[
        offset & 7 : (offset & 7) + length
    ]
