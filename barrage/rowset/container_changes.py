"""Changing a few of many containers.

A compressed bitmap of thousands of containers has to copy them one by one, whatever it changes; a
copy of a few arrays in which some stretches give way to others takes a third of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from barrage.rowset.arrays import NO_KEYS, expand, with_cuts
from barrage.rowset.containers import ARRAY, BITMAP, KEY_BITS, RUNS, WORDS, Containers

if TYPE_CHECKING:
    from barrage.rowset.arrays import Cuts, Int64Array, RangeList

NONE = Containers(
    NO_KEYS,
    NO_KEYS.astype(np.uint8),
    NO_KEYS,
    lengths=NO_KEYS,
    halves=NO_KEYS.astype(np.uint16),
    words=np.empty((0, WORDS), dtype=np.uint64),
    run_firsts=NO_KEYS.astype(np.uint16),
    run_spans=NO_KEYS.astype(np.uint16),
)
"""The containers of the empty set, to change others with; nothing else is to be asked of it."""


def touched_by(ranges: RangeList) -> Int64Array:
    """The upper parts (key >> 16) of the keys of ranges, ascending; as many as the containers they
    touch."""
    highs = ranges[0] >> KEY_BITS
    if ranges[0] is not ranges[1]:
        highs = expand(highs, (ranges[1] >> KEY_BITS) - highs + 1)
    return highs[np.concatenate(([True], highs[1:] != highs[:-1]))]


def picked(containers: Containers, highs: Int64Array) -> Containers | None:
    """Those of the containers that hold keys with these upper parts; None for none."""
    at = containers.highs.searchsorted(highs)
    at = at[containers.highs.take(at, mode="clip") == highs]
    if len(at) == 0:
        return None
    kinds, lengths, slots = containers.kinds[at], containers.lengths[at], containers.slots[at]
    halves = expand(slots[kinds == ARRAY], lengths[kinds == ARRAY])
    runs = expand(slots[kinds == RUNS], lengths[kinds == RUNS])
    return Containers(
        containers.highs[at],
        kinds,
        containers.before[at + 1] - containers.before[at],
        lengths=lengths,
        halves=containers.halves[halves],
        words=containers.words[slots[kinds == BITMAP]],
        run_firsts=containers.run_firsts[runs],
        run_spans=containers.run_spans[runs],
    )


def replaced(old: Containers, highs: Int64Array, new: Containers) -> Containers:
    """The old containers but for those with these upper parts, in whose place the new ones stand;
    these have no other upper parts."""
    low = old.highs.searchsorted(highs)
    new_to = new.highs.searchsorted(highs, side="right")
    cuts = (low, low + (old.highs.take(low, mode="clip") == highs), new_to)
    runs = _cuts_of_kind(old, new, cuts, kind=RUNS)
    return Containers(
        with_cuts(old.highs, new.highs, cuts),
        with_cuts(old.kinds, new.kinds, cuts),
        with_cuts(np.diff(old.before), np.diff(new.before), cuts),
        lengths=with_cuts(old.lengths, new.lengths, cuts),
        halves=with_cuts(old.halves, new.halves, _cuts_of_kind(old, new, cuts, kind=ARRAY)),
        words=with_cuts(old.words, new.words, _cuts_of_kind(old, new, cuts, kind=BITMAP)),
        run_firsts=with_cuts(old.run_firsts, new.run_firsts, runs),
        run_spans=with_cuts(old.run_spans, new.run_spans, runs),
    )


def _cuts_of_kind(old: Containers, new: Containers, cuts: Cuts, *, kind: int) -> Cuts:
    """The same cuts, of containers, among the elements of one kind."""
    low, high, new_to = cuts
    old_before, new_before = _elements_before(old, kind), _elements_before(new, kind)
    return old_before[low], old_before[high], new_before[new_to]


def _elements_before(containers: Containers, kind: int) -> Int64Array:
    """Low halves, bitmaps or runs in front of each container, and in front of the end."""
    counts = (containers.kinds == kind) * (1 if kind == BITMAP else containers.lengths)
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
