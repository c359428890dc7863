"""Arrow values as text a person reads: what the grid, the tables and the plain lines show.

Only rows on display come through here. Text that is not printable is escaped, because a cell may
hold anything, terminal control sequences included.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.wire.json_cells import json_values

if TYPE_CHECKING:
    from collections.abc import Callable

NULL_TEXT = "null"
LIST_ITEMS_MAX = 8
BINARY_BYTES_MAX = 16

_FRACTION = re.compile(r"\.(\d*?)(?:000)*(?=\D|$)")
_FLOAT_FIXED_MAX = 1e15
_FLOAT_FIXED_MIN = 1e-4


def column_texts(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Display text of every value of a column; None where the value is null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        return [
            None if text is None else _short_fraction(text)
            for text in column.cast(pa.string()).to_pylist()
        ]
    if pa.types.is_date64(kind):
        column = column.cast(pa.date32())
    write = _writer(column.type)
    return [None if not value.is_valid else write(value) for value in column]


def is_right_aligned(kind: pa.DataType) -> bool:
    """Numbers stand on the right."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def float_text(value: float) -> str:
    """At most four decimals without trailing zeros; very large and very small numbers in exponent
    form.
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    size = abs(value)
    if size >= _FLOAT_FIXED_MAX or 0 < size < _FLOAT_FIXED_MIN:
        return f"{value:.6g}"
    fixed = f"{value:.4f}".rstrip("0")
    return f"{fixed}0" if fixed.endswith(".") else fixed


def printable(text: str) -> str:
    """The same text with everything a terminal would obey escaped."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _short_fraction(text: str) -> str:
    """A timestamp without the groups of three zeros at the end of its fraction."""
    return _FRACTION.sub(lambda match: f".{match[1]}" if match[1] else "", text)


def _writer(kind: pa.DataType) -> Callable[[pa.Scalar], str]:
    if pa.types.is_boolean(kind):
        return lambda scalar: "true" if scalar.as_py() else "false"
    if pa.types.is_floating(kind):
        return lambda scalar: float_text(float(scalar.as_py()))
    if pa.types.is_integer(kind):
        return lambda scalar: str(scalar.as_py())
    if _is_binary(kind):
        return lambda scalar: _binary_text(scalar.as_py())
    if _is_list(kind):
        return _list_text
    return lambda scalar: printable(str(scalar))


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _list_text(scalar: pa.Scalar) -> str:
    values = scalar.values
    shown = column_texts(values.slice(0, LIST_ITEMS_MAX))
    parts = [NULL_TEXT if text is None else text for text in shown]
    if len(values) > LIST_ITEMS_MAX:
        parts.append(f"… {len(values)} values")
    return f"[{', '.join(parts)}]"


def _binary_text(value: bytes) -> str:
    if len(value) <= BINARY_BYTES_MAX:
        return f"0x{value.hex()}"
    return f"0x{value[:BINARY_BYTES_MAX].hex()}… {len(value)} bytes"


def json_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows as values ``json.dumps`` takes: times as ISO text, bytes as hex, NaN and infinities as
    null.
    """
    names = table.column_names
    columns = [json_values(column) for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def json_line(row: dict[str, Any]) -> str:
    """One row as one line."""
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def json_values_text(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Every value as JSON text; None where it is null."""
    return [
        None if value is None else json.dumps(value, ensure_ascii=False)
        for value in json_values(column)
    ]
