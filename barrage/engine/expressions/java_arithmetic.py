"""Arithmetic and order of numbers, times and text by Java's and Deephaven's rules.

* Whole numbers: at least 32 bits, 64 when one operand has them; overflow wraps around. ``/`` of
  whole numbers gives a fraction. A null operand gives null.
* float with whole numbers stays float, except that dividing a float by a whole number gives double.
* Order: null is lower than every value and equal to null; NaN is unequal to everything and neither
  lower nor higher. Long numbers and fractions are ordered exactly, but ``==`` rounds the long
  number to the type of the fraction first.
* Text is ordered by its UTF-16 units.

Every rule was read off a real server: tests/vectors/deephaven_expressions.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.expressions.java_values import (
    DTYPES,
    INTEGER_KINDS,
    NULLS,
    JavaValue,
    constant_null,
)
from barrage.errors import ExpressionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from barrage.engine.expressions.java_values import Mask

_LONG_END = 2.0**63

JOINED_BYTES_MAX = 256 * 1024 * 1024
"""Most text that ``+`` makes at once: text joined with itself again and again doubles each time."""

JOINED_BYTES_SMALL = 16 * 1024 * 1024
JOINED_BYTES_PER_ROW = 1024
"""A table of few rows is computed on the engine thread, so it gets less: so much, and so much for
each of its rows."""


def promoted(left: str, right: str) -> str:
    """The kind in which two number kinds are computed together."""
    for kind in ("double", "float", "long"):
        if kind in (left, right):
            return kind
    return "int"


def converted(value: JavaValue, kind: str) -> npt.NDArray[Any]:
    """The numbers in another kind, null staying null; conversions narrow like Java's casts."""
    numbers = _java_cast(value.data, kind)
    if value.kind == kind:
        return numbers
    return np.where(value.nulls(), DTYPES[kind].type(NULLS[kind]), numbers)


def _java_cast(numbers: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    """A cast without regard to null: whole numbers wrap, fractions are cut off and saturate."""
    dtype = DTYPES[kind]
    if dtype.kind in "iu" and numbers.dtype.kind == "f":
        whole = np.trunc(np.nan_to_num(numbers.astype(np.float64), nan=0.0, posinf=_LONG_END,
                                       neginf=-_LONG_END))  # fmt: skip
        info = np.iinfo(dtype)
        inside = np.where((whole >= float(info.min)) & (whole < float(info.max)), whole, 0.0)
        cast = inside.astype(dtype)
        cast = np.where(whole >= float(info.max), dtype.type(info.max), cast)
        return np.where(whole <= float(info.min), dtype.type(info.min), cast)
    with np.errstate(over="ignore"):
        return np.asarray(numbers.astype(dtype))


def raw_cast(value: JavaValue, kind: str) -> npt.NDArray[Any]:
    """The numbers in another kind, null not recognised: its stand-in becomes a plain number, as
    when Java's ``?:`` widens a branch."""
    return _java_cast(value.data, kind)


def arithmetic(operator: str) -> Callable[[JavaValue, JavaValue], JavaValue]:
    """``+ - * / %`` for numbers; ``+`` also joins text, ``+`` and ``-`` also move times."""

    def compute(left: JavaValue, right: JavaValue) -> JavaValue:
        if operator == "+" and "text" in (left.kind, right.kind):
            return _joined(left, right)
        if left.kind == "instant" and operator in "+-":
            return _moved(operator, left, right)
        if not (left.is_number and right.is_number):
            raise TypeError(f"it takes two numbers, not {left.kind} and {right.kind}")
        return _calculated(operator, left, right)

    return compute


def _calculated(operator: str, left: JavaValue, right: JavaValue) -> JavaValue:
    kind = promoted(left.kind, right.kind)
    if operator == "/" and right.kind in INTEGER_KINDS:
        kind = "double"
    first, second = converted(left, kind), converted(right, kind)
    nulls = left.nulls() | right.nulls()
    failed = None
    with np.errstate(all="ignore"):
        if operator == "%" and kind in INTEGER_KINDS:
            failed = np.asarray((second == 0) & ~nulls)
            second = np.where(second == 0, DTYPES[kind].type(1), second)
        result = _KERNELS[operator](first, second)
    result = np.where(nulls, DTYPES[kind].type(NULLS[kind]), result)
    return JavaValue(kind, result, failed, "the remainder of a division by zero")


_KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "%": np.fmod,
}


