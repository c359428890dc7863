"""The text a cell of the page has for a value, made here from the value alone."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa


def expected_rows(table: pa.Table) -> list[dict[str, str | None]]:
    """Each row of a table as the page shows it."""
    columns = {
        field.name: [shown(cell, field) for cell in _cells(column)]
        for field, column in zip(table.schema, table.columns, strict=True)
    }
    return [{name: texts[i] for name, texts in columns.items()} for i in range(table.num_rows)]


def _cells(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64()).to_pylist()
    return column.to_pylist()


def shown(value: Any, field: pa.Field) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if pa.types.is_timestamp(field.type):
        return _moment(value, field.type)
    if isinstance(value, int):
        return str(value) if field.name in ("id", "pid") else f"{value:,}"
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, Decimal | datetime.date):
        return str(value)
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    return str(value)


def _float(value: float) -> str:
    text = f"{Decimal(repr(value)):,f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _moment(value: int, kind: pa.TimestampType) -> str:
    nanos = value * {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}[kind.unit]
    seconds, rest = divmod(nanos, 10**9)
    date = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    digits = f"{rest:09d}"
    if digits.endswith("000000"):
        digits = digits[:3]
    elif digits.endswith("000"):
        digits = digits[:6]
    return f"{date:%Y-%m-%d %H:%M:%S}.{digits}{'' if kind.tz is None else 'Z'}"
