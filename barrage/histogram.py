"""How often something took how long: counts by fixed bounds, in a few machine words.

One thread adds; any thread reads, and may find an observation counted whose time is not added yet.
Cost: about half a microsecond an observation, whatever was observed before.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

_NANOS_PER_S = 1_000_000_000

BOUNDS_NS = tuple(
    round(factor * 10**power) for power in range(4, 11) for factor in (1.0, 2.5, 5.0)
)[3:]
"""From 0.1 ms to 50 s, three for each factor of ten."""

BOUNDS_S = tuple(bound / _NANOS_PER_S for bound in BOUNDS_NS)


class Histogram:
    """Observed durations since the start."""

    __slots__ = ("counts", "longest_ns", "total_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        """By bound: how many were at most so long and longer than the bound before; the last one
        is of those beyond all bounds."""
        self.total_ns = 0
        self.longest_ns = 0

    def observe(self, took_ns: int, count: int = 1) -> None:
        """Something took so long, ``count`` times."""
        took_ns = max(0, took_ns)
        self.counts[bisect_left(BOUNDS_NS, took_ns)] += count
        self.total_ns += took_ns * count
        self.longest_ns = max(self.longest_ns, took_ns)

    def taken(self) -> HistogramReading:
        """What it says now."""
        return HistogramReading(tuple(self.counts), self.total_ns, self.longest_ns)


@dataclass(frozen=True, slots=True)
class HistogramReading:
    """A histogram at one moment."""

    counts: tuple[int, ...]
    total_ns: int
    longest_ns: int

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def cumulative(self) -> list[int]:
        """By bound, and beyond all of them: how many were at most so long."""
        counts, total = [], 0
        for count in self.counts:
            total += count
            counts.append(total)
        return counts

    def quantile_s(self, share: float) -> float | None:
        """The bound below which that share of the observations lies, but never more than the
        longest of them; None before the first."""
        cumulative = self.cumulative
        wanted = share * cumulative[-1]
        if not cumulative[-1]:
            return None
        index = next(i for i, count in enumerate(cumulative) if count >= wanted)
        longest_s = self.longest_ns / _NANOS_PER_S
        return min(BOUNDS_S[index], longest_s) if index < len(BOUNDS_S) else longest_s
