"""Times in quotes: ``'2026-01-01T09:30:00Z'``, ``'2026-01-01'``, ``'09:30'``.

Accepted of Deephaven's forms are those with one meaning: ISO 8601 with ``Z``, `` UTC`` or an
offset. Names of time zones are not.
"""

from __future__ import annotations

import datetime
import re

_INSTANT = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[Tt](?P<clock>\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?)"
    r"(?:[Zz]|[ ]UTC|(?P<sign>[+-])(?P<hours>\d\d):(?P<minutes>\d\d))",
    re.ASCII,
)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
_EPOCH = datetime.date(1970, 1, 1)
_DAY_NANOS = 86_400 * 10**9
_INT64_MAX = 2**63 - 1
_OFFSET_MINUTES_MAX = 18 * 60


def instant_of(text: str) -> int | None:
    """Nanoseconds since 1970; None when the text is no instant, or none of 64 bits."""
    match = _INSTANT.fullmatch(text)
    if match is None:
        return None
    days = _days_of(match["date"])
    nanos = clock_of(match["clock"])
    if days is None or nanos is None:
        return None
    offset = int(match["hours"] or 0) * 60 + int(match["minutes"] or 0)
    if offset > _OFFSET_MINUTES_MAX or int(match["minutes"] or 0) > 59:
        return None
    east = -offset if match["sign"] == "-" else offset
    instant = days * _DAY_NANOS + nanos - east * 60 * 10**9
    return instant if -_INT64_MAX <= instant <= _INT64_MAX else None


def date_of(text: str) -> int | None:
    """Milliseconds since 1970 of the day's start; None when the text is no date."""
    days = _days_of(text)
    return None if days is None else days * 86_400_000


def _days_of(text: str) -> int | None:
    if _DATE.fullmatch(text) is None:
        return None
    try:
        return (datetime.date.fromisoformat(text) - _EPOCH).days
    except ValueError:
        return None


def clock_of(text: str) -> int | None:
    """Nanoseconds since midnight; None when the text is no time of day."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    fraction = int((match[4] or "").ljust(9, "0"))
    return ((hours * 60 + minutes) * 60 + seconds) * 10**9 + fraction
