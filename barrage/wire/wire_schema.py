"""Which schema travels for a table, and how columns of other types are turned into it.

Source: barrage-wire.md sections 12.1 to 12.3. Types the protocol carries stay as they are; types it
does not know become the nearest carried one (large and view types their plain form, narrow unsigned
integers the next signed one, decimals of 32 and 64 bits 128 bits). Structs travel as Arrow has
them; what Deephaven's clients are shown of them is text, as they read none.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import SchemaError
from barrage.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.limits import Limits

_T = pa.types

ATTRIBUTE = b"deephaven:attribute."
ATTRIBUTE_TYPE = b"deephaven:attribute_type."
FIELD_TYPE = b"deephaven:type"
COMPONENT_TYPE = b"deephaven:componentType"
INPUT_COLUMN = b"deephaven:inputtable."
UNSENT_ATTRIBUTE = b"deephaven:unsent.attribute."
TABLE_METADATA = b"deephaven:tableMetadata"

_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (_T.is_large_string, pa.string()),
    (_T.is_string_view, pa.string()),
    (_T.is_large_binary, pa.binary()),
    (_T.is_binary_view, pa.binary()),
    (_T.is_uint8, pa.int16()),
    (_T.is_uint32, pa.int64()),
    (_T.is_float16, pa.float32()),
)


def wire_type(kind: pa.DataType) -> pa.DataType:
    """The type values of ``kind`` travel as. Raises SchemaError if there is none."""
    for matches, plain in _PLAIN:
        if matches(kind):
            return plain
    if isinstance(kind, pa.BaseExtensionType):
        return wire_type(kind.storage_type)
    if _T.is_decimal32(kind) or _T.is_decimal64(kind):
        return pa.decimal128(kind.precision, kind.scale)
    if _T.is_dictionary(kind):
        # 32-bit indexes: the narrow ones overflow when dictionaries of batches are joined.
        return pa.dictionary(pa.int32(), _plain_value_type(kind.value_type), ordered=kind.ordered)
    if _T.is_run_end_encoded(kind):
        return pa.run_end_encoded(pa.int32(), _plain_value_type(kind.value_type))
    return _wire_nested(kind)


def _wire_nested(kind: pa.DataType) -> pa.DataType:
    if _T.is_map(kind):
        key = kind.key_field.with_type(_plain_value_type(kind.key_type))
        item = kind.item_field.with_type(_plain_value_type(kind.item_type))
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if _T.is_fixed_size_list(kind):
        return pa.list_(_wire_child(kind.value_field), kind.list_size)
    if _is_variable_list(kind):
        return pa.list_(_wire_child(kind.value_field))
    if _T.is_struct(kind):
        return pa.struct([_wire_child(field) for field in kind.fields])
    if _T.is_union(kind):
        members = [_wire_child(kind.field(i)) for i in range(kind.num_fields)]
        return pa.union(members, mode=kind.mode, type_codes=kind.type_codes)
    return kind


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(_T.is_list_view(kind) or _T.is_large_list_view(kind))


def _is_variable_list(kind: pa.DataType) -> bool:
    return bool(_T.is_list(kind) or _T.is_large_list(kind) or _is_list_view(kind))


def _wire_child(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_value_type(field.type))


def _plain_value_type(kind: pa.DataType) -> pa.DataType:
    """Wire type of a nested value: encodings inside other types are dissolved."""
    if _T.is_dictionary(kind) or _T.is_run_end_encoded(kind):
        return _plain_value_type(kind.value_type)
    if _is_list_view(kind):
        raise SchemaError("list views inside other types cannot travel; use lists")
    return wire_type(kind)


def wire_schema(
    schema: pa.Schema, limits: Limits = DEFAULT_LIMITS, *, keeps_index_types: bool = False
) -> pa.Schema:
    """The schema that travels for a table of ``schema``; names, nullability and metadata are kept.
    With ``keeps_index_types`` the indexes of dictionary columns keep their width, for streams whose
    dictionaries are never joined.

    Raises SchemaError naming the column whose type cannot travel.
    """
    if len(schema) > limits.columns_max:
        raise SchemaError(f"{len(schema)} columns, the limit is {limits.columns_max} columns")
    fields = []
    for field in schema:
        if nesting_depth(field.type) > limits.nesting_depth_max:
            raise SchemaError(
                f"column {field.name!r} nests deeper than {limits.nesting_depth_max} levels"
            )
        try:
            kind = wire_type(field.type)
            if keeps_index_types and _T.is_dictionary(field.type):
                kind = pa.dictionary(field.type.index_type, kind.value_type, ordered=kind.ordered)
            converter(field.type, kind)
        except SchemaError as error:
            raise SchemaError(f"column {field.name!r} of type {field.type}: {error}") from error
        fields.append(field if kind == field.type else field.with_type(kind))
    return pa.schema(fields, metadata=schema.metadata)


def nesting_depth(kind: pa.DataType) -> int:
    """Levels of types below and including ``kind``, without recursion."""
    depth = 0
    level = [kind]
    while level:
        depth += 1
        level = [child for parent in level for child in _children(parent)]
    return depth


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if _T.is_dictionary(kind) or _T.is_run_end_encoded(kind):
        return [kind.value_type]
    return [kind.field(i).type for i in range(kind.num_fields)]


def converter(source: pa.DataType, target: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """How an array of ``source`` becomes one of ``target``; None when nothing needs to be done.

    Run-end encoded columns come out as plain values: their codec computes runs per batch. Tried on
    an empty array here, so that a conversion Arrow lacks fails when a table is published.
    """
    if _T.is_dictionary(target):
        return None  # the update encoder joins and converts dictionaries per update
    wanted = target.value_type if _T.is_run_end_encoded(target) else target
    if source == wanted:
        return None

    def convert(array: pa.Array) -> pa.Array:
        return plain_array(array).cast(wanted)

    try:
        convert(pa.nulls(0, source))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(f"cannot become {wanted}") from error
    return convert


def plain_array(array: pa.Array) -> pa.Array:
    """Values without extension type or run-end encoding on the outside."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if _T.is_run_end_encoded(array.type):
        array = pc.run_end_decode(array)
    if _is_list_view(array.type):
        array = _list_from_view(array)
    return array


