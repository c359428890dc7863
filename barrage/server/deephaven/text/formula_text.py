"""Formula text as Deephaven clients write it -> expression tree. Knows no column types.

    formula:    condition ? formula : formula
    condition:  || && == = != < <= > >= + - * / %  and in front - ! (int) (long) (float) (double)
    value:      column | literal | function(...) | value.method(...) | ( formula )
    literals:   1  1L  1.5  1.5f  1e3  `text`  "text"  'c'  '2026-01-01T00:00:00Z'  true  null

What the functions do is in :mod:`barrage.engine.expressions.java_functions`. Everything else of the
language (other classes and casts, arrays, bit operators, row numbers, escapes in text, octal and
hexadecimal numbers) is refused with its position.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.engine.expressions.expression import operation_count
from barrage.engine.expressions.expression_text import Call, Column, Literal
from barrage.engine.expressions.java_functions import (
    CAST_KINDS,
    FUNCTION_NAMES,
    METHOD_NAMES,
    PREFIX,
)
from barrage.engine.expressions.tokens import TokenReader, cut, error_at
from barrage.errors import LimitExceededError
from barrage.server.deephaven.text.time_text import clock_of, date_of, instant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.engine.expressions.expression_text import Node
    from barrage.engine.expressions.tokens import TextToken

OPERATIONS_MAX = 5_000
"""Most operations of all formulas or conditions of one request. Names defined earlier are put in
place, so a formula may have many more than its text shows; each takes milliseconds per million
rows."""

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[lLfFdD]?(?![\w.]))
      | (?P<text>`[^`]*`|"[^"]*")
      | (?P<quoted>'[^']*')
      | (?P<name>[^\W\d][\w$]*|\$[\w$]*)
      | (?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>=!?:(),.])
    )""",
    re.VERBOSE | re.ASCII,
)

_LEVELS = {
    "||": 1,
    "&&": 2,
    "==": 3,
    "=": 3,
    "!=": 3,
    "<": 4,
    "<=": 4,
    ">": 4,
    ">=": 4,
    "+": 5,
    "-": 5,
    "*": 6,
    "/": 6,
    "%": 6,
}
_SAME = {"=": "=="}
_CONSTANTS: dict[str, tuple[bool | None, str]] = {
    "true": (True, "boolean"),
    "false": (False, "boolean"),
    "null": (None, ""),
}
_OTHER_CASTS = ("byte", "short", "char", "boolean", "String", "Integer", "Long", "Double", "Float")
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1


def tokens_of(text: str) -> list[TextToken]:
    """The tokens of a filter or formula."""
    return cut(text, _TOKEN)


def java(token: TextToken, name: str, *operands: Node) -> Call:
    """A call of one of the functions with Java's rules."""
    return Call(token.position, PREFIX + name, operands)


class OperationBudget:
    """The operations one request may still ask for."""

    def __init__(self) -> None:
        self._count = 0

    def spend(self, root: Node) -> None:
        """LimitExceededError when the operations of ``root`` are too many."""
        self._count += operation_count(root)
        if self._count > OPERATIONS_MAX:
            raise LimitExceededError(
                "formulas", actual=self._count, maximum=OPERATIONS_MAX, unit="operations"
            )


