"""How many bytes rows take once they have the types of a table, told without making them.

A few bytes can stand for any number of others: codes of a dictionary, runs, views into one text,
nulls, which take no room at all until they have a type. Lengths are added up here, so that a limit
holds before anything is cast. Nested columns are counted by what their members become.

Runs and views count as plain values even where the wanted type has them, as a table holds them so.
Bits of validity are left out, and a bool counts as a byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import numpy.typing as npt

_T = pa.types

_Sizes: TypeAlias = "int | npt.NDArray[np.float64]"
"""Bytes of each value; one number when all have the same. Of floats, which no peer can make
overflow."""

_EXPANDING = frozenset(
    {
        pa.lib.Type_RUN_END_ENCODED,
        *(pa.lib.Type_STRING_VIEW, pa.lib.Type_BINARY_VIEW),
        *(pa.lib.Type_LIST_VIEW, pa.lib.Type_LARGE_LIST_VIEW),
    }
)
"""Types of which a table holds something larger though it has the same type."""

_PLACE_BYTES = {
    **dict.fromkeys((pa.lib.Type_LARGE_STRING, pa.lib.Type_LARGE_BINARY), 8),
    **dict.fromkeys((pa.lib.Type_LARGE_LIST, pa.lib.Type_LIST_VIEW), 8),
    **dict.fromkeys((pa.lib.Type_LARGE_LIST_VIEW,), 16),
    pa.lib.Type_NA: 0,
}
"""What a value of a type without fixed width takes beside its content; else four bytes."""


def keeps_its_bytes(given: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether rows of ``given`` are as large in a table of ``wanted`` as they are now. Costs next
    to nothing."""
    types = given.types
    is_equal = given.equals(wanted) or (given.names == wanted.names and types == wanted.types)
    return is_equal and not any(kind.id in _EXPANDING for kind in types)


