"""Rows a caller hands in, in any common form, as an Arrow table of the wanted schema.

Columns are matched by name; a missing or unknown one is a SchemaError, a value that does not fit a
RowError with its column and row. Arrow data is cast by the engine's own rules
(:mod:`barrage.engine.tables.coercion`); Python values become Arrow here. Runs on the caller's
thread, so that the engine thread gets columns that fit already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from barrage.engine.tables.coercion import coerce_rows
from barrage.errors import RowError, SchemaError

_CONVERSION_ERRORS = (pa.ArrowException, OverflowError, TypeError, ValueError)


def inferred_table(data: Any) -> pa.Table:
    """``data`` with the types it has or Arrow infers; for tables created from their first rows."""
    if isinstance(data, Mapping):
        return _read(lambda: pa.table(_as_columns(data)))
    if _is_rows(data):
        return _read(lambda: pa.Table.from_pylist(list(data)))
    return _columnar(data)


def rows_table(data: Any, schema: pa.Schema) -> pa.Table:
    """``data`` as a table of ``schema``.

    Understood: Arrow tables and batches, pandas, polars, anything with ``__arrow_c_stream__`` or
    ``__arrow_c_array__``, a list of dicts, a dict of lists, a dict of values (one row).
    """
    if isinstance(data, Mapping):
        return _from_mapping(data, schema)
    if _is_rows(data):
        return _from_dicts(data, schema)
    return coerce_rows(schema, _columnar(data))


def key_table(keys: Any, schema: pa.Schema) -> pa.Table:
    """Keys to remove, as a table of the key columns ``schema``.

    Understood: everything :func:`rows_table` takes (further columns of columnar data are ignored),
    a list of values for one key column, a list of tuples for several, or a single value.
    """
    if isinstance(keys, Mapping) or _is_rows(keys):
        return rows_table(keys, schema)
    if isinstance(keys, pa.Array | pa.ChunkedArray):
        return rows_table({schema.names[0]: keys}, schema)
    if isinstance(keys, list | tuple | set | frozenset):
        return _from_keys(list(keys), schema)
    if _is_columnar(keys):
        return coerce_rows(schema, key_columns_of(_columnar(keys), schema))
    return _from_keys([keys], schema)


def key_columns_of(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Only those columns of ``rows`` that are in ``schema``."""
    known = set(rows.column_names)
    return rows.select([name for name in schema.names if name in known])


def _from_mapping(data: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    columns = _as_columns(data)
    _check_names(list(columns), schema)
    arrays = [_column(columns[field.name], field) for field in schema]
    if len({len(array) for array in arrays}) > 1:
        told = ", ".join(f"{f.name!r}: {len(a)}" for f, a in zip(schema, arrays, strict=True))
        raise SchemaError(f"columns have different lengths ({told})")
    return coerce_rows(schema, pa.table(arrays, names=schema.names))


def _as_columns(data: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a dict of lists; a dict of single values is one row."""
    if data and all(_is_single(value) for value in data.values()):
        return {name: [value] for name, value in data.items()}
    return dict(data)


def _is_single(value: Any) -> bool:
    return isinstance(value, str | bytes | bytearray) or not hasattr(value, "__len__")


def _from_dicts(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.Table:
    wanted = frozenset(schema.names)
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise RowError(f"a row is a dict, not {type(row).__name__}", row=number)
        if row.keys() != wanted:
            unknown = [name for name in row if name not in wanted]
            missing = [name for name in schema.names if name not in row]
            what = "unknown column" if unknown else "missing value"
            raise RowError(what, column=str((unknown or missing)[0]), row=number)
    arrays = [_column([row[field.name] for row in rows], field) for field in schema]
    return coerce_rows(schema, pa.table(arrays, names=schema.names))


def _from_keys(keys: list[Any], schema: pa.Schema) -> pa.Table:
    width = len(schema)
    if width == 1:
        keys = [key if isinstance(key, tuple) and len(key) == 1 else (key,) for key in keys]
    for number, key in enumerate(keys):
        if not isinstance(key, tuple | list) or len(key) != width:
            raise RowError(f"a key is a tuple of {', '.join(schema.names)}", row=number)
    arrays = [_column([key[i] for key in keys], field) for i, field in enumerate(schema)]
    return coerce_rows(schema, pa.table(arrays, names=schema.names))


def _column(values: Any, field: pa.Field) -> pa.Array | pa.ChunkedArray:
    """One column from a list, a numpy array, an Arrow array or a series."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if hasattr(values, "__arrow_c_stream__"):
        return _read(lambda: pa.chunked_array(values))
    try:
        return pa.array(values, type=field.type)
    except _CONVERSION_ERRORS as error:
        listed = list(values) if hasattr(values, "__iter__") else [values]
        row = _first_row_that_fails(listed, field.type)
        shown = repr(listed[row])[:60] if row is not None else type(values).__name__
        raise RowError(f"{shown} does not fit {field.type}", column=field.name, row=row) from error


def _first_row_that_fails(values: list[Any], kind: pa.DataType) -> int | None:
    """Which value made a conversion fail; only runs when one did."""
    for row, value in enumerate(values):
        try:
            pa.array([value], type=kind)
        except _CONVERSION_ERRORS:
            return row
    return None


def _check_names(names: Sequence[str], schema: pa.Schema) -> None:
    known, given = set(schema.names), set(names)
    unknown = [name for name in names if name not in known]
    missing = [name for name in schema.names if name not in given]
    if unknown:
        raise SchemaError(
            f"unknown column {unknown[0]!r}; "
            f"the table has {', '.join(schema.names) or 'no columns'}"
        )
    if missing:
        raise SchemaError(f"column {missing[0]!r} is missing")


def _is_rows(data: Any) -> bool:
    return isinstance(data, list | tuple) and (not data or isinstance(data[0], Mapping))


def _is_columnar(data: Any) -> bool:
    return isinstance(data, pa.Table | pa.RecordBatch) or _is_pandas(data) or _exports_arrow(data)


def _exports_arrow(data: Any) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def _is_pandas(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")


def _columnar(data: Any) -> pa.Table:
    """Arrow data, or anything that exports it; not copied."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if _is_pandas(data):
        table = _read(lambda: pa.Table.from_pandas(data, preserve_index=False))
        return table.replace_schema_metadata(None)
    if hasattr(data, "__arrow_c_stream__"):
        return _read(lambda: pa.table(data))
    if hasattr(data, "__arrow_c_array__"):
        return _read(lambda: pa.Table.from_batches([pa.record_batch(data)]))
    raise SchemaError(
        f"rows of type {type(data).__name__} are not understood: "
        "use Arrow, pandas, polars, a list of dicts or a dict of lists"
    )


def _read(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except _CONVERSION_ERRORS as error:
        raise SchemaError(f"rows cannot be read as Arrow: {error}") from error
