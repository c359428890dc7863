"""Rows of outside origin made to fit a schema, or a SchemaError / RowError that names column and
row.

Columns are matched by name. A cast is Arrow's safe cast: it never loses a value silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import LimitExceededError, RowError, SchemaError, near_miss
from barrage.model.schema_message import every_field, is_memberless
from barrage.model.storage.encoded import can_be_dictionary

if TYPE_CHECKING:
    from barrage.limits import Limits


DECIMAL_DIGITS_MAX = 76

_VIEWED = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
"""View types to what is stored for them."""


def normalised_schema(schema: pa.Schema, limits: Limits) -> pa.Schema:
    """The schema a source really stores: unique names, bounded, view types and small dictionary
    codes widened.

    Dictionary codes become int32 because batches with different small dictionaries need more codes
    together than each of them alone; string and binary views become plain strings and binaries,
    which Arrow's gather kernels support.
    """
    if len(schema) > limits.columns_max:
        raise LimitExceededError(
            "table", actual=len(schema), maximum=limits.columns_max, unit="columns"
        )
    seen: set[str] = set()
    for name in schema.names:
        if name in seen:
            raise SchemaError(f"column {name!r} occurs twice")
        seen.add(name)
    fields = [field.with_type(_stored_type(field, limits)) for field in schema]
    for field in every_field(schema):
        if is_memberless(field.type):
            raise SchemaError(f"column {field.name!r} has a union without members")
    return pa.schema(fields, metadata=schema.metadata)


def _stored_type(field: pa.Field, limits: Limits) -> pa.DataType:
    _check_depth(field, limits.nesting_depth_max)
    data_type = field.type
    if pa.types.is_dictionary(data_type):
        value_type = _VIEWED.get(data_type.value_type, data_type.value_type)
        if not can_be_dictionary(value_type):
            raise SchemaError(
                f"column {field.name!r} is a dictionary of {value_type}: not supported"
            )
        return pa.dictionary(pa.int32(), value_type, ordered=data_type.ordered)
    return _VIEWED.get(data_type) or _with_plain_members(data_type)


def _with_plain_members(data_type: pa.DataType) -> pa.DataType:
    """The type with values where lists, structs and maps hold dictionaries: Arrow joins those of
    two batches only if their codes have room for both, and never if they hold a null."""
    if pa.types.is_struct(data_type):
        return pa.struct([_plain_member(field) for field in data_type.fields])
    if pa.types.is_map(data_type):
        key, item = _plain_member(data_type.key_field), _plain_member(data_type.item_field)
        return pa.map_(key, item, keys_sorted=data_type.keys_sorted)
    if pa.types.is_fixed_size_list(data_type):
        return pa.list_(_plain_member(data_type.value_field), data_type.list_size)
    if pa.types.is_list(data_type):
        return pa.list_(_plain_member(data_type.value_field))
    if pa.types.is_large_list(data_type):
        return pa.large_list(_plain_member(data_type.value_field))
    return data_type


def _plain_member(field: pa.Field) -> pa.Field:
    data_type = field.type
    if pa.types.is_dictionary(data_type):
        data_type = data_type.value_type
    return field.with_type(_with_plain_members(data_type))


def _check_depth(field: pa.Field, depth_max: int) -> None:
    level = [field.type]
    depth = 0
    while level:
        level = [
            data_type.field(index).type
            for data_type in level
            if pa.types.is_nested(data_type) and not pa.types.is_run_end_encoded(data_type)
            for index in range(data_type.num_fields)
        ]
        depth += 1
        if depth > depth_max + 1:
            raise SchemaError(f"column {field.name!r} is nested deeper than {depth_max} levels")


def coerce_rows(schema: pa.Schema, data: pa.Table | pa.RecordBatch) -> pa.Table:
    """``data`` with exactly the columns of ``schema``, cast where needed.

    SchemaError: a column is missing, unknown or of a type that cannot be cast. RowError: a value
    does not survive the cast, or a column that must not hold nulls does; both name column and row.
    """
    table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    if not isinstance(table, pa.Table):
        raise SchemaError(f"rows must be an Arrow table or record batch, not {type(data).__name__}")
    if table.schema.equals(schema, check_metadata=True):
        # Most writers hand in what fits: only nulls are left to look for.
        for position, field in enumerate(schema):
            if not field.nullable or pa.types.is_dictionary(field.type):
                column = table.column(position)
                fitting = _coerce_column(field, column)
                if fitting is not column:
                    table = table.set_column(position, field, fitting)
        return table
    _check_names(schema, table.schema)
    columns = [_coerce_column(field, table.column(field.name)) for field in schema]
    return pa.table(columns, schema=schema)


def _check_names(schema: pa.Schema, given: pa.Schema) -> None:
    if schema.names == given.names:
        return
    known = set(schema.names)
    unknown = [name for name in given.names if name not in known]
    if unknown:
        hint = near_miss(unknown[0], schema.names)
        raise SchemaError(f"unknown column {unknown[0]!r}{hint}")
    present = set(given.names)
    missing = [name for name in schema.names if name not in present]
    if missing:
        raise SchemaError(f"column {missing[0]!r} is missing")
    if len(given.names) != len(known):
        raise SchemaError("a column name occurs twice")


def _coerce_column(field: pa.Field, values: pa.ChunkedArray) -> pa.ChunkedArray:
    if values.type != field.type:
        values = _cast(field, values)
    if pa.types.is_dictionary(field.type) and any(c.dictionary.null_count for c in values.chunks):
        values = pa.chunked_array(map(_with_null_codes, values.chunks), type=field.type)
    if not field.nullable and values.null_count:
        row = int(pc.index(values.is_null(), True).as_py())
        raise RowError("null is not allowed", column=field.name, row=row)
    return values


def _cast(field: pa.Field, values: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return cast_values(values, field.type)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _no_cast(field, values.type) from error
    except pa.ArrowInvalid as error:
        if not _has_cast(values.type, field.type):
            raise _no_cast(field, values.type) from error
        row = _first_bad_row(values, field.type)
        raise RowError(
            f"value {_shown(values[row])} does not fit {field.type}", column=field.name, row=row
        ) from error


def _no_cast(field: pa.Field, given: pa.DataType) -> SchemaError:
    return SchemaError(
        f"column {field.name!r} is {given} but the table has {field.type}, "
        "and there is no cast between them"
    )


def _has_cast(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the types alone allow the cast, whatever the values."""
    try:
        cast_values(pa.chunked_array([], type=given), wanted)
    except pa.ArrowInvalid:
        return False
    return True


