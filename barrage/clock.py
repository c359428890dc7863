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
