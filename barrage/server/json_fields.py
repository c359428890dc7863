"""A JSON object from a peer, read field by field, each checked as it is read.

Whatever has not been asked for when :meth:`Fields.finish` is called is a field nobody knows, and
refused: a misspelt option must not be ignored.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from barrage.errors import LimitExceededError, RemoteProtocolError, near_miss
from barrage.model.cursor import EPOCH_CHARS

if TYPE_CHECKING:
    from collections.abc import Iterable

NUMBER_MAX = 2**63 - 1
NAME_CHARS_MAX = 200
"""Longest name a peer may give itself."""

_HEX = frozenset("0123456789abcdef")


class Fields:
    """The fields of one object. ``what`` names it in errors, which are RemoteProtocolError."""

    def __init__(self, fields: dict[str, Any], what: str) -> None:
        self._fields = fields
        self._what = what
        self._asked: set[str] = set()

    @classmethod
    def parse(cls, text: bytes | memoryview, what: str, *, bytes_max: int) -> Fields:
        """LimitExceededError for a text that is longer than ``bytes_max``."""
        if len(text) > bytes_max:
            raise LimitExceededError(what, actual=len(text), maximum=bytes_max, unit="bytes")
        return cls(parse_json_object(bytes(text), what), what)

    def finish(self) -> None:
        """Refuse fields that nobody has asked for."""
        unknown = sorted(self._fields.keys() - self._asked)
        if unknown:
            hint = near_miss(unknown[0], sorted(self._asked))
            raise RemoteProtocolError(f"unknown field {unknown[0][:60]!r} in {self._what}{hint}")

    def value(self, name: str) -> Any:
        """The field as it is; None when it is missing or null."""
        self._asked.add(name)
        return self._fields.get(name)

    def fail(self, name: str, wanted: str) -> RemoteProtocolError:
        """The error for a field that is not what it must be."""
        shown = repr(self._fields.get(name))
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return RemoteProtocolError(f"{name!r} in {self._what} must be {wanted}, not {shown}")

    def number(self, name: str, *, least: int = 0, most: int = NUMBER_MAX) -> int:
        """A whole number that must be there."""
        found = self.optional_number(name, least=least, most=most)
        if found is None:
            raise self.fail(name, f"a whole number from {least} to {most}")
        return found

    def optional_number(self, name: str, *, least: int = 0, most: int = NUMBER_MAX) -> int | None:
        """A whole number, or None."""
        value = self.value(name)
        if value is not None and not is_number(value, least, most):
            raise self.fail(name, f"a whole number from {least} to {most}")
        return None if value is None else int(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.value(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(name, "true or false")
        return value

    def text(self, name: str, *, bytes_max: int) -> str | None:
        """A text, or None."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str) or not _is_unicode(value) or len(value.encode()) > bytes_max:
            raise self.fail(name, f"a text of at most {bytes_max} bytes")
        return value

    def optional_name(self, name: str) -> str | None:
        """A short printable text, or None."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS_MAX:
            raise self.fail(name, f"a text of 1 to {NAME_CHARS_MAX} characters")
        if not value.isprintable():
            raise self.fail(name, "printable text")
        return value

    def name(self, name: str) -> str:
        """A short printable text that must be there."""
        value = self.optional_name(name)
        if value is None:
            raise self.fail(name, f"a text of 1 to {NAME_CHARS_MAX} characters")
        return value

    def optional_epoch(self, name: str = "epoch") -> str | None:
        """An epoch, or None."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, str) or len(value) != EPOCH_CHARS or not _HEX.issuperset(value):
            raise self.fail(name, f"an epoch, {EPOCH_CHARS} hexadecimal digits")
        return value

    def epoch(self, name: str = "epoch") -> str:
        """An epoch that must be there."""
        value = self.optional_epoch(name)
        if value is None:
            raise self.fail(name, f"an epoch, {EPOCH_CHARS} hexadecimal digits")
        return value

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        """One of several words."""
        known = tuple(choices)
        value = self.value(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in known:
            raise self.fail(name, f"one of {', '.join(known)}")
        return value

    def texts(self, name: str, *, count_max: int) -> tuple[str, ...] | None:
        """A list of different texts (or one text), or None."""
        value = self.value(name)
        if value is None:
            return None
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(map(_is_unicode, values)):
            raise self.fail(name, "a list of texts")
        if len(values) > count_max:
            raise LimitExceededError(
                f"{name!r} in {self._what}", actual=len(values), maximum=count_max, unit="texts"
            )
        if len(set(values)) != len(values):
            raise self.fail(name, "a list of different texts")
        return tuple(values)

    def pair(self, name: str) -> tuple[int, int] | None:
        """Two whole numbers that are not negative, or None."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != 2 or not all(map(is_number, value)):
            raise self.fail(name, "two whole numbers")
        return int(value[0]), int(value[1])


def parse_json_object(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object from a peer; RemoteProtocolError when it is none."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{what} is not JSON") from error
    if not isinstance(parsed, dict):
        raise RemoteProtocolError(f"{what} is not a JSON object")
    return parsed


def string_list(command: dict[str, Any], name: str) -> tuple[str, ...]:
    """A list of texts, or one text, under ``name``; empty when it is missing."""
    value = command.get(name)
    values = [value] if isinstance(value, str) else value or []
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise RemoteProtocolError(f"{name!r} must be a list of texts")
    return tuple(values)


def is_number(value: object, least: int = 0, most: int = NUMBER_MAX) -> bool:
    """Whether a JSON value is a whole number within bounds; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _is_unicode(value: object) -> bool:
    """Whether a JSON value is a text that has a UTF-8 form: JSON can write halves of characters."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
