"""From Arrow types to codecs: the one table that says how each type travels.

Source: barrage-wire.md sections 12.1 and 12.2. A new type is one codec and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.wire.columns.dictionaries import DictionaryCodec, RunEndCodec
from barrage.wire.columns.fixed import (
    CHAR_NULL,
    DOUBLE_NULL,
    FLOAT_NULL,
    BitmapCodec,
    BoolCodec,
    NullCodec,
    SentinelCodec,
)
from barrage.wire.columns.nested import FixedListCodec, ListCodec, ListViewCodec, MapCodec
from barrage.wire.columns.structs import StructCodec
from barrage.wire.columns.unions import UnionCodec
from barrage.wire.columns.variable import VariableCodec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barrage.wire.columns.base import ColumnCodec

_T = pa.types


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecStyle:
    """What one exchange agreed on. ``preview`` matters to encoders only."""

    use_deephaven_nulls: bool
    preview: int = 0


class UnknownTypeError(Exception):
    """No codec for a type; callers turn it into an error that names the column."""


_INT8_NULL = np.int8(-(2**7))
_INT16_NULL = np.int16(-(2**15))
_INT32_NULL = np.int32(-(2**31))
_INT64_NULL = np.int64(-(2**63))


@dataclass(frozen=True, slots=True)
class _Sentinel:
    """Numpy form and null value of a sentinel type; ``is_agreed`` whether the null value is part of
    Deephaven's table, so that no bitmap is needed."""

    dtype: str
    value: np.generic
    is_agreed: bool = True


_SENTINELS: tuple[tuple[Callable[[pa.DataType], bool], _Sentinel], ...] = (
    (_T.is_int8, _Sentinel("<i1", _INT8_NULL)),
    (_T.is_int16, _Sentinel("<i2", _INT16_NULL)),
    (_T.is_int32, _Sentinel("<i4", _INT32_NULL)),
    (_T.is_int64, _Sentinel("<i8", _INT64_NULL)),
    (_T.is_uint16, _Sentinel("<u2", CHAR_NULL)),
    (_T.is_float32, _Sentinel("<f4", FLOAT_NULL)),
    (_T.is_float64, _Sentinel("<f8", DOUBLE_NULL)),
    (_T.is_timestamp, _Sentinel("<i8", _INT64_NULL)),
    (_T.is_date32, _Sentinel("<i4", _INT32_NULL)),
    (_T.is_date64, _Sentinel("<i8", _INT64_NULL)),
    (_T.is_time32, _Sentinel("<i4", _INT32_NULL)),
    (_T.is_time64, _Sentinel("<i8", _INT64_NULL)),
    (_T.is_duration, _Sentinel("<i8", _INT64_NULL)),
    # Not in the table: the bitmap always travels, and readers that look for the signed sentinel
    # of the width find it under a null as well.
    (_T.is_uint8, _Sentinel("<u1", np.uint8(2**7), is_agreed=False)),
    (_T.is_uint32, _Sentinel("<u4", np.uint32(2**31), is_agreed=False)),
    (_T.is_uint64, _Sentinel("<u8", np.uint64(2**63), is_agreed=False)),
)

_WIDTHS: tuple[tuple[Callable[[pa.DataType], bool], int], ...] = (
    (_T.is_float16, 2),
    (_T.is_decimal32, 4),
    (_T.is_decimal64, 8),
    (_T.is_decimal128, 16),
    (_T.is_decimal256, 32),
    (_T.is_interval, 16),
)


def agreed_sentinel(kind: pa.DataType) -> np.generic | None:
    """The value that means null in a column of this type when Deephaven nulls were agreed on; None
    for types that have none."""
    for matches, sentinel in _SENTINELS:
        if matches(kind):
            return sentinel.value if sentinel.is_agreed else None
    return None


def _is_variable(kind: pa.DataType) -> bool:
    return bool(
        _T.is_string(kind)
        or _T.is_binary(kind)
        or _T.is_large_string(kind)
        or _T.is_large_binary(kind)
    )


def codec_for(
    kind: pa.DataType, style: CodecStyle, dictionary_ids: Iterator[int] | None = None
) -> ColumnCodec:
    """The codec of a type, its children included. ``dictionary_ids`` gives the ids of the
    dictionaries in depth-first order. Raises UnknownTypeError for types that cannot travel."""
    for matches, sentinel in _SENTINELS:
        if matches(kind):
            as_sentinel = style.use_deephaven_nulls and sentinel.is_agreed
            return SentinelCodec(kind, sentinel.dtype, sentinel.value, as_sentinel=as_sentinel)
    if _is_variable(kind):
        return VariableCodec(kind)
    if _T.is_boolean(kind):
        return BoolCodec()
    if _T.is_null(kind):
        return NullCodec()
    if _T.is_fixed_size_binary(kind):
        return BitmapCodec(kind, kind.byte_width)
    for matches, width in _WIDTHS:
        if matches(kind):
            return BitmapCodec(kind, width)
    return _nested_codec(kind, style, dictionary_ids if dictionary_ids is not None else iter(()))


def _nested_codec(
    kind: pa.DataType, style: CodecStyle, dictionary_ids: Iterator[int]
) -> ColumnCodec:
    def child(of: pa.DataType) -> ColumnCodec:
        return codec_for(of, style, dictionary_ids)

    if _T.is_list(kind) or _T.is_large_list(kind):
        return ListCodec(kind, child(kind.value_type), preview=style.preview)
    if _T.is_list_view(kind) or _T.is_large_list_view(kind):
        return ListViewCodec(kind, child(kind.value_type))
    if _T.is_fixed_size_list(kind):
        return FixedListCodec(kind, child(kind.value_type))
    if _T.is_map(kind):
        return MapCodec(kind, child(kind.key_type), child(kind.item_type))
    if _T.is_struct(kind):
        return StructCodec(kind, tuple(child(field.type) for field in kind.fields))
    if _T.is_union(kind):
        members = tuple(child(kind.field(i).type) for i in range(kind.num_fields))
        return UnionCodec(kind, members)
    if _T.is_run_end_encoded(kind):
        ends = codec_for(kind.run_end_type, CodecStyle(use_deephaven_nulls=False))
        return RunEndCodec(kind, ends, child(kind.value_type))
    if _T.is_dictionary(kind):
        return _dictionary_codec(kind, style, dictionary_ids)
    raise UnknownTypeError(str(kind))


def _dictionary_codec(
    kind: pa.DataType, style: CodecStyle, dictionary_ids: Iterator[int]
) -> DictionaryCodec:
    """Null rows: the index is the sentinel for object columns; primitives point to a dictionary
    entry that holds the sentinel (section 12.4)."""
    dictionary_id = next(dictionary_ids, None)
    if dictionary_id is None:
        raise UnknownTypeError(f"{kind} without a dictionary id")
    index = codec_for(kind.index_type, style)
    values = codec_for(kind.value_type, style, dictionary_ids)
    return DictionaryCodec(
        kind, index, values, dictionary_id=dictionary_id, negative_is_null=style.use_deephaven_nulls
    )
