"""Turning what callers hand in into arrays the row set can trust."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.limits import ROW_KEY_MAX
from barrage.rowset import arrays

if TYPE_CHECKING:
    import numpy.typing as npt

    from barrage.rowset.arrays import Int64Array, RangeList


def checked_keys(keys: npt.ArrayLike, *, is_lent: bool = False) -> Int64Array:
    """A private int64 copy of integers 0 .. 2^63 - 1; ValueError for anything else.

    ``is_lent``: it need not be private.
    """
    values = checked_integers(keys, what="row keys", is_lent=is_lent)
    if len(values) and int(values.min()) < 0:
        raise ValueError(f"row keys are not negative: {int(values.min())}")
    return values


def checked_integers(values: npt.ArrayLike, *, what: str, is_lent: bool = False) -> Int64Array:
    """A private int64 copy of a flat sequence of integers; ValueError for anything else."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"{what} must be one-dimensional, not of shape {array.shape}")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind == "O":  # Python integers past 64 bits, or no numbers at all
        raise ValueError(f"{what} must be integers 0..2^63-1")
    if array.dtype.kind not in "iu":
        raise ValueError(f"{what} must be integers, not {array.dtype}")
    if array.dtype.kind == "u" and int(array.max()) > ROW_KEY_MAX:
        raise ValueError(f"{what} must be at most 2^63-1, not {int(array.max())}")
    return array.astype(np.int64, copy=not is_lent)


def checked_ranges(firsts: npt.ArrayLike, lasts: npt.ArrayLike) -> RangeList:
    """Maximal ranges from ascending disjoint ones; ValueError if they are not."""
    starts, ends = checked_keys(firsts), checked_keys(lasts)
    if len(starts) != len(ends):
        raise ValueError(f"{len(starts)} first keys but {len(ends)} last keys")
    if (starts > ends).any():
        raise ValueError("a range ends before it starts")
    if (starts[1:] <= ends[:-1]).any():
        raise ValueError("ranges overlap or do not ascend")
    return arrays.merged(*arrays.as_singles(starts, ends))


def parsed_ranges(text: str) -> tuple[list[int], list[int]]:
    """First and last keys of ranges written as ``0-9,12``; ValueError for other words."""
    pairs = [part.partition("-") for part in text.split(",")] if text.strip() else []
    firsts = [int(first) for first, _, _ in pairs]
    return firsts, [int(last) if dash else int(first) for first, dash, last in pairs]
