"""Filter texts of Deephaven clients -> one condition.

A text is read in one of three ways, as Deephaven does, because they differ in what constants mean:

* ``Column op constant`` and ``constant op Column``: the constant is read as a value of the
  column's type. ``Float = 0.1`` compares with 0.1f, ``Text = 'a'`` with text, ``Flag = TRUE`` is
  known, and null may be ordered.
* ``Column [icase] [not] in constant, ...``: the same for each constant; NaN equals NaN.
* everything else is a formula (:mod:`barrage.server.deephaven.text.formula_text`) that must be true
  or false; null is neither and fails the filter.

Which rows Deephaven selects is recorded in tests/vectors/deephaven_expressions.json.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from barrage.engine.expressions.expression import Expression, bind_condition
from barrage.engine.expressions.expression_text import Call, Column, Literal
from barrage.engine.expressions.java_functions import PREFIX
from barrage.engine.expressions.java_values import NULLS, kind_of
from barrage.engine.expressions.tokens import error_at, in_text
from barrage.errors import ExpressionError, LimitExceededError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.deephaven.text.formula_text import (
    TIME_READERS,
    FormulaReader,
    OperationBudget,
    character,
    fraction,
    java,
    text_inside,
    tokens_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from barrage.engine.expressions.expression_text import Node
    from barrage.engine.expressions.tokens import TextToken
    from barrage.limits import Limits

SCOPE = "deephaven"

_MIRRORED = {"=": "=", "==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PLAIN_FRACTION = re.compile(r"(\d+\.?\d*|\.\d+)f?", re.ASCII)
_CONSTANT_KINDS = ("number", "text", "quoted", "name")
_WHOLE_KINDS = ("byte", "short", "int", "long")


def parse_filters(
    texts: Sequence[str], schema: pa.Schema, limits: Limits = DEFAULT_LIMITS
) -> Expression:
    """The condition that all texts hold, checked against ``schema``.

    A later text is only asked of rows for which the earlier ones are true. ExpressionError names
    the text and the position of what is wrong or not supported.
    """
    check_size(texts, limits)
    budget = OperationBudget()
    nodes = [_checked(text, schema, budget) for text in texts]
    return Expression(" && ".join(f"({text})" for text in texts), all_of(nodes), SCOPE)


def check_size(texts: Sequence[str], limits: Limits) -> None:
    """LimitExceededError when the texts are too many or too long together."""
    if len(texts) > limits.operations_max:
        raise LimitExceededError(
            "filter", actual=len(texts), maximum=limits.operations_max, unit="expressions"
        )
    size = sum(len(text) for text in texts)
    if size > limits.expression_bytes_max:
        raise LimitExceededError(
            "filter", actual=size, maximum=limits.expression_bytes_max, unit="characters"
        )


def all_of(nodes: Sequence[Node]) -> Node:
    """The condition that all of the conditions are true."""
    joined: Node = nodes[0] if nodes else Literal(0, True, "boolean")
    for node in nodes[1:]:
        joined = Call(0, PREFIX + "&&", (joined, node))
    return Call(0, PREFIX + "condition", (joined,))


def _checked(text: str, schema: pa.Schema, budget: OperationBudget) -> Node:
    try:
        node = _parse(text, schema)
    except ExpressionError as error:
        raise in_text(error, text) from error
    budget.spend(node)
    bind_condition(Expression(text, all_of([node]), SCOPE), schema)
    return node


def _parse(text: str, schema: pa.Schema) -> Node:
    tokens = tokens_of(text)
    return (
        _membership(tokens, schema)
        or _simple_comparison(tokens, schema)
        or FormulaReader(tokens).whole()
    )


def _column_kind(token: TextToken, schema: pa.Schema) -> str | None:
    """The kind of the column a token names; None when it names none."""
    if token.kind != "name":
        return None
    index = schema.get_field_index(token.text)
    return None if index < 0 else kind_of(schema.field(index).type)


def _simple_comparison(tokens: list[TextToken], schema: pa.Schema) -> Node | None:
    """``Column op constant`` either way round; None when the text is not of this form."""
    operators = [i for i in (1, 2) if i < len(tokens) and tokens[i].text in _MIRRORED]
    if not operators or tokens[operators[0]].kind != "sign":
        return None
    place = operators[0]
    left, right = tokens[:place], tokens[place + 1 : -1]
    operator = tokens[place].text
    if len(left) != 1 or _column_kind(left[0], schema) is None:
        left, right, operator = right, left, _MIRRORED[operator]
    if len(left) != 1 or _column_kind(left[0], schema) is None or not _is_constant(right, schema):
        return None
    kind = str(_column_kind(left[0], schema))
    constant = _typed(right, kind)
    if constant is None:
        return None
    column = Column(left[0].position, left[0].text)
    if kind == "other" and constant.value is None and operator in ("=", "==", "!="):
        is_null = java(tokens[place], "isNull", column)
        return java(tokens[place], "!", is_null) if operator == "!=" else is_null
    name = "==" if operator == "=" else operator
    return java(tokens[place], f"{name} constant", column, constant)


def _is_constant(tokens: list[TextToken], schema: pa.Schema) -> bool:
    """Whether the tokens are one constant, numbers possibly with a minus sign."""
    if len(tokens) == 2:
        return tokens[0].text == "-" and tokens[1].kind == "number"
    return (
        len(tokens) == 1
        and tokens[0].kind in _CONSTANT_KINDS
        and _column_kind(tokens[0], schema) is None
    )


def _typed(tokens: list[TextToken], kind: str) -> Literal | None:
    """The constant as a value of the column's kind; None when a formula has to make sense of it.

    ExpressionError when Deephaven takes it for something that no value of the column equals, which
    is never what was meant.
    """
    token = tokens[-1]
    word = token.text.lower() if token.kind == "name" else ""
    if token.text == "null" and token.kind == "name":
        return Literal(token.position, None, kind if kind in NULLS or kind == "text" else "")
    if kind == "boolean" and word in ("true", "false"):
        return Literal(token.position, word == "true", kind)
    if token.kind == "number":
        return _typed_number(tokens, kind)
    if kind == "text" and token.kind in ("text", "quoted"):
        return Literal(token.position, text_inside(token), kind)
    if kind == "char" and token.kind in ("text", "quoted"):
        if token.text[0] == "`":
            raise error_at(token.position, "a character stands in single quotes")
        return character(token)
    if kind in TIME_READERS and token.kind == "quoted":
        return _typed_time(token, kind)
    return None


def _typed_time(token: TextToken, kind: str) -> Literal:
    value = TIME_READERS[kind](text_inside(token))
    if value is None:
        raise error_at(token.position, f"{token.text} is no supported {kind}")
    return Literal(token.position, value, kind)


def _typed_number(tokens: list[TextToken], kind: str) -> Literal | None:
    token = tokens[-1]
    sign = -1 if len(tokens) == 2 else 1
    if sign < 0 and tokens[0].position + 1 != token.position:
        return None
    if kind in _WHOLE_KINDS and token.text.isdigit():
        if len(token.text) > 19 or (len(token.text) > 1 and token.text[0] == "0"):
            return None
        value = sign * int(token.text)
        least = int(NULLS[kind])
        return Literal(token.position, value, kind) if least <= value <= -least - 1 else None
    if kind in ("float", "double") and _PLAIN_FRACTION.fullmatch(token.text):
        digits = token.text.removesuffix("f")
        return Literal(token.position, sign * fraction(token, digits, kind), kind)
    return None


def _membership(tokens: list[TextToken], schema: pa.Schema) -> Node | None:
    """``Column [icase] [not] in constant, ...``; None when the text is not of this form."""
    words = []
    place = 1
    while place < len(tokens) and tokens[place].kind == "name":
        words.append(tokens[place].text.lower())
        place += 1
        if words[-1] == "in":
            break
    if words not in (["in"], ["not", "in"], ["icase", "in"], ["icase", "not", "in"]):
        return None
    kind = _column_kind(tokens[0], schema)
    if kind is None:
        return None
    if tokens[place].position == tokens[place - 1].position + len("in"):
        raise error_at(tokens[place].position, "expected a space after 'in'")
    constants = _constants(tokens[place:-1], kind, end=tokens[-1])
    if "icase" in words and any(constant.value is None for constant in constants):
        raise error_at(tokens[place].position, "null has no case")
    column = Column(tokens[0].position, tokens[0].text)
    operator = tokens[place - 1]
    found = java(operator, "icase in" if "icase" in words else "in", column, *constants)
    return java(operator, "!", found) if "not" in words else found


def _constants(tokens: list[TextToken], kind: str, *, end: TextToken) -> list[Literal]:
    constants: list[Literal] = []
    part: list[TextToken] = []
    for token in [*tokens, end]:
        if token.kind != "end" and not (token.kind == "sign" and token.text == ","):
            part.append(token)
            continue
        constants.append(_listed(part, kind, following=token))
        part = []
    return constants


def _listed(tokens: list[TextToken], kind: str, *, following: TextToken) -> Literal:
    """One constant of a list: only what is a value of the column's type by itself."""
    if not tokens:
        raise error_at(following.position, "expected a constant")
    first = tokens[0]
    if kind in ("float", "double") and len(tokens) == 1 and first.text == "NaN":
        return Literal(first.position, float("nan"), kind)
    is_signed = len(tokens) == 2 and first.text == "-" and tokens[1].kind == "number"
    constant = _typed(tokens, kind) if len(tokens) == 1 or is_signed else None
    if constant is None:
        raise error_at(first.position, f"expected a constant of type {kind}")
    return constant
