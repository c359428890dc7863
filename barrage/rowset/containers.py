"""Fragmented sets of keys as numpy arrays: what compressed bitmaps are made of and looked up in.

Keys are cut at multiples of 65,536, as Roaring does it (RoaringFormatSpec). The keys of one such
stretch are a *container* in one of three forms: an *array* of up to 4,096 low halves, a *bitmap* of
1,024 words, or *runs* of a first low half and a length. All containers of one form stand together,
so that every lookup of many keys or positions is a few passes over arrays.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from barrage.rowset import words64
from barrage.rowset.arrays import NO_RANGES, as_singles, from_sorted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.rowset.arrays import BoolArray, Int64Array, RangeList

    _Lookup = Callable[[Int64Array, Int64Array], npt.NDArray[Any]]

HalfArray: TypeAlias = npt.NDArray[np.uint16]
WordArray: TypeAlias = npt.NDArray[np.uint64]
KindArray: TypeAlias = npt.NDArray[np.uint8]

ARRAY: Final = 0
BITMAP: Final = 1
RUNS: Final = 2

KEY_BITS: Final = 16
STRETCH: Final = 1 << KEY_BITS
LOW: Final = STRETCH - 1
ARRAY_KEYS_MAX: Final = 4096
"""More keys of one container are a bitmap, unless they are runs; the format knows them by it."""

WORDS: Final = STRETCH // 64
BITMAP_BYTES: Final = STRETCH // 8

_WORDS_PER_LOOKUP: Final = 64
"""With so many words of bitmaps for each lookup, or fewer, all words are prepared at once."""


class Containers:
    """An immutable set of keys. Arrays by container, ascending: ``highs`` (key >> 16), ``kinds``,
    ``slots`` (where it starts in the arrays of its kind: the first of ``halves``,
    the row of ``words``, the first of ``run_firsts``), ``lengths`` (low halves or runs).

    ``run_spans`` are lengths of runs less one.
    """

    def __init__(
        self,
        highs: Int64Array,
        kinds: KindArray,
        sizes: Int64Array,
        *,
        lengths: Int64Array,
        halves: HalfArray,
        words: WordArray,
        run_firsts: HalfArray,
        run_spans: HalfArray,
    ) -> None:
        self.highs = highs
        self.kinds = kinds
        self.lengths = lengths
        self.halves = halves
        self.words = words
        self.run_firsts = run_firsts
        self.run_spans = run_spans
        self.before: Int64Array = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
        """Keys in front of each container, and of all together."""
        self.size = int(self.before[-1])
        slots = np.empty(len(highs), dtype=np.int64)
        for kind in (ARRAY, BITMAP, RUNS):
            is_kind = kinds == kind
            steps = np.ones(len(highs), dtype=np.int64) if kind == BITMAP else lengths
            of_kind = steps[is_kind]
            slots[is_kind] = np.cumsum(of_kind) - of_kind
        self.slots: Int64Array = slots
        self._only_kind = int(kinds[0]) if len(kinds) and (kinds == kinds[0]).all() else None
        self._word_counts: HalfArray | None = None
        self._run_before: HalfArray | None = None
        # Python's own bisect walks a view faster than numpy looks up one number.
        self._views = _Views(self)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, those made for lookups included."""
        made = [each.nbytes for each in (self._word_counts, self._run_before) if each is not None]
        numbers = (self.highs, self.lengths, self.before, self.slots)
        content = self.content_nbytes + self.kinds.nbytes + sum(each.nbytes for each in numbers)
        return content + sum(made)

    @property
    def content_nbytes(self) -> int:
        """Bytes of what is in the containers."""
        halves = self.halves.nbytes + self.run_firsts.nbytes + self.run_spans.nbytes
        return self.words.nbytes + halves

    def bare(self) -> Containers:
        """The same without what is made for lookups."""
        if self._word_counts is None and self._run_before is None:
            return self
        return Containers(
            self.highs,
            self.kinds,
            np.diff(self.before),
            lengths=self.lengths,
            halves=self.halves,
            words=self.words,
            run_firsts=self.run_firsts,
            run_spans=self.run_spans,
        )

    # Made on first use; two threads may both make one, and either is as good.

    @property
    def word_counts(self) -> HalfArray:
        """Keys in front of each word of its bitmap, all in one row."""
        if self._word_counts is None:
            self._word_counts = self._counted_words()
        return self._word_counts

    def _counted_words(self) -> HalfArray:
        counts = words64.bit_counts(self.words)
        before: HalfArray = np.cumsum(counts, axis=1, dtype=np.uint16)
        before -= counts
        return before.reshape(-1)

    @property
    def run_before(self) -> HalfArray:
        """Keys in front of each run of its container."""
        if self._run_before is None:
            self._run_before = self._counted_runs()
        return self._run_before

    def _counted_runs(self) -> HalfArray:
        sizes = self.run_spans.astype(np.int64) + 1
        before = np.cumsum(sizes) - sizes
        is_runs = self.kinds == RUNS
        starts, lengths = self.slots[is_runs], self.lengths[is_runs]
        counts: HalfArray = (before - np.repeat(before[starts], lengths)).astype(np.uint16)
        return counts

    # -- one key or position ----------------------------------------------------------------------

    def rank(self, key: int) -> int:
        """How many keys are smaller than ``key``, which is not negative."""
        views = self._views
        high = key >> KEY_BITS
        at = bisect_left(views.highs, high)
        before = views.before[at]
        if at == len(views.highs) or views.highs[at] != high:
            return before
        low, slot = key & LOW, views.slots[at]
        kind = views.kinds[at]
        if kind == ARRAY:
            stop = slot + views.lengths[at]
            return before + bisect_left(views.halves, low, slot, stop) - slot
        if kind == RUNS:
            return before + self._rank_in_runs(slot, slot + views.lengths[at], low)
        index = slot * WORDS + (low >> 6)
        word: int = views.words[index] & ((1 << (low & 63)) - 1)
        counts = views.word_counts or self._count_view()
        return before + counts[index] + word.bit_count()

    def _count_view(self) -> memoryview:
        counts = self._views.word_counts = self.word_counts.data
        return counts

    def _rank_in_runs(self, start: int, stop: int, low: int) -> int:
        run = bisect_right(self._views.run_firsts, low, start, stop) - 1
        if run < start:
            return 0
        inside = min(low - self._views.run_firsts[run], int(self.run_spans[run]) + 1)
        return int(self.run_before[run]) + inside

    def select(self, position: int) -> int:
        """The key at a position, which exists."""
        views = self._views
        at = bisect_right(views.before, position) - 1
        within = position - views.before[at]
        base, slot = views.highs[at] << KEY_BITS, views.slots[at]
        kind = views.kinds[at]
        if kind == ARRAY:
            return base + views.halves[slot + within]
        if kind == BITMAP:
            start = slot * WORDS
            counts = views.word_counts or self._count_view()
            word = bisect_right(counts, within, start, start + WORDS) - 1
            place = words64.select_bit(views.words[word], within - counts[word])
            return base + 64 * (word - start) + place
        stop = slot + views.lengths[at]
        run = slot + int(self.run_before[slot:stop].searchsorted(within, "right")) - 1
        return base + views.run_firsts[run] + within - int(self.run_before[run])

    # -- many -------------------------------------------------------------------------------------

    def _located(self, keys: Int64Array) -> tuple[Int64Array, BoolArray]:
        """The container that holds the stretch of each key, or would be in front of it, and
        whether it does hold it."""
        highs = keys >> KEY_BITS
        at = np.searchsorted(self.highs, highs)
        np.minimum(at, len(self.highs) - 1, out=at)
        return at, self.highs[at] == highs

    def contains_many(self, keys: Int64Array) -> BoolArray:
        """Whether each key is in the set."""
        at, is_known = self._located(keys)
        forms = (self._array_contains, self._bitmap_contains, self._runs_contain)
        found: BoolArray = self._by_kind(forms, at, keys & LOW).astype(np.bool_, copy=False)
        found &= is_known
        return found

    def _by_kind(
        self, forms: Sequence[_Lookup], at: Int64Array, numbers: Int64Array
    ) -> npt.NDArray[Any]:
        """What the form of each container ``at`` says of a number."""
        if self._only_kind is not None:
            return forms[self._only_kind](at, numbers)
        answers = np.empty(len(at), dtype=np.int64)
        kinds = self.kinds[at]
        for kind, form in enumerate(forms):
            asked = np.flatnonzero(kinds == kind)
            if len(asked):
                answers[asked] = form(at[asked], numbers[asked])
        return answers

    def _array_contains(self, at: Int64Array, lows: Int64Array) -> BoolArray:
        index = self.slots[at] + _lower_bounds(
            self.halves, self.slots[at], self.lengths[at], wanted=lows
        )
        is_in: BoolArray = index < self.slots[at] + self.lengths[at]
        index[~is_in] = 0
        is_in &= self.halves[index] == lows
        return is_in

    def _bitmap_contains(self, at: Int64Array, lows: Int64Array) -> BoolArray:
        words = self.words[self.slots[at], lows >> 6]
        return words64.bits_at(words, lows & 63)

    def _runs_contain(self, at: Int64Array, lows: Int64Array) -> BoolArray:
        runs = self._runs_of(at, lows)
        index = np.maximum(runs, 0)
        is_in: BoolArray = lows - self.run_firsts[index] <= self.run_spans[index]
        return is_in & (runs >= 0)

    def _runs_of(self, at: Int64Array, lows: Int64Array) -> Int64Array:
        """The last run that starts at or before each low half, -1 when there is none."""
        slots = self.slots[at]
        runs = _lower_bounds(self.run_firsts, slots, self.lengths[at], wanted=lows + 1) - 1
        return np.where(runs < 0, -1, slots + runs)

    def rank_many(self, keys: Int64Array) -> Int64Array:
        """`rank` of each key; 0 for negative ones."""
        highs = keys >> KEY_BITS
        at = np.searchsorted(self.highs, highs)
        before: Int64Array = self.before[at]
        np.minimum(at, len(self.highs) - 1, out=at)
        # In a stretch without keys, all of it lies behind what is in front.
        lows = np.where(self.highs[at] == highs, keys & LOW, 0)
        forms = (self._array_ranks, self._bitmap_ranks, self._run_ranks)
        ranks: Int64Array = before + self._by_kind(forms, at, lows)
        return ranks

    def _array_ranks(self, at: Int64Array, lows: Int64Array) -> Int64Array:
        return _lower_bounds(self.halves, self.slots[at], self.lengths[at], wanted=lows)

    def _bitmap_ranks(self, at: Int64Array, lows: Int64Array) -> Int64Array:
        slots, words = self.slots[at], lows >> 6
        below = words64.bits_below(self.words[slots, words], lows & 63)
        return self.word_counts[slots * WORDS + words].astype(np.int64) + below

    def _run_ranks(self, at: Int64Array, lows: Int64Array) -> Int64Array:
        runs = self._runs_of(at, lows)
        index = np.maximum(runs, 0)
        inside = np.minimum(
            lows - self.run_firsts[index], self.run_spans[index].astype(np.int64) + 1
        )
        return np.where(runs < 0, 0, self.run_before[index] + inside)

    def select_many(self, positions: Int64Array) -> Int64Array:
        """The key at each position; all exist."""
        at = np.searchsorted(self.before, positions, side="right") - 1
        within = positions - self.before[at]
        forms = (self._array_selects, self._bitmap_selects, self._run_selects)
        keys: Int64Array = (self.highs[at] << KEY_BITS) + self._by_kind(forms, at, within)
        return keys

    def _array_selects(self, at: Int64Array, within: Int64Array) -> Int64Array:
        keys: Int64Array = self.halves[self.slots[at] + within].astype(np.int64)
        return keys

    def _bitmap_selects(self, at: Int64Array, within: Int64Array) -> Int64Array:
        counts, starts = self.word_counts, self.slots[at] * WORDS
        if len(at) * _WORDS_PER_LOOKUP >= len(counts):
            # Numbers that ascend over all words together, for one search without steps.
            every = np.repeat(np.arange(len(self.words), dtype=np.int64) << KEY_BITS + 1, WORDS)
            every += counts
            wanted = within + (self.slots[at] << KEY_BITS + 1)
            words = np.searchsorted(every, wanted, side="right") - 1
        else:
            lengths = np.full(len(at), WORDS, dtype=np.int64)
            words = starts + _lower_bounds(counts, starts, lengths, wanted=within + 1) - 1
        rest = within - counts[words]
        return (words - starts) * 64 + words64.select_bits(self.words.reshape(-1)[words], rest)

    def _run_selects(self, at: Int64Array, within: Int64Array) -> Int64Array:
        slots = self.slots[at]
        runs = (
            slots + _lower_bounds(self.run_before, slots, self.lengths[at], wanted=within + 1) - 1
        )
        keys: Int64Array = self.run_firsts[runs] + (within - self.run_before[runs])
        return keys

    # -- all of it --------------------------------------------------------------------------------

    def ranges(self) -> RangeList:
        """All keys as maximal ranges."""
        parts = (self._array_ranges(), self._bitmap_ranges(), self._ranges_of_runs())
        found = [part for part in parts if len(part[0])]
        firsts, lasts = found[0]
        if len(found) > 1:
            firsts = np.concatenate([part[0] for part in found])
            lasts = np.concatenate([part[1] for part in found])
            order = np.argsort(firsts, kind="stable")
            firsts, lasts = firsts[order], lasts[order]
        return as_singles(*_joined_at_borders(firsts, lasts))

    def _bases(self, kind: int) -> Int64Array:
        bases: Int64Array = self.highs[self.kinds == kind] << KEY_BITS
        return bases

    def _each_base(self, kind: int) -> Int64Array:
        return np.repeat(self._bases(kind), self.lengths[self.kinds == kind])

    def _array_ranges(self) -> RangeList:
        return from_sorted(self._each_base(ARRAY) + self.halves)

    def _ranges_of_runs(self) -> RangeList:
        firsts = self._each_base(RUNS) + self.run_firsts
        return firsts, firsts + self.run_spans

    def _bitmap_ranges(self) -> RangeList:
        bases = self._bases(BITMAP)
        if len(bases) == 0:
            return bases, bases
        firsts, lasts = words64.turns(self.words)
        moves = bases - (np.arange(len(bases), dtype=np.int64) << KEY_BITS)
        moved = moves[0] if moves[0] == moves[-1] else moves[firsts >> KEY_BITS]
        return firsts + moved, lasts + moved

    def range_count(self) -> int:
        """How many maximal ranges."""
        count = len(self.run_firsts) + words64.start_count(self.words)
        if len(self.halves):
            is_start = np.ones(len(self.halves), dtype=np.bool_)
            np.not_equal(np.diff(self.halves), 1, out=is_start[1:])
            is_start[self.slots[self.kinds == ARRAY]] = True
            count += int(np.count_nonzero(is_start))
        return count - self._crossing_count()

    def _crossing_count(self) -> int:
        """How many ranges go on from one container into the next, by one for each such step."""
        has_first = np.empty(len(self.highs), dtype=np.bool_)
        has_last = np.empty(len(self.highs), dtype=np.bool_)
        is_array, is_runs = self.kinds == ARRAY, self.kinds == RUNS
        has_first[self.kinds == BITMAP] = self.words[:, 0] & words64.ONE
        has_last[self.kinds == BITMAP] = self.words[:, -1] >> words64.TOP
        starts, stops = self.slots[is_array], (self.slots + self.lengths)[is_array]
        has_first[is_array] = self.halves[starts] == 0
        has_last[is_array] = self.halves[stops - 1] == LOW
        starts, stops = self.slots[is_runs], (self.slots + self.lengths)[is_runs]
        has_first[is_runs] = self.run_firsts[starts] == 0
        last_run = stops - 1
        has_last[is_runs] = self.run_firsts[last_run] + self.run_spans[last_run] == LOW
        is_next = self.highs[1:] == self.highs[:-1] + 1
        return int(np.count_nonzero(is_next & has_last[:-1] & has_first[1:]))

    def part(self, first: int, last: int) -> Containers | None:
        """Those containers whose stretches have keys ``first`` to ``last``, whole; None for
        none."""
        start = bisect_left(self._views.highs, first >> KEY_BITS)
        stop = bisect_right(self._views.highs, last >> KEY_BITS)
        if start >= stop:
            return None
        kinds, lengths = self.kinds[start:stop], self.lengths[start:stop]
        of_kind = []
        for kind in (ARRAY, BITMAP, RUNS):
            index = np.flatnonzero(kinds == kind)
            step = np.ones_like(lengths) if kind == BITMAP else lengths
            begin, end = (index[0], index[-1]) if len(index) else (0, -1)
            slots = self.slots[start:stop]
            of_kind.append(slice(slots[begin], slots[end] + step[end]) if len(index) else slice(0))
        return Containers(
            self.highs[start:stop].copy(),
            kinds.copy(),
            np.diff(self.before[start : stop + 1]),
            lengths=lengths.copy(),
            halves=self.halves[of_kind[ARRAY]].copy(),
            words=self.words[of_kind[BITMAP]].copy(),
            run_firsts=self.run_firsts[of_kind[RUNS]].copy(),
            run_spans=self.run_spans[of_kind[RUNS]].copy(),
        )

    def ranges_between(self, first: int, last: int) -> RangeList:
        """Maximal ranges of the keys in a closed range: a step for each container in it."""
        views = self._views
        start = bisect_left(views.highs, first >> KEY_BITS)
        stop = bisect_right(views.highs, last >> KEY_BITS)
        parts = []
        for at in range(start, stop):
            base = views.highs[at] << KEY_BITS
            firsts, lasts = self._ranges_in(at, max(first - base, 0), min(last - base, LOW))
            parts.append((firsts + base, lasts + base))
        if len(parts) < 2:
            return as_singles(*parts[0]) if parts else NO_RANGES
        firsts = np.concatenate([part[0] for part in parts])
        lasts = np.concatenate([part[1] for part in parts])
        return as_singles(*_joined_at_borders(firsts, lasts))

    def _ranges_in(self, at: int, low: int, high: int) -> RangeList:
        """Ranges of the low halves ``low`` to ``high`` of one container."""
        views = self._views
        start, stop = views.slots[at], views.slots[at] + views.lengths[at]
        if views.kinds[at] == ARRAY:
            begin = bisect_left(views.halves, low, start, stop)
            end = bisect_right(views.halves, high, start, stop)
            return from_sorted(self.halves[begin:end].astype(np.int64))
        if views.kinds[at] == BITMAP:
            words = self.words[start : start + 1, low >> 6 : (high >> 6) + 1].copy()
            words[0, 0] &= np.uint64((2**64 - 1) << (low & 63) & (2**64 - 1))
            words[0, -1] &= np.uint64((2 << (high & 63)) - 1)
            firsts, lasts = words64.turns(words)
            return firsts + (low & ~63), lasts + (low & ~63)
        begin = max(bisect_right(views.run_firsts, low, start, stop) - 1, start)
        end = bisect_right(views.run_firsts, high, start, stop)
        firsts = self.run_firsts[begin:end].astype(np.int64)
        lasts = np.minimum(firsts + self.run_spans[begin:end], high)
        is_in = lasts >= low
        return np.maximum(firsts, low)[is_in], lasts[is_in]


