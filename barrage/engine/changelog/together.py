"""Subscribers who get the same, found by numbers. Most tables have one, which costs next to
nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array

_FIRST = np.zeros(1, dtype=np.int64)
_FIRST.flags.writeable = False


def distinct(values: Int64Array) -> Int64Array:
    """Each value once, ascending."""
    if len(values) < 2 or (values == values[0]).all():
        return values[:1]
    return np.unique(values)


def distinct_and_index(numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Each of ``numbers`` once, ascending; and where each of them is there. They are given out from
    nought on, so that to count them takes less than to sort them."""
    if len(numbers) == 1:
        return numbers, _FIRST
    is_used = np.bincount(numbers) > 0
    return np.flatnonzero(is_used), (np.cumsum(is_used) - 1)[numbers]


def runs_of_equals(major: Int64Array, minor: Int64Array) -> tuple[Int64Array, Int64Array]:
    """An order that brings equal pairs together, at least one, and where in it each run begins."""
    if len(major) == 1:
        return _FIRST, _FIRST
    order = np.lexsort((minor, major))
    major, minor = major[order], minor[order]
    is_start = np.empty(len(order), dtype=np.bool_)
    is_start[0] = True
    is_start[1:] = (major[1:] != major[:-1]) | (minor[1:] != minor[:-1])
    return order, np.flatnonzero(is_start)
