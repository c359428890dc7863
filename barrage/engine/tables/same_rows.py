"""Which rows of a list are still there when its whole content is given anew.

Equal rows at both ends stay. Between them a row of the old content stays when the new one has it,
too, and the rows that stay keep their order; where many have changed places, fewer stay than could.
Linear in the rows, but for one sort of hashes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.model.storage import cells_differ
from barrage.model.storage.hashing import hash_rows, is_hashable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.model.storage.hashing import UInt64Array
    from barrage.rowset.arrays import BoolArray, Int64Array


def same_rows(old: Sequence[pa.Array], new: Sequence[pa.Array]) -> tuple[Int64Array, Int64Array]:
    """Positions of the rows that stay, in the old and in the new content, both ascending."""
    old_size, new_size = len(old[0]), len(new[0])
    least = min(old_size, new_size)
    head = _equal_run(_differ(_span(old, 0, least), _span(new, 0, least)))
    rest = least - head
    behind = _differ(_span(old, old_size - rest, rest), _span(new, new_size - rest, rest))
    tail = _equal_run(behind[::-1])
    old_middle = _span(old, head, old_size - head - tail)
    new_middle = _span(new, head, new_size - head - tail)
    was, now = _matches(old_middle, new_middle)
    ends = np.arange(head), np.arange(tail)
    return (
        np.concatenate((ends[0], was + head, ends[1] + (old_size - tail))),
        np.concatenate((ends[0], now + head, ends[1] + (new_size - tail))),
    )


def _span(columns: Sequence[pa.Array], start: int, length: int) -> list[pa.Array]:
    return [column.slice(start, length) for column in columns]


def _differ(old: Sequence[pa.Array], new: Sequence[pa.Array]) -> BoolArray:
    """Rows that differ in any column."""
    differ = np.zeros(len(old[0]), dtype=np.bool_)
    for before, after in zip(old, new, strict=True):
        differ |= cells_differ(before, after)
    return differ


def _equal_run(differ: BoolArray) -> int:
    """How many rows at the beginning are equal."""
    return int(np.argmax(differ)) if differ.any() else len(differ)


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
        [column.take(pa.array(was)) for column in old],
        [column.take(pa.array(now)) for column in new],
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
