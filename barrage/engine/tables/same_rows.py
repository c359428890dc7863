"""Which rows of a list are still there when its whole content is given anew.

Equal rows at both ends stay. Between them a row of the old content stays when the new one has it,
too, and the rows that stay keep their order; where many have changed places, fewer stay than could.
Linear in the rows, but for one sort of hashes.

So many rows are looked at, from either end and between them, and no more: all others wait for this.
A content of more rows is told as far as it is known to be equal, and the rest of it as new rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from barrage.engine.tables.slots import cells_at
from barrage.model.storage import cells_differ
from barrage.model.storage.hashing import hash_rows, is_hashable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from barrage.model.storage.hashing import UInt64Array
    from barrage.rowset.arrays import BoolArray, Int64Array


FIRST_ROWS = 1 << 10
"""Rows that are compared at first from either end; then four times as many each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The rows of a list, of which parts are read."""

    size: int
    read: Callable[[int, int], Sequence[pa.Array]]
    """The columns of the rows from a position up to another one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameRows:
    """Which rows stay: ``head`` of them in front, ``tail`` at the end, and those between that stood
    at ``was`` behind the head and stand at ``now``, both ascending."""

    head: int
    tail: int
    was: Int64Array
    now: Int64Array

    @property
    def is_none(self) -> bool:
        return not (self.head or self.tail or len(self.was))


def same_rows(old: Content, new: Content, *, rows_max: int) -> SameRows:
    """The rows that stay when ``new`` takes the place of ``old``. From either end ``rows_max`` rows
    are looked at, and those between when they are no more on either side."""
    least = min(old.size, new.size)
    head = _equal_run(old, new, rows_max=min(least, rows_max), is_reverse=False)
    tail = _equal_run(old, new, rows_max=min(least - head, rows_max), is_reverse=True)
    old_stop, new_stop = old.size - tail, new.size - tail
    was = now = np.empty(0, dtype=np.int64)
    if 0 < old_stop - head <= rows_max and 0 < new_stop - head <= rows_max:
        was, now = _matches(old.read(head, old_stop), new.read(head, new_stop))
    return SameRows(head=head, tail=tail, was=was, now=now)


def _equal_run(old: Content, new: Content, *, rows_max: int, is_reverse: bool) -> int:
    """How many rows are equal from the beginning on, or from the end."""
    found, count = 0, FIRST_ROWS
    while found < rows_max:
        count = min(count, rows_max - found)
        spans = [
            (size - found - count, size - found) if is_reverse else (found, found + count)
            for size in (old.size, new.size)
        ]
        differ = _differ(old.read(*spans[0]), new.read(*spans[1]))
        if differ.any():
            return found + int(np.argmax(differ[::-1] if is_reverse else differ))
        found += count
        count *= 4
    return found


def _differ(old: Sequence[pa.Array], new: Sequence[pa.Array]) -> BoolArray:
    """Rows that differ in any column."""
    differ = np.zeros(len(old[0]), dtype=np.bool_)
    for before, after in zip(old, new, strict=True):
        differ |= cells_differ(before, after)
    return differ


def _matches(old: Sequence[pa.Array], new: Sequence[pa.Array]) -> tuple[Int64Array, Int64Array]:
    """Pairs of equal rows, ascending in both."""
    nothing = np.empty(0, dtype=np.int64)
    hashable = [index for index, column in enumerate(old) if is_hashable(column.type)]
    if not hashable or not len(old[0]) or not len(new[0]):
        return nothing, nothing
    was, now = _paired(
        hash_rows([old[index] for index in hashable]), hash_rows([new[index] for index in hashable])
    )
    differ = _differ(
        [cells_at(column, was) for column in old],
        [cells_at(column, now) for column in new],
    )
    was, now = was[~differ], now[~differ]
    in_order = _ascending(was)
    return was[in_order], now[in_order]


def _paired(old: UInt64Array, new: UInt64Array) -> tuple[Int64Array, Int64Array]:
    """The n-th occurrence of each hash on one side with the n-th on the other, by new position."""
    old_order, new_order = np.argsort(old, kind="stable"), np.argsort(new, kind="stable")
    old_sorted, new_sorted = old[old_order], new[new_order]
    places = np.searchsorted(old_sorted, new_sorted) + _occurrences(new_sorted)
    found = np.minimum(places, len(old) - 1)
    is_there = (places < len(old)) & (old_sorted[found] == new_sorted)
    was, now = old_order[found[is_there]], new_order[is_there]
    by_new = np.argsort(now)
    return was[by_new], now[by_new]


def _occurrences(values: UInt64Array) -> Int64Array:
    """0, 1, 2, ... within each run of equal values."""
    places = np.arange(len(values))
    begins = np.concatenate(([True], values[1:] != values[:-1]))
    return places - np.maximum.accumulate(np.where(begins, places, 0))


def _ascending(values: Int64Array) -> BoolArray:
    """An ascending part of ``values``: those above all before them, or those below all behind
    them, whichever are more."""
    if not len(values):
        return np.zeros(0, dtype=np.bool_)
    from_left: BoolArray = values == np.maximum.accumulate(values)
    from_right: BoolArray = values == np.minimum.accumulate(values[::-1])[::-1]
    return from_left if from_left.sum() >= from_right.sum() else from_right
