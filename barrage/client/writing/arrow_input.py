"""Whatever a user has, as an Arrow table: Arrow, pandas, polars, dicts of columns, lists of
rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from barrage.errors import SchemaError

TableLike = Any
"""What :func:`to_arrow_table` takes; Arrow objects of any library, mappings and lists have no
common type."""


def to_arrow_table(data: TableLike) -> pa.Table:
    """``data`` as a table; SchemaError when it cannot be one. Zero-copy where its library allows
    it."""
    try:
        return _convert(data)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaError(f"cannot make a table of {type(data).__name__}: {error}") from error


def _convert(data: TableLike) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if isinstance(data, Mapping):
        return pa.table({name: _column(values) for name, values in data.items()})
    if type(data).__module__.split(".")[0] == "pandas":
        # The index is not a column; pandas metadata would only confuse other readers.
        return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
    if hasattr(data, "__arrow_c_stream__"):
        return pa.table(data)
    if hasattr(data, "to_arrow"):
        return data.to_arrow()
    if isinstance(data, Iterable) and not isinstance(data, str | bytes):
        rows = list(data)
        if rows and all(isinstance(row, Mapping) for row in rows):
            return pa.Table.from_pylist(rows)
        if rows and all(isinstance(row, pa.RecordBatch) for row in rows):
            return pa.Table.from_batches(rows)
    raise TypeError("give an Arrow table, a data frame, a dict of columns or a list of dicts")


def _column(values: Any) -> Any:
    """A scalar stands for a column of one row."""
    return (
        [values] if isinstance(values, str | bytes) or not isinstance(values, Iterable) else values
    )


def without_dictionaries(table: pa.Table) -> pa.Table:
    """Dictionary and run-end encoded columns as plain ones, views and large types as the types the
    wire has."""
    fields = [field.with_type(_plain_type(field.type)) for field in table.schema]
    schema = pa.schema(fields, metadata=table.schema.metadata)
    return table if schema.equals(table.schema) else table.cast(schema)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _plain_type(kind.value_type)
    if kind in (pa.string_view(), pa.large_string()):
        return pa.string()
    if kind in (pa.binary_view(), pa.large_binary()):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return kind
