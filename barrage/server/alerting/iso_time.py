"""Nanoseconds since the epoch as ISO 8601 in UTC, to the last digit."""

from __future__ import annotations

from datetime import UTC, datetime

_NANOS_PER_S = 1_000_000_000


def iso_time(wall_ns: int) -> str:
    """``2026-01-31T12:30:00.123456789Z``."""
    seconds, nanos = divmod(wall_ns, _NANOS_PER_S)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"
