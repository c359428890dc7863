"""Whether something grows in a series of samples.

After the first third, which is warm-up, the last third is compared with the middle one: their
medians may differ by a share and an allowance. So a leak of more than that within a third of the
run is seen, whatever the waves of the load; and the straight line through the last two thirds says
how much it would be in an hour.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bound:
    """How far the median of the last third may be above that of the middle third."""

    allowance: float
    share: float = 0.0


BOUNDS = {
    # The allocator keeps up to 64 MiB (``spare_memory_bytes_max``) for nobody, so that much is no
    # leak; what is in use is looked at more closely.
    "rss_bytes": Bound(64 * MIB),
    "pss_bytes": Bound(64 * MIB),
    "heap_bytes": Bound(4 * MIB, 0.04),
    "arrow_bytes": Bound(8 * MIB, 0.1),
    "arena_bytes": Bound(8 * MIB, 0.1),
    "threads": Bound(4),
    "descriptors": Bound(16),
    "tasks": Bound(16),
    "blocks": Bound(200_000, 0.05),
}


def judged(samples: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of each thing with a bound: what it was, and whether that is too much."""
    third = len(samples) // 3
    if third < 2:
        raise ValueError(f"{len(samples)} samples are too few to see a trend")
    middle, last = samples[third : 2 * third], samples[2 * third :]
    verdict = {}
    for name, bound in BOUNDS.items():
        before = statistics.median(sample[name] for sample in middle)
        after = statistics.median(sample[name] for sample in last)
        most = before * (1 + bound.share) + bound.allowance
        verdict[name] = {
            "middle": before,
            "last": after,
            "per_hour": _slope([*middle, *last], name) * 3600,
            "largest": max(sample[name] for sample in samples),
            "most": most,
            "is_flat": after <= most,
        }
    return verdict


def _slope(samples: Sequence[dict[str, Any]], name: str) -> float:
    seconds = [sample["seconds"] for sample in samples]
    return statistics.linear_regression(seconds, [sample[name] for sample in samples]).slope
