"""Range arithmetic on plain arrays: the vectorised half of :class:`~barrage.rowset.row_set.RowSet`.

A *range list* is a pair ``(firsts, lasts)`` of int64 arrays of equal length: closed ranges,
ascending and with at least one missing key between neighbours ("maximal"). When both are the *same
object*, every range is one key; such lists cost 8 bytes per key and have faster paths. Keys are 0
.. 2^63 - 1, so ``first - 1`` never overflows and ``last + 1`` is avoided.

Costs, with n and m ranges: union sorts two sorted runs, O(n + m); intersection looks the shorter
list up in the longer one, O(min log max + hits); a change by a few ranges copies the untouched
stretches (`splice`).
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from barrage.limits import ROW_KEY_MAX

Int64Array: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
RangeList: TypeAlias = tuple[Int64Array, Int64Array]

NO_KEYS: Int64Array = np.empty(0, dtype=np.int64)
NO_KEYS.flags.writeable = False
NO_RANGES: RangeList = (NO_KEYS, NO_KEYS)

SPLICE_RATIO_MIN = 16
"""A list this many times longer than another is changed where the other touches it; below it both
are merged."""

PIECES_MAX = 2048
"""Most stretches copied one by one; more are moved through a mask in one pass."""

APPENDED_RANGES_MAX = 512
"""Up to so many ranges are put behind a list that lies in front of them as a copy of theirs."""

_STEPS: Int64Array = np.arange(1 << 15, dtype=np.int64)

_SAMPLES = 64
"""Ranges that stand for all of a list when it is asked how many meet another one."""

_SINGLES_PROBE_MIN = 16
"""Lists shorter than this are not worth looking for the one-key-per-range form."""


def as_singles(firsts: Int64Array, lasts: Int64Array) -> RangeList:
    """The same list, with ``lasts is firsts`` if every range is one key."""
    if firsts is lasts or len(firsts) < _SINGLES_PROBE_MIN or firsts[0] != lasts[0]:
        return firsts, lasts
    return (firsts, firsts) if np.array_equal(firsts, lasts) else (firsts, lasts)


def merged(firsts: Int64Array, lasts: Int64Array) -> RangeList:
    """Maximal ranges of closed ranges that ascend by first key but may touch or overlap."""
    if len(firsts) < 2:
        return firsts, lasts
    reach = lasts if lasts is firsts else np.maximum.accumulate(lasts)
    is_start = np.empty(len(firsts), dtype=np.bool_)
    is_start[0] = True
    np.greater(firsts[1:] - 1, reach[:-1], out=is_start[1:])
    if is_start.all():
        return firsts, lasts
    starts = np.flatnonzero(is_start)
    stops = np.append(starts[1:], len(firsts)) - 1
    return firsts[starts], reach[stops]


def from_sorted(keys: Int64Array) -> RangeList:
    """Maximal ranges of ascending keys; repeated keys are legal."""
    if len(keys) < 2:
        return keys, keys
    steps = keys[1:] - keys[:-1]
    least = int(steps.min())
    if least > 1:
        return keys, keys
    if least == 0:
        is_new = np.empty(len(keys), dtype=np.bool_)
        is_new[0] = True
        np.not_equal(steps, 0, out=is_new[1:])
        # Every key once: what remains may well be single keys again.
        return from_sorted(keys[is_new])
    is_start = np.empty(len(keys) + 1, dtype=np.bool_)
    is_start[0] = is_start[-1] = True
    np.greater(steps, 1, out=is_start[1:-1])
    return keys[is_start[:-1]], keys[is_start[1:]]


def parted(keys: Int64Array, is_apart: BoolArray) -> RangeList:
    """Maximal ranges of strictly ascending keys; ``is_apart`` tells for each but the first whether
    there is a gap in front of it."""
    end = np.ones(1, dtype=np.bool_)
    return keys[np.concatenate((end, is_apart))], keys[np.concatenate((is_apart, end))]


def expand(starts: Int64Array, counts: Int64Array) -> Int64Array:
    """``starts[0], starts[0]+1, … (counts[0] of them), starts[1], …`` as one array."""
    total = int(counts.sum())
    if total == 0:
        return NO_KEYS
    offsets = np.cumsum(counts) - counts
    return np.repeat(starts - offsets, counts) + np.arange(total, dtype=np.int64)


def steps_between(values: Int64Array) -> Int64Array:
    """From each value to the next, from nought to the first: the counts whose sums they are."""
    steps = values.copy()
    steps[1:] -= values[:-1]
    return steps


def counted(first: int, count: int) -> Int64Array:
    """``first, first + 1, …``: ``count`` keys, none past 2^63 - 1."""
    if count <= len(_STEPS):
        return _STEPS[:count] + first
    keys = np.empty(count, dtype=np.int64)
    # The steps stay in the cache, which `np.arange` makes no use of.
    for at in range(0, count, len(_STEPS)):
        part = keys[at : at + len(_STEPS)]
        np.add(_STEPS[: len(part)], first + at, out=part)
    return keys


def keys_of(ranges: RangeList, size: int) -> Int64Array:
    """All ``size`` keys of a list with members: steps of one, longer ones at every start."""
    firsts, lasts = ranges
    if len(firsts) == 1:
        return counted(int(firsts[0]), size)
    keys = np.ones(size, dtype=np.int64)
    keys[0] = firsts[0]
    starts = np.cumsum(lasts[:-1] - firsts[:-1] + 1)
    keys[starts] = firsts[1:] - lasts[:-1]
    np.cumsum(keys, out=keys)
    return keys


def overlap_spans(needles: RangeList, ranges: RangeList) -> tuple[Int64Array, Int64Array]:
    """For each needle the half-open span of indices into ``ranges`` that it shares a key with."""
    firsts, lasts = ranges
    low = np.searchsorted(lasts, needles[0], side="left")
    high = np.searchsorted(firsts, needles[1], side="right")
    return low.astype(np.int64, copy=False), np.maximum(high, low).astype(np.int64, copy=False)


def overlap_pairs(
    a: RangeList, b: RangeList
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Every overlap of a range of ``a`` with one of ``b``: (firsts, lasts, index in a, index in b),
    ascending.
    """
    if len(a[0]) > len(b[0]):
        firsts, lasts, in_b, in_a = overlap_pairs(b, a)
        return firsts, lasts, in_a, in_b
    met, low = _met(a, b)
    counts = np.searchsorted(b[0], a[1][met], side="right") - low
    in_a = np.repeat(met, counts)
    in_b = expand(low, counts)
    firsts = np.maximum(a[0][in_a], b[0][in_b])
    lasts = np.minimum(a[1][in_a], b[1][in_b])
    return firsts, lasts, in_a, in_b


