"""Structured conditions of Deephaven clients (deephaven-clients.md appendix A.4) -> one condition.

The recorded answers in tests/vectors/deephaven_expressions.json show these rules:

* ``not`` is pushed down to the innermost conditions: of a comparison it takes the opposite
  operator, which matters for NaN (never selected by ``<`` nor by ``>=``); ``contains`` and
  ``matches`` select no null either way.
* A constant is read as a value of the column's type, like in a simple filter text.
* Case is ignored for ASCII letters in ``contains``, ``matches`` and ``search``, and for all letters
  in ``in`` and ``compare``.

Refused although the server answers: where its answer is not what was asked (text that is to be
*unequal* without case, ``2 < Column``) or an accident of types (a number compared with text).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from barrage.engine.expressions.expression import Expression, bind_condition
from barrage.engine.expressions.expression_text import Call, Column, Literal
from barrage.engine.expressions.java_functions import METHOD_NAMES, PREFIX
from barrage.engine.expressions.java_values import NULLS, kind_of
from barrage.errors import ExpressionError, LimitExceededError, UnsupportedError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.deephaven.text.filter_text import all_of
from barrage.server.deephaven.text.formula_text import OperationBudget
from barrage.server.deephaven.text.regex_text import whole_match

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from barrage.engine.expressions.expression_text import Node
    from barrage.limits import Limits

_SCOPE = "deephaven"
_OPERATORS = ("<", "<=", ">", ">=", "==", "!=")
_OPPOSITES = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_IGNORE_CASE = 1
_INVERTED = 1
_WHOLE_KINDS = ("byte", "short", "int", "long")

PARTS_MAX = 20_000
"""Most conditions and candidates of one request."""

CONDITION_BYTES_MAX = 1024 * 1024
"""Most bytes of all conditions of one request; the operator is known by them as long as it
lives."""


def filter_expression(
    conditions: Sequence[Any], schema: pa.Schema, limits: Limits = DEFAULT_LIMITS
) -> Expression:
    """The expression that all ``Condition`` messages hold, checked against ``schema``.

    Raises ExpressionError for what does not fit the schema, UnsupportedError for what this engine
    does not do, LimitExceededError for a condition too deep or too large.
    """
    check_conditions(conditions)
    reader = _ConditionReader(schema, limits)
    nodes = [reader.read(condition, 0, negated=False) for condition in conditions]
    messages = [condition.SerializeToString(deterministic=True).hex() for condition in conditions]
    scope = " ".join([_SCOPE, *messages])
    expression = Expression("structured condition", all_of(nodes), scope)
    OperationBudget().spend(expression.root)
    bind_condition(expression, schema)
    return expression


def check_conditions(conditions: Sequence[Any]) -> None:
    """LimitExceededError when the ``Condition`` messages are too large together."""
    size = sum(condition.ByteSize() for condition in conditions)
    if size > CONDITION_BYTES_MAX:
        raise LimitExceededError(
            "conditions", actual=size, maximum=CONDITION_BYTES_MAX, unit="bytes"
        )


def _java(name: str, *operands: Node) -> Call:
    return Call(0, PREFIX + name, operands)


def _not_if(negated: bool, node: Node) -> Node:
    return _java("!", node) if negated else node


class _ConditionReader:
    """Reads the conditions of one request and keeps count of their nodes."""

    def __init__(self, schema: pa.Schema, limits: Limits) -> None:
        self._schema = schema
        self._limits = limits
        self._count = 0

    def read(self, condition: Any, depth: int, *, negated: bool) -> Node:
        """The tree of one condition, or of its opposite."""
        if depth > self._limits.expression_depth_max:
            raise LimitExceededError(
                "condition",
                actual=depth,
                maximum=self._limits.expression_depth_max,
                unit="levels",
            )
        self._spend(1)
        kind = condition.WhichOneof("data")
        if kind is None:
            raise ExpressionError("a condition without content")
        body = getattr(condition, kind)
        if kind == "not":
            return self.read(body.filter, depth + 1, negated=not negated)
        if kind in ("and", "or"):
            return self._joined(kind, body.filters, depth, negated=negated)
        return _READERS[kind](self, body, negated)

    def _spend(self, count: int) -> None:
        self._count += count
        if self._count > PARTS_MAX:
            raise LimitExceededError(
                "condition", actual=self._count, maximum=PARTS_MAX, unit="parts"
            )

    def _joined(self, kind: str, filters: Sequence[Any], depth: int, *, negated: bool) -> Node:
        if not filters:
            raise UnsupportedError(f"{kind!r} of no conditions")
        nodes = [self.read(one, depth + 1, negated=negated) for one in filters]
        operator = "&&" if (kind == "and") != negated else "||"
        joined = nodes[0]
        for node in nodes[1:]:
            joined = _java(operator, joined, node)
        return joined

    def _column(self, reference: Any) -> tuple[Column, str]:
        """A column and the kind of its values."""
        name = reference.column_name
        index = self._schema.get_field_index(name)
        if index < 0:
            raise ExpressionError(f"unknown column {name!r}")
        return Column(0, name), kind_of(self._schema.field(index).type)

    def _text_column(self, reference: Any, what: str) -> Column:
        column, kind = self._column(reference)
        if kind != "text":
            raise ExpressionError(f"{what} takes a text column; {column.name!r} is none")
        return column

    def compare(self, body: Any, negated: bool) -> Node:
        if not 0 <= body.operation < len(_OPERATORS):
            raise ExpressionError(f"unknown comparison {body.operation}")
        operator = _OPERATORS[body.operation]
        left, right = body.lhs, body.rhs
        sides = left.WhichOneof("data"), right.WhichOneof("data")
        if sides == ("literal", "reference"):
            if operator not in ("==", "!="):
                raise UnsupportedError("an order with the constant in front of the column")
            left, right = right, left
            sides = ("reference", "literal")
        if sides[0] != "reference" or sides[1] is None:
            raise UnsupportedError("a comparison without a column")
        if body.case_sensitivity == _IGNORE_CASE:
            return self._equal_ignoring_case(left, right, operator, negated=negated)
        if negated:
            operator = _OPPOSITES[operator]
        column, kind = self._column(left.reference)
        if sides[1] == "reference":
            return _java(operator, column, self._column(right.reference)[0])
        return _compared(operator, column, kind, literal=right.literal)

    def _equal_ignoring_case(self, left: Any, right: Any, operator: str, *, negated: bool) -> Node:
        if operator != "==" or negated or right.WhichOneof("data") != "literal":
            raise UnsupportedError("a comparison ignoring case other than 'equals a constant'")
        column = self._text_column(left.reference, "a comparison ignoring case")
        return _java("icase in", column, _constant(right.literal, "text"))

    def is_in(self, body: Any, negated: bool) -> Node:
        if body.target.WhichOneof("data") != "reference":
            raise UnsupportedError("'in' of a constant")
        if not body.candidates:
            raise UnsupportedError("'in' of no candidates")
        self._spend(len(body.candidates))
        column, kind = self._column(body.target.reference)
        constants = []
        for candidate in body.candidates:
            if candidate.WhichOneof("data") != "literal":
                raise UnsupportedError("'in' with candidates that are columns")
            constants.append(_constant(candidate.literal, kind))
        ignores_case = body.case_sensitivity == _IGNORE_CASE and kind == "text"
        found = _java("icase in" if ignores_case else "in", column, *constants)
        return _not_if((body.match_type == _INVERTED) != negated, found)

    def is_null(self, body: Any, negated: bool) -> Node:
        return _not_if(negated, _java("isNull", self._column(body.reference)[0]))

    def is_nan(self, body: Any, negated: bool) -> Node:
        return _not_if(negated, _java("isNaN", self._column(body.reference)[0]))

    def contains(self, body: Any, negated: bool) -> Node:
        column = self._text_column(body.reference, "'contains'")
        ignores_case = body.case_sensitivity == _IGNORE_CASE
        name = "contains ignoring ASCII case" if ignores_case else ".contains"
        found = _java(name, column, Literal(0, body.search_string, "text"))
        return self._matched(column, found, (body.match_type == _INVERTED) != negated)

    def matches(self, body: Any, negated: bool) -> Node:
        column = self._text_column(body.reference, "'matches'")
        if len(body.regex) > self._limits.expression_bytes_max:
            raise LimitExceededError(
                "regular expression",
                actual=len(body.regex),
                maximum=self._limits.expression_bytes_max,
                unit="characters",
            )
        regex = whole_match(body.regex, ignores_case=body.case_sensitivity == _IGNORE_CASE)
        found = _java("matches", column, Literal(0, regex, "text"))
        return self._matched(column, found, (body.match_type == _INVERTED) != negated)

    def _matched(self, column: Column, found: Node, is_inverted: bool) -> Node:
        """A text is there and matches, or is there and does not."""
        return _java("&&", _java("!", _java("isNull", column)), _not_if(is_inverted, found))

    def search(self, body: Any, negated: bool) -> Node:
        if negated:
            raise UnsupportedError("'not' of 'search'")
        names = [reference.column_name for reference in body.optional_references]
        columns = [self._column(reference) for reference in body.optional_references]
        if not names or any(kind != "text" for _, kind in columns):
            raise UnsupportedError("'search' other than in named text columns")
        if not body.search_string or not body.search_string.isascii():
            raise UnsupportedError("'search' for nothing or for other than ASCII characters")
        searched = Literal(0, body.search_string, "text")
        nodes: list[Node] = [
            self._matched(column, _java("contains ignoring ASCII case", column, searched), False)
            for column, _ in columns
        ]
        joined = nodes[0]
        for node in nodes[1:]:
            joined = _java("||", joined, node)
        return joined

    def invoke(self, body: Any, negated: bool) -> Node:
        operands = [self._operand(argument) for argument in body.arguments]
        if not body.HasField("target"):
            if body.method not in ("isNull", "isNaN", "isInf", "isFinite"):
                raise UnsupportedError(f"function {body.method!r}")
            return _not_if(negated, _java(body.method, *operands))
        target = self._operand(body.target)
        if body.method not in METHOD_NAMES:
            raise UnsupportedError(f"method {body.method!r}")
        return _not_if(negated, _java(f".{body.method}", target, *operands))

    def _operand(self, value: Any) -> Node:
        side = value.WhichOneof("data")
        if side == "reference":
            return self._column(value.reference)[0]
        if side == "literal" and value.literal.WhichOneof("value") == "string_value":
            return Literal(0, value.literal.string_value, "text")
        raise UnsupportedError("a method with other arguments than columns and text")


_READERS: dict[str, Callable[[_ConditionReader, Any, bool], Node]] = {
    "compare": _ConditionReader.compare,
    "in": _ConditionReader.is_in,
    "is_null": _ConditionReader.is_null,
    "is_nan": _ConditionReader.is_nan,
    "contains": _ConditionReader.contains,
    "matches": _ConditionReader.matches,
    "search": _ConditionReader.search,
    "invoke": _ConditionReader.invoke,
}


def _compared(operator: str, column: Column, kind: str, *, literal: Any) -> Node:
    """A column against a constant."""
    if kind == "text" and operator not in ("==", "!="):
        raise UnsupportedError("the order of text and a constant")
    if kind in _WHOLE_KINDS and operator in ("==", "!="):
        # A number out of the column's range equals nothing, which a formula's rules say too.
        number = _number(literal)
        if number is not None and not _fits(number, kind):
            wide = "double" if isinstance(number, float) else "long"
            return _java(operator, column, Literal(0, number, wide))
    if kind == "float" and not _is_plainly_written(_number(literal)):
        return _java(operator, column, Literal(0, _number(literal), "double"))
    return _java(f"{operator} constant", column, _constant(literal, kind))


def _number(literal: Any) -> int | float | None:
    """The number of a literal; None for other values."""
    value = literal.WhichOneof("value")
    if value == "long_value":
        return int(literal.long_value)
    if value == "double_value":
        return _finite(float(literal.double_value))
    return None


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise UnsupportedError("a comparison with NaN or infinity; use isNaN or isInf")
    return value


def _fits(number: float, kind: str) -> bool:
    """Whether a number is a value of a whole kind."""
    least = int(NULLS[kind])
    return int(number) == number and least < number < -least


def _is_plainly_written(number: float | None) -> bool:
    """Whether Java writes the number without an exponent: only such numbers are read as float when
    compared with a float column."""
    if not isinstance(number, float) or number == 0:
        return True
    return 1e-3 <= abs(number) < 1e7


def _constant(literal: Any, kind: str) -> Literal:
    """The literal as a constant of the column's kind; ExpressionError when it is none."""
    value = literal.WhichOneof("value")
    number = _number(literal)
    if number is not None and kind in _WHOLE_KINDS and _fits(number, kind):
        return Literal(0, int(number), kind)
    if number is not None and kind in ("float", "double") and _is_plainly_written(number):
        return Literal(0, float(number), kind)
    if number is not None and kind == "double":
        return Literal(0, float(number), kind)
    if value == "string_value" and kind == "text":
        return Literal(0, literal.string_value, kind)
    if value == "string_value" and kind == "char" and len(literal.string_value) == 1:
        code = ord(literal.string_value)
        if code < 0xFFFF:
            return Literal(0, code, kind)
    if value == "bool_value" and kind == "boolean":
        return Literal(0, literal.bool_value, kind)
    if value == "nano_time_value" and kind == "instant":
        return Literal(0, literal.nano_time_value, kind)
    raise ExpressionError(f"{value or 'an empty literal'} is no constant of type {kind}")
