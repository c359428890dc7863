"""Regular expressions of Java in the syntax of RE2, as far as both mean the same.

Taken: characters, ``.``, classes with ranges, ``\\d \\w \\s`` and their opposites, escaped signs,
groups, ``|``, the quantifiers ``* + ?`` and ``{m,n}``, ``^`` in front and ``$`` at the end of an
expression that must match all of a text. Everything else is refused.

RE2 takes time in proportion to the text times the size of the expression with its counts written
out, which may be many thousand times as long. So both are bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from barrage.errors import LimitExceededError, UnsupportedError

SIZE_MAX = 1_000
"""Most characters, classes and groups of an expression, each as often as a count repeats it."""

COUNTED_MAX = 100
"""Most of them that are there because a count repeats them: ``.*x.{50}`` has a state for every
combination of places at which an x was seen."""

OPEN_ENDED_MAX = 32
"""Most ``*`` and ``+``, each as often as a count repeats it."""

_TOKEN = re.compile(
    r"(?P<group>\(\?:|\((?!\?)|\)|\|)"
    r"|(?P<count>\{\d{1,3}(?:,\d{0,3})?\})"
    r"|(?P<times>[*+?])"
    r"|(?P<escape>\\[dDwWsS])"
    r"|(?P<sign>\\[^\w\s])"
    r"|(?P<kind>\[\^?(?:[\w ]-[\w ]|[\w ,;:!#%/=@_<>\"'])+\])"
    r"|(?P<any>\.)"
    r"|(?P<plain>[^\\\[\](){}|*+?.^$])",
    re.DOTALL | re.ASCII,
)
_ESCAPES = {"\\s": r"[\t\n\x0b\f\r ]", "\\S": r"[^\t\n\x0b\f\r ]"}
_ANY = r"[^\n\r\x{85}\x{2028}\x{2029}]"


def whole_match(regex: str, *, ignores_case: bool) -> str:
    """The RE2 expression that matches the texts of which ``regex`` matches all.

    Letters without case are ASCII letters, as in Java. Raises UnsupportedError.
    """
    inner = regex[1:] if regex.startswith("^") else regex
    if inner.endswith("$") and not inner.endswith("\\$"):
        inner = inner[:-1]
    if "|" in inner and inner != regex:
        raise UnsupportedError(f"regular expression {regex!r}: '|' with '^' or '$'")
    parts = []
    size = _Size()
    place = 0
    while place < len(inner):
        match = _TOKEN.match(inner, place)
        if match is None:
            raise UnsupportedError(f"regular expression {regex!r}: {inner[place]!r}")
        kind = str(match.lastgroup)
        size.take(kind, match.group())
        parts.append(_translated(kind, match.group(), ignores_case))
        place = match.end()
    return rf"\A(?:{''.join(parts)})\z"


class _Size:
    """What an expression comes to with its counts written out."""

    def __init__(self) -> None:
        self._open: list[_Part] = [_Part()]
        self._last = _Part()

    def take(self, kind: str, text: str) -> None:
        """The next token. LimitExceededError when it makes the expression too large."""
        if kind == "group":
            self._group(text)
        elif kind == "times":
            self._add(_Part(open_ended=int(text != "?")))
        elif kind == "count":
            self._repeat(text)
        else:
            self._last = _Part(size=1)
            self._add(self._last)

    def _group(self, text: str) -> None:
        if text == ")":
            if len(self._open) == 1:  # It would close the group put around the whole expression.
                raise UnsupportedError("regular expression: ')' without '('")
            self._last = self._open.pop()
            self._add(self._last)
        elif text.startswith("("):
            self._last = _Part()
            self._open.append(_Part())
            self._add(_Part(size=1))

    def _repeat(self, count: str) -> None:
        """The last part is there once already."""
        bounds = [int(digits) for digits in re.findall(r"\d+", count)]
        more = max(*bounds, 1, 1) - 1
        last = self._last
        added = _Part(
            size=last.size * more,
            counted=last.size * more,
            open_ended=last.open_ended * more + int(count.endswith(",}")),
        )
        self._add(added)
        self._last = last.plus(added)

    def _add(self, part: _Part) -> None:
        total = self._open[-1] = self._open[-1].plus(part)
        for actual, maximum, unit in (
            (total.size, SIZE_MAX, "parts"),
            (total.counted, COUNTED_MAX, "repeated parts"),
            (total.open_ended, OPEN_ENDED_MAX, "open-ended repetitions"),
        ):
            if actual > maximum:
                raise LimitExceededError(
                    "regular expression", actual=actual, maximum=maximum, unit=unit
                )


@dataclass(frozen=True, slots=True)
class _Part:
    """Of a part of an expression: how much it is, how much of that by counts, and its ``*``."""

    size: int = 0
    counted: int = 0
    open_ended: int = 0

    def plus(self, other: _Part) -> _Part:
        return _Part(
            self.size + other.size,
            self.counted + other.counted,
            self.open_ended + other.open_ended,
        )


def _translated(kind: str, text: str, ignores_case: bool) -> str:
    if kind == "any":
        return _ANY
    if text == "(":
        return "(?:"  # Nobody asks what it matched, which costs time for every group.
    if kind == "escape":
        return _ESCAPES.get(text, text)
    if ignores_case and kind == "plain" and text.isascii() and text.isalpha():
        return f"[{text.lower()}{text.upper()}]"
    if ignores_case and kind == "kind":
        return _both_cases(text)
    return text


def _both_cases(text: str) -> str:
    """A class with the other case of its letters added; ranges only between letters of one case,
    or digits."""
    inside = text[1:-1].removeprefix("^")
    for first, last in re.findall(r"(.)-(.)", inside):
        same = (str.islower, str.isupper, str.isdigit)
        if not any(test(first) and test(last) for test in same):
            raise UnsupportedError(f"the range {first}-{last} without case")
    return f"{text[:-1]}{inside.swapcase()}]"
