"""Nanoseconds since the epoch as ISO 8601 in UTC, to the last digit."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

_NANOS_PER_S = 1_000_000_000


def iso_time(wall_ns: int) -> str:
    """``2026-01-31T12:30:00.123456789Z``."""
    seconds, nanos = divmod(wall_ns, _NANOS_PER_S)
    return f"{_to_the_second(seconds)}.{nanos:09d}Z"


# Ten thousand keys of an alert may end together, which the event loop makes events of in one go.
@lru_cache(maxsize=1024)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
