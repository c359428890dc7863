"""Whether something grows in the samples of a page that stays open.

The first half is warm-up: lines get as long as they may, journals as large. A straight line through
the samples of the second half says what has come in that time.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

MIB = 1024 * 1024
BOUNDS = {
    "heap_bytes": 1 * MIB,
    "buffer_bytes": 1 * MIB,
    "nodes": 200,
    "listeners": 40,
    "documents": 2,
    "server_heap_bytes": 6 * MIB,
    "server_arrow_bytes": 6 * MIB,
    "server_blocks": 50_000,
    "server_tasks": 4,
    "server_threads": 2,
    "server_streams": 1,
}
"""How much may come in the second half, by the straight line."""


def judged(samples: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each thing with a bound: its medians in both halves, what came in the second one, and
    whether that is too much."""
    half = len(samples) // 2
    if half < 3:
        raise ValueError(f"{len(samples)} samples are too few to see a trend")
    first, second = samples[:half], samples[half:]
    seconds = [sample["seconds"] for sample in second]
    verdict = {}
    for name, most in BOUNDS.items():
        seen = [sample[name] for sample in second]
        line = statistics.linear_regression(seconds, seen)
        came = line.slope * (seconds[-1] - seconds[0])
        verdict[name] = {
            "first_half": statistics.median(sample[name] for sample in first),
            "second_half": statistics.median(seen),
            "came": round(came, 1),
            "most": most,
            "is_flat": came <= most,
        }
    return verdict