def _moved(operator: str, left: JavaValue, right: JavaValue) -> JavaValue:
    """Instant plus or minus nanoseconds, or the nanoseconds between two instants. Past 64 bits the
    row has no value."""
    if right.kind not in INTEGER_KINDS and not (operator == "-" and right.kind == "instant"):
        raise TypeError(f"instant {operator} {right.kind} is not supported")
    first = left.data
    second = right.data if right.kind == "instant" else converted(right, "long")
    with np.errstate(over="ignore"):
        result = _KERNELS[operator](first, second)
    nulls = left.nulls() | right.nulls()
    signs = (first < 0, second < 0, result < 0)
    differ = signs[0] != signs[1] if operator == "-" else signs[0] == signs[1]
    overflowed = np.asarray(differ & (signs[2] != signs[0]) & ~nulls)
    result = np.where(nulls, np.int64(NULLS["long"]), result)
    kind = "long" if right.kind == "instant" else "instant"
    return JavaValue(kind, result, overflowed, "a time that does not fit 64 bits")


def _joined(left: JavaValue, right: JavaValue) -> JavaValue:
    parts = [_shown(left), _shown(right)]
    row_count = max(1 if isinstance(part, pa.Scalar) else len(part) for part in parts)
    size = sum(
        len(part.as_buffer() or b"") * row_count if isinstance(part, pa.Scalar) else part.nbytes
        for part in parts
    )
    most = min(JOINED_BYTES_MAX, JOINED_BYTES_SMALL + JOINED_BYTES_PER_ROW * row_count)
    if size > most:
        raise ExpressionError(
            f"joining text gives about {size} bytes for {row_count} rows, the limit is {most}"
        )
    return JavaValue("text", pc.binary_join_element_wise(*parts, ""))


def _shown(value: JavaValue) -> pa.Array | pa.Scalar:
    """The text a value adds to a text. Null shows as ``null``, but a null whole number as the
    number that stands for it."""
    if value.kind == "null":
        return pa.scalar("null")
    if value.kind == "text":
        return pc.fill_null(value.data, "null")
    if value.kind == "boolean":
        words = pa.array(["null", "false", "true"]).take(pa.array(np.atleast_1d(value.data) + 1))
    elif value.kind in INTEGER_KINDS and value.kind != "char":
        words = pa.array(np.atleast_1d(value.data)).cast(pa.string())
    else:
        raise TypeError(f"the text form of {value.kind} is not supported")
    return words if np.ndim(value.data) else words[0]


def negated(value: JavaValue) -> JavaValue:
    if value.kind not in ("int", "long", "float", "double"):
        raise TypeError(f"it takes an int, long, float or double, not {value.kind}")
    with np.errstate(over="ignore"):
        result = np.negative(value.data)
    kept = DTYPES[value.kind].type(NULLS[value.kind])
    return JavaValue(value.kind, np.where(value.nulls(), kept, result))


def comparison(operator: str, *, by_sign: bool) -> Callable[[JavaValue, JavaValue], JavaValue]:
    """The six comparisons; they never give null. ``by_sign``: -0.0 is lower than 0.0, though equal
    to it, which is so in formulas and not where a column is compared with a constant."""

    def compare(left: JavaValue, right: JavaValue) -> JavaValue:
        holds = _ORDERS.get(operator)
        left, right = _comparable(left, right, is_order=holds is not None)
        if holds is not None:
            return truth(_ordered(left, right, holds, by_sign=by_sign))
        equal = _equal(left, right)
        return truth(equal if operator == "==" else ~equal)

    return compare


def truth(mask: Any) -> JavaValue:
    """A mask as truth values without null."""
    return JavaValue("boolean", np.asarray(mask).astype(np.int8))


def _comparable(
    left: JavaValue, right: JavaValue, *, is_order: bool
) -> tuple[JavaValue, JavaValue]:
    """Both sides with the constant null typed like the other side. TypeError unless they can be
    compared."""
    if "other" in (left.kind, right.kind):
        raise TypeError("a column of this type can only be tested with isNull")
    if left.kind == right.kind == "null":
        if is_order:
            raise TypeError("null has no order")
        return left, right
    if "null" in (left.kind, right.kind):
        typed = left if right.kind == "null" else right
        if is_order and typed.is_number:
            raise TypeError(f"{typed.kind} has no order with null")
        null = constant_null(typed.kind)
        return (left, null) if right.kind == "null" else (null, right)
    if left.kind != right.kind and not (left.is_number and right.is_number):
        raise TypeError(f"{left.kind} and {right.kind} cannot be compared")
    return left, right


def _equal(left: JavaValue, right: JavaValue) -> Mask:
    nulls = left.nulls(), right.nulls()
    if left.kind == "null":
        return np.asarray(nulls[0] & nulls[1])
    if left.kind == "text":
        same = _filled(pc.equal(left.data, right.data))
    elif left.kind == right.kind:
        same = np.asarray(left.data == right.data)
    else:
        kind = promoted(left.kind, right.kind)
        same = np.asarray(_java_cast(left.data, kind) == _java_cast(right.data, kind))
    return np.asarray((nulls[0] & nulls[1]) | (same & ~nulls[0] & ~nulls[1]))