def _met(a: RangeList, b: RangeList) -> tuple[Int64Array, Int64Array]:
    """Which ranges of ``a`` share a key with ``b``, and the first range of ``b`` each of them does
    so with."""
    if len(b[0]) == 0:
        return NO_KEYS, NO_KEYS
    low = np.searchsorted(b[1], a[0], side="left")
    is_met = b[0].take(low, mode="clip") <= a[1]
    is_met[np.searchsorted(a[0], b[1][-1], side="right") :] = False
    met = np.flatnonzero(is_met)
    return met, low[met]


def union(a: RangeList, b: RangeList) -> RangeList:
    """Keys in either list. A stable sort of two sorted runs is one merge."""
    firsts = np.concatenate((a[0], b[0]))
    if a[0] is a[1] and b[0] is b[1]:
        firsts.sort(kind="stable")
        return from_sorted(firsts)
    order = np.argsort(firsts, kind="stable")
    return merged(firsts[order], np.concatenate((a[1], b[1]))[order])


def intersection(a: RangeList, b: RangeList) -> RangeList:
    """Keys in both lists. Pieces of maximal ranges are maximal again."""
    if a[0] is a[1] and b[0] is b[1] and min(len(a[0]), len(b[0])) * 4 > max(len(a[0]), len(b[0])):
        keys = np.concatenate((a[0], b[0]))
        keys.sort(kind="stable")
        common = keys[:-1][keys[1:] == keys[:-1]]
        return common, common
    if a[0] is a[1]:
        a, b = b, a
    if b[0] is b[1]:
        common = b[0][contains(a, b[0])] if len(b[0]) < len(a[0]) else _members_between(a, b[0])
        return common, common
    firsts, lasts, _, _ = overlap_pairs(a, b)
    return as_singles(firsts, lasts)


def _members_between(ranges: RangeList, keys: Int64Array) -> Int64Array:
    """The sorted ``keys`` that lie in one of fewer ``ranges``."""
    low = np.searchsorted(keys, ranges[0], side="left")
    high = np.searchsorted(keys, ranges[1], side="right")
    return keys[expand(low, high - low)]


def difference(a: RangeList, b: RangeList) -> RangeList:
    """Keys of ``a`` that are not in ``b``. The shorter list is looked up in the longer one."""
    if len(a[0]) * 8 < len(b[0]):
        low, high = overlap_spans(a, b)
        hits = expand(low, high - low)
        if len(hits) > 1:  # one range of b may touch several of a
            hits = hits[np.concatenate(([True], hits[1:] != hits[:-1]))]
        b = (b[0][hits], b[1][hits])
    elif len(b[0]) > _SAMPLES and _few_meet(b, a):
        met, _ = _met(b, a)
        b = (b[0][met], b[1][met])
    if len(b[0]) == 0:
        return a
    if a[0] is a[1]:
        is_shorter = len(a[0]) < len(b[0])
        kept = a[0][~contains(b, a[0]) if is_shorter else _is_outside(a[0], b)]
        return kept, kept
    return intersection(a, complement(b))


