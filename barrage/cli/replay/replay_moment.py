"""Moments as people write them: a step, a cursor, a time, or how long ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from barrage.cli.command_errors import usage_error
from barrage.errors import CursorError
from barrage.model.cursor import VERSION_MAX, Cursor

if TYPE_CHECKING:
    from barrage.client.tables.history import Moment

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO = re.compile(
    r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*"
    r"(s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)(?:\s+ago)?"
)
EXAMPLES = "1234, '2026-03-01 12:00', '10 minutes ago' or 90s"


def parse_moment(text: str, *, option: str, now: datetime) -> Moment:
    """What ``text`` means at ``now``; a usage error when it means nothing. Times without a zone
    are local."""
    words = text.strip()
    if words.isascii() and words.isdigit():
        step = int(words)
        if step > VERSION_MAX:
            raise usage_error(f"{option} {text}: there is no such step")
        return step
    if match := _AGO.fullmatch(words.lower()):
        seconds = float(match[1]) * _UNITS[match[2][0]]
        try:
            return now.astimezone(UTC) - timedelta(seconds=seconds)
        except OverflowError:
            raise usage_error(f"{option} {text}: that is too long ago") from None
    if words.lower() == "now":
        return now.astimezone(UTC)
    try:
        return Cursor.parse(words)
    except CursorError:
        pass
    try:
        return datetime.fromisoformat(words)
    except ValueError:
        raise usage_error(
            f"{option} {text!r}: neither a step nor a time; write for example {EXAMPLES}"
        ) from None


def parse_speed(text: str) -> float:
    """``4``, ``0.5``, ``max`` or ``inf``; a usage error for what is no speed."""
    words = text.strip().lower()
    if words in ("max", "inf"):
        return float("inf")
    try:
        speed = float(words.removesuffix("x"))
    except ValueError:
        speed = float("nan")
    if not speed > 0:
        raise usage_error(f"--speed {text}: must be a number greater than 0, or max")
    return speed
