"""Large arrays of which a few entries are looked up, taken out or put in.

Numbers that are looked up in random order miss the cache at every step of the search; in ascending
order each search begins where the one before ended. A few entries are taken out and put in by
copying the pieces in between, many by masks: about a nanosecond an entry of the whole array for a
few, four for many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from barrage.model.storage.hashing import Int64Array

    BoolArray = npt.NDArray[np.bool_]

FEW = 256
"""So many pieces are always copied one by one."""

ENTRIES_PER_PIECE = 1024
"""Where pieces have so many entries on the average, they are copied one by one, too."""

ENTRIES_PER_GAP = 64
"""An array of which one entry in so many is left out is not copied to be looked at."""

SORTED_MIN = 1024
"""So many numbers are put in order before they are looked up."""


CLOSE = 16
"""Numbers of which more than one in so many is there lie close together."""


class Entries(Protocol):
    """Numbers that are looked up by place: an array, or what stays of one."""

    def __len__(self) -> int:
        """How many there are."""

    def __getitem__(self, places: Int64Array, /) -> Int64Array:
        """Those at some places."""


class Remaining:
    """What stays of an array without the entries at some ascending places. Nothing is copied."""

    def __init__(self, values: Int64Array, left_out: Int64Array) -> None:
        self._values = values
        self._before = left_out - np.arange(len(left_out))
        """How many entries stay in front of each that does not."""

    def __len__(self) -> int:
        return len(self._values) - len(self._before)

    def __getitem__(self, places: Int64Array) -> Int64Array:
        at = places + np.searchsorted(self._before, places, side="right")
        return np.asarray(self._values[at])


def without(values: Int64Array, left_out: Int64Array) -> Entries:
    """The entries but those at some ascending places."""
    if len(left_out) == 0:
        return values
    is_few = len(left_out) <= max(FEW, len(values) // ENTRIES_PER_GAP)
    return Remaining(values, left_out) if is_few else _deleted(values, left_out)


def _deleted(values: Int64Array, left_out: Int64Array) -> Int64Array:
    stays = np.ones(len(values), dtype=np.bool_)
    stays[left_out] = False
    return values[stays]


def replaced(
    values: Int64Array, left_out: Int64Array, gaps: Int64Array, *, entries: Int64Array
) -> Int64Array:
    """An array without the entries at some ascending places, and with others put in: each before so
    many of those that stay, ascending.

    Example: 5, 6, 7 without place 0, 9 put into gap 1: 6, 9, 7.
    """
    if not len(left_out) and not len(gaps):
        return values
    result = np.empty(len(values) - len(left_out) + len(gaps), dtype=np.int64)
    places = gaps + np.arange(len(gaps))
    result[places] = entries
    before = left_out - np.arange(len(left_out))
    cuts = distinct(np.concatenate((np.zeros(1, dtype=np.int64), gaps, before)))
    if len(cuts) > max(FEW, len(values) // ENTRIES_PER_PIECE):
        is_kept = np.ones(len(result), dtype=np.bool_)
        is_kept[places] = False
        result[is_kept] = _deleted(values, left_out) if len(left_out) else values
        return result
    sources = (cuts + np.searchsorted(before, cuts, side="right")).tolist()
    targets = (cuts + np.searchsorted(gaps, cuts, side="right")).tolist()
    lengths = np.diff(cuts, append=len(values) - len(left_out)).tolist()
    for source, target, length in zip(sources, targets, lengths, strict=True):
        result[target : target + length] = values[source : source + length]
    return result


def places_in(ascending: Int64Array, wanted: Int64Array) -> Int64Array:
    """The places of numbers, in any order, in a long ascending array: ``searchsorted`` of it."""
    if len(wanted) < SORTED_MIN or bool(np.all(wanted[1:] >= wanted[:-1])):
        return np.searchsorted(ascending, wanted)
    order = np.argsort(wanted)
    places = np.empty(len(wanted), dtype=np.int64)
    places[order] = np.searchsorted(ascending, wanted[order])
    return places


def distinct(numbers: Int64Array) -> Int64Array:
    """The numbers that occur, ascending: ``unique``, which hashes them first."""
    if len(numbers) < 2:
        return numbers
    least, most = int(numbers.min()), int(numbers.max())
    if most - least < CLOSE * len(numbers):
        is_there = np.zeros(most - least + 1, dtype=np.bool_)
        is_there[numbers - least] = True
        return np.flatnonzero(is_there) + least
    ordered = np.sort(numbers)
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[is_first])


def is_among(numbers: Int64Array, ascending: Int64Array) -> BoolArray:
    """Which numbers are among others, ascending: ``isin``, which sorts both."""
    if len(ascending) == 0:
        return np.zeros(len(numbers), dtype=np.bool_)
    places = np.minimum(np.searchsorted(ascending, numbers), len(ascending) - 1)
    return np.asarray(ascending[places] == numbers)


def in_order(numbers: Int64Array) -> tuple[Int64Array, Int64Array | None]:
    """Distinct numbers ascending, and at which place each of them is then; None for that when they
    ascend already. Where they lie close together marking them is faster than sorting."""
    if bool(np.all(numbers[1:] > numbers[:-1])):
        return numbers, None
    least, most = int(numbers.min()), int(numbers.max())
    if most - least < CLOSE * len(numbers):
        is_there = np.zeros(most - least + 1, dtype=np.bool_)
        is_there[numbers - least] = True
        return np.flatnonzero(is_there) + least, (np.cumsum(is_there) - 1)[numbers - least]
    order = np.argsort(numbers)
    places = np.empty(len(numbers), dtype=np.int64)
    places[order] = np.arange(len(numbers))
    return numbers[order], places


def spans(starts: Int64Array, counts: Int64Array) -> Int64Array:
    """The numbers ``starts[i]`` to ``starts[i] + counts[i] - 1``, for one i after another.

    Example: starts 5, 2 and counts 2, 3 give 5, 6, 2, 3, 4.
    """
    total = int(counts.sum())
    offsets = np.cumsum(counts) - counts
    numbers: Int64Array = np.repeat(starts - offsets, counts) + np.arange(total, dtype=np.int64)
    return numbers