def _few_meet(ranges: RangeList, others: RangeList) -> bool:
    """Whether most of many ranges seem to share no key with others, which there are."""
    step = len(ranges[0]) // _SAMPLES
    low, high = overlap_spans((ranges[0][::step], ranges[1][::step]), others)
    return int(np.count_nonzero(low < high)) * 2 < len(low)


def _is_outside(keys: Int64Array, ranges: RangeList) -> BoolArray:
    """Which of the sorted ``keys`` lie in none of fewer ``ranges``."""
    is_kept = np.ones(len(keys), dtype=np.bool_)
    low = np.searchsorted(keys, ranges[0], side="left")
    if ranges[0] is ranges[1]:
        low = low[: np.searchsorted(ranges[0], keys[-1], side="right")]
        is_kept[low[keys[low] == ranges[0][: len(low)]]] = False
        return is_kept
    high = np.searchsorted(keys, ranges[1], side="right")
    is_kept[expand(low, high - low)] = False
    return is_kept


def complement(ranges: RangeList) -> RangeList:
    """All keys 0 .. 2^63 - 1 that are in no range."""
    firsts, lasts = ranges
    if len(firsts) == 0:
        return np.zeros(1, dtype=np.int64), np.full(1, ROW_KEY_MAX, dtype=np.int64)
    starts_at_zero = int(firsts[0] == 0)
    ends_at_max = int(lasts[-1] == ROW_KEY_MAX)
    inner = lasts[: len(lasts) - ends_at_max] + 1
    gap_firsts = inner if starts_at_zero else np.concatenate(([0], inner))
    gap_lasts = firsts[starts_at_zero:] - 1
    if not ends_at_max:
        gap_lasts = np.concatenate((gap_lasts, [ROW_KEY_MAX]))
    return gap_firsts, gap_lasts


def range_index(ranges: RangeList, keys: Int64Array) -> Int64Array:
    """Index of the last range that starts at or before each key; -1 when there is none."""
    return np.searchsorted(ranges[0], keys, side="right") - 1


def contains(ranges: RangeList, keys: Int64Array) -> BoolArray:
    """Whether each key is in a range."""
    firsts, lasts = ranges
    if len(firsts) == 0:
        return np.zeros(len(keys), dtype=np.bool_)
    if len(firsts) == 1:
        inside: BoolArray = (keys >= firsts[0]) & (keys <= lasts[0])
        return inside
    index = range_index(ranges, keys)
    inside = (index >= 0) & (keys <= lasts[index])
    return inside


def contains_ranges(ranges: RangeList, others: RangeList) -> bool:
    """Whether every key of ``others`` is in ``ranges``."""
    firsts, lasts = ranges
    if len(others[0]) == 0:
        return True
    if len(firsts) == 0 or others[0][0] < firsts[0] or others[1][-1] > lasts[-1]:
        return False
    index = range_index(ranges, others[0])
    return bool((others[1] <= lasts[index]).all())


def select_ranges(ranges: RangeList, before: Int64Array, positions: RangeList) -> RangeList:
    """The keys at ``positions``, which all exist; ``before`` counts the keys in front of each
    range. Touches the ranges that are hit, not the others."""
    low = np.searchsorted(before, positions[0], side="right") - 1
    high = np.searchsorted(before, positions[1], side="right")
    counts = high - low
    index = expand(low, counts)
    shift = ranges[0][index] - before[index]
    firsts = np.maximum(np.repeat(positions[0], counts) + shift, ranges[0][index])
    lasts = np.minimum(np.repeat(positions[1], counts) + shift, ranges[1][index])
    return as_singles(firsts, lasts)


def with_ranges(large: RangeList, small: RangeList) -> RangeList:
    """The union, by copying the stretches in between where the second list is so much shorter."""
    if len(large[0]) > SPLICE_RATIO_MIN * len(small[0]):
        return splice(large, small, is_union=True)
    return union(large, small)


def without_ranges(a: RangeList, b: RangeList) -> RangeList:
    """The difference, in the same way."""
    if len(a[0]) > SPLICE_RATIO_MIN * len(b[0]):
        return splice(a, b, is_union=False)
    return difference(a, b)


