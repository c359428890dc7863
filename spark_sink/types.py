"""Which Spark type an engine column has, and Arrow batches in exactly the form Spark takes.

Spark compares the first batch of a task with its own Arrow schema, name for name and type for
type, and no later batch at all, so every batch is cast (spark.md section 3.3). Everything is
declared nullable.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.types import DataType, StructType

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
ROW_ID = "_row_id"
ROW_KEY = "_row_key"
MODIFIED_COLUMNS = "_modified_columns"


DECIMAL_DIGITS_MAX = 38
_DEEPHAVEN_TYPE = b"deephaven:type"


def feed_schema(
    table: pa.Schema, *, has_row_key: bool = False, has_modified_columns: bool = False
) -> pa.Schema:
    """The Arrow schema of the change feed of a table."""
    fields = [
        pa.field(CHANGE_TYPE, pa.string()),
        pa.field(COMMIT_VERSION, pa.int64()),
        pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC")),
        pa.field(ROW_ID, pa.int64()),
    ]
    if has_row_key:
        fields.append(pa.field(ROW_KEY, pa.int64()))
    if has_modified_columns:
        fields.append(pa.field(MODIFIED_COLUMNS, pa.list_(pa.string())))
    return pa.schema([*fields, *table])


def selected(table: pa.Schema, columns: Iterable[str] | None, name: str) -> pa.Schema:
    """Those columns of a table, in this order; SchemaError names one that is not there."""
    if columns is None:
        return table
    missing = [column for column in columns if column not in table.names]
    if missing:
        raise SchemaError(
            f"option columns: table {name!r} has no column {missing[0]!r}; it has "
            f"{', '.join(table.names[:50])}"
        )
    return pa.schema([table.field(column) for column in columns])


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeChoices:
    """Where a type of ours could be one of several of Spark's."""

    nanos_as_long: bool = False
    """Nanosecond times as bigint instead of truncated timestamps."""
    has_time: bool = False
    """Times of day as Spark's ``time``, which a session has to be told to have."""


PLAIN = TypeChoices()


def spark_schema(schema: pa.Schema, choices: TypeChoices = PLAIN) -> StructType:
    """The Spark schema of an Arrow schema; SchemaError names a column that has no Spark type."""
    from pyspark.sql.types import StructField, StructType

    fields = []
    for field in schema:
        try:
            kind = _field_type(field, choices)
        except SchemaError as error:
            raise SchemaError(
                f"column {field.name!r}: {error}; leave it out by option columns"
            ) from None
        fields.append(StructField(field.name, kind, nullable=True))
    return StructType(fields)


def fingerprint(schema: StructType) -> tuple[tuple[str, str], ...]:
    """Names and types, which is what must not change under a running query."""
    return tuple((field.name, field.dataType.simpleString()) for field in schema)


def _field_type(field: pa.Field, choices: TypeChoices) -> DataType:
    from pyspark.sql.types import StringType

    if _is_char(field):
        return StringType()
    return _spark_type(field.type, choices)


def _is_char(field: pa.Field) -> bool:
    """Whether 16-bit numbers are characters: Deephaven says so beside the type."""
    if field.type != pa.uint16():
        return False
    return (field.metadata or {}).get(_DEEPHAVEN_TYPE) in (b"char", b"java.lang.Character")


def _spark_type(kind: pa.DataType, choices: TypeChoices) -> DataType:
    from pyspark.sql import types as spark

    if pa.types.is_nested(kind):
        return _nested_type(kind, choices)
    if pa.types.is_dictionary(kind):
        return _spark_type(kind.value_type, choices)
    if pa.types.is_temporal(kind):
        return _temporal_type(kind, choices)
    if pa.types.is_decimal(kind):
        if kind.precision > DECIMAL_DIGITS_MAX:
            raise SchemaError(
                f"Spark has decimals of at most {DECIMAL_DIGITS_MAX} digits, not {kind.precision}"
            )
        return spark.DecimalType(kind.precision, kind.scale)
    simple: dict[str, DataType] = {
        "bool": spark.BooleanType(),
        "int8": spark.ByteType(),
        "int16": spark.ShortType(),
        "int32": spark.IntegerType(),
        "int64": spark.LongType(),
        # One width up, where the largest value fits.
        "uint8": spark.ShortType(),
        "uint16": spark.IntegerType(),
        "uint32": spark.LongType(),
        "uint64": spark.DecimalType(20, 0),
        "halffloat": spark.FloatType(),
        "float": spark.FloatType(),
        "double": spark.DoubleType(),
        "string": spark.StringType(),
        "large_string": spark.StringType(),
        "string_view": spark.StringType(),
        "binary": spark.BinaryType(),
        "large_binary": spark.BinaryType(),
        "binary_view": spark.BinaryType(),
        "null": spark.NullType(),
    }
    if pa.types.is_fixed_size_binary(kind):
        return spark.BinaryType()
    found = simple.get(str(kind))
    if found is None:
        raise SchemaError(f"Spark has no type for {kind}")
    return found