def _ordered(
    left: JavaValue, right: JavaValue, holds: Callable[[Any], Any], *, by_sign: bool
) -> Mask:
    """Where ``holds`` is true of the sign of "left minus right". Null is lower than all and equal
    to null; where NaN takes part nothing holds."""
    left_null, right_null = left.nulls(), right.nulls()
    if left.kind == "text":
        first, second = _by_utf16(left.data), _by_utf16(right.data)
        lower, higher = _filled(pc.less(first, second)), _filled(pc.greater(first, second))
        sign = higher.astype(np.int8) - lower.astype(np.int8)
    else:
        sign = _number_sign(left, right, by_sign=by_sign)
    either_null = left_null | right_null
    sign = np.where(either_null, right_null.astype(np.int8) - left_null.astype(np.int8), sign)
    return np.asarray(holds(sign) & ~(_is_nan(left) | _is_nan(right)))


def _is_nan(value: JavaValue) -> Mask:
    if value.kind in ("float", "double"):
        return np.asarray(np.isnan(value.data))
    return np.array(False)


def _number_sign(left: JavaValue, right: JavaValue, *, by_sign: bool) -> npt.NDArray[np.int8]:
    """-1, 0 or 1; null and NaN are somebody else's. ``by_sign``: -0.0 is lower than 0.0."""
    if not left.is_number:
        return _sign(left.data, right.data)
    kind = promoted(left.kind, right.kind)
    if kind in ("float", "double") and "long" in (left.kind, right.kind):
        if left.kind == "long":
            return _long_sign(left.data, right.data.astype(np.float64))
        return -_long_sign(right.data, left.data.astype(np.float64))
    first, second = _java_cast(left.data, kind), _java_cast(right.data, kind)
    sign = _sign(first, second)
    if by_sign and kind in ("float", "double"):
        zeros = np.signbit(second).astype(np.int8) - np.signbit(first).astype(np.int8)
        sign = np.where((first == 0) & (second == 0), zeros, sign)
    return sign


def _sign(first: Any, second: Any) -> npt.NDArray[np.int8]:
    with np.errstate(invalid="ignore"):
        return np.asarray((first > second).astype(np.int8) - (first < second).astype(np.int8))


def _long_sign(numbers: npt.NDArray[Any], fractions: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Exact sign of number minus fraction, but 2^63 counts as the largest long, as it does after a
    cast in Java."""
    whole = np.trunc(fractions)
    sign = _sign(numbers, _java_cast(whole, "long"))
    sign = np.where(sign == 0, _sign(whole, fractions), sign)
    beyond = np.abs(fractions) > _LONG_END
    return np.where(beyond, np.where(fractions > 0, -1, 1), sign).astype(np.int8)


_ORDERS: dict[str, Callable[[Any], Any]] = {
    "<": lambda sign: sign < 0,
    "<=": lambda sign: sign <= 0,
    ">": lambda sign: sign > 0,
    ">=": lambda sign: sign >= 0,
}


def _filled(answers: pa.Array | pa.Scalar) -> Mask:
    """Arrow truth values as a mask, null as false."""
    if isinstance(answers, pa.Scalar):
        return np.array(bool(answers.as_py()))
    return np.asarray(pc.fill_null(answers, False).to_numpy(zero_copy_only=False), np.bool_)


_UTF16_ORDER = bytes({0xEE: 0xF8, 0xEF: 0xF9}.get(byte, byte) for byte in range(256))
"""Lead bytes of U+E000..U+FFFF moved behind those of the supplementary planes: UTF-8 bytes then
sort like UTF-16 units."""
_UTF16_TABLE = np.frombuffer(_UTF16_ORDER, np.uint8)


def _by_utf16(text: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    """Bytes that sort the way Java sorts the text."""
    if isinstance(text, pa.Scalar):
        value = text.as_py()
        moved = None if value is None else value.encode().translate(_UTF16_ORDER)
        return pa.scalar(moved, pa.binary())
    plain = text.cast(pa.binary())
    validity, offsets, data = plain.buffers()
    if data is None:
        return plain
    raw = np.frombuffer(data, np.uint8)
    if not np.any(raw >= 0xEE):
        return plain
    moved = pa.py_buffer(_UTF16_TABLE[raw].tobytes())
    return pa.Array.from_buffers(
        pa.binary(), len(plain), [validity, offsets, moved], offset=plain.offset
    )
