"""Columns as Java's types see them: what the functions of Deephaven's expressions compute with.

A number is a numpy array in which the smallest value of the type (for char 65535, for fractions
minus the largest finite value) stands for null, exactly as in Deephaven; overflow into that value
is therefore null as well. A truth value is 1, 0 or -1 (null); times are int64 numbers of their
unit; text stays Arrow.

``failed`` marks rows whose value Java could not compute (a method called on null, a remainder of
zero, null taken as a truth value). They fail the evaluation only if the result needs them, which is
how ``isNull(X) || X.startsWith(`a`)`` works on rows without X.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    Mask: TypeAlias = npt.NDArray[np.bool_]

_T = pa.types

INTEGER_KINDS = ("byte", "short", "char", "int", "long")
NUMBER_KINDS = (*INTEGER_KINDS, "float", "double")
TIME_KINDS = ("instant", "date", "clock")

KIND_TYPES: dict[str, pa.DataType] = {
    "byte": pa.int8(),
    "short": pa.int16(),
    "char": pa.uint16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "instant": pa.timestamp("ns", "UTC"),
    "date": pa.date64(),
    "clock": pa.time64("ns"),
}
"""The Arrow type of each kind (deephaven-clients.md section 3.6)."""

NULLS: dict[str, int | float] = {
    "byte": -(2**7),
    "short": -(2**15),
    "char": 2**16 - 1,
    "int": -(2**31),
    "long": -(2**63),
    "float": float(np.finfo(np.float32).min),
    "double": float(np.finfo(np.float64).min),
    "boolean": -1,
    "instant": -(2**63),
    "date": -(2**63),
    "clock": -(2**63),
}
"""The value that stands for null in the arrays here."""

DTYPES: dict[str, np.dtype[Any]] = {
    "byte": np.dtype(np.int8),
    "short": np.dtype(np.int16),
    "char": np.dtype(np.uint16),
    "int": np.dtype(np.int32),
    "long": np.dtype(np.int64),
    "float": np.dtype(np.float32),
    "double": np.dtype(np.float64),
    "boolean": np.dtype(np.int8),
    "instant": np.dtype(np.int64),
    "date": np.dtype(np.int64),
    "clock": np.dtype(np.int64),
}


def is_any_string(kind: pa.DataType) -> bool:
    return bool(_T.is_string(kind) or _T.is_large_string(kind) or _T.is_string_view(kind))


JAVA_FORMS: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (is_any_string, pa.string()),
    (_T.is_uint8, pa.int16()),
    (_T.is_uint32, pa.int64()),
    (_T.is_float16, pa.float32()),
    (_T.is_date, pa.date64()),
    (_T.is_time, pa.time64("ns")),
    (_T.is_timestamp, pa.timestamp("ns", "UTC")),
)
"""Column types Java has no type for and the type that takes all of their values; only timestamps
can be out of its range (deephaven-clients.md section 3.6)."""


@dataclass(frozen=True, slots=True)
class JavaValue:
    """A value per row, or one for all rows (0-dimensional, or an Arrow scalar).

    ``kind`` is one of ``KIND_TYPES``, ``null`` for the constant null, or ``other`` for a type only
    ``isNull`` knows (``data`` is then the Arrow column).
    """

    kind: str
    data: Any
    failed: Mask | None = None
    reason: str = ""

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBER_KINDS

    def nulls(self) -> Mask:
        """Which rows are null."""
        if self.kind == "null":
            return np.array(True)
        if self.kind in ("text", "other"):
            if isinstance(self.data, pa.Scalar):
                return np.array(not self.data.is_valid)
            return np.asarray(self.data.is_null().to_numpy(zero_copy_only=False), np.bool_)
        return np.asarray(self.data == DTYPES[self.kind].type(NULLS[self.kind]), np.bool_)


def kind_of(data_type: pa.DataType) -> str:
    """The kind a column of ``data_type`` is computed with."""
    if _T.is_dictionary(data_type) or _T.is_run_end_encoded(data_type):
        return kind_of(data_type.value_type)
    if _T.is_null(data_type):
        return "null"
    form = _java_form(data_type)
    return next((kind for kind, known in KIND_TYPES.items() if known == form), "other")


def _java_form(data_type: pa.DataType) -> pa.DataType:
    return next((form for matches, form in JAVA_FORMS if matches(data_type)), data_type)


def from_arrow(values: pa.Array | pa.Scalar) -> JavaValue:
    """A column or a constant as a value of its kind. ArrowInvalid for a time out of range."""
    kind = kind_of(values.type)
    if kind == "null" and isinstance(values, pa.Scalar):
        return JavaValue("null", None)
    form = _java_form(values.type)
    if form != values.type:
        values = values.cast(form)
    if kind in ("text", "other", "null"):
        return JavaValue("other" if kind == "null" else kind, values)
    if isinstance(values, pa.Scalar):
        array = pa.repeat(values, 1)
        return JavaValue(kind, _numbers(array, kind)[0:1].reshape(()))
    return JavaValue(kind, _numbers(values, kind))


def _numbers(array: pa.Array, kind: str) -> npt.NDArray[Any]:
    if kind == "boolean":
        array = array.cast(pa.int8())
    elif kind in TIME_KINDS:
        array = array.view(pa.int64())
    if array.null_count:
        array = array.fill_null(pa.scalar(NULLS[kind], array.type))
    return np.asarray(array.to_numpy(zero_copy_only=False), DTYPES[kind])


def to_arrow(value: JavaValue) -> pa.Array | pa.Scalar:
    """The Arrow form of a value without failures; TypeError for one that has none."""
    if value.kind in ("null", "other"):
        raise TypeError("the result has a type without a column form")
    if value.kind == "text":
        return value.data
    numbers = np.atleast_1d(value.data)
    nulls = np.atleast_1d(value.nulls())
    data_type = KIND_TYPES[value.kind]
    if value.kind == "boolean":
        array = pa.array(numbers == 1, mask=nulls)
    else:
        array = pa.array(numbers, mask=nulls)
        if value.kind in TIME_KINDS:
            array = array.view(data_type)
    return array if np.ndim(value.data) else array[0]


def constant_null(kind: str) -> JavaValue:
    """The constant null as a value of ``kind``."""
    if kind == "text":
        return JavaValue(kind, pa.scalar(None, pa.string()))
    return JavaValue(kind, np.array(NULLS[kind], DTYPES[kind]))
