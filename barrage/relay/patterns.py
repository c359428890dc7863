"""Which tables of an upstream server are followed."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Self

from barrage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

PATTERNS_MAX = 100

_WILD = "*?["


@dataclass(frozen=True, slots=True)
class TablePatterns:
    """Names and shell patterns (``*``, ``?``, ``[abc]``), at least one. A pattern matches a name
    with a leading underscore, under which servers tell about themselves, only if it has one."""

    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``quotes,trades*``; ConfigError when there is no pattern in it, or too many."""
        return cls.of(part.strip() for part in text.split(","))

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Self:
        """ConfigError as :meth:`parse`."""
        found = tuple(dict.fromkeys(pattern for pattern in patterns if pattern))
        if not found:
            raise ConfigError(
                "no table is named: write names or patterns, such as 'quotes,trades*'"
            )
        if len(found) > PATTERNS_MAX:
            raise ConfigError(
                f"{len(found)} patterns of tables, at most {PATTERNS_MAX} are possible"
            )
        return cls(found)

    def matches(self, name: str) -> bool:
        """Whether the table of that name is to be followed."""
        return any(_matches(pattern, name) for pattern in self.patterns)

    def unmatched(self, names: Iterable[str]) -> list[str]:
        """The patterns that match none of the names."""
        known = list(names)
        return [p for p in self.patterns if not any(_matches(p, name) for name in known)]

    def __str__(self) -> str:
        return ",".join(self.patterns)


def _matches(pattern: str, name: str) -> bool:
    if pattern == name:
        return True
    is_hidden = name.startswith("_") and not pattern.startswith("_")
    return not is_hidden and any(sign in pattern for sign in _WILD) and fnmatchcase(name, pattern)