def _list_from_view(array: pa.Array) -> pa.Array:
    """List views as lists. Done here because Arrow's own cast (26.0) makes invalid lists of views
    with nulls."""
    starts = array.offsets.to_numpy().astype(np.int64)
    sizes = array.sizes.to_numpy().astype(np.int64)
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    sizes = np.where(valid, sizes, 0)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    indices = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
    return pa.LargeListArray.from_arrays(
        pa.array(offsets), array.values.take(pa.array(indices)), mask=pa.array(~valid)
    )


_JAVA_TYPES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (_T.is_int8, "byte"),
    (_T.is_int16, "short"),
    (_T.is_int32, "int"),
    (_T.is_int64, "long"),
    (_T.is_uint16, "char"),
    (_T.is_float32, "float"),
    (_T.is_float64, "double"),
    (_T.is_boolean, "java.lang.Boolean"),
    (_T.is_string, "java.lang.String"),
    (_T.is_date, "java.time.LocalDate"),
    (_T.is_time, "java.time.LocalTime"),
    (_T.is_duration, "java.time.Duration"),
    (_T.is_decimal, "java.math.BigDecimal"),
)


def java_type(kind: pa.DataType) -> str | None:
    """Java class a Deephaven client keeps values of ``kind`` in; None leaves it to the client."""
    if _T.is_dictionary(kind) or _T.is_run_end_encoded(kind):
        return java_type(kind.value_type)
    if _T.is_binary(kind):
        return "byte[]"
    if _T.is_list(kind):
        component = java_type(kind.value_type)
        return f"{component}[]" if component else None
    if _T.is_timestamp(kind):
        is_utc = kind.tz in (None, "UTC")
        return "java.time.Instant" if is_utc else "java.time.ZonedDateTime"
    for matches, name in _JAVA_TYPES:
        if matches(kind):
            return name
    return None


def with_deephaven_metadata(
    schema: pa.Schema,
    *,
    is_blink: bool = False,
    is_append_only: bool = False,
    is_flat: bool = False,
    key_columns: tuple[str, ...] = (),
    attributes: Mapping[str, str] | None = None,
    input_metadata: bytes | None = None,
) -> pa.Schema:
    """``schema`` with what Deephaven clients read from metadata; entries already there are kept.

    ``is_flat`` promises row keys 0..n-1: a false promise stops Java clients (trap 39).
    ``attributes`` are further text attributes of the table. ``input_metadata`` is the message that
    describes the columns of an input table; with it, columns that are no keys are marked as values.
    """
    flags = {"BlinkTable": is_blink, "AppendOnly": is_append_only, "IsFlat": is_flat}
    entries: dict[bytes, bytes] = {}
    for name, is_set in flags.items():
        if is_set:
            entries[ATTRIBUTE + name.encode()] = b"true"
            entries[ATTRIBUTE_TYPE + name.encode()] = b"java.lang.Boolean"
    for name, text in (attributes or {}).items():
        entries[ATTRIBUTE + name.encode()] = text.encode()
        entries[ATTRIBUTE_TYPE + name.encode()] = b"java.lang.String"
    fields = [_with_java_type(field) for field in schema]
    fields = [
        _with_mark(field, b"isKey") if field.name in key_columns else field for field in fields
    ]
    if input_metadata is not None:
        entries[TABLE_METADATA] = base64.b64encode(input_metadata)
        entries[UNSENT_ATTRIBUTE + b"InputTable"] = b""
        fields = [
            field if field.name in key_columns else _with_mark(field, b"isValue")
            for field in fields
        ]
    metadata = {**entries, **(schema.metadata or {})}
    return pa.schema(fields, metadata=metadata or None)


def _with_mark(field: pa.Field, mark: bytes) -> pa.Field:
    return field.with_metadata({INPUT_COLUMN + mark: b"true", **(field.metadata or {})})


def _with_java_type(field: pa.Field) -> pa.Field:
    entries: dict[bytes, bytes] = {}
    given = (field.metadata or {}).get(FIELD_TYPE)
    name = given.decode(errors="replace") if given else java_type(field.type)
    if name is not None:
        entries[FIELD_TYPE] = name.encode()
        if name.endswith("[]"):
            entries[COMPONENT_TYPE] = name[:-2].encode()
        elif not _T.is_list(field.type):
            entries[b"deephaven:isSortable"] = b"true"
    return field.with_metadata({**entries, **(field.metadata or {})})
