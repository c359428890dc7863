"""Deephaven nulls in arrays that Arrow has read: values that say null become nulls.

Source: barrage-wire.md section 12.2. Uploads are read by Arrow, which takes a sentinel for a value;
here it becomes a null, in the children of lists and structs as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import UnsupportedError
from barrage.wire.columns.registry import agreed_sentinel

if TYPE_CHECKING:
    from collections.abc import Callable

_T = pa.types
_LISTS = (_T.is_list, _T.is_large_list, _T.is_fixed_size_list)
_NOT_READ: tuple[Callable[[pa.DataType], bool], ...] = (
    _T.is_map,
    _T.is_union,
    _T.is_dictionary,
    _T.is_run_end_encoded,
    _T.is_list_view,
    _T.is_large_list_view,
)


def nulls_for_sentinels(batch: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with nulls where a value is its type's Deephaven null, one pass per column.

    UnsupportedError for a column of a type whose layout Deephaven does not upload.
    """
    columns = [
        _converted(column, field.name)
        for field, column in zip(batch.schema, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _converted(array: pa.Array, name: str) -> pa.Array:
    kind = array.type
    sentinel = agreed_sentinel(kind)
    if sentinel is not None:
        numbers = array.view(pa.from_numpy_dtype(sentinel.dtype))
        holds_value = pc.not_equal(numbers, pa.scalar(sentinel.item(), numbers.type))
        return pc.if_else(holds_value, array, pa.scalar(None, kind))
    if any(is_kind(kind) for is_kind in _NOT_READ):
        raise UnsupportedError(f"column {name!r}: {kind} cannot be uploaded with Deephaven nulls")
    if any(is_kind(kind) for is_kind in _LISTS):
        children = [array.values]
    elif _T.is_struct(kind):
        children = [array.field(number) for number in range(kind.num_fields)]
    else:
        return array
    own_buffers = [] if _T.is_fixed_size_list(kind) or _T.is_struct(kind) else [array.buffers()[1]]
    return pa.Array.from_buffers(
        kind,
        len(array),
        [array.buffers()[0], *own_buffers],
        array.null_count,
        array.offset,
        children=[_converted(child, name) for child in children],
    )
