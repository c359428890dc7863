"""Growable numpy buffers: plain values and packed bits.

Memory: one reallocation grows a buffer by an eighth, or by 2^18 entries. Large blocks are moved by
the C library by remapping pages, not by copying, so growing never holds two copies. Nothing outside
the owner may hold a view of the buffer, since a reallocation would leave it dangling; every reader
therefore gets a copy. Plain arrays that have one owner grow the same way (:func:`lengthened`).
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

SLACK_ROWS_MIN = 64
"""Smallest number of spare entries a growing buffer reserves."""

SLACK_ROWS_MAX = 1 << 18
"""Largest number: the new part is filled with zeros, and many columns grow together."""

SPARE_FACTOR_MAX = 2
"""A buffer that is truncated is made smaller when it has so many times the room it needs."""

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
    """One growable array of a fixed numpy dtype."""

    __slots__ = ("_buffer", "length")

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._buffer: AnyArray = np.empty(0, dtype=dtype)
        self.length = 0

    @classmethod
    def zeros(cls, dtype: npt.DTypeLike, length: int) -> GrowArray:
        """``length`` zeros. They cost nothing before they are looked at or written: the system
        hands out pages of zeros one by one."""
        made = cls(dtype)
        made._buffer = np.zeros(grown_capacity(length), dtype=dtype)
        made.length = length
        return made

    @property
    def nbytes(self) -> int:
        return int(self._buffer.nbytes)

    def copy(self) -> GrowArray:
        """The same entries in a buffer of their own."""
        copied = GrowArray(self._buffer.dtype)
        copied._buffer = self._buffer[: self.length].copy()
        copied.length = self.length
        return copied

    def reserve(self, length: int) -> None:
        """Make room for ``length`` entries."""
        if length > len(self._buffer):
            # No view of the buffer ever leaves this class, hence refcheck may be off.
            self._buffer.resize(grown_capacity(length), refcheck=False)

    def append(self, values: AnyArray) -> None:
        stop = self.length + len(values)
        self.reserve(stop)
        self._buffer[self.length : stop] = values
        self.length = stop

    def append_constant(self, value: Any, count: int) -> None:
        """Append ``count`` times the same value."""
        stop = self.length + count
        self.reserve(stop)
        self._buffer[self.length : stop] = value
        self.length = stop

    def truncate(self, length: int) -> None:
        """Drop the entries from ``length`` (at most what there is) on. A buffer that is mostly
        spare then becomes smaller."""
        self.length = length
        capacity = grown_capacity(length)
        if len(self._buffer) > SPARE_FACTOR_MAX * capacity:
            self._buffer.resize(capacity, refcheck=False)

    def write(self, slots: Int64Array, values: Any) -> None:
        self._buffer[slots] = values

    def add(self, number: int) -> None:
        """Add to every entry, modulo the size of its type."""
        self._buffer[: self.length] += self._buffer.dtype.type(number)

    def take(self, slots: Int64Array) -> AnyArray:
        """A copy of the entries at ``slots`` (each 0..length-1, any order)."""
        return self._buffer.take(slots)

    def slice(self, start: int, stop: int) -> AnyArray:
        """A copy of the entries ``start..stop-1``."""
        return self._buffer[start:stop].copy()


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

    def copy(self) -> BitArray:
        """The same bits in a buffer of their own."""
        copied = BitArray()
        copied._bytes = self._bytes.copy()
        copied.length = self.length
        return copied

    def append(self, bits: BoolArray) -> None:
        """Append one bit per entry; refills the partial last byte first."""
        used = self.length & 7
        if used:
            first = self._bytes.slice(self.length >> 3, (self.length >> 3) + 1)
            head = np.unpackbits(first, bitorder="little")[:used].view(np.bool_)
            bits = np.concatenate((head, bits))
            self.length -= used
            self._bytes.length -= 1
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

    def take(self, slots: Int64Array) -> BoolArray:
        packed = self._bytes.take(slots >> 3)
        return ((packed >> (slots & 7).astype(np.uint8)) & 1).view(np.bool_)

    def slice(self, start: int, stop: int) -> BoolArray:
        if start >= stop:
            return np.zeros(0, dtype=np.bool_)
        packed = self._bytes.slice(start >> 3, (stop + 7) >> 3)
        bits = np.unpackbits(packed, bitorder="little").view(np.bool_)
        return bits[start & 7 : (start & 7) + stop - start]

    def write(self, slots: Int64Array, bits: BoolArray) -> None:
        """Set the bits at ``slots``, which must be distinct.

        Eight passes, one per bit of a byte: within a pass every byte index occurs once, so plain
        indexed assignment is exact.
        """
        lanes = slots & 7
        for lane in range(8):
            chosen = np.flatnonzero(lanes == lane)
            if len(chosen):
                where = slots[chosen] >> 3
                kept = self._bytes.take(where) & np.uint8(0xFF ^ (1 << lane))
                self._bytes.write(where, kept | (bits[chosen].view(np.uint8) << np.uint8(lane)))


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
