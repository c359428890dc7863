"""Which row is under which key: the identity of rows while their keys shift.

A row of a table's history is named by its *id*, the number under which its addition was recorded
(``journal/records/record.py``); a row *key* says only where a row stands, and shifts move rows that
nobody touched. This map keeps, for every living row, key -> id: it applies what a cycle says
(removed, shifts, added, in that order) and never looks at values.

Kept as runs of consecutive keys with consecutive ids, so a table that is only appended to is one
run whatever its size. Worked example: rows 0..9 have the ids 0..9; key 4 is removed, 5..9 shift by
+2, and two rows are added under 4 and 5 with ids 20, 21. The runs are 0-3 -> 0.., 4-5 -> 20..,
7-11 -> 5...

A keyed table whose rows come and go has about one run per row. So that a cycle of a few rows does
not cost all of them, runs stand in *blocks* of up to ``BLOCK_RUNS``, and versions of the map share
the blocks a cycle did not touch. A block remembers how far it was shifted as a whole. A cycle costs
O(blocks) for a handful of array operations, and O(runs) of the blocks it touches.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from barrage.model.id_runs import (
    NO_RUNS,
    Runs,
    cut_out,
    fused,
    ids_under,
    merged,
    runs_of,
    shifted,
    size_of,
    together,
    without,
)
from barrage.rowset import RowSet, arrays

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.rowset import RowSetShiftData
    from barrage.rowset.arrays import BoolArray, Int64Array, RangeList

    RowCycle: TypeAlias = tuple[RowSet, RowSetShiftData, RowSet, Int64Array]
    """Removed keys, shifts, added keys and the ids of the added rows in key order."""

BLOCK_RUNS: Final = 1024
"""Most runs of a block."""

_SPARSE: Final = 4
"""With more than this many times the blocks that would do, all are made anew."""

_LOOKUPS_MAX: Final = 8
"""After so many lookups in one version of the map its runs are put together in one list: tables
whose rows are only modified keep one version for long."""

_CYCLE_ROWS: Final = 1 << 20
"""Rows of cycles that are taken together."""


class RowIdMap:
    """Immutable map from the keys of living rows to their ids.

    Invariants: runs ascend and are disjoint, over all blocks; no block is empty; two runs of a
    block that touch are not one run (their ids do not follow on); no id stands under two keys.
    Block i has the runs ``_blocks[i]``, their keys moved by ``_offsets[i]``; ``_heads`` and
    ``_tails`` are its first and last key.
    """

    __slots__ = (
        "_blocks",
        "_flat",
        "_heads",
        "_keys",
        "_lookups",
        "_offsets",
        "_run_count",
        "_size",
        "_tails",
    )

    _blocks: list[Runs]
    _offsets: Int64Array
    _heads: Int64Array
    _tails: Int64Array
    _flat: Runs | None
    _keys: RowSet | None
    _size: int
    _run_count: int
    _lookups: int

    def __init__(self) -> None:
        raise TypeError("use RowIdMap.empty or RowIdMap.of")

    @classmethod
    def _of_blocks(
        cls,
        blocks: list[Runs],
        offsets: Int64Array,
        heads: Int64Array,
        *,
        tails: Int64Array,
        size: int,
        run_count: int,
    ) -> RowIdMap:
        self = object.__new__(cls)
        self._blocks, self._offsets, self._heads, self._tails = blocks, offsets, heads, tails
        self._size, self._run_count = size, run_count
        self._flat, self._keys, self._lookups = None, None, 0
        return self

    @classmethod
    def _of(cls, runs: Runs, size: int) -> RowIdMap:
        """All runs, of which some may still have to be joined."""
        runs = fused(runs)
        blocks = _in_blocks(runs)
        zeros = np.zeros(len(blocks), dtype=np.int64)
        heads, tails = _ends(blocks)
        self = cls._of_blocks(blocks, zeros, heads, tails=tails, size=size, run_count=len(runs[0]))
        self._flat = runs
        return self

    @classmethod
    def empty(cls) -> RowIdMap:
        """No row lives."""
        return _NO_ROWS

    @classmethod
    def of(cls, keys: RowSet, ids: Int64Array) -> RowIdMap:
        """``ids`` in key order; ValueError unless there is one per key."""
        return cls._of(runs_of(keys, ids), len(keys))

    def __len__(self) -> int:
        return self._size

    @property
    def run_count(self) -> int:
        """How many runs: what memory costs."""
        return self._run_count

    @property
    def keys(self) -> RowSet:
        """Keys of all living rows."""
        if self._keys is None:
            firsts, lasts, _ = self._all_runs()
            self._keys = RowSet.from_trusted_ranges(firsts.copy(), lasts.copy(), is_touching=True)
        return self._keys

    @property
    def ids(self) -> Int64Array:
        """Ids of all living rows, in key order."""
        firsts, lasts, ids = self._all_runs()
        return arrays.expand(ids, lasts - firsts + 1)

    def _all_runs(self) -> Runs:
        if self._flat is None:
            self._flat = self._runs_of(np.arange(len(self._blocks)))
        return self._flat

    def _runs_of(self, indices: Int64Array) -> Runs:
        """The runs of some blocks, in order."""
        blocks = [self._blocks[index] for index in indices.tolist()]
        firsts, lasts, ids = together(blocks)
        offsets = self._offsets[indices]
        if not offsets.any():
            return firsts, lasts, ids
        moved = np.repeat(offsets, [len(block[0]) for block in blocks])
        return firsts + moved, lasts + moved, ids

    @property
    def _spans(self) -> RangeList:
        return self._heads, self._tails

    def ids_of(self, keys: RowSet) -> Int64Array:
        """Ids of the rows under ``keys``, in key order; ValueError unless all exist."""
        self._lookups += 1
        if self._flat is None and self._lookups <= _LOOKUPS_MAX:
            touched = _marked(len(self._blocks), keys, self._spans)
            if 2 * np.count_nonzero(touched) < len(touched):
                return ids_under(self._runs_of(np.flatnonzero(touched)), keys)
        return ids_under(self._all_runs(), keys)

    def apply(  # noqa: PLR0917  (a RowCycle)
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
        added = runs_of(added_keys_post, added_ids)
        size = self._size - len(removed_keys_pre) + len(added_keys_post)
        touched, offsets = self._touched(removed_keys_pre, shifts, added_keys_post)
        runs = self._all_runs() if touched is None else self._runs_of(np.flatnonzero(touched))
        kept_count = self._run_count - len(runs[0])
        if not removed_keys_pre.is_empty:
            runs = without(runs, removed_keys_pre)
        if not shifts.is_empty:
            runs = shifted(runs, shifts)
        runs = merged(runs, added)
        if touched is None:
            return RowIdMap._of(runs, size)
        runs = fused(runs)
        result = self._replaced(
            ~touched, offsets, runs, size=size, run_count=kept_count + len(runs[0])
        )
        if len(result._blocks) > _SPARSE * (result._run_count // BLOCK_RUNS + 8):
            return RowIdMap._of(result._all_runs(), size)
        return result

    def apply_all(self, cycles: Iterable[RowCycle]) -> RowIdMap:
        """The map after many cycles, oldest first, each given as the arguments of :meth:`apply`.

        The same result, several times faster where cycles are small: those without shifts are
        taken together. ValueError as in :meth:`apply`, if not always for the same key.
        """
        ids = self
        waiting: list[RowCycle] = []
        row_count = 0
        for cycle in cycles:
            removed, shifts, added, _ = cycle
            if waiting and (not shifts.is_empty or row_count > _CYCLE_ROWS):
                ids, waiting, row_count = ids.apply(*_as_one(waiting)), [], 0
            if not shifts.is_empty:
                ids = ids.apply(*cycle)
            elif removed or added:
                waiting.append(cycle)
                row_count += len(removed) + len(added)
        return ids.apply(*_as_one(waiting)) if waiting else ids

    def _touched(
        self, removed: RowSet, shifts: RowSetShiftData, added: RowSet
    ) -> tuple[BoolArray | None, Int64Array]:
        """Which blocks a cycle changes inside, and how far each other is moved. None: so many that
        all are made anew."""
        count = len(self._blocks)
        moved = np.zeros(count, dtype=np.int64)
        if count < 2:
            return None, moved
        touched = _marked(count, removed, self._spans)
        if not shifts.is_empty:
            low, high = arrays.overlap_spans((shifts.firsts, shifts.lasts), self._spans)
            met = low < high
            low, last, index = low[met], high[met] - 1, np.flatnonzero(met)
            # Of the blocks a shift meets only the outer two may stick out of it.
            touched[low[self._heads[low] < shifts.firsts[index]]] = True
            touched[last[self._tails[last] > shifts.lasts[index]]] = True
            steps = np.zeros(count + 1, dtype=np.int64)
            np.add.at(steps, low, shifts.deltas[index])
            np.subtract.at(steps, last + 1, shifts.deltas[index])
            moved = np.cumsum(steps[:-1])
        if not added.is_empty:
            self._touch_added(touched, moved, added)
        return (None if 2 * np.count_nonzero(touched) > count else touched), moved

    def _touch_added(self, touched: BoolArray, moved: Int64Array, added: RowSet) -> None:
        """Mark blocks that get rows inside or directly behind; by where they stand in the end."""
        stays = np.flatnonzero(~touched)
        heads, tails = self._heads[stays] + moved[stays], self._tails[stays] + moved[stays]
        if len(stays) == 0 or (tails[:-1] >= heads[1:]).any():
            touched[:] = True  # Rows collide, or nothing stays: told, or done, where all is seen.
            return
        low = np.maximum(np.searchsorted(heads, added.firsts, side="right") - 1, 0)
        high = np.maximum(np.searchsorted(heads, added.lasts, side="right") - 1, 0)
        touched[stays[arrays.expand(low, high - low + 1)]] = True

    def _replaced(
        self, stays: BoolArray, offsets: Int64Array, runs: Runs, *, size: int, run_count: int
    ) -> RowIdMap:
        """The map of the blocks that stay, moved by ``offsets``, and of ``runs`` between them."""
        old = np.flatnonzero(stays)
        moved = offsets[old]
        heads, tails = self._heads[old] + moved, self._tails[old] + moved
        cuts = np.searchsorted(runs[0], heads)
        _check_apart(runs, cuts, heads=heads, tails=tails)
        blocks: list[Runs] = []
        places: list[int] = []
        edges = [0, *cuts.tolist(), len(runs[0])]
        for gap in np.flatnonzero(np.diff(edges)).tolist():
            pieces = _in_blocks(cut_out(runs, edges[gap], edges[gap + 1]))
            blocks += pieces
            places += [gap] * len(pieces)
        all_blocks = [self._blocks[index] for index in old.tolist()]
        new_heads, new_tails = _ends(blocks)
        for place, block in zip(reversed(places), reversed(blocks), strict=True):
            all_blocks.insert(place, block)
        at = np.array(places, dtype=np.intp)
        return RowIdMap._of_blocks(
            all_blocks,
            np.insert(self._offsets[old] + moved, at, 0),
            np.insert(heads, at, new_heads),
            tails=np.insert(tails, at, new_tails),
            size=size,
            run_count=run_count,
        )

    def validate(self) -> None:
        """Raise AssertionError when an invariant is broken; for tests."""
        firsts, lasts, ids = self._all_runs()
        assert (firsts <= lasts).all()
        assert (lasts[:-1] < firsts[1:]).all()
        assert all(0 < len(block[0]) <= BLOCK_RUNS for block in self._blocks)
        assert all(len(fused(block)[0]) == len(block[0]) for block in self._blocks)
        assert len(np.unique(self.ids)) == len(self) == size_of((firsts, lasts, ids))
        assert sum(len(block[0]) for block in self._blocks) == self._run_count
        starts = np.cumsum([0, *(len(block[0]) for block in self._blocks)])
        assert np.array_equal(self._heads, firsts[starts[:-1]])
        assert np.array_equal(self._tails, lasts[starts[1:] - 1])


def _as_one(cycles: list[RowCycle]) -> RowCycle:
    """Cycles without shifts as one: of each key its first event says whether a row was there
    before, its last one whether one is there in the end."""
    if len(cycles) == 1:
        return cycles[0]
    shifts = cycles[0][1]
    if all(removed.is_empty for removed, *_ in cycles):
        firsts = np.concatenate([added.firsts for _, _, added, _ in cycles])
        lasts = np.concatenate([added.lasts for _, _, added, _ in cycles])
        if (firsts[1:] > lasts[:-1]).all():
            keys = RowSet.from_trusted_ranges(firsts, lasts, is_touching=True)
            return RowSet.empty(), shifts, keys, np.concatenate([ids for *_, ids in cycles])
    return _events_as_one(cycles)


def _events_as_one(cycles: list[RowCycle]) -> RowCycle:
    """The same, looking at every key."""
    parts = [rows.to_numpy() for removed, _, added, _ in cycles for rows in (removed, added)]
    keys = np.concatenate(parts)
    counts = [len(part) for part in parts]
    is_added = np.repeat(np.tile([False, True], len(cycles)), counts)
    ids = np.zeros(len(keys), dtype=np.int64)
    ids[is_added] = np.concatenate([added_ids for *_, added_ids in cycles])
    if (keys[1:] <= keys[:-1]).any():
        order = np.argsort(keys, kind="stable")
        keys, is_added, ids = keys[order], is_added[order], ids[order]
    is_first = np.ones(len(keys), dtype=np.bool_)
    is_first[1:] = keys[1:] != keys[:-1]
    wrong = ~is_first[1:] & (is_added[1:] == is_added[:-1])
    if wrong.any():
        at = int(wrong.argmax()) + 1
        what = "two rows" if is_added[at] else "there is no row"
        raise ValueError(f"{what} under key {keys[at]}")
    is_last = np.append(is_first[1:], True)
    gone, new = is_first & ~is_added, is_last & is_added
    removed = RowSet.from_sorted_keys(keys[gone])
    return removed, cycles[0][1], RowSet.from_sorted_keys(keys[new]), ids[new]


def _in_blocks(runs: Runs) -> list[Runs]:
    """The runs cut into blocks of about equal size."""
    count = -(-len(runs[0]) // BLOCK_RUNS)
    if count < 2:
        return [runs] if count else []
    cuts = [index * len(runs[0]) // count for index in range(count + 1)]
    return [cut_out(runs, low, high) for low, high in pairwise(cuts)]


def _ends(blocks: list[Runs]) -> tuple[Int64Array, Int64Array]:
    heads = np.array([block[0][0] for block in blocks], dtype=np.int64)
    return heads, np.array([block[1][-1] for block in blocks], dtype=np.int64)


def _marked(count: int, keys: RowSet, spans: RangeList) -> BoolArray:
    """Which spans have one of the keys between their ends."""
    touched = np.zeros(count, dtype=np.bool_)
    if not keys.is_empty and count:
        low, high = arrays.overlap_spans(keys.range_list, spans)
        touched[arrays.expand(low, high - low)] = True
    return touched


def _check_apart(runs: Runs, cuts: Int64Array, *, heads: Int64Array, tails: Int64Array) -> None:
    """ValueError if a run reaches into a block, or a block into the next."""
    clashes = np.zeros(len(heads), dtype=np.bool_)
    clashes[1:] = tails[:-1] >= heads[1:]
    has_before = cuts > 0
    clashes[has_before] |= runs[1][cuts[has_before] - 1] >= heads[has_before]
    has_behind = cuts < len(runs[0])
    clashes[has_behind] |= runs[0][cuts[has_behind]] <= tails[has_behind]
    if clashes.any():
        raise ValueError(f"two rows under key {heads[clashes][0]}")


_NO_ROWS: Final = RowIdMap._of(NO_RUNS, 0)