class FormulaReader(TokenReader):
    """Reads one formula. Names in ``defined`` stand for their trees, all others for columns."""

    def __init__(self, tokens: list[TextToken], defined: Mapping[str, Node] | None = None) -> None:
        super().__init__(tokens)
        self._defined = defined or {}

    def whole(self) -> Node:
        """The formula up to the end of the text."""
        node = self.formula()
        self.expect_end()
        return node

    def formula(self) -> Node:
        with self.nested():
            condition = self._binary(1)
            token = self.peek()
            if not self.accept("?"):
                return condition
            yes = self.formula()
            self.expect(":")
            return java(token, "?:", condition, yes, self.formula())

    def _binary(self, level_min: int) -> Node:
        with self.nested():
            left = self._operand()
            while True:
                token = self.peek()
                level = _LEVELS.get(token.text, 0) if token.kind == "sign" else 0
                if level < level_min:
                    return left
                self.take()
                name = _SAME.get(token.text, token.text)
                left = java(token, name, left, self._binary(level + 1))

    def _operand(self) -> Node:
        """A value with the signs and casts in front of it."""
        with self.nested():
            token = self.peek()
            if token.kind == "sign" and token.text in "-!":
                self.take()
                following = self.peek()
                if following.text == token.text == "-" and following.position == token.position + 1:
                    raise error_at(token.position, "'--' is not supported")
                return java(token, "negate" if token.text == "-" else "!", self._operand())
            kind = self._cast_ahead()
            if kind is not None:
                for _ in range(3):
                    self.take()
                return java(token, f"({kind})", self._operand())
            return self._with_methods(self._primary())

    def _cast_ahead(self) -> str | None:
        """The type name when ``(type)`` comes next."""
        opening, name, closing = (self.peek(ahead) for ahead in range(3))
        if opening.text != "(" or opening.kind != "sign" or closing.text != ")":
            return None
        if name.kind != "name" or closing.kind != "sign":
            return None
        if name.text in _OTHER_CASTS:
            raise error_at(name.position, f"a cast to {name.text} is not supported")
        return name.text if name.text in CAST_KINDS else None

    def _primary(self) -> Node:
        token = self.peek()
        if self.accept("("):
            node = self.formula()
            self.expect(")")
            return node
        make = _LITERALS.get(token.kind)
        if make is not None:
            self.take()
            return make(token)
        if token.kind != "name":
            raise self.unexpected("a column, a constant or '('")
        self.take()
        if token.text in _CONSTANTS:
            value, kind = _CONSTANTS[token.text]
            return Literal(token.position, value, kind)
        if self.accept("("):
            if token.text not in FUNCTION_NAMES:
                raise error_at(token.position, f"function {token.text!r} is not supported")
            return java(token, token.text, *self._arguments())
        return self._column(token)

    def _column(self, token: TextToken) -> Node:
        return self._defined.get(token.text) or Column(token.position, token.text)

    def _with_methods(self, node: Node) -> Node:
        with self.nested():
            while self.accept("."):
                token = self.peek()
                if token.kind != "name" or token.text not in METHOD_NAMES:
                    raise error_at(token.position, f"{token.text!r} is no supported method")
                self.take()
                self.expect("(")
                node = java(token, f".{token.text}", node, *self._arguments())
            return node

    def _arguments(self) -> tuple[Node, ...]:
        if self.accept(")"):
            return ()
        arguments = [self.formula()]
        while self.accept(","):
            arguments.append(self.formula())
        self.expect(")")
        return tuple(arguments)


def text_inside(token: TextToken) -> str:
    """What stands between the quotes."""
    inside = token.text[1:-1]
    if "\\" in inside or "\n" in inside or "\r" in inside:
        raise error_at(token.position, "escapes and line breaks in text are not supported")
    return inside


def _text(token: TextToken) -> Literal:
    return Literal(token.position, text_inside(token), "text")


def _quoted(token: TextToken) -> Literal:
    """A character or a time."""
    inside = text_inside(token)
    if len(inside) == 1:
        return character(token)
    for kind, read in TIME_READERS.items():
        value = read(inside)
        if value is not None:
            return Literal(token.position, value, kind)
    raise error_at(token.position, f"{token.text} is neither a character nor a supported time")


TIME_READERS: dict[str, Callable[[str], int | None]] = {
    "instant": instant_of,
    "date": date_of,
    "clock": clock_of,
}


def character(token: TextToken) -> Literal:
    """A quoted character of 16 bits."""
    inside = text_inside(token)
    if len(inside) != 1 or ord(inside) >= 0xFFFF:
        raise error_at(token.position, f"{token.text} is no character")
    return Literal(token.position, ord(inside), "char")


def _number(token: TextToken) -> Literal:
    digits, suffix = token.text, token.text[-1].lower()
    if suffix in "lfd":
        digits = digits[:-1]
    if digits.isdigit() and suffix not in "fd":
        return _whole(token, digits, is_long=suffix == "l")
    if suffix == "l":
        raise error_at(token.position, f"{token.text!r} is no whole number")
    kind = "float" if suffix == "f" else "double"
    return Literal(token.position, fraction(token, digits, kind), kind)


def _whole(token: TextToken, digits: str, *, is_long: bool) -> Literal:
    if len(digits) > 1 and digits[0] == "0":
        raise error_at(token.position, "numbers with a leading zero are not supported")
    # Every whole number of more than 19 digits is past 64 bits; do not even convert it.
    value = int(digits) if len(digits) <= 19 else _LONG_MAX + 1
    if value > _LONG_MAX:
        raise error_at(token.position, "whole number does not fit 64 bits")
    return Literal(token.position, value, "long" if is_long or value > _INT_MAX else "int")


def fraction(token: TextToken, digits: str, kind: str) -> float:
    """The float or double nearest to the digits."""
    if len(digits) > 400:
        raise error_at(token.position, "number with more than 400 digits")
    wanted = pa.float32() if kind == "float" else pa.float64()
    value = float(pa.scalar(digits).cast(wanted).as_py())
    mantissa = re.split("[eE]", digits)[0]
    if math.isinf(value) or (value == 0 and mantissa.strip("0.") != ""):
        raise error_at(token.position, f"{token.text!r} does not fit a {kind}")
    return value


_LITERALS: dict[str, Callable[[TextToken], Literal]] = {
    "number": _number,
    "text": _text,
    "quoted": _quoted,
}