def splice(a: RangeList, b: RangeList, *, is_union: bool) -> RangeList:
    """``union(a, b)`` or ``difference(a, b)`` for a shorter ``b``: untouched stretches of ``a`` are
    copied whole.

    Worked example: a = 0-1, 5-6, 10-11, 20-21 and b = 7, 15. Union touches range 1 (7 continues it)
    and inserts 15 before range 3: pieces a[0:1], 5-7, a[2:3], 15-15, a[3:4].
    """
    firsts, lasts = a
    if is_union:
        below = np.maximum(b[0], 1) - 1
        above = np.minimum(b[1], ROW_KEY_MAX - 1) + 1
        low, high = overlap_spans((below, above), a)
    else:
        low, high = overlap_spans(b, a)
    opens = np.concatenate(([True], low[1:] >= high[:-1]))
    group_low = low[opens]
    group_high = high[np.append(np.flatnonzero(opens)[1:], len(high)) - 1]
    touched = expand(group_low, group_high - group_low)
    old = (firsts[touched], lasts[touched])
    new = union(old, b) if is_union else difference(old, b)
    # New ranges stand before the first untouched range that follows their group.
    followers = np.searchsorted(
        new[0], firsts[np.minimum(group_high, len(firsts) - 1)], side="left"
    )
    followers = np.where(group_high == len(firsts), len(new[0]), followers)
    cuts = (group_low, group_high, followers)
    spliced = with_cuts(firsts, new[0], cuts)
    if firsts is lasts and (new[0] is new[1] or np.array_equal(new[0], new[1])):
        return spliced, spliced
    return spliced, with_cuts(lasts, new[1], cuts)


def with_one(ranges: RangeList, first: int, last: int) -> RangeList:
    """The union of ranges, which there are, with one more."""
    firsts, lasts = ranges
    low = int(lasts.searchsorted(first - 1 if first else 0))
    high = int(firsts.searchsorted(last + 1 if last < ROW_KEY_MAX else last, side="right"))
    if low < high:
        first, last = min(first, int(firsts[low])), max(last, int(lasts[high - 1]))
    new_firsts = np.concatenate((firsts[:low], np.array((first,)), firsts[high:]))
    if firsts is lasts and first == last:
        return new_firsts, new_firsts
    return new_firsts, np.concatenate((lasts[:low], np.array((last,)), lasts[high:]))


def gaps(ranges: RangeList, first: int, last: int) -> RangeList:
    """What a closed range has beside ranges that lie in it, which there are."""
    count = len(ranges[0])
    firsts, lasts = np.empty(count + 1, dtype=np.int64), np.empty(count + 1, dtype=np.int64)
    firsts[0], lasts[-1] = first, last
    np.subtract(ranges[0], 1, out=lasts[:-1])
    np.add(ranges[1][:-1], 1, out=firsts[1:-1])
    start, stop = int(lasts[0] < first), count + int(ranges[1][-1] < last)
    if stop > count:
        firsts[-1] = ranges[1][-1] + 1
    return as_singles(firsts[start:stop], lasts[start:stop])


Cuts: TypeAlias = tuple[Int64Array, Int64Array, Int64Array]
"""Half-open spans of old elements that give way to new ones, and up to which new one each does."""

_Number = TypeVar("_Number", bound=np.generic)


def with_cuts(
    old: npt.NDArray[_Number], new: npt.NDArray[_Number], cuts: Cuts
) -> npt.NDArray[_Number]:
    """The old elements, or rows, with the new ones in the place of those that give way."""
    if len(old) == 0:
        return new
    return (_join_pieces if len(cuts[0]) <= PIECES_MAX else _join_masked)(old, new, cuts)


def _join_pieces(
    old: npt.NDArray[_Number], new: npt.NDArray[_Number], cuts: Cuts
) -> npt.NDArray[_Number]:
    pieces = []
    old_from = new_from = 0
    for group_low, group_high, new_to in zip(*(each.tolist() for each in cuts), strict=True):
        pieces += [old[old_from:group_low], new[new_from:new_to]]
        old_from, new_from = group_high, new_to
    pieces.append(old[old_from:])
    return np.concatenate(pieces)


def _join_masked(
    old: npt.NDArray[_Number], new: npt.NDArray[_Number], cuts: Cuts
) -> npt.NDArray[_Number]:
    """The same for many cuts: one pass over all elements instead of a copy per stretch."""
    group_low, group_high, followers = cuts
    gone = group_high - group_low
    is_kept = np.ones(len(old), dtype=np.bool_)
    is_kept[expand(group_low, gone)] = False
    kept_before = group_low - (np.cumsum(gone) - gone)
    counts = np.diff(followers, prepend=0)
    joined = np.empty((len(old) - int(gone.sum()) + len(new), *old.shape[1:]), dtype=old.dtype)
    is_old = np.ones(len(joined), dtype=np.bool_)
    is_old[np.repeat(kept_before, counts) + np.arange(len(new), dtype=np.int64)] = False
    joined[~is_old] = new
    joined[is_old] = old[is_kept]
    return joined
