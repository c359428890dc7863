"""Arithmetic and order of numbers, times and text by Java's and Deephaven's rules.

* Whole numbers: at least 32 bits, 64 when one operand has them; overflow wraps around. ``/`` of
  whole numbers gives a fraction. A null operand gives null.
* float with whole numbers stays float, except that dividing a float by a whole number gives double.
* Order: null is lower than every value and equal to null; NaN is unequal to everything and neither
  lower nor higher. Long numbers and fractions are ordered exactly but *equal* once rounded to the
  wider fraction, hence ``<=`` is "lower or equal" and not "not higher".
* Text is ordered by its UTF-16 units.

Every rule was read off a real server: tests/vectors/deephaven_expressions.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.engine.java_values import (
    DTYPES,
    INTEGER_KINDS,
    NULLS,
    TIME_KINDS,
    JavaValue,
    constant_null,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from barrage.engine.java_values import Mask

_LONG_END = 2.0**63


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


def comparison(operator: str) -> Callable[[JavaValue, JavaValue], JavaValue]:
    """The six comparisons; they never give null."""

    def compare(left: JavaValue, right: JavaValue) -> JavaValue:
        left, right = _comparable(left, right, is_order=operator not in ("==", "!="))
        return truth(_COMPARISONS[operator](left, right))

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


def _less(left: JavaValue, right: JavaValue) -> Mask:
    if left.kind == "text":
        lower = _filled(pc.less(_by_utf16(left.data), _by_utf16(right.data)))
    else:
        lower = _number_less(left, right)
    left_null, right_null = left.nulls(), right.nulls()
    not_nan = ~(_is_nan(left) | _is_nan(right))
    return np.asarray((~right_null & not_nan) & (left_null | lower))


def _is_nan(value: JavaValue) -> Mask:
    if value.kind in ("float", "double"):
        return np.asarray(np.isnan(value.data))
    return np.array(False)


def _number_less(left: JavaValue, right: JavaValue) -> Mask:
    """Exact order of two numbers whatever their kinds; null and NaN are somebody else's."""
    fractions = [value.kind in ("float", "double") for value in (left, right)]
    if fractions == [False, False] or "long" not in (left.kind, right.kind):
        kind = "double" if any(fractions) else "long"
        if left.kind in (*TIME_KINDS, "boolean"):
            return np.asarray(left.data < right.data)
        return np.asarray(_java_cast(left.data, kind) < _java_cast(right.data, kind))
    if fractions[1]:
        return _long_less(left.data, right.data.astype(np.float64))
    return _less_long(left.data.astype(np.float64), right.data)


def _long_less(numbers: npt.NDArray[Any], fractions: npt.NDArray[Any]) -> Mask:
    """number < fraction, exactly: number < ceil(fraction)."""
    with np.errstate(invalid="ignore"):
        bound = np.ceil(fractions)
        inside = (bound >= -_LONG_END) & (bound < _LONG_END)
        whole = np.where(inside, bound, 0.0).astype(np.int64)
        return np.asarray(np.where(inside, numbers < whole, bound >= _LONG_END))


def _less_long(fractions: npt.NDArray[Any], numbers: npt.NDArray[Any]) -> Mask:
    """fraction < number, exactly: floor(fraction) < number."""
    with np.errstate(invalid="ignore"):
        bound = np.floor(fractions)
        inside = (bound >= -_LONG_END) & (bound < _LONG_END)
        whole = np.where(inside, bound, 0.0).astype(np.int64)
        return np.asarray(np.where(inside, whole < numbers, bound < -_LONG_END))


_COMPARISONS: dict[str, Callable[[JavaValue, JavaValue], Mask]] = {
    "==": _equal,
    "!=": lambda left, right: ~_equal(left, right),
    "<": _less,
    ">": lambda left, right: _less(right, left),
    "<=": lambda left, right: _less(left, right) | _equal(left, right),
    ">=": lambda left, right: _less(right, left) | _equal(left, right),
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
