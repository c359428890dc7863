"""Expressions: text or tree bound to a schema, evaluated by Arrow kernels on whole columns.

Nothing is evaluated as Python. Arithmetic on whole numbers is checked: overflow raises instead of
wrapping. ``/`` always gives a float. Comparisons with null give null, ``and``/``or`` follow
three-valued logic, and a condition selects a row only where it is true.

Binding evaluates the tree once on columns without rows, so every type error shows when the
expression is bound and none later; what is left for later are values (overflow, text that is no
number).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.expressions.expression_text import (
    Call,
    Column,
    Literal,
    Membership,
    Node,
    parse,
)
from barrage.engine.expressions.java_functions import JAVA_FUNCTIONS, PREFIX
from barrage.engine.expressions.java_values import KIND_TYPES
from barrage.engine.expressions.tokens import error_at, in_text
from barrage.errors import ExpressionError, near_miss

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression that fits any schema with its columns.

    ``text`` is what errors quote. ``scope`` holds whatever else decides what the text means (its
    dialect, names defined before it), so that equal text and scope always mean the same.
    """

    text: str
    root: Node
    scope: str = ""

    @classmethod
    def parse(cls, text: str) -> Expression:
        return cls(text.strip(), parse(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundExpression:
    """An expression whose columns and types are known to fit one schema.

    ``columns`` are the indices of the columns it reads, ascending; ``type`` is what it yields.
    """

    text: str
    root: Node
    columns: tuple[int, ...]
    names: tuple[str, ...]
    type: pa.DataType
    scope: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Equal for expressions that mean the same."""
        return self.scope, self.text

    @property
    def row_operations(self) -> int:
        """Row operations (:mod:`barrage.engine.tables.work`) of an evaluation, for every row.
        Functions of texts go through their characters; a pattern does so with as many states as it
        is long."""
        return max(1, sum(map(_node_operations, _walk(self.root))))

    def evaluate(self, cells: Sequence[pa.Array], row_count: int) -> pa.Array:
        """The value per row. ``cells`` are the columns of ``columns``, each ``row_count`` long.

        Raises ExpressionError when a value cannot be computed, e.g. on overflow.
        """
        values = _evaluate(self.root, self.text, dict(zip(self.names, cells, strict=True)))
        return _broadcast(values, row_count)


def check_functions(expression: Expression) -> None:
    """What can be checked of an expression without a schema: that there are such functions, and
    that they take so many operands. ExpressionError."""
    for node in _walk(expression.root):
        if isinstance(node, Call):
            try:
                _function(node)
            except ExpressionError as error:
                raise in_text(error, expression.text) from None


def bind(expression: str | Expression, schema: pa.Schema) -> BoundExpression:
    """Check names and types against ``schema``; ExpressionError names position and column."""
    parsed = Expression.parse(expression) if isinstance(expression, str) else expression
    names = []
    for node in _walk(parsed.root):
        if isinstance(node, Column):
            if schema.get_field_index(node.name) < 0:
                hint = near_miss(node.name, schema.names)
                raise in_text(
                    error_at(node.position, f"unknown column {node.name!r}{hint}"), parsed.text
                )
            names.append(node.name)
    indices = tuple(sorted({schema.get_field_index(name) for name in names}))
    bound_names = tuple(schema.field(index).name for index in indices)
    empty = {name: pa.nulls(0, _plain_type(schema.field(name).type)) for name in bound_names}
    values = _evaluate(parsed.root, parsed.text, empty)
    return BoundExpression(
        text=parsed.text,
        root=parsed.root,
        columns=indices,
        names=bound_names,
        type=values.type,
        scope=parsed.scope,
    )


def bind_condition(expression: str | Expression, schema: pa.Schema) -> BoundExpression:
    """``bind`` for a filter: the expression must yield true or false."""
    bound = bind(expression, schema)
    if not pa.types.is_boolean(bound.type):
        raise ExpressionError(f"a filter must be true or false, not {bound.type}: {bound.text}")
    return bound


def _plain_type(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return data_type.value_type
    return data_type


def _plain(cells: pa.Array) -> pa.Array:
    """Kernels know few functions of encoded columns; they are decoded first."""
    if pa.types.is_dictionary(cells.type):
        return cells.dictionary_decode()
    if pa.types.is_run_end_encoded(cells.type):
        return pc.run_end_decode(cells)
    return cells


def _broadcast(values: Any, row_count: int) -> pa.Array:
    if isinstance(values, pa.Scalar):
        return pa.repeat(values, row_count)
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _operands(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Call):
        return node.operands
    return (node.operand,) if isinstance(node, Membership) else ()


def _walk(root: Node) -> Iterator[Node]:
    """Every node once, also where several share it."""
    seen: set[int] = set()
    waiting: list[Node] = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(reversed(_operands(node)))


def operation_count(root: Node) -> int:
    """How many operations an evaluation does."""
    return sum(isinstance(node, Call | Membership) for node in _walk(root))


def _node_operations(node: Node) -> int:
    if isinstance(node, Membership):
        return TEXT_OPERATIONS
    if not isinstance(node, Call):
        return 0
    name = node.name.removeprefix(PREFIX)
    if name in _PATTERN_FUNCTIONS:
        patterns = [one.value for one in node.operands if isinstance(one, Literal)]
        return TEXT_OPERATIONS + sum(len(text) for text in patterns if isinstance(text, str))
    return TEXT_OPERATIONS if name in _TEXT_FUNCTIONS or node.name != name else PLAIN_OPERATIONS


def _evaluate(root: Node, text: str, cells: Mapping[str, pa.Array]) -> Any:
    """Post-order without recursion: chains of operators nest as deep as the text is long. What
    several nodes share is computed once, and kept until the last of them has it."""
    plain = {name: _plain(values) for name, values in cells.items()}
    uses = Counter(id(operand) for node in _walk(root) for operand in _operands(node))
    shared: dict[int, Any] = {}
    waiting: list[tuple[Node, bool]] = [(root, False)]
    values: list[Any] = []
    while waiting:
        node, is_ready = waiting.pop()
        if isinstance(node, Column):
            values.append(plain[node.name])
        elif isinstance(node, Literal):
            values.append(_scalar(node))
        elif id(node) in shared:
            uses[id(node)] -= 1
            is_last = uses[id(node)] == 1
            values.append(shared.pop(id(node)) if is_last else shared[id(node)])
        elif not is_ready:
            waiting.append((node, True))
            waiting.extend((operand, False) for operand in reversed(_operands(node)))
        else:
            values.append(_apply(node, values, text))
            if uses[id(node)] > 1:
                shared[id(node)] = values[-1]
    return values[0]


def _scalar(node: Literal) -> pa.Scalar:
    return pa.scalar(node.value, KIND_TYPES.get(node.kind))


def _apply(node: Call | Membership, stack: list[Any], text: str) -> Any:
    count = len(node.operands) if isinstance(node, Call) else 1
    operands = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    try:
        if isinstance(node, Membership):
            return _is_member(operands[0], [literal.value for literal in node.values])
        return _function(node)(*operands)
    except ExpressionError as error:
        raise in_text(error, text) from error
    except (pa.ArrowException, TypeError) as error:
        what = f"{_shown_name(node)} cannot be applied: {error}"
        raise in_text(error_at(node.position, what), text) from error


def _shown_name(node: Call | Membership) -> str:
    return repr(node.name.removeprefix(PREFIX) if isinstance(node, Call) else "in")


def _function(node: Call) -> Callable[..., Any]:
    entry = _FUNCTIONS.get(node.name)
    if entry is None:
        hint = near_miss(node.name, [name for name in _FUNCTIONS if name.isalpha()])
        raise error_at(node.position, f"unknown function {node.name!r}{hint}")
    least, most, function = entry
    if not least <= len(node.operands) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        what = f"{_shown_name(node)} takes {wanted} operands, not {len(node.operands)}"
        raise error_at(node.position, what)
    return function


def _is_member(operand: Any, values: list[Any]) -> Any:
    wanted = pa.array(values)
    if wanted.type != operand.type:
        wanted = wanted.cast(operand.type)
    found = pc.is_in(operand, value_set=wanted)
    return pc.if_else(pc.is_null(operand), pa.scalar(None, pa.bool_()), found)


def _comparison(kernel: str) -> Callable[[Any, Any], Any]:
    def compare(left: Any, right: Any) -> Any:
        left, right = _with_text_as(left, right)
        return pc.call_function(kernel, [left, right])

    return compare


def _with_text_as(left: Any, right: Any) -> tuple[Any, Any]:
    """Text constants compared with times are read as times of that type; null takes any type."""
    if isinstance(right, pa.Scalar) and _is_adaptable(right.type, left.type):
        return left, right.cast(left.type)
    if isinstance(left, pa.Scalar) and _is_adaptable(left.type, right.type):
        return left.cast(right.type), right
    return left, right


def _is_adaptable(constant: pa.DataType, other: pa.DataType) -> bool:
    return pa.types.is_null(constant) or (
        pa.types.is_string(constant)
        and (pa.types.is_temporal(other) or pa.types.is_binary(other))
        and not pa.types.is_duration(other)
    )


def _pattern(kernel: str) -> Callable[[Any, Any], Any]:
    def match(values: Any, pattern: Any) -> Any:
        if not isinstance(pattern, pa.Scalar) or not isinstance(pattern.as_py(), str):
            raise ExpressionError("the pattern must be a text constant")
        return getattr(pc, kernel)(values, pattern.as_py())

    return match


def _divide(left: Any, right: Any) -> Any:
    # Whole numbers past 2^53 lose their last digits here, as in any float division.
    return pc.divide(
        pc.cast(left, pa.float64(), safe=False), pc.cast(right, pa.float64(), safe=False)
    )


def _cast_to(data_type: pa.DataType) -> Callable[[Any], Any]:
    return lambda values: pc.cast(values, data_type)


def _kernel(name: str) -> Callable[..., Any]:
    return lambda *operands: pc.call_function(name, list(operands))


PLAIN_OPERATIONS = 1
"""Row operations of a kernel upon numbers."""

TEXT_OPERATIONS = 10
"""Row operations of a kernel upon texts; Java's functions look at nulls and bounds besides."""

_TEXT_FUNCTIONS = frozenset(
    ("startswith", "endswith", "contains", "lower", "upper", "trim", "length", "text", "int")
)
_PATTERN_FUNCTIONS = frozenset(("like", "matches"))

_ANY_COUNT = 1 << 10
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "and": (2, 2, _kernel("and_kleene")),
    "or": (2, 2, _kernel("or_kleene")),
    "not": (1, 1, _kernel("invert")),
    "==": (2, 2, _comparison("equal")),
    "!=": (2, 2, _comparison("not_equal")),
    "<": (2, 2, _comparison("less")),
    "<=": (2, 2, _comparison("less_equal")),
    ">": (2, 2, _comparison("greater")),
    ">=": (2, 2, _comparison("greater_equal")),
    "+": (2, 2, _kernel("add_checked")),
    "-": (2, 2, _kernel("subtract_checked")),
    "*": (2, 2, _kernel("multiply_checked")),
    "/": (2, 2, _divide),
    "negate": (1, 1, _kernel("negate_checked")),
    "isnull": (1, 1, lambda values: pc.is_null(values)),
    "isnotnull": (1, 1, lambda values: pc.is_valid(values)),
    "isnan": (1, 1, _kernel("is_nan")),
    "startswith": (2, 2, _pattern("starts_with")),
    "endswith": (2, 2, _pattern("ends_with")),
    "contains": (2, 2, _pattern("match_substring")),
    "like": (2, 2, _pattern("match_like")),
    "lower": (1, 1, _kernel("utf8_lower")),
    "upper": (1, 1, _kernel("utf8_upper")),
    "trim": (1, 1, lambda values: pc.utf8_trim_whitespace(values)),
    "length": (1, 1, _kernel("utf8_length")),
    "abs": (1, 1, _kernel("abs_checked")),
    "floor": (1, 1, _kernel("floor")),
    "ceil": (1, 1, _kernel("ceil")),
    "round": (1, 1, lambda values: pc.round(values)),
    "sqrt": (1, 1, _kernel("sqrt")),
    "least": (1, _ANY_COUNT, lambda *values: pc.min_element_wise(*values)),
    "greatest": (1, _ANY_COUNT, lambda *values: pc.max_element_wise(*values)),
    "coalesce": (1, _ANY_COUNT, _kernel("coalesce")),
    "if": (3, 3, _kernel("if_else")),
    "int": (1, 1, _cast_to(pa.int64())),
    "float": (1, 1, _cast_to(pa.float64())),
    "text": (1, 1, _cast_to(pa.string())),
    "year": (1, 1, _kernel("year")),
    "month": (1, 1, _kernel("month")),
    "day": (1, 1, _kernel("day")),
    "hour": (1, 1, _kernel("hour")),
    "minute": (1, 1, _kernel("minute")),
    "second": (1, 1, _kernel("second")),
    **JAVA_FUNCTIONS,
}
"""Fewest and most operands, and the function. No entry can loop or touch anything but its
operands."""
