"""Regular expressions of Java in the syntax of RE2, as far as both mean the same.

Taken: characters, ``.``, classes with ranges, ``\\d \\w \\s`` and their opposites, escaped signs,
groups, ``|``, the quantifiers ``* + ?`` and ``{m,n}``, ``^`` in front and ``$`` at the end of an
expression that must match all of a text. Everything else is refused.
"""

from __future__ import annotations

import re

from barrage.errors import UnsupportedError

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
    place = 0
    while place < len(inner):
        match = _TOKEN.match(inner, place)
        if match is None:
            raise UnsupportedError(f"regular expression {regex!r}: {inner[place]!r}")
        parts.append(_translated(str(match.lastgroup), match.group(), ignores_case))
        place = match.end()
    return rf"\A(?:{''.join(parts)})\z"


def _translated(kind: str, text: str, ignores_case: bool) -> str:
    if kind == "any":
        return _ANY
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