def expanded_bytes(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> int:
    """Bytes of ``rows`` once they have the types of ``schema``. Columns go by name; those it does
    not have count as they are, and those that are missing as nulls. Costs no more than a look at
    all that ``rows`` are made of, their dictionaries included."""
    given = rows.schema
    if keeps_its_bytes(given, schema):
        return int(rows.nbytes)
    wanted = {field.name: field.type for field in schema}
    total = 0
    for position, field in enumerate(given):
        kind = wanted.pop(field.name, field.type)
        total += expanded_column_bytes(rows.column(position), kind)
    missing = sum(_width(kind) for kind in wanted.values())
    return total + int(rows.num_rows) * missing


def expanded_column_bytes(column: pa.Array | pa.ChunkedArray, wanted: pa.DataType) -> int:
    """Bytes of one column once it is of the type ``wanted``."""
    kind = column.type
    if kind == wanted and kind.id not in _EXPANDING:
        return int(column.nbytes)
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    total = sum(_array_bytes(chunk, wanted) for chunk in chunks)
    if _T.is_dictionary(kind) and _T.is_dictionary(wanted):
        total += sum(_array_bytes(chunk.dictionary, wanted.value_type) for chunk in chunks)
    return total


def _array_bytes(values: pa.Array, wanted: pa.DataType) -> int:
    if not _T.is_run_end_encoded(values.type):
        sizes = _sizes(values, wanted)
        return len(values) * sizes if isinstance(sizes, int) else int(sizes.sum())
    sizes = _sizes(values.values, wanted)
    if isinstance(sizes, int):
        return len(values) * sizes
    ends = values.run_ends.to_numpy(zero_copy_only=False).astype(np.int64) - values.offset
    lengths = np.diff(np.clip(ends, 0, len(values)), prepend=0)
    return int(np.dot(lengths.astype(np.float64), sizes[: len(lengths)]))


def _sizes(values: pa.Array, wanted: pa.DataType) -> _Sizes:
    """What each value takes as one of ``wanted``. Nothing here is as long as runs are, or nulls."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if isinstance(wanted, pa.BaseExtensionType):
        wanted = wanted.storage_type
    if _T.is_run_end_encoded(wanted):
        wanted = wanted.value_type
    kind = values.type
    if _T.is_dictionary(wanted):
        if _T.is_dictionary(kind):
            return _width(wanted)
        wanted = wanted.value_type
    if _T.is_null(kind) or _is_fixed(wanted):
        return _width(wanted)
    if _T.is_dictionary(kind):
        return _looked_up(values, wanted)
    lengths = _lengths(values)
    if lengths is not None:
        return lengths + _width(wanted)
    if _T.is_nested(kind) and not _T.is_union(kind) and not _T.is_run_end_encoded(kind):
        return _nested_sizes(values, wanted)
    # Numbers that become text; runs and unions in other types, of which Arrow has no casts.
    return _width(wanted) + int(values.nbytes) // max(len(values), 1)


def _looked_up(values: pa.DictionaryArray, wanted: pa.DataType) -> _Sizes:
    entries = _sizes(values.dictionary, wanted)
    if isinstance(entries, int):
        return entries
    if not len(entries):
        return _width(wanted)
    codes = values.indices
    sizes: npt.NDArray[np.float64] = entries[codes.fill_null(0).to_numpy(zero_copy_only=False)]
    if codes.null_count:
        sizes[_nulls(codes)] = _width(wanted)
    return sizes


def _lengths(values: pa.Array) -> npt.NDArray[np.float64] | None:
    """Of texts and binaries; None for other types."""
    kind, start, stop = values.type, values.offset, values.offset + len(values)
    if _T.is_string_view(kind) or _T.is_binary_view(kind):
        views = _numbers(values.buffers()[1], 4)
        lengths = views[4 * start : 4 * stop : 4].astype(np.float64)
        if values.null_count:
            lengths[_nulls(values)] = 0  # Nobody has checked what is there.
        return lengths
    if _T.is_string(kind) or _T.is_binary(kind):
        width = 4
    elif _T.is_large_string(kind) or _T.is_large_binary(kind):
        width = 8
    else:
        return None
    offsets = _numbers(values.buffers()[1], width)
    return np.diff(offsets[start : stop + 1]).astype(np.float64)


def _numbers(buffer: pa.Buffer | None, width: int) -> npt.NDArray[np.signedinteger]:
    """The whole numbers in a buffer."""
    kind = np.int32 if width == 4 else np.int64
    if buffer is None or not buffer.size:
        return np.empty(0, kind)
    return np.frombuffer(buffer, kind, count=buffer.size // width)


def _nulls(values: pa.Array) -> npt.NDArray[np.bool_]:
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False), np.bool_)


def _nested_sizes(values: pa.Array, wanted: pa.DataType) -> _Sizes:
    kind = values.type
    if _T.is_struct(kind):
        total: _Sizes = 0
        for position, field in enumerate(kind):
            total = total + _sizes(values.field(position), _field_type(wanted, field))
        return total
    if _T.is_fixed_size_list(kind):
        count = kind.list_size
        members = values.values.slice(values.offset * count, len(values) * count)
        sizes = _sizes(members, _member_type(wanted, kind.value_type))
        if isinstance(sizes, int):
            return int(count) * sizes
        return np.asarray(sizes.reshape(len(values), count).sum(axis=1), np.float64)
    starts = np.asarray(values.offsets.to_numpy(zero_copy_only=False), np.int64)
    if _T.is_map(kind):
        sizes = _sizes(values.keys, _of_map(wanted, kind).key_type)
        sizes = sizes + _sizes(values.items, _of_map(wanted, kind).item_type)
    else:
        sizes = _sizes(values.values, _member_type(wanted, kind.value_type))
    if kind.id in _EXPANDING:
        stops = starts + values.sizes.to_numpy(zero_copy_only=False)
        if values.null_count:
            starts, stops = (np.where(_nulls(values), 0, each) for each in (starts, stops))
    else:
        starts, stops = starts[:-1], starts[1:]
    if isinstance(sizes, int):
        return np.asarray((stops - starts) * float(sizes) + _width(wanted), np.float64)
    before = np.concatenate([np.zeros(1), np.cumsum(sizes)])
    return np.asarray(before[stops] - before[starts] + _width(wanted), np.float64)


def _field_type(wanted: pa.DataType, field: pa.Field) -> pa.DataType:
    position = wanted.get_field_index(field.name) if _T.is_struct(wanted) else -1
    return field.type if position < 0 else wanted.field(position).type


def _member_type(wanted: pa.DataType, given: pa.DataType) -> pa.DataType:
    is_list = _T.is_nested(wanted) and wanted.num_fields == 1 and not _T.is_struct(wanted)
    return wanted.field(0).type if is_list else given


def _of_map(wanted: pa.DataType, given: pa.DataType) -> pa.DataType:
    return wanted if _T.is_map(wanted) else given


def _is_fixed(kind: pa.DataType) -> bool:
    """Whether all values of a type take the same."""
    if _T.is_fixed_size_list(kind):
        return _is_fixed(kind.value_type)
    if _T.is_struct(kind):
        return all(_is_fixed(field.type) for field in kind)
    return _bits(kind) is not None


def _bits(kind: pa.DataType) -> int | None:
    if _T.is_nested(kind) or kind.id in _EXPANDING:
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


def _width(kind: pa.DataType) -> int:
    """What a value takes at least, and a null."""
    if isinstance(kind, pa.BaseExtensionType):
        return _width(kind.storage_type)
    if _T.is_dictionary(kind):
        return _width(kind.index_type)
    if _T.is_run_end_encoded(kind):
        return _width(kind.value_type)
    if _T.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if _T.is_struct(kind):
        return sum(_width(field.type) for field in kind)
    bits = _bits(kind)
    return int(_PLACE_BYTES.get(kind.id, 4)) if bits is None else -(-bits // 8)