class _Views:
    """Arrays of containers as sequences of Python integers."""

    __slots__ = (
        "before",
        "halves",
        "highs",
        "kinds",
        "lengths",
        "run_firsts",
        "slots",
        "word_counts",
        "words",
    )

    def __init__(self, of: Containers) -> None:
        self.highs = of.highs.data
        self.before = of.before.data
        self.kinds = of.kinds.data
        self.slots = of.slots.data
        self.lengths = of.lengths.data
        self.halves = of.halves.data
        self.run_firsts = of.run_firsts.data
        self.words = of.words.reshape(-1).data
        self.word_counts: memoryview | None = None


def _joined_at_borders(firsts: Int64Array, lasts: Int64Array) -> RangeList:
    """Ascending ranges; those that touch where one stretch ends and the next begins as one."""
    at_border = np.flatnonzero((lasts[:-1] & LOW) == LOW)
    joined = at_border[firsts[at_border + 1] == lasts[at_border] + 1]
    if len(joined) == 0:
        return firsts, lasts
    return np.delete(firsts, joined + 1), np.delete(lasts, joined)


def _lower_bounds(
    values: npt.NDArray[np.unsignedinteger] | Int64Array,
    starts: Int64Array,
    lengths: Int64Array,
    *,
    wanted: Int64Array,
) -> Int64Array:
    """For each of ``wanted`` how many of the ascending ``values[start : start + length]`` are
    smaller; no length is 0. One binary search for all: in every step the upper part of each stretch
    goes on, unless the element in front of it is not smaller."""
    found, rest = starts.copy(), lengths.copy()
    for _ in range((int(lengths.max(initial=1)) - 1).bit_length()):
        half = rest >> 1
        half *= values.take(found + half - 1) < wanted
        found += half
        rest -= rest >> 1
    found += values.take(found) < wanted
    found -= starts
    return found
