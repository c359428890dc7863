"""The functions of Deephaven's expressions, for the registry of
:mod:`barrage.engine.expressions.expression`.

Their names start with ``java:``, which no expression of our own can spell. Operands are columns,
constants or results of each other (:class:`JavaValue`); ``java:result`` and ``java:condition``,
which stand at the root of a tree, give an Arrow column again and raise ExpressionError for rows
that failed. Rules come from a real server: tests/vectors/deephaven_expressions.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.expressions.java_arithmetic import (
    arithmetic,
    comparison,
    converted,
    negated,
    promoted,
    raw_cast,
    truth,
)
from barrage.engine.expressions.java_text import ignoring_case, java_lower, java_upper
from barrage.engine.expressions.java_values import (
    DTYPES,
    KIND_TYPES,
    NULLS,
    NUMBER_KINDS,
    JavaValue,
    constant_null,
    from_arrow,
    to_arrow,
)
from barrage.errors import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.engine.expressions.java_values import Mask

PREFIX = "java:"

_Operand: TypeAlias = JavaValue | pa.Array | pa.Scalar
_OPERANDS_MAX = 10_000
"""Most constants of one ``in``."""


def _value(operand: _Operand) -> JavaValue:
    return operand if isinstance(operand, JavaValue) else from_arrow(operand)


def _any_failed(values: Sequence[JavaValue]) -> tuple[Mask | None, str]:
    """Rows in which one of the values failed, and why the first did."""
    failed = None
    reason = ""
    for value in values:
        if value.failed is not None:
            failed = value.failed if failed is None else failed | value.failed
            reason = reason or value.reason
    return failed, reason


def _strict(function: Callable[..., JavaValue]) -> Callable[..., JavaValue]:
    """A function that needs all of its operands: rows in which one failed have no result."""

    def apply(*operands: _Operand) -> JavaValue:
        values = [_value(operand) for operand in operands]
        result = function(*values)
        failed, reason = _any_failed([*values, result])
        return JavaValue(result.kind, result.data, failed, reason)

    return apply


_NO_TRUTH = "null where true or false is needed"


def _truths(value: JavaValue) -> tuple[Mask, Mask]:
    """Where a condition is true, and where it has no answer."""
    if value.kind != "boolean":
        raise TypeError(f"it takes true or false, not {value.kind}")
    missing = value.nulls()
    if value.failed is not None:
        missing = missing | value.failed
    return np.asarray(value.data == 1), np.asarray(missing)


def _lazily(decisive: bool) -> Callable[[_Operand, _Operand], JavaValue]:
    """``&&`` (decided by a false left side) and ``||`` (by a true one): the right side may fail
    where the left one decides."""

    def combine(left: _Operand, right: _Operand) -> JavaValue:
        first, second = _value(left), _value(right)
        left_true, left_missing = _truths(first)
        right_true, right_missing = _truths(second)
        is_open = ~left_missing & (left_true != decisive)
        result = np.where(is_open, right_true, left_true)
        failed = left_missing | (is_open & right_missing)
        reason = first.reason or second.reason or _NO_TRUTH
        return JavaValue("boolean", np.asarray(result).astype(np.int8), failed, reason)

    return combine


def _not(value: JavaValue) -> JavaValue:
    if value.kind != "boolean":
        raise TypeError(f"it takes true or false, not {value.kind}")
    null = np.int8(NULLS["boolean"])
    return JavaValue("boolean", np.where(value.data == null, null, 1 - value.data).astype(np.int8))


def _if(condition: _Operand, yes: _Operand, no: _Operand) -> JavaValue:
    """``?:``; only the chosen branch may fail."""
    first, second, third = _value(condition), _value(yes), _value(no)
    chosen, missing = _truths(first)
    kind = _branch_kind(second.kind, third.kind)
    branches = [_as_branch(value, kind) for value in (second, third)]
    failed = missing
    for value, is_here in ((second, chosen), (third, ~chosen)):
        if value.failed is not None:
            failed = failed | (is_here & value.failed)
    if kind in ("text", "other"):
        mask = pa.array(np.atleast_1d(chosen))
        data = pc.if_else(mask if np.ndim(chosen) else mask[0], *branches)
    else:
        data = np.where(chosen, *branches)
    reason = first.reason or second.reason or third.reason or _NO_TRUTH
    return JavaValue(kind, data, np.asarray(failed), reason)


def _branch_kind(yes: str, no: str) -> str:
    if yes == no and yes not in ("null", "other"):
        return yes
    if "null" in (yes, no):
        other = no if yes == "null" else yes
        if other not in ("null", "other"):
            return other
    if yes in NUMBER_KINDS and no in NUMBER_KINDS and not {yes, no} <= {"byte", "short", "char"}:
        return promoted(yes, no)
    raise TypeError(f"its branches are {yes} and {no}")


def _as_branch(value: JavaValue, kind: str) -> Any:
    if value.kind == "null":
        return constant_null(kind).data
    return raw_cast(value, kind) if kind in NUMBER_KINDS else value.data


def _result(operand: _Operand) -> pa.Array | pa.Scalar:
    value = _value(operand)
    _refuse_failed(value.failed, value.reason)
    return to_arrow(value)


def _condition(operand: _Operand) -> pa.Array | pa.Scalar:
    value = _value(operand)
    _, missing = _truths(value)
    _refuse_failed(missing, value.reason or _NO_TRUTH)
    return to_arrow(value)


def _refuse_failed(failed: Mask | None, reason: str) -> None:
    if failed is not None and np.any(failed):
        raise ExpressionError(f"cannot be computed for {int(np.sum(failed))} rows, first: {reason}")


def _is_null(value: JavaValue) -> JavaValue:
    return truth(value.nulls())


def _number_test(test: Callable[[Any], Any], of_whole: bool) -> Callable[[JavaValue], JavaValue]:
    """isNaN and the like: false for null, ``of_whole`` for whole numbers."""

    def apply(value: JavaValue) -> JavaValue:
        _check_number(value)
        is_fraction = value.kind in ("float", "double")
        found = test(value.data) if is_fraction else np.full(np.shape(value.data), of_whole)
        return truth(np.asarray(found) & ~value.nulls())

    return apply


def _check_number(*values: JavaValue) -> None:
    for value in values:
        if not value.is_number:
            raise TypeError(f"it takes a number, not {value.kind}")


def _cast(kind: str) -> Callable[[JavaValue], JavaValue]:
    def apply(value: JavaValue) -> JavaValue:
        if value.kind == "null":
            return constant_null(kind)
        _check_number(value)
        return JavaValue(kind, converted(value, kind))

    return apply


def _rounding(kernel: Callable[[Any], Any]) -> Callable[[JavaValue], JavaValue]:
    """sqrt, floor and others: any number to double."""

    def apply(value: JavaValue) -> JavaValue:
        _check_number(value)
        with np.errstate(all="ignore"):
            result = kernel(converted(value, "double"))
        return JavaValue("double", np.where(value.nulls(), NULLS["double"], result))

    return apply


def _absolute(value: JavaValue) -> JavaValue:
    if value.kind not in ("byte", "short", "int", "long", "float", "double"):
        raise TypeError(f"it takes a number, not {value.kind}")
    kept = DTYPES[value.kind].type(NULLS[value.kind])
    with np.errstate(over="ignore"):
        return JavaValue(value.kind, np.where(value.nulls(), kept, np.abs(value.data)))


def _extreme(is_wanted: Callable[[Any, Any], Any]) -> Callable[[JavaValue, JavaValue], JavaValue]:
    """min and max of two numbers: null counts for nothing, NaN wins, of equal ones the first."""

    def apply(left: JavaValue, right: JavaValue) -> JavaValue:
        _check_number(left, right)
        kind = promoted(left.kind, right.kind)
        if kind == "float" or (kind == "double" and "long" in (left.kind, right.kind)):
            raise TypeError(f"{left.kind} and {right.kind} are not supported together")
        first, second = converted(left, kind), converted(right, kind)
        with np.errstate(invalid="ignore"):
            takes_second = is_wanted(second, first) | (second != second) | left.nulls()
        keeps_first = right.nulls() | (first != first)
        return JavaValue(kind, np.where(takes_second & ~keeps_first, second, first))

    return apply


def _replace_if_null(value: JavaValue, other: JavaValue) -> JavaValue:
    allowed = {("long", "int"), ("double", "int"), ("int", "long")}
    is_same = value.kind == other.kind and value.kind in KIND_TYPES
    if not is_same and (value.kind, other.kind) not in allowed:
        raise TypeError(f"{value.kind} cannot be replaced by {other.kind}")
    if value.kind == "text":
        return JavaValue("text", pc.coalesce(value.data, other.data))
    kind = value.kind if is_same else promoted(value.kind, other.kind)
    if kind not in NUMBER_KINDS:
        return JavaValue(kind, np.where(value.nulls(), other.data, value.data))
    result = np.where(value.nulls(), converted(other, kind), converted(value, kind))
    return JavaValue(kind, result)


def _epoch(unit: int) -> Callable[[JavaValue], JavaValue]:
    def apply(value: JavaValue) -> JavaValue:
        if value.kind != "instant":
            raise TypeError(f"it takes an instant, not {value.kind}")
        whole = np.floor_divide(value.data, np.int64(unit))
        return JavaValue("long", np.where(value.nulls(), np.int64(NULLS["long"]), whole))

    return apply


def _is_in(target: JavaValue, *constants: JavaValue) -> JavaValue:
    """Equal to one of the constants. Here NaN equals NaN."""
    kind = target.kind
    if any(constant.kind not in (kind, "null") for constant in constants):
        raise TypeError(f"its list holds more than constants of type {kind}")
    wanted = [constant_null(kind) if c.kind == "null" else c for c in constants]
    if kind == "text":
        values = pa.array([constant.data.as_py() for constant in wanted], pa.string())
        return _text_mask(pc.is_in(target.data, value_set=values))
    numbers = np.array([constant.data for constant in wanted], DTYPES[kind])
    found = np.isin(target.data, numbers)
    if kind in ("float", "double") and np.isnan(numbers).any():
        found = found | np.isnan(target.data)
    return truth(found)


def _is_in_ignoring_case(target: JavaValue, *constants: JavaValue) -> JavaValue:
    if target.kind != "text" or any(constant.kind != "text" for constant in constants):
        raise TypeError("it takes text")
    values = [ignoring_case(constant.data).as_py() for constant in constants]
    return _text_mask(pc.is_in(ignoring_case(target.data), value_set=pa.array(values, pa.string())))


def _text_mask(answers: pa.Array | pa.Scalar) -> JavaValue:
    if isinstance(answers, pa.Scalar):
        return truth(np.array(bool(answers.as_py())))
    return truth(pc.fill_null(answers, False).to_numpy(zero_copy_only=False))


_NO_RECEIVER = "a method called on null"


def _method(function: Callable[..., JavaValue], argument_count: int) -> Callable[..., JavaValue]:
    """A method of text. Null has no methods: such rows fail. Arguments are text constants."""

    def apply(target: JavaValue, *arguments: JavaValue) -> JavaValue:
        if target.kind != "text":
            raise TypeError(f"it is a method of text, not of {target.kind}")
        given = []
        for argument in arguments:
            if argument.kind != "text" or not isinstance(argument.data, pa.Scalar):
                raise TypeError("its argument must be a text constant")
            given.append(argument.data.as_py())
        if len(given) != argument_count or None in given:
            raise TypeError("its argument must be a text constant")
        result = function(target.data, *given)
        return JavaValue(result.kind, result.data, target.nulls(), _NO_RECEIVER)

    return apply


def _of_text(kernel: Callable[..., Any]) -> Callable[..., JavaValue]:
    return lambda text, *given: _text_mask(kernel(text, *given))


def _to_text(kernel: Callable[[Any], Any]) -> Callable[..., JavaValue]:
    return lambda text: JavaValue("text", kernel(text))


def _equals(text: Any, other: str) -> Any:
    return pc.equal(text, pa.scalar(other))


def _equals_ignoring_case(text: Any, other: str) -> Any:
    return pc.equal(ignoring_case(text), ignoring_case(pa.scalar(other)))


def _utf16_length(text: Any) -> JavaValue:
    """Number of UTF-16 units: characters, those past U+FFFF twice."""
    astral = pc.count_substring_regex(text, pattern="[\\x{10000}-\\x{10FFFF}]")
    length = pc.add(pc.utf8_length(text), astral)
    filled = pc.fill_null(length, 0)
    if isinstance(filled, pa.Scalar):
        return JavaValue("int", np.array(filled.as_py(), np.int32))
    return JavaValue("int", filled.to_numpy(zero_copy_only=False).astype(np.int32))


def _contains_ignoring_ascii_case(text: Any, searched: str) -> Any:
    lowered = "".join(letter.lower() if letter.isascii() else letter for letter in searched)
    return pc.match_substring(pc.ascii_lower(text), lowered)


_SPACES = "".join(map(chr, range(0x21)))

_METHODS: dict[str, tuple[int, Callable[..., JavaValue]]] = {
    "startsWith": (1, _of_text(pc.starts_with)),
    "endsWith": (1, _of_text(pc.ends_with)),
    "contains": (1, _of_text(pc.match_substring)),
    "equals": (1, _of_text(_equals)),
    "equalsIgnoreCase": (1, _of_text(_equals_ignoring_case)),
    "isEmpty": (0, _of_text(lambda text: _equals(text, ""))),
    "length": (0, _utf16_length),
    "toUpperCase": (0, _to_text(java_upper)),
    "toLowerCase": (0, _to_text(java_lower)),
    "trim": (0, _to_text(lambda text: pc.utf8_trim(text, characters=_SPACES))),
}

_SINGLE: dict[str, tuple[int, Callable[..., JavaValue]]] = {
    "isNull": (1, _is_null),
    "isNaN": (1, _number_test(np.isnan, of_whole=False)),
    "isInf": (1, _number_test(np.isinf, of_whole=False)),
    "isFinite": (1, _number_test(np.isfinite, of_whole=True)),
    "abs": (1, _absolute),
    "sqrt": (1, _rounding(np.sqrt)),
    "floor": (1, _rounding(np.floor)),
    "ceil": (1, _rounding(np.ceil)),
    "rint": (1, _rounding(np.rint)),
    "min": (2, _extreme(np.less)),
    "max": (2, _extreme(np.greater)),
    "replaceIfNull": (2, _replace_if_null),
    "epochNanos": (1, _epoch(1)),
    "epochMillis": (1, _epoch(1_000_000)),
    "epochSeconds": (1, _epoch(1_000_000_000)),
}

_PATTERNS: dict[str, Callable[..., JavaValue]] = {
    "matches": _of_text(pc.match_substring_regex),
    "contains ignoring ASCII case": _of_text(_contains_ignoring_ascii_case),
}
"""For structured conditions only; the pattern of ``matches`` is one of RE2 with its anchors."""

FUNCTION_NAMES = frozenset(_SINGLE)
METHOD_NAMES = frozenset(_METHODS)
CAST_KINDS = ("int", "long", "float", "double")


def _entries() -> dict[str, tuple[int, int, Callable[..., Any]]]:
    found: dict[str, tuple[int, int, Callable[..., Any]]] = {
        "result": (1, 1, _result),
        "condition": (1, 1, _condition),
        "&&": (2, 2, _lazily(decisive=False)),
        "||": (2, 2, _lazily(decisive=True)),
        "!": (1, 1, _strict(_not)),
        "?:": (3, 3, _if),
        "negate": (1, 1, _strict(negated)),
        "in": (2, _OPERANDS_MAX, _strict(_is_in)),
        "icase in": (2, _OPERANDS_MAX, _strict(_is_in_ignoring_case)),
    }
    for operator in ("+", "-", "*", "/", "%"):
        found[operator] = (2, 2, _strict(arithmetic(operator)))
    for operator in ("==", "!=", "<", "<=", ">", ">="):
        found[operator] = (2, 2, _strict(comparison(operator, by_sign=True)))
        found[f"{operator} constant"] = (2, 2, _strict(comparison(operator, by_sign=False)))
    for kind in CAST_KINDS:
        found[f"({kind})"] = (1, 1, _strict(_cast(kind)))
    for name, (count, function) in _SINGLE.items():
        found[name] = (count, count, _strict(function))
    for name, (count, function) in _METHODS.items():
        found[f".{name}"] = (count + 1, count + 1, _strict(_method(function, count)))
    for name, function in _PATTERNS.items():
        found[name] = (2, 2, _strict(_method(function, 1)))
    return {PREFIX + name: entry for name, entry in found.items()}


JAVA_FUNCTIONS = _entries()
"""Fewest and most operands, and the function, by name."""
