"""Text cut into tokens, and a reader of tokens: what the parsers of both expression dialects share.

Nesting is capped by :meth:`TokenReader.nested`, so hostile text costs neither stack nor time.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import ExpressionError

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

TEXT_LENGTH_MAX = 16_384
DEPTH_MAX = 32


@dataclass(frozen=True, slots=True)
class TextToken:
    """A piece of text. ``kind`` is the name of the group that matched it, or ``end``."""

    kind: str
    text: str
    position: int


def error_at(position: int, what: str) -> ExpressionError:
    """The error for ``what`` at a 0-based position in the text."""
    return ExpressionError(f"{what} at position {position + 1}")


def in_text(error: ExpressionError, text: str) -> ExpressionError:
    """The same error with the text it is about, cut when it is long."""
    shown = text if len(text) <= 200 else f"{text[:197]}..."
    return ExpressionError(f"{error}: {shown}")


def cut(text: str, pattern: re.Pattern[str]) -> list[TextToken]:
    """The tokens of ``text``, the last of kind ``end``. ``pattern`` skips leading white space and
    has one named group per kind. ExpressionError when something else stands in the text."""
    if len(text) > TEXT_LENGTH_MAX:
        raise ExpressionError(
            f"expression of {len(text)} characters, the limit is {TEXT_LENGTH_MAX}"
        )
    found = []
    place = 0
    end = len(text.rstrip())
    while place < end:
        match = pattern.match(text, place)
        if match is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            what = "unfinished text" if text[start] in "'\"`" else f"unexpected {text[start]!r}"
            raise error_at(start, what)
        kind = str(match.lastgroup)
        found.append(TextToken(kind, match.group(kind), match.start(kind)))
        place = match.end()
    found.append(TextToken("end", "the end", len(text)))
    return found


class TokenReader:
    """Reads tokens from first to last; ``end`` is never passed."""

    def __init__(self, tokens: list[TextToken]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def peek(self, ahead: int = 0) -> TextToken:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def take(self) -> TextToken:
        token = self.peek()
        self._next += 1
        return token

    def unexpected(self, wanted: str) -> ExpressionError:
        token = self.peek()
        shown = token.text if token.kind == "end" else repr(token.text)
        return error_at(token.position, f"expected {wanted}, found {shown}")

    def accept(self, text: str) -> bool:
        """Pass the sign or word ``text`` if it comes next."""
        token = self.peek()
        if token.kind in ("sign", "word") and token.text == text:
            self._next += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.unexpected(repr(text))

    def expect_end(self) -> None:
        if self.peek().kind != "end":
            raise self.unexpected("an operator")

    @contextmanager
    def nested(self) -> Iterator[None]:
        """One level deeper; ExpressionError past the deepest."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise error_at(self.peek().position, f"nested deeper than {DEPTH_MAX} levels")
        yield
        self._depth -= 1
