"""Many small row sets as three arrays, for what is done to all of them at once.

A propagation to thousands of viewports names a few rows in each. As objects they would cost more
than what is done with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from barrage.rowset.arrays import expand, steps_between
from barrage.rowset.row_set import RowSet

if TYPE_CHECKING:
    from barrage.rowset.arrays import Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyRowSets:
    """Set i has the ranges ``firsts[j]`` to ``lasts[j]`` with j from ``stops[i - 1]`` (0 for the
    first set) up to ``stops[i]``; they are maximal and ascend within each set."""

    firsts: Int64Array
    lasts: Int64Array
    stops: Int64Array

    @classmethod
    def of_spans(cls, starts: Int64Array, stops: Int64Array) -> ManyRowSets:
        """One half-open span each; empty where the ends are equal."""
        is_real = starts < stops
        return cls(
            firsts=starts[is_real],
            lasts=stops[is_real] - 1,
            stops=np.cumsum(is_real, dtype=np.int64),
        )

    @classmethod
    def of_windows(
        cls, rows: RowSet, starts: Int64Array, stops: Int64Array, *, bases: Int64Array
    ) -> ManyRowSets:
        """For each half-open window its members of ``rows``, counted from that window's base (<=
        start)."""
        firsts, lasts = rows.range_list
        low = np.searchsorted(lasts, starts, side="left")
        high = np.maximum(np.searchsorted(firsts, stops, side="left"), low)
        counts = np.where(starts < stops, high - low, 0)
        picked = expand(low, counts)
        base = np.repeat(bases, counts)
        # Pieces of maximal ranges are maximal, so nothing is left to check or to merge.
        if firsts is lasts:
            part_firsts = part_lasts = firsts[picked] - base
        else:
            part_firsts = np.maximum(firsts[picked], np.repeat(starts, counts)) - base
            part_lasts = np.minimum(lasts[picked], np.repeat(stops, counts) - 1) - base
        return cls(firsts=part_firsts, lasts=part_lasts, stops=np.cumsum(counts))

    def enclosed(
        self, below: Int64Array, above_starts: Int64Array, above_stops: Int64Array
    ) -> ManyRowSets:
        """Each set with all keys before ``below`` and those of one half-open span above it. Where
        it is not empty, a key is missing between it and either of the two, and between these."""
        has_below, has_above = below > 0, above_starts < above_stops
        counts = self.range_counts
        totals = counts + has_below + has_above
        stops = np.cumsum(totals, dtype=np.int64)
        starts = stops - totals
        firsts = np.zeros(int(totals.sum()), dtype=np.int64)
        lasts = np.empty_like(firsts)
        lasts[starts[has_below]] = below[has_below] - 1
        places = expand(starts + has_below, counts)
        firsts[places], lasts[places] = self.firsts, self.lasts
        ends = stops[has_above] - 1
        firsts[ends], lasts[ends] = above_starts[has_above], above_stops[has_above] - 1
        return ManyRowSets(firsts=firsts, lasts=lasts, stops=stops)

    def __len__(self) -> int:
        return len(self.stops)

    @property
    def range_counts(self) -> Int64Array:
        """Ranges of each set."""
        return steps_between(self.stops)

    @property
    def sizes(self) -> Int64Array:
        """Keys of each set."""
        passed = np.zeros(len(self.firsts) + 1, dtype=np.int64)
        np.cumsum(self.lasts - self.firsts + 1, out=passed[1:])
        return steps_between(passed[self.stops])

    @property
    def first_keys(self) -> Int64Array:
        """The first key of each set; 0 for empty ones."""
        found = np.zeros(len(self.stops), dtype=np.int64)
        counts = self.range_counts
        is_real = counts > 0
        found[is_real] = self.firsts[(self.stops - counts)[is_real]]
        return found

    @property
    def last_keys(self) -> Int64Array:
        """The last key of each set; -1 for empty ones."""
        found = np.full(len(self.stops), -1, dtype=np.int64)
        is_real = self.range_counts > 0
        found[is_real] = self.lasts[self.stops[is_real] - 1]
        return found

    def keys(self) -> Int64Array:
        """All keys, set by set."""
        return expand(self.firsts, self.lasts - self.firsts + 1)

    def __getitem__(self, index: int) -> RowSet:
        start = int(self.stops[index - 1]) if index else 0
        stop = int(self.stops[index])
        return RowSet.from_trusted_ranges(
            self.firsts[start:stop], self.lasts[start:stop], is_touching=False
        )

    def pick(self, which: Int64Array) -> ManyRowSets:
        """Some of the sets, in this order."""
        counts = self.range_counts[which]
        picked = expand(self.stops[which] - counts, counts)
        return ManyRowSets(
            firsts=self.firsts[picked], lasts=self.lasts[picked], stops=np.cumsum(counts)
        )

    def pieces(self) -> list[RowSet]:
        """All sets as objects, which share the arrays; the caller gives them away."""
        return RowSet.trusted_pieces(
            self.firsts, self.lasts, self.stops.tolist(), self.sizes.tolist()
        )
