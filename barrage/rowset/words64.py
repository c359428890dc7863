"""Bits in 64-bit words, many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from barrage.rowset.arrays import BoolArray, Int64Array, RangeList

    WordArray = npt.NDArray[np.uint64]

ZERO: Final = np.uint64(0)
ONE: Final = np.uint64(1)
TOP: Final = np.uint64(63)
_HALVES: Final = ((32, 2**32 - 1), (16, 2**16 - 1), (8, 2**8 - 1))

_BITS_OF_OCTET: Final = np.array([octet.bit_count() for octet in range(256)], dtype=np.uint8)


def _place(octet: int, rank: int) -> int:
    places = [place for place in range(8) if octet >> place & 1]
    return places[rank] if rank < len(places) else 0


_PLACES: Final = [_place(octet, rank) for octet in range(256) for rank in range(8)]
_PLACE_IN_OCTET: Final = np.array(_PLACES, dtype=np.int64)
"""Where the bit of an octet (upper bits of the index) with so many bits below it (lower) is."""


def counts_by_table(words: WordArray) -> npt.NDArray[np.uint8]:
    """Bits of each word, where numpy has no function for it (before 2.0)."""
    octets = _BITS_OF_OCTET[np.ascontiguousarray(words).view(np.uint8)]
    counts: npt.NDArray[np.uint8] = octets.reshape(*words.shape, 8).sum(axis=-1, dtype=np.uint8)
    return counts


bit_counts: Final = getattr(np, "bitwise_count", counts_by_table)
"""How many bits of each word are set."""


def bits_at(words: WordArray, places: Int64Array) -> BoolArray:
    """Whether the bit at a place (0 .. 63) of each word is set."""
    bits: BoolArray = ((words >> places.astype(np.uint64)) & ONE).astype(np.bool_)
    return bits


def bits_below(words: WordArray, places: Int64Array) -> Int64Array:
    """How many bits of each word are set in front of a place (0 .. 63)."""
    masks = (ONE << places.astype(np.uint64)) - ONE
    counts: Int64Array = bit_counts(words & masks).astype(np.int64)
    return counts


def select_bits(words: WordArray, ranks: Int64Array) -> Int64Array:
    """The place of the bit of each word that has ``rank`` set bits in front of it; it exists."""
    rest = ranks.astype(np.int64)
    places = np.zeros(len(words), dtype=np.int64)
    for width, mask in _HALVES:
        below = bit_counts(words & np.uint64(mask)).astype(np.int64)
        is_above = rest >= below
        rest -= below * is_above
        moved = is_above * width
        places += moved
        words = words >> moved.astype(np.uint64)
    octets = (words & np.uint64(255)).astype(np.int64)
    places += _PLACE_IN_OCTET[octets << 3 | rest]
    return places


def select_bit(word: int, rank: int) -> int:
    """The same of one word."""
    place = 0
    # By halves, written out: this is most of what a select costs.
    if rank >= (below := (word & 0xFFFFFFFF).bit_count()):
        rank, word, place = rank - below, word >> 32, 32
    if rank >= (below := (word & 0xFFFF).bit_count()):
        rank, word, place = rank - below, word >> 16, place + 16
    if rank >= (below := (word & 0xFF).bit_count()):
        rank, word, place = rank - below, word >> 8, place + 8
    return place + _PLACES[(word & 0xFF) << 3 | rank]


def _changes(words: WordArray) -> WordArray:
    """Bits that differ from the one in front of them, by rows: the first bit of a row has a clear
    one in front."""
    before = words << ONE
    before[:, 1:] |= words[:, :-1] >> TOP
    changes: WordArray = words ^ before
    return changes


def turns(words: WordArray) -> RangeList:
    """First and last places of all runs of set bits in rows of words, over all rows together; a run
    ends with its row."""
    octets = _changes(words).astype("<u8", copy=False).view(np.uint8)
    changes = np.flatnonzero(np.unpackbits(octets, bitorder="little").view(np.bool_))
    # A run that reaches the end of its row does not turn there: it is one change without a second.
    row_bits = words.shape[1] * 64
    open_rows = np.flatnonzero(words[:, -1] >> TOP)
    if len(open_rows):
        ends = (open_rows + 1) * row_bits
        changes = np.insert(changes, np.searchsorted(changes, ends, side="left"), ends)
    return changes[0::2], changes[1::2] - 1


def start_count(words: WordArray) -> int:
    """How many runs of set bits there are in rows of words."""
    before = words << ONE
    before[:, 1:] |= words[:, :-1] >> TOP
    return int(bit_counts(words & ~before).sum(dtype=np.int64))


def marked(count: int, firsts: Int64Array, lasts: Int64Array) -> WordArray:
    """``count`` words in which the bits of disjoint closed ranges that do not touch are set."""
    marks = np.zeros(count * 64 + 1, dtype=np.bool_)
    marks[firsts] = True
    if lasts is not firsts:
        # Ranges do not touch, so every start and every stop has a place of its own.
        marks[lasts + 1] = True
    bits = np.packbits(marks[:-1], bitorder="little").view("<u8").astype(np.uint64, copy=False)
    if lasts is firsts:
        return bits
    # A bit is set after an odd number of marks: parities within words by doubling, then across
    # words, where a word's own parity is its top bit.
    for shift in (1, 2, 4, 8, 16, 32):
        bits ^= bits << np.uint64(shift)
    odd = bits >> TOP
    odd_before = (np.cumsum(odd) - odd) & ONE
    bits ^= ZERO - odd_before
    return bits
