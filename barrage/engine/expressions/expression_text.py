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

from barrage.engine.expressions.tokens import (
    DEPTH_MAX,
    TEXT_LENGTH_MAX,
    TextToken,
    TokenReader,
    cut,
    error_at,
)

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "DEPTH_MAX",
    "TEXT_LENGTH_MAX",
    "Call",
    "Column",
    "Literal",
    "Membership",
    "Node",
    "error_at",
    "parse",
]


@dataclass(frozen=True, slots=True)
class Column:
    """A column by name."""

    position: int
    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant; None is null. ``kind`` names its type (``engine.java_values``) where the value
    alone does not tell it."""

    position: int
    value: bool | int | float | str | None
    kind: str = ""


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


def parse(text: str) -> Node:
    """The tree of ``text``; ExpressionError names the position (from 1) of what does not fit."""
    return _Parser(_tokens(text)).parse()


def _tokens(text: str) -> list[TextToken]:
    return [
        TextToken("word", token.text.lower(), token.position)
        if token.kind == "name" and token.text.lower() in _WORDS
        else token
        for token in cut(text, _TOKEN)
    ]


class _Parser(TokenReader):
    def parse(self) -> Node:
        node = self._binary(0)
        self.expect_end()
        return node

    def _binary(self, level_min: int) -> Node:
        with self.nested():
            left = self._operand()
            while True:
                token = self.peek()
                level = _LEVELS.get(token.text, -1) if token.kind in ("sign", "word") else -1
                if level < max(level_min, 1):
                    return left
                self.take()
                left = self._extend(left, token, level)
                if level == _LEVEL_COMPARISON:
                    self._refuse_chained_comparison()

    def _refuse_chained_comparison(self) -> None:
        token = self.peek()
        if token.kind in ("sign", "word") and _LEVELS.get(token.text) == _LEVEL_COMPARISON:
            raise error_at(token.position, "comparisons cannot be chained; join them with 'and'")

    def _extend(self, left: Node, token: TextToken, level: int) -> Node:
        if token.text == "is":
            negated = self.accept("not")
            self.expect("null")
            return Call(token.position, "isnotnull" if negated else "isnull", (left,))
        if token.text == "not":
            self.expect("in")
            return Call(token.position, "not", (self._membership(left, token),))
        if token.text == "in":
            return self._membership(left, token)
        right = self._binary(level + 1)
        return Call(token.position, _SAME.get(token.text, token.text), (left, right))

    def _membership(self, operand: Node, token: TextToken) -> Membership:
        self.expect("(")
        values = [self._literal()]
        while self.accept(","):
            values.append(self._literal())
        self.expect(")")
        return Membership(token.position, operand, tuple(values))

    def _literal(self) -> Literal:
        start = self.peek().position
        node = self._binary(_LEVEL_SIGN)
        if not isinstance(node, Literal) or node.value is None:
            raise error_at(start, "a list after 'in' holds only constants")
        return node

    def _operand(self) -> Node:
        token = self.peek()
        if token.text == "not" and token.kind == "word":
            self.take()
            return Call(token.position, "not", (self._binary(_LEVEL_NOT),))
        if token.text == "-" and token.kind == "sign":
            self.take()
            return _negated(token, self._binary(_LEVEL_SIGN))
        if self.accept("("):
            node = self._binary(0)
            self.expect(")")
            return node
        return self._primary()

    def _primary(self) -> Node:
        token = self.peek()
        make = _PRIMARIES.get(token.kind)
        if make is not None:
            self.take()
            node = make(token)
            if token.kind == "name" and self.accept("("):
                return Call(token.position, token.text.lower(), self._arguments())
            return node
        if token.kind == "word" and token.text in _CONSTANTS:
            self.take()
            return Literal(token.position, _CONSTANTS[token.text])
        raise self.unexpected("a column, a constant or '('")

    def _arguments(self) -> tuple[Node, ...]:
        if self.accept(")"):
            return ()
        arguments = [self._binary(0)]
        while self.accept(","):
            arguments.append(self._binary(0))
        self.expect(")")
        return tuple(arguments)


def _number(token: TextToken) -> Literal:
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


_PRIMARIES: dict[str, Callable[[TextToken], Node]] = {
    "number": _number,
    "text": lambda token: Literal(token.position, _unquoted(token.text)),
    "quoted": lambda token: Column(token.position, token.text[1:-1]),
    "name": lambda token: Column(token.position, token.text),
}


def _negated(token: TextToken, operand: Node) -> Node:
    if isinstance(operand, Literal) and type(operand.value) in (int, float):
        return Literal(token.position, -operand.value)  # type: ignore[operator]
    return Call(token.position, "negate", (operand,))
