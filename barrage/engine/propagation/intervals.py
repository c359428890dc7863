"""How often subscribers are told: those of equal (rounded) interval form a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.limits import NANOS_PER_MS

if TYPE_CHECKING:
    from barrage.limits import Limits

COARSE_INTERVAL_NS = 1000 * NANOS_PER_MS
"""Intervals from here on are rounded up to tenths of a second, shorter ones to
``limits.interval_ns_min``."""

EACH_STEP_NS = 1
"""The interval of who is told every step by itself, as soon as it is committed."""


JITTER_DIVISOR = 8
"""A group's next propagation counts from when the last one was due, up to interval / 8 before it
really happened. Otherwise every late cycle would move all later ones, and the rate would drop below
what was asked for."""


@dataclass(slots=True)
class IntervalGroup:
    """Subscribers of one interval. ``round`` counts its propagations."""

    interval_ns: int
    last_ns: int
    members: int = 0
    round: int = 0
    is_pending: bool = False

    @property
    def due_ns(self) -> int:
        return self.last_ns + self.interval_ns


def rounded_interval_ns(interval_ns: int, limits: Limits) -> int:
    """The interval a subscriber gets: the default for 0, never below the minimum, rounded up so
    that few differ. :data:`EACH_STEP_NS` stays."""
    if interval_ns == EACH_STEP_NS:
        return interval_ns
    if interval_ns <= 0:
        interval_ns = limits.interval_ns_default
    quantum = max(limits.interval_ns_min, 1)
    if interval_ns > COARSE_INTERVAL_NS:
        quantum = max(quantum, 100 * NANOS_PER_MS)
    return max(1, -(-interval_ns // quantum)) * quantum
