"""A clock that stands still until it is told to move."""

from __future__ import annotations


class VirtualClock:
    """Both clocks of :mod:`barrage.clock`, counted from ``start_ns``."""

    def __init__(self, start_ns: int = 0) -> None:
        self._now_ns = start_ns

    def monotonic_ns(self) -> int:
        return self._now_ns

    def wall_ns(self) -> int:
        return self._now_ns

    def advance(self, delta_ns: int) -> None:
        """Move time forward by ``delta_ns`` >= 0."""
        if delta_ns < 0:
            raise ValueError(f"time cannot go back by {-delta_ns} ns")
        self._now_ns += delta_ns
