"""Expression text -> syntax tree. Knows no columns and no types.

Precedence climbing over tokens; nesting is capped, so hostile text costs neither stack nor time.

    condition:  or | and | not | comparison, ``in (...)``, ``not in (...)``, ``is [not] null``
    value:      + - * / | unary - | call | column | literal | ( ... )
    literals:   1  2.5  1e3  'text' or "text" (quote doubled to quote)  true  false  null
    columns:    names, or anything between backticks
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from barrage.errors import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT_LENGTH_MAX = 16_384
DEPTH_MAX = 32


@dataclass(frozen=True, slots=True)
class Column:
    """A column by name."""

    position: int
    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; None is null."""

    position: int
    value: bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Call:
    """A function or an operator applied to operands. Chains like ``a + b + c`` nest to the left."""

    position: int
    name: str
    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Membership:
    """``operand in (values)``."""

    position: int
    operand: Node
    values: tuple[Literal, ...]


Node: TypeAlias = Column | Literal | Call | Membership

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<quoted>`[^`]+`)
      | (?P<name>[^\W\d]\w*)
      | (?P<sign><=|>=|==|!=|<>|[-+*/<>=(),])
    )""",
    re.VERBOSE,
)

_WORDS = {"and", "or", "not", "in", "is", "null", "true", "false"}
_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}

_LEVELS = {
    "or": 1,
    "and": 2,
    "==": 4,
    "=": 4,
    "!=": 4,
    "<>": 4,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "in": 4,
    "is": 4,
    "not": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
}
_LEVEL_NOT = 3
_LEVEL_COMPARISON = 4
_LEVEL_SIGN = 7
_SAME = {"=": "==", "<>": "!="}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    position: int


def parse(text: str) -> Node:
    """The tree of ``text``; ExpressionError names the position (from 1) of what does not fit."""
    if len(text) > TEXT_LENGTH_MAX:
        raise ExpressionError(
            f"expression of {len(text)} characters, the limit is {TEXT_LENGTH_MAX}"
        )
    return _Parser(text).parse()


def _tokens(text: str) -> list[_Token]:
    found = []
    place = 0
    end = len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            what = "unfinished text" if text[start] in "'\"`" else f"unexpected {text[start]!r}"
            raise error_at(start, what)
        kind = str(match.lastgroup)
        word = match.group(kind)
        start = match.start(kind)
        if kind == "name" and word.lower() in _WORDS:
            kind, word = "word", word.lower()
        found.append(_Token(kind, word, start))
        place = match.end()
    found.append(_Token("end", "the end", len(text)))
    return found


def error_at(position: int, what: str) -> ExpressionError:
    """The error for ``what`` at a 0-based position in the text."""
    return ExpressionError(f"{what} at position {position + 1}")


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._binary(0)
        if self._peek().kind != "end":
            raise self._unexpected("an operator")
        return node

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _unexpected(self, wanted: str) -> ExpressionError:
        token = self._peek()
        shown = token.text if token.kind == "end" else repr(token.text)
        return error_at(token.position, f"expected {wanted}, found {shown}")

    def _accept(self, text: str) -> bool:
        token = self._peek()
        if token.kind in ("sign", "word") and token.text == text:
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._unexpected(repr(text))

    def _binary(self, level_min: int) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise error_at(self._peek().position, f"nested deeper than {DEPTH_MAX} levels")
        left = self._operand()
        while True:
            token = self._peek()
            level = _LEVELS.get(token.text, -1) if token.kind in ("sign", "word") else -1
            if level < max(level_min, 1):
                break
            self._next += 1
            left = self._extend(left, token, level)
            if level == _LEVEL_COMPARISON:
                self._refuse_chained_comparison()
        self._depth -= 1
        return left

    def _refuse_chained_comparison(self) -> None:
        token = self._peek()
        if token.kind in ("sign", "word") and _LEVELS.get(token.text) == _LEVEL_COMPARISON:
            raise error_at(token.position, "comparisons cannot be chained; join them with 'and'")

    def _extend(self, left: Node, token: _Token, level: int) -> Node:
        if token.text == "is":
            negated = self._accept("not")
            self._expect("null")
            return Call(token.position, "isnotnull" if negated else "isnull", (left,))
        if token.text == "not":
            self._expect("in")
            return Call(token.position, "not", (self._membership(left, token),))
        if token.text == "in":
            return self._membership(left, token)
        right = self._binary(level + 1)
        return Call(token.position, _SAME.get(token.text, token.text), (left, right))

    def _membership(self, operand: Node, token: _Token) -> Membership:
        self._expect("(")
        values = [self._literal()]
        while self._accept(","):
            values.append(self._literal())
        self._expect(")")
        return Membership(token.position, operand, tuple(values))

    def _literal(self) -> Literal:
        start = self._peek().position
        node = self._binary(_LEVEL_SIGN)
        if not isinstance(node, Literal) or node.value is None:
            raise error_at(start, "a list after 'in' holds only constants")
        return node

    def _operand(self) -> Node:
        token = self._peek()
        if token.text == "not" and token.kind == "word":
            self._next += 1
            return Call(token.position, "not", (self._binary(_LEVEL_NOT),))
        if token.text == "-" and token.kind == "sign":
            self._next += 1
            return _negated(token, self._binary(_LEVEL_SIGN))
        if self._accept("("):
            node = self._binary(0)
            self._expect(")")
            return node
        return self._primary()

    def _primary(self) -> Node:
        token = self._peek()
        make = _PRIMARIES.get(token.kind)
        if make is not None:
            self._next += 1
            node = make(token)
            if token.kind == "name" and self._accept("("):
                return Call(token.position, token.text.lower(), self._arguments())
            return node
        if token.kind == "word" and token.text in _CONSTANTS:
            self._next += 1
            return Literal(token.position, _CONSTANTS[token.text])
        raise self._unexpected("a column, a constant or '('")

    def _arguments(self) -> tuple[Node, ...]:
        if self._accept(")"):
            return ()
        arguments = [self._binary(0)]
        while self._accept(","):
            arguments.append(self._binary(0))
        self._expect(")")
        return tuple(arguments)


def _number(token: _Token) -> Literal:
    if token.text.isdigit():
        # Every whole number of more than 19 digits is past 64 bits; do not even convert it.
        value = int(token.text) if len(token.text) <= 19 else 2**63
        if value >= 2**63:
            raise error_at(token.position, "whole number does not fit 64 bits")
        return Literal(token.position, value)
    return Literal(token.position, float(token.text))


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


_PRIMARIES: dict[str, Callable[[_Token], Node]] = {
    "number": _number,
    "text": lambda token: Literal(token.position, _unquoted(token.text)),
    "quoted": lambda token: Column(token.position, token.text[1:-1]),
    "name": lambda token: Column(token.position, token.text),
}


def _negated(token: _Token, operand: Node) -> Node:
    if isinstance(operand, Literal) and type(operand.value) in (int, float):
        return Literal(token.position, -operand.value)  # type: ignore[operator]
    return Call(token.position, "negate", (operand,))
