"""Which row is under which key: the identity of rows while their keys shift.

A row of a table's history is named by its *id*, the number under which its addition was recorded
(``journal/record.py``); a row *key* says only where a row stands, and shifts move rows that nobody
touched. This map keeps, for every living row, key -> id: it applies what a cycle says (removed,
shifts, added, in that order) and never looks at values.

Kept as runs of consecutive keys with consecutive ids, so a table that is only appended to is one
run whatever its size. Worked example: rows 0..9 have the ids 0..9; key 4 is removed, 5..9 shift by
+2, and two rows are added under 4 and 5 with ids 20, 21. The runs are 0-3 -> 0.., 4-5 -> 20..,
7-11 -> 5...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from barrage.rowset import RowSet, arrays

if TYPE_CHECKING:
    from barrage.rowset import RowSetShiftData
    from barrage.rowset.arrays import Int64Array, RangeList


class RowIdMap:
    """Immutable map from the keys of living rows to their ids.

    Invariants: runs ascend and are disjoint; two that touch are not one run (their ids do not
    follow on); no id stands under two keys.
    """

    __slots__ = ("_firsts", "_ids", "_keys", "_lasts")

    _firsts: Int64Array
    _lasts: Int64Array
    _ids: Int64Array
    _keys: RowSet | None

    def __init__(self) -> None:
        raise TypeError("use RowIdMap.empty or RowIdMap.of")

    @classmethod
    def _of(cls, firsts: Int64Array, lasts: Int64Array, ids: Int64Array) -> RowIdMap:
        """Wrap ascending disjoint runs, of which some may still have to be joined."""
        if len(firsts) > 1:
            is_start = np.ones(len(firsts), dtype=np.bool_)
            np.not_equal(firsts[1:] - 1, lasts[:-1], out=is_start[1:])
            is_start[1:] |= ids[1:] - ids[:-1] != firsts[1:] - firsts[:-1]
            if not is_start.all():
                starts = np.flatnonzero(is_start)
                stops = np.append(starts[1:], len(firsts)) - 1
                firsts, lasts, ids = firsts[starts], lasts[stops], ids[starts]
        self = object.__new__(cls)
        self._firsts, self._lasts, self._ids, self._keys = firsts, lasts, ids, None
        return self

    @classmethod
    def empty(cls) -> RowIdMap:
        """No row lives."""
        return _NO_ROWS

    @classmethod
    def of(cls, keys: RowSet, ids: Int64Array) -> RowIdMap:
        """``ids`` in key order; ValueError unless there is one per key."""
        return cls._of(*_runs_of(keys, ids))

    def __len__(self) -> int:
        return int((self._lasts - self._firsts).sum()) + len(self._firsts)

    @property
    def run_count(self) -> int:
        """How many runs: what applying and memory cost."""
        return len(self._firsts)

    @property
    def keys(self) -> RowSet:
        """Keys of all living rows."""
        if self._keys is None:
            self._keys = RowSet.from_trusted_ranges(
                self._firsts.copy(), self._lasts.copy(), is_touching=True
            )
        return self._keys

    @property
    def ids(self) -> Int64Array:
        """Ids of all living rows, in key order."""
        return arrays.expand(self._ids, self._lasts - self._firsts + 1)

    @property
    def _ranges(self) -> RangeList:
        return self._firsts, self._lasts

    def ids_of(self, keys: RowSet) -> Int64Array:
        """Ids of the rows under ``keys``, in key order; ValueError unless all exist."""
        firsts, lasts, _, runs = arrays.overlap_pairs((keys.firsts, keys.lasts), self._ranges)
        counts = lasts - firsts + 1
        if int(counts.sum()) != len(keys):
            raise ValueError(_no_row(keys, self.keys))
        return arrays.expand(self._ids[runs] + (firsts - self._firsts[runs]), counts)

    def apply(
        self,
        removed_keys_pre: RowSet,
        shifts: RowSetShiftData,
        added_keys_post: RowSet,
        added_ids: Int64Array,
    ) -> RowIdMap:
        """The map after a cycle; ``added_ids`` in key order.

        ValueError when the cycle does not fit: a removed row does not exist, two rows would stand
        under one key, or the numbers of added keys and ids differ.
        """
        added = _runs_of(added_keys_post, added_ids)
        runs = self._firsts, self._lasts, self._ids
        if not removed_keys_pre.is_empty:
            runs = _without(runs, removed_keys_pre)
        if not shifts.is_empty:
            runs = _shifted(runs, shifts)
        return RowIdMap._of(*_merged(runs, added))

    def validate(self) -> None:
        """Raise AssertionError when an invariant is broken; for tests."""
        assert (self._firsts <= self._lasts).all()
        assert (self._lasts[:-1] < self._firsts[1:]).all()
        touches = self._lasts[:-1] + 1 == self._firsts[1:]
        follows = self._ids[1:] - self._ids[:-1] == self._firsts[1:] - self._firsts[:-1]
        assert not (touches & follows).any()
        assert len(np.unique(self.ids)) == len(self)


_Runs = tuple["Int64Array", "Int64Array", "Int64Array"]


def _runs_of(keys: RowSet, ids: Int64Array) -> _Runs:
    """Runs of ``keys`` with ``ids`` in key order. O(ids) and O(ranges), never O(keys) beside it."""
    if len(ids) != len(keys):
        raise ValueError(f"{len(ids)} row ids for {len(keys)} row keys")
    if keys.is_empty:
        return arrays.NO_KEYS, arrays.NO_KEYS, arrays.NO_KEYS
    is_start = np.empty(len(ids), dtype=np.bool_)
    is_start[0] = True
    np.not_equal(ids[1:], ids[:-1] + 1, out=is_start[1:])
    is_start[keys.rank_many(keys.firsts)] = True
    starts = np.flatnonzero(is_start)
    counts = np.diff(starts, append=len(ids))
    firsts = keys.select_many(starts)
    return firsts, firsts + (counts - 1), np.asarray(ids, dtype=np.int64)[starts]


def _cut(runs: _Runs, ranges: RangeList) -> tuple[_Runs, Int64Array]:
    """The parts of runs inside ``ranges``, and the range each part lies in."""
    firsts, lasts, in_runs, in_ranges = arrays.overlap_pairs(runs[:2], ranges)
    return (firsts, lasts, runs[2][in_runs] + (firsts - runs[0][in_runs])), in_ranges


def _size(runs: _Runs) -> int:
    return int((runs[1] - runs[0]).sum()) + len(runs[0])


def _without(runs: _Runs, removed: RowSet) -> _Runs:
    kept, _ = _cut(runs, arrays.complement((removed.firsts, removed.lasts)))
    if _size(runs) - _size(kept) != len(removed):
        raise ValueError(_no_row(removed, RowSet.from_overlapping(*runs[:2])))
    return kept


def _shifted(runs: _Runs, shifts: RowSetShiftData) -> _Runs:
    ranges = shifts.firsts, shifts.lasts
    (firsts, lasts, ids), index = _cut(runs, ranges)
    deltas = shifts.deltas[index]
    stayed, _ = _cut(runs, arrays.complement(arrays.merged(*ranges)))
    return _merged(stayed, (firsts + deltas, lasts + deltas, ids))


def _merged(some: _Runs, others: _Runs) -> _Runs:
    """All runs of both, in order; ValueError if two rows stand under one key."""
    if len(some[0]) == 0 or len(others[0]) == 0:
        return some if len(others[0]) == 0 else others
    firsts, lasts, ids = (np.concatenate(pair) for pair in zip(some, others, strict=True))
    if others[0][0] <= some[1][-1]:
        order = np.argsort(firsts, kind="stable")
        firsts, lasts, ids = firsts[order], lasts[order], ids[order]
        clashes = lasts[:-1] >= firsts[1:]
        if clashes.any():
            raise ValueError(f"two rows under key {firsts[1:][clashes][0]}")
    return firsts, lasts, ids


def _no_row(keys: RowSet, existing: RowSet) -> str:
    return f"there is no row under key {(keys - existing).first}"


_NO_ROWS: Final = RowIdMap._of(arrays.NO_KEYS, arrays.NO_KEYS, arrays.NO_KEYS)
