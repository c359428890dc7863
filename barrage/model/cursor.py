"""Cursors: the name of one state of one table, for ever.

``epoch`` names an unbroken history, ``version`` is the step of a committed cycle in it. Two equal
cursors name the same rows with the same values, whoever asks and whenever. The text form is
``<epoch>:<version>``; it is stable, sorts by version within an epoch only as a pair of fields, and
is what headers, options and files carry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from barrage.errors import CursorError

EPOCH_CHARS = 16
"""Hexadecimal digits of an epoch."""

VERSION_MAX = 2**63 - 1

_TEXT = re.compile(r"([0-9a-f]{16}):(0|[1-9][0-9]{0,18})\Z")


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in the history of a table."""

    epoch: str
    version: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.version}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The cursor a text names; CursorError when it names none."""
        match = _TEXT.match(text) if len(text) <= EPOCH_CHARS + 20 else None
        if match is None or int(match[2]) > VERSION_MAX:
            raise CursorError(f"{text[:64]!r} is not a cursor: 16 hexadecimal digits, ':', a step")
        return cls(match[1], int(match[2]))
