"""Figures about one column, as the column menus of Deephaven's clients show them.

The names and types of the result's columns are those a real server gives: numbers have sums and
means, times their first and last, everything else its distinct values with their counts. Null cells
count for SIZE only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from barrage.server.presentation.text_forms import text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIQUE_VALUES_DEFAULT = 20
"""Distinct values listed when the request does not say how many."""

UNIQUE_VALUES_MAX = 10_000

_T = pa.types


def statistics_of(cells: pa.ChunkedArray, unique_value_limit: int | None) -> pa.Table:
    """One row of figures about ``cells``."""
    kind = cells.type
    counts = [
        ("COUNT", pa.int64(), len(cells) - cells.null_count),
        ("SIZE", pa.int64(), len(cells)),
    ]
    if (_T.is_integer(kind) and not _T.is_uint16(kind)) or _T.is_floating(kind):
        figures = [*counts, *_number_figures(cells.drop_null())]
    elif _T.is_timestamp(kind):
        figures = [*counts, *_ends(cells.drop_null())]
    else:
        wanted = UNIQUE_VALUES_DEFAULT if unique_value_limit is None else unique_value_limit
        figures = [*counts, *_distinct(cells.drop_null(), min(wanted, UNIQUE_VALUES_MAX))]
    arrays = [pa.array([value], data_type) for _, data_type, value in figures]
    return pa.table(arrays, names=[name for name, _, _ in figures])


def _number_figures(values: pa.ChunkedArray) -> Iterator[tuple[str, pa.DataType, Any]]:
    kind = values.type
    is_float = _T.is_floating(kind)
    wide = values.cast(pa.float64() if is_float else pa.int64())
    total = pa.float64() if is_float else pa.int64()
    # Squares and absolute values of whole numbers may leave 64 bits and wrap, as they do in Java.
    magnitudes = pc.abs(wide)
    sums = [pc.sum(each).as_py() or 0 for each in (wide, magnitudes, pc.multiply(wide, wide))]
    for name, value in zip(("SUM", "SUM_ABS", "SUM_SQRD"), sums, strict=True):
        yield name, total, value
    ordinary = wide.filter(pc.invert(pc.is_nan(wide))) if is_float else wide
    for name, each in (("", ordinary), ("_ABS", pc.abs(ordinary))):
        ends = pc.min_max(each)
        yield f"MIN{name}", kind, _fitting(ends["min"], kind)
        yield f"MAX{name}", kind, _fitting(ends["max"], kind)
    count = len(values)
    yield "AVG", pa.float64(), sums[0] / count if count else None
    yield "AVG_ABS", pa.float64(), sums[1] / count if count else None
    yield "STD_DEV", pa.float64(), _deviation(wide.cast(pa.float64(), safe=False), count)


def _fitting(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    """The value in the column's type; null when it does not fit, as the absolute value of the
    smallest number."""
    try:
        return value.cast(kind)
    except pa.ArrowInvalid:
        return None


def _deviation(values: pa.ChunkedArray, count: int) -> float | None:
    """Of a sample; NaN for one value, null for none."""
    if count == 0:
        return None
    return math.nan if count == 1 else float(pc.stddev(values, ddof=1).as_py())


def _ends(values: pa.ChunkedArray) -> Iterator[tuple[str, pa.DataType, Any]]:
    ends = pc.min_max(values)
    yield "MIN", values.type, ends["min"]
    yield "MAX", values.type, ends["max"]


def _distinct(values: pa.ChunkedArray, limit: int) -> Iterator[tuple[str, pa.DataType, Any]]:
    """The most frequent values first, those of one frequency in order of appearance."""
    if _T.is_nested(values.type):
        values = pa.chunked_array([text_of(chunk) for chunk in values.chunks], pa.string())
    found = pc.value_counts(values)
    counts = found.field("counts")
    order = pc.array_sort_indices(pc.negate(counts))[:limit]
    keys = _shown(found.field("values").take(order))
    yield "UNIQUE_VALUES", pa.int32(), len(found)
    yield "UNIQUE_KEYS", pa.list_(pa.string()), keys.to_pylist()
    yield "UNIQUE_COUNTS", pa.list_(pa.int64()), counts.take(order).to_pylist()


def _shown(values: pa.Array) -> pa.Array:
    """At most ``UNIQUE_VALUES_MAX`` values as text; a uint16 is a character."""
    if not _T.is_uint16(values.type):
        return text_of(values)
    return pa.array([chr(code) for code in values.to_pylist()], pa.string())
