"""Columns of tables that are created on a Deephaven server: their Java types.

Such a server takes the type of a new table's column from the field's metadata
(deephaven-clients.md section 3.6).
"""

from __future__ import annotations

import pyarrow as pa

from barrage.errors import SchemaError

_TYPE = b"deephaven:type"
_COMPONENT = b"deephaven:componentType"

_INSTANT = pa.timestamp("ns", tz="UTC")

_JAVA: dict[pa.DataType, str] = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.uint16(): "char",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "java.lang.Boolean",
    pa.string(): "java.lang.String",
    _INSTANT: "java.time.Instant",
    pa.date64(): "java.time.LocalDate",
    pa.time64("ns"): "java.time.LocalTime",
    pa.duration("ns"): "java.time.Duration",
    pa.binary(): "byte[]",
}

_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.date32(): pa.date64(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}
"""Types that a server there does not have, and those that hold all of their values."""


def schema_with_java_types(schema: pa.Schema) -> pa.Schema:
    """``schema`` in types the server has, each field saying which; SchemaError names a column for
    which there is none."""
    return pa.schema([_field(field) for field in schema])


def _field(field: pa.Field) -> pa.Field:
    kind = _plain(field.type)
    metadata = {}
    if pa.types.is_list(kind):
        component = _JAVA.get(kind.value_type)
        name = None if component is None else f"{component}[]"
        metadata[_COMPONENT] = component or ""
    else:
        name = _JAVA.get(kind)
    if name is None:
        raise SchemaError(f"column {field.name!r}: the server has no columns of {field.type}")
    return pa.field(field.name, kind, metadata={_TYPE: name, **metadata})


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _plain(kind.value_type)
    if pa.types.is_timestamp(kind):
        return _INSTANT
    if pa.types.is_time(kind):
        return pa.time64("ns")
    if pa.types.is_duration(kind):
        return pa.duration("ns")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return _WIDER.get(kind, kind)
