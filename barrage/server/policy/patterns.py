"""Patterns of names (``*``, ``?``, ``[abc]``), many of them asked at once.

A pattern without wildcards is looked up; one with wildcards is tried where the name begins with
what stands before its first one. So what a name costs grows with the patterns it could fit, not
with all there are.
"""

from __future__ import annotations

from fnmatch import translate
from functools import lru_cache
from re import Pattern
from re import compile as compiled
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_WILDCARDS = "*?["

PATTERNS_COMPILED = 32_768
"""More than a policy of usual size has; past that they are compiled again."""


@lru_cache(PATTERNS_COMPILED)
def _expression(pattern: str) -> Pattern[str]:
    return compiled(translate(pattern))


def _literal_length(pattern: str) -> int:
    """Characters before the first wildcard."""
    return min((pattern.find(each) for each in _WILDCARDS if each in pattern), default=-1)


class PatternIndex:
    """Numbers, each with a pattern; tells the numbers whose pattern fits a name."""

    def __init__(self, entries: Iterable[tuple[int, str]]) -> None:
        self._names: dict[str, list[int]] = {}
        self._starts: dict[str, list[tuple[int, Pattern[str]]]] = {}
        for number, pattern in entries:
            length = _literal_length(pattern)
            if length < 0:
                self._names.setdefault(pattern, []).append(number)
            else:
                starting = self._starts.setdefault(pattern[:length], [])
                starting.append((number, _expression(pattern)))
        self._lengths = sorted({len(start) for start in self._starts})

    def fitting(self, name: str) -> set[int]:
        """All numbers with a pattern that fits."""
        found = set(self._names.get(name, ()))
        for length in self._lengths:
            if length > len(name):
                break
            for number, expression in self._starts.get(name[:length], ()):
                if number not in found and expression.match(name):
                    found.add(number)
        return found

    def first(self, name: str) -> int | None:
        """The least number with a pattern that fits."""
        found = min(self._names.get(name, ()), default=None)
        for length in self._lengths:
            if length > len(name):
                break
            for number, expression in self._starts.get(name[:length], ()):
                # Those of one start stand in ascending order.
                if found is not None and number >= found:
                    break
                if expression.match(name):
                    found = number
                    break
        return found
