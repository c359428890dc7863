"""How large columns become in a record, where dictionaries and runs are written out.

Texts and lists are addressed by 32 bits in a record, as in the columns of the table; so what all
cells of one column of one change come to is bounded, however little it takes as it was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.rowset.arrays import Int64Array

EXTENT_MAX: Final = 2**31 - 1
"""Bytes of text, or elements of lists, that one column of one change may have."""

_ROWS_AT_ONCE: Final = 1 << 20

_SHORT_TEXTS: Final = frozenset((pa.string(), pa.binary()))
_TEXTS: Final = _SHORT_TEXTS | {pa.large_string(), pa.large_binary()}

Cells: TypeAlias = pa.Array | pa.ChunkedArray


def is_bounded(kind: pa.DataType) -> bool:
    """Whether columns of this plain type have arrays that are addressed by 32 bits."""
    if kind in _SHORT_TEXTS or pa.types.is_list(kind) or pa.types.is_map(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return is_bounded(kind.storage_type)
    return any(is_bounded(kind.field(index).type) for index in range(kind.num_fields))


def extent(parts: Sequence[Cells]) -> int:
    """What the parts of a column come to as one array of plain type: bytes of text or elements of
    lists, whichever are more at any depth; 0 where only memory bounds them."""
    total: dict[int, int] = {}
    for part in parts:
        for chunk in part.chunks if isinstance(part, pa.ChunkedArray) else [part]:
            for index, count in enumerate(_totals(chunk)):
                total[index] = total.get(index, 0) + count
    return max(total.values(), default=0)


def rough_extent(cells: Cells) -> int:
    """An extent that is never less than :func:`extent` and costs less, for few cells."""
    chunks = cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells]
    total = 0
    for chunk in chunks:
        if pa.types.is_dictionary(chunk.type) and _has_bytes(chunk.type.value_type):
            most = len(chunk) * chunk.dictionary.nbytes
            total += most if most <= EXTENT_MAX // 64 else sum(_totals(chunk))
        else:
            total += sum(_totals(chunk))
    return total


def _has_bytes(kind: pa.DataType) -> bool:
    """Whether cells of the type are texts. Large ones may yet become others in the table."""
    return kind in _TEXTS


def _totals(values: pa.Array) -> list[int]:
    """What each array of a column that is addressed by 32 bits comes to."""
    kind = values.type
    if _is_fixed(kind) or not len(values):
        return []
    if _has_bytes(kind):
        offsets = _offsets(values)
        return [int(offsets[-1] - offsets[0])]
    if pa.types.is_run_end_encoded(kind):
        inner, counts = _runs(values)
        return [int((sizes.astype(np.float64) * counts).sum()) for sizes in _sizes(inner)]
    if pa.types.is_dictionary(kind):
        of_values = _sizes(values.dictionary)
        return [
            sum(int(_picked(sizes, part).sum()) for part in _portions(values))
            for sizes in of_values
        ]
    parts = [[int(sizes.sum()) for sizes in _sizes(part)] for part in _portions(values)]
    return [sum(counts) for counts in zip(*parts, strict=True)]


def _portions(values: pa.Array) -> list[pa.Array]:
    return [values.slice(start, _ROWS_AT_ONCE) for start in range(0, len(values), _ROWS_AT_ONCE)]


def _sizes(values: pa.Array) -> list[Int64Array]:
    """The same per row, by arrays that are addressed by 32 bits."""
    kind = values.type
    if isinstance(values, pa.ExtensionArray):
        return _sizes(values.storage)
    if _is_fixed(kind):
        return []
    if _has_bytes(kind):
        return [np.diff(_offsets(values)).astype(np.int64)]
    if pa.types.is_dictionary(kind):
        return [_picked(sizes, values) for sizes in _sizes(values.dictionary)]
    if pa.types.is_run_end_encoded(kind):
        inner, counts = _runs(values)
        return [np.repeat(sizes, counts) for sizes in _sizes(inner)]
    if pa.types.is_struct(kind):
        return [each for index in range(kind.num_fields) for each in _sizes(values.field(index))]
    if pa.types.is_fixed_size_list(kind):
        count = kind.list_size
        inner = values.values.slice(values.offset * count, len(values) * count)
        return [sizes.reshape(len(values), count).sum(axis=1) for sizes in _sizes(inner)]
    if pa.types.is_list(kind) or pa.types.is_map(kind) or pa.types.is_large_list(kind):
        return _list_sizes(values)
    if kind in (pa.string_view(), pa.binary_view()):
        return [_view_sizes(values)]
    return []


def _list_sizes(values: Any) -> list[Int64Array]:
    offsets = values.offsets.to_numpy().astype(np.int64)
    first = int(offsets[0])
    inner = values.values.slice(first, int(offsets[-1]) - first)
    own = [] if pa.types.is_large_list(values.type) else [np.diff(offsets)]
    for sizes in _sizes(inner):
        sums = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(sizes)))
        own.append(np.diff(sums[offsets - first]))
    return own


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(kind) or pa.types.is_null(kind))


def _offsets(values: pa.Array) -> Any:
    width = np.dtype(np.int32 if values.type in _SHORT_TEXTS else np.int64)
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.zeros(len(values) + 1, dtype=width)
    return np.frombuffer(buffer, width, len(values) + 1, values.offset * width.itemsize)


def _view_sizes(values: pa.Array) -> Int64Array:
    """A view begins with the length of its text, in 4 of 16 bytes."""
    views = np.frombuffer(values.buffers()[1], np.int32, 4 * len(values), values.offset * 16)
    sizes: Int64Array = views[::4].astype(np.int64)
    if values.null_count:
        sizes[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return sizes


def _picked(sizes: Int64Array, values: pa.Array) -> Int64Array:
    """What the cells of a dictionary's column take, from what its values do; null takes nothing."""
    indices = values.indices
    if indices.null_count:
        indices = pc.fill_null(indices.cast(pa.int64()), len(sizes))
    picked: Int64Array = np.append(sizes, 0)[indices.to_numpy()]
    return picked


def _runs(values: Any) -> tuple[pa.Array, Int64Array]:
    """The values of the runs there are, and how long each is."""
    first, count = values.find_physical_offset(), values.find_physical_length()
    ends = values.run_ends.slice(first, count).to_numpy().astype(np.int64) - values.offset
    ends = np.minimum(ends, len(values))
    return values.values.slice(first, count), np.diff(ends, prepend=0)