def cast_values(values: pa.ChunkedArray, data_type: pa.DataType) -> pa.ChunkedArray:
    """Safe cast that also knows dictionaries and run-ends."""
    source = values.type
    if pa.types.is_run_end_encoded(source):
        chunks = [pc.run_end_decode(chunk) for chunk in values.chunks]
        return cast_values(pa.chunked_array(chunks, type=source.value_type), data_type)
    if pa.types.is_run_end_encoded(data_type):
        plain = cast_values(values, data_type.value_type)
        chunks = [pc.run_end_encode(c, run_end_type=data_type.run_end_type) for c in plain.chunks]
        return pa.chunked_array(chunks, type=data_type)
    if pa.types.is_dictionary(data_type):
        return pa.chunked_array(
            [_to_dictionary(chunk, data_type) for chunk in values.chunks], type=data_type
        )
    if pa.types.is_integer(source) and pa.types.is_decimal(data_type):
        # Arrow refuses a decimal too narrow for the widest integer, whatever the values are.
        values = values.cast(pa.decimal256(DECIMAL_DIGITS_MAX, data_type.scale))
    return values.cast(data_type)


def _to_dictionary(chunk: pa.Array, data_type: pa.DataType) -> pa.Array:
    encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
    return pa.DictionaryArray.from_arrays(
        encoded.indices.cast(data_type.index_type),
        encoded.dictionary.cast(data_type.value_type),
        ordered=data_type.ordered,
    )


def _with_null_codes(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same cells, none of them the code of a null: Arrow joins no dictionaries that have
    one."""
    values = chunk.dictionary
    if not values.null_count:
        return chunk
    valid = values.is_valid()
    codes = pc.subtract(pc.cumulative_sum(valid.cast(pa.int32())), pa.scalar(1, pa.int32()))
    codes = pc.if_else(valid, codes, pa.scalar(None, pa.int32()))
    return pa.DictionaryArray.from_arrays(
        codes.take(chunk.indices).cast(chunk.type.index_type),
        values.drop_null(),
        ordered=chunk.type.ordered,
        safe=False,
    )


def _first_bad_row(values: pa.ChunkedArray, data_type: pa.DataType) -> int:
    """The first row whose cast fails, by halving: about two casts of the column in all."""
    start, stop = 0, len(values)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            cast_values(values.slice(start, middle - start), data_type)
        except pa.ArrowInvalid:
            stop = middle
        else:
            start = middle
    return start


def _shown(value: pa.Scalar) -> str:
    text = repr(value.as_py())
    return text if len(text) <= 60 else f"{text[:57]}..."
