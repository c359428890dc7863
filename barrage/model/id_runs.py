"""Runs of consecutive row keys with consecutive row ids: the arithmetic under
:class:`~barrage.model.row_ids.RowIdMap`, on plain arrays.

A *run list* is ``(firsts, lasts, ids)``: closed key ranges, ascending and disjoint, and the id of
each range's first key. Everything is O(runs), vectorised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from barrage.rowset import RowSet, arrays
from barrage.rowset.arrays import Int64Array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.rowset import RowSetShiftData
    from barrage.rowset.arrays import RangeList

Runs: TypeAlias = tuple[Int64Array, Int64Array, Int64Array]

NO_RUNS: Final[Runs] = (arrays.NO_KEYS, arrays.NO_KEYS, arrays.NO_KEYS)


def runs_of(keys: RowSet, ids: Int64Array) -> Runs:
    """Runs of ``keys`` with ``ids`` in key order; ValueError unless there is one per key."""
    if len(ids) != len(keys):
        raise ValueError(f"{len(ids)} row ids for {len(keys)} row keys")
    if keys.is_empty:
        return NO_RUNS
    is_start = np.empty(len(ids), dtype=np.bool_)
    is_start[0] = True
    np.not_equal(ids[1:], ids[:-1] + 1, out=is_start[1:])
    is_start[keys.rank_many(keys.firsts)] = True
    starts = np.flatnonzero(is_start)
    counts = np.diff(starts, append=len(ids))
    firsts = keys.select_many(starts)
    return firsts, firsts + (counts - 1), np.asarray(ids, dtype=np.int64)[starts]


def together(parts: Sequence[Runs]) -> Runs:
    """Run lists that follow on each other, as one."""
    if len(parts) == 1:
        return parts[0]
    firsts, lasts, ids = zip(*parts, strict=True) if parts else ((), (), ())
    if not parts:
        return NO_RUNS
    return np.concatenate(firsts), np.concatenate(lasts), np.concatenate(ids)


def cut_out(runs: Runs, start: int, stop: int) -> Runs:
    """Runs ``start`` to ``stop``, copied, so that they do not keep the others alive."""
    firsts, lasts, ids = runs
    return firsts[start:stop].copy(), lasts[start:stop].copy(), ids[start:stop].copy()


def fused(runs: Runs) -> Runs:
    """The same rows in as few runs as possible."""
    firsts, lasts, ids = runs
    if len(firsts) < 2:
        return runs
    is_start = np.ones(len(firsts), dtype=np.bool_)
    np.not_equal(firsts[1:] - 1, lasts[:-1], out=is_start[1:])
    is_start[1:] |= ids[1:] - ids[:-1] != firsts[1:] - firsts[:-1]
    if is_start.all():
        return runs
    starts = np.flatnonzero(is_start)
    stops = np.append(starts[1:], len(firsts)) - 1
    return firsts[starts], lasts[stops], ids[starts]


def size_of(runs: Runs) -> int:
    """How many rows."""
    return int((runs[1] - runs[0]).sum()) + len(runs[0])


def ids_under(runs: Runs, keys: RowSet) -> Int64Array:
    """Ids of the rows under ``keys``, in key order; ValueError unless all are there."""
    firsts, lasts, _, index = arrays.overlap_pairs(keys.range_list, runs[:2])
    counts = lasts - firsts + 1
    if int(counts.sum()) != len(keys):
        raise ValueError(_no_row(keys, runs))
    return arrays.expand(runs[2][index] + (firsts - runs[0][index]), counts)


def without(runs: Runs, removed: RowSet) -> Runs:
    """The runs less some rows; ValueError unless all of them are there."""
    kept, _ = _cut(runs, arrays.complement(removed.range_list))
    if size_of(runs) - size_of(kept) != len(removed):
        raise ValueError(_no_row(removed, runs))
    return kept


def shifted(runs: Runs, shifts: RowSetShiftData) -> Runs:
    """The runs where they are after the shifts; ValueError if two rows end under one key."""
    ranges = shifts.firsts, shifts.lasts
    (firsts, lasts, ids), index = _cut(runs, ranges)
    deltas = shifts.deltas[index]
    stayed, _ = _cut(runs, arrays.complement(arrays.merged(*ranges)))
    return merged(stayed, (firsts + deltas, lasts + deltas, ids))


def merged(some: Runs, others: Runs) -> Runs:
    """All runs of both, in order; ValueError if two rows stand under one key."""
    if len(some[0]) == 0 or len(others[0]) == 0:
        return some if len(others[0]) == 0 else others
    runs = together((some, others))
    if others[0][0] > some[1][-1]:
        return runs
    order = np.argsort(runs[0], kind="stable")
    firsts, lasts, ids = (part[order] for part in runs)
    clashes = lasts[:-1] >= firsts[1:]
    if clashes.any():
        raise ValueError(f"two rows under key {firsts[1:][clashes][0]}")
    return firsts, lasts, ids


def _cut(runs: Runs, ranges: RangeList) -> tuple[Runs, Int64Array]:
    """The parts of runs inside ``ranges``, and the range each part lies in."""
    firsts, lasts, in_runs, in_ranges = arrays.overlap_pairs(runs[:2], ranges)
    return (firsts, lasts, runs[2][in_runs] + (firsts - runs[0][in_runs])), in_ranges


def _no_row(keys: RowSet, runs: Runs) -> str:
    return f"there is no row under key {(keys - RowSet.from_overlapping(*runs[:2])).first}"