def _temporal_type(kind: pa.DataType, choices: TypeChoices) -> DataType:
    from pyspark.sql import types as spark

    if pa.types.is_timestamp(kind):
        if kind.unit == "ns" and choices.nanos_as_long:
            return spark.LongType()
        return spark.TimestampType() if kind.tz is not None else spark.TimestampNTZType()
    if pa.types.is_date(kind):
        return spark.DateType()
    if pa.types.is_duration(kind):
        return (
            spark.LongType()
            if choices.nanos_as_long and kind.unit == "ns"
            else spark.DayTimeIntervalType()
        )
    if pa.types.is_time(kind):
        if choices.has_time:
            return spark.TimeType()
        return spark.LongType()  # Nanoseconds of the day: Spark's own type is off by default.
    raise SchemaError(f"Spark has no type for {kind}")


def _nested_type(kind: pa.DataType, choices: TypeChoices) -> DataType:
    from pyspark.sql import types as spark

    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return spark.ArrayType(_field_type(kind.value_field, choices), containsNull=True)
    if pa.types.is_map(kind):
        return spark.MapType(
            _field_type(kind.key_field, choices),
            _field_type(kind.item_field, choices),
            valueContainsNull=True,
        )
    if pa.types.is_struct(kind):
        return spark.StructType(
            [
                spark.StructField(field.name, _field_type(field, choices), nullable=True)
                for field in kind.fields
            ]
        )
    raise SchemaError(f"Spark has no type for {kind}")


def arrow_target(schema: StructType) -> pa.Schema:
    """The Arrow schema Spark compares batches with."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def cast_batch(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The columns of ``target``, by name, in its types; columns it does not name are dropped.
    SchemaError names a column that is missing or does not fit."""
    columns = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise SchemaError(f"the server sent no column {field.name!r}")
        try:
            columns.append(_cast(batch.column(index), field.type))
        except pa.ArrowException as error:
            raise SchemaError(f"column {field.name!r}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind and not pa.types.is_time64(kind):
        return values
    if pa.types.is_dictionary(values.type):
        return _cast(values.dictionary_decode(), kind)
    if pa.types.is_temporal(values.type):
        return _cast_temporal(values, kind)
    if pa.types.is_string(kind) and values.type == pa.uint16():
        # Only characters go from numbers to texts; a feed does not repeat what they are.
        return _characters().take(values)
    if pa.types.is_nested(kind):
        return _cast_nested(values, kind)
    if pa.types.is_fixed_size_binary(values.type) and pa.types.is_binary(kind):
        return values.cast(pa.binary())
    return values.cast(kind)


def _cast_temporal(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind):
        if pa.types.is_time(values.type):
            values = values.cast(pa.time64("ns"))
        return values.cast(kind)
    if pa.types.is_timestamp(kind) and values.type.unit == "ns":
        first = pc.min(values.cast(pa.int64())).as_py()
        if first is None or first >= 0:
            # What a division cuts off, for a tenth of the time.
            return values.cast(kind, safe=False)
        # Nanoseconds are cut off towards the past, before 1970 as after it.
        values = pc.floor_temporal(values, unit="microsecond")
    if pa.types.is_time64(kind) and values.type.unit == "ns":
        # Spark counts nanoseconds, but its type ends at microseconds.
        values = values.cast(pa.time64("us"), safe=False)
    if pa.types.is_duration(kind):
        return values.cast(kind, safe=False)
    return values.cast(kind)


def _cast_nested(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind):
        if pa.types.is_fixed_size_list(values.type) or pa.types.is_large_list(values.type):
            values = values.cast(pa.list_(values.type.value_field))
        return _with_offsets(values, _cast(values.flatten(), kind.value_type), kind)
    if pa.types.is_struct(kind):
        parts = [_cast(part, kind.field(index).type) for index, part in enumerate(values.flatten())]
        return pa.StructArray.from_arrays(parts, fields=list(kind.fields), mask=values.is_null())
    return values.cast(kind)


def _with_offsets(values: pa.Array, items: pa.Array, kind: pa.DataType) -> pa.Array:
    """Lists as long as those of ``values`` with other items: those of null lists and outside of the
    slice are not among them."""
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = pa.concat_arrays(
        [pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())]
    )
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(offsets, items, type=kind, mask=mask)


@lru_cache(maxsize=1)
def _characters() -> pa.Array:
    """A text for every 16-bit code unit; halves of pairs become the replacement character, and
    Deephaven's null character null."""
    texts: list[str | None] = [
        "\ufffd" if 0xD800 <= code < 0xE000 else chr(code) for code in range(0xFFFF)
    ]
    return pa.array([*texts, None], pa.string())


def truncate_batch(target: pa.Schema, version: int) -> pa.RecordBatch:
    """The row that says that every row before ``version`` is void; all else is null."""
    known = {CHANGE_TYPE: "truncate", COMMIT_VERSION: version}
    columns = [
        pa.array([known[field.name]], field.type)
        if field.name in known
        else pa.nulls(1, field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
