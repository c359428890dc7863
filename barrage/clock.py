"""Clocks. The core takes ``now_ns`` as an argument; only server, client and transport hold a
Clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Source of time in nanoseconds."""

    def monotonic_ns(self) -> int:
        """Nanoseconds that never go back; only differences mean anything."""
        ...

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch, UTC."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def wall_ns(self) -> int:
        return time.time_ns()


class VirtualClock:
    """A clock that stands still until it is told to move; for tests and simulation."""

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
