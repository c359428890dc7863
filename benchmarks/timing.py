"""Timing of short calls: the best of several, because noise only ever adds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best_ms(work: Callable[[], Any], *, repeats: int = 15) -> float:
    """Shortest wall time of one call in milliseconds."""
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter_ns()
        work()
        best = min(best, time.perf_counter_ns() - started)
    return best / 1e6
