"""Cells as people write them: texts made values of a column's type, exactly or not at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import RowError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = pa.types

# U+2212 is the minus that pages write before negative durations.
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?")
_SPAN = re.compile(r"([-\u2212]?)(?:(\d{1,6})d ?)?(\d{1,7}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?")
_INFINITE = re.compile(r"[-+\u2212]?inf(inity)?|[-\u2212]?∞", re.IGNORECASE)
_ZONE = re.compile(r"(Z|[-+]\d{2}:?\d{2})$", re.IGNORECASE)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DATE_CHARS = len("2026-01-31")
_SHOWN_CHARS = 60


def cell_of_text(text: str | None, field: pa.Field) -> pa.Array:
    """A column of one cell: what ``text`` says in the type of ``field``, None for null. RowError,
    which names the column and what it takes."""
    if text is None:
        if not field.nullable:
            raise RowError("null is not allowed", column=field.name)
        return pa.nulls(1, field.type)
    kind = field.type
    plain = kind.value_type if _T.is_dictionary(kind) else kind
    try:
        cell = _cell(text, plain)
        cell.validate(full=True)
        return cell if plain is kind else cell.cast(kind)
    except (pa.ArrowException, ValueError, OverflowError):
        shown = text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
        raise RowError(f"{shown!r} is no {_wanted(plain)}", column=field.name) from None


def is_text_cell(kind: pa.DataType) -> bool:
    """Whether cells of this type can be written as text."""
    plain = kind.value_type if _T.is_dictionary(kind) else kind
    return _reader(plain) is not None


def _cell(text: str, kind: pa.DataType) -> pa.Array:
    read = _reader(kind)
    if read is None:
        raise ValueError(kind)
    return read(text, kind)


def _reader(kind: pa.DataType) -> Callable[[str, pa.DataType], pa.Array] | None:
    for matches, read in _READERS:
        if matches(kind):
            return read
    return None


def _text(text: str, kind: pa.DataType) -> pa.Array:
    return pa.array([text], kind)


def _boolean(text: str, kind: pa.DataType) -> pa.Array:
    plain = text.strip().lower()
    if plain not in ("true", "false"):
        raise ValueError(text)
    return pa.array([plain == "true"], kind)


def _number(text: str, kind: pa.DataType) -> pa.Array:
    plain = text.strip()
    if not re.fullmatch(r"[-+]?\d+", plain):
        raise ValueError(text)
    return pa.array([int(plain)], kind)


def _real(text: str, kind: pa.DataType) -> pa.Array:
    plain = text.strip()
    if "_" in plain:  # Python's own, which no other kind of number takes.
        raise ValueError(text)
    cell = pa.array([float(plain.replace("\u2212", "-").replace("∞", "inf"))]).cast(kind)
    if cell[0].as_py() in (float("inf"), float("-inf")) and not _INFINITE.fullmatch(plain):
        raise OverflowError(text)
    return cell


def _by_arrow(text: str, kind: pa.DataType) -> pa.Array:
    return pa.array([text.strip()]).cast(kind)


def _moment(text: str, kind: pa.DataType) -> pa.Array:
    """Without a zone in the text it is UTC; for a column without one, Z may be written."""
    plain = text.strip()
    if kind.tz is None:
        plain = plain.removesuffix("Z")
    if kind.tz is not None and not _ZONE.search(plain[_DATE_CHARS:]):
        plain += "Z" if len(plain) > _DATE_CHARS else " 00:00Z"
    return pa.array([plain]).cast(kind)


def _clock(text: str, kind: pa.DataType) -> pa.Array:
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[:3])
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ValueError(text)
    count = _scaled(hours * 3600 + minutes * 60 + seconds, found[4], kind.unit)
    return pa.array([count], pa.int32() if _T.is_time32(kind) else pa.int64()).cast(kind)


def _span(text: str, kind: pa.DataType) -> pa.Array:
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:5])
    whole = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    count = _scaled(whole, found[6], kind.unit)
    return pa.array([-count if found[1] else count], pa.int64()).cast(kind)


def _scaled(seconds: int, digits: str | None, unit: str) -> int:
    """Of the unit; ValueError for digits that it cannot hold."""
    nanos = int((digits or "").ljust(9, "0"))
    count, rest = divmod(nanos * _PER_SECOND[unit], 10**9)
    if rest:
        raise ValueError(digits)
    return seconds * _PER_SECOND[unit] + count


def _bytes(text: str, kind: pa.DataType) -> pa.Array:
    plain = text.strip()
    if not plain.startswith("0x"):
        raise ValueError(text)
    return pa.array([bytes.fromhex(plain[2:])], kind)


_READERS: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[str, pa.DataType], pa.Array]], ...
] = (
    (_T.is_string, _text),
    (_T.is_large_string, _text),
    (_T.is_boolean, _boolean),
    (_T.is_integer, _number),
    (_T.is_floating, _real),
    (_T.is_decimal, _by_arrow),
    (_T.is_timestamp, _moment),
    (_T.is_date, _by_arrow),
    (_T.is_time, _clock),
    (_T.is_duration, _span),
    (_T.is_binary, _bytes),
    (_T.is_large_binary, _bytes),
    (_T.is_fixed_size_binary, _bytes),
)

_EXAMPLES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_T.is_boolean, "true or false"),
    (_T.is_timestamp, "as 2026-01-31 12:30:00"),
    (_T.is_date, "as 2026-01-31"),
    (_T.is_time, "as 12:30:00"),
    (_T.is_duration, "as 1d 02:30:00"),
    (_T.is_binary, "as 0x00ff"),
)


def _wanted(kind: pa.DataType) -> str:
    example = next((shown for matches, shown in _EXAMPLES if matches(kind)), None)
    return str(kind) if example is None else f"{kind}, {example}"
