"""Cells as values of JSON: whole numbers as they are, times as ISO text to their last digit, bytes
as hex, NaN and infinities as null."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa

from barrage.wire.wire_schema import plain_array

_T = pa.types
_BYTES = (_T.is_binary, _T.is_large_binary, _T.is_fixed_size_binary, _T.is_binary_view)
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def json_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """What ``json.dumps`` takes, for every cell."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in json_values(chunk)]
    column = plain_array(column)
    kind = column.type
    if _T.is_integer(kind) or _T.is_boolean(kind) or _T.is_string(kind):
        values: list[Any] = column.to_pylist()
        return values
    if _T.is_floating(kind):
        return [
            value if value is not None and math.isfinite(value) else None
            for value in column.to_pylist()
        ]
    if _T.is_dictionary(kind):
        return json_values(column.dictionary_decode())
    if _T.is_timestamp(kind) or _T.is_time(kind) or _T.is_date(kind):
        texts = column.cast(pa.string()).to_pylist()
        return [None if text is None else text.replace(" ", "T") for text in texts]
    if _T.is_duration(kind):
        counts = column.cast(pa.int64()).to_pylist()
        return [None if count is None else _duration(count, kind.unit) for count in counts]
    return [_json_value(scalar) for scalar in column]


def _duration(count: int, unit: str) -> str:
    """ISO 8601 in seconds: ``PT1.500S``."""
    per_second = _PER_SECOND[unit]
    seconds, rest = divmod(abs(count), per_second)
    sign = "-" if count < 0 else ""
    fraction = f".{rest:0{len(str(per_second)) - 1}d}" if per_second > 1 else ""
    return f"{sign}PT{seconds}{fraction}S"


def _json_value(scalar: pa.Scalar) -> Any:
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if _T.is_list(kind) or _T.is_large_list(kind) or _T.is_fixed_size_list(kind):
        return json_values(scalar.values)
    if _T.is_struct(kind):
        return {
            name: json_values(pa.array([scalar[name]], scalar[name].type))[0] for name in scalar
        }
    if any(matches(kind) for matches in _BYTES):
        return scalar.as_py().hex()
    return str(scalar)
