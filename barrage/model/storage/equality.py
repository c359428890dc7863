"""Which cells of two equally long arrays differ, for every type, bit by bit for fixed widths.

Bitwise comparison makes NaN equal to itself (a cell rewritten with NaN did not change) and 0.0
differ from -0.0 (it did). Two nulls are equal.

Texts and bytes of dictionaries are compared by numbers, which the values are given first: that
costs the cells and the values they use, however long a value is and however many cells have it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.model.storage.fixed import fixed_dtype, read_fixed, read_valid

if TYPE_CHECKING:
    from barrage.model.storage.growth import BoolArray, Int64Array

WRITTEN_OUT_MAX = 16
"""So few cells of dictionaries are compared as they are, which is quicker."""

_NULL = -1
"""The code of nulls, and where its number is: at the end."""


def cells_differ(old: pa.Array | pa.ChunkedArray, new: pa.Array | pa.ChunkedArray) -> BoolArray:
    """True where ``old`` and ``new`` (same type and length) hold different cells."""
    if isinstance(old, pa.ChunkedArray):
        old = old.combine_chunks()
    if isinstance(new, pa.ChunkedArray):
        new = new.combine_chunks()
    if pa.types.is_null(old.type) or len(old) == 0:
        return np.zeros(len(old), dtype=np.bool_)
    if pa.types.is_dictionary(old.type):
        return _dictionaries_differ(old, new)
    if pa.types.is_run_end_encoded(old.type):
        return cells_differ(pc.run_end_decode(old), pc.run_end_decode(new))
    old_valid, new_valid = read_valid(old), read_valid(new)
    values = _values_differ(old, new)
    if old_valid is None and new_valid is None:
        return values
    every = np.ones(len(old), dtype=np.bool_)
    left = every if old_valid is None else old_valid
    right = every if new_valid is None else new_valid
    return np.asarray((left != right) | (values & left & right))


def _values_differ(old: pa.Array, new: pa.Array) -> BoolArray:
    """Difference of the cells that are valid on both sides; arbitrary elsewhere."""
    data_type = old.type
    dtype = fixed_dtype(data_type)
    if dtype is not None:
        left, right = read_fixed(old, dtype), read_fixed(new, dtype)
        if dtype.kind == "V":
            width = dtype.itemsize
            left = np.ascontiguousarray(left).view(np.uint8).reshape(-1, width)
            right = np.ascontiguousarray(right).view(np.uint8).reshape(-1, width)
            return np.asarray((left != right).any(axis=1))
        return np.asarray(left != right)
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return _lists_differ(old, new)
    if pa.types.is_struct(data_type):
        differ = np.zeros(len(old), dtype=np.bool_)
        for left_child, right_child in zip(old.flatten(), new.flatten(), strict=True):
            differ |= cells_differ(left_child, right_child)
        return differ
    if pa.types.is_nested(data_type):
        return _objects_differ(old, new)
    unequal = pc.fill_null(pc.not_equal(old, new), True)
    return np.asarray(unequal.to_numpy(zero_copy_only=False))


def _dictionaries_differ(old: pa.DictionaryArray, new: pa.DictionaryArray) -> BoolArray:
    """Difference of cells that have the same value type, whatever dictionaries they have. A null
    may be a code or a value."""
    if len(old) <= WRITTEN_OUT_MAX or not may_be_long(old.type.value_type):
        return cells_differ(old.dictionary_decode(), new.dictionary_decode())
    if not _is_same_array(old.dictionary, new.dictionary):
        return _numbers_differ(old, new)
    # Other codes may be the same value again.
    differ = cells_differ(old.indices, new.indices)
    rows = np.flatnonzero(differ)
    if len(rows):
        chosen = pa.array(rows)
        differ[rows] = _numbers_differ(old.take(chosen), new.take(chosen))
    return differ


def may_be_long(data_type: pa.DataType) -> bool:
    """Whether a value of this type may be: texts and bytes, which Arrow tells apart quickly."""
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_fixed_size_binary(data_type)
    )


def _numbers_differ(old: pa.DictionaryArray, new: pa.DictionaryArray) -> BoolArray:
    """The same, by numbers of the values that are used: equal ones have the same."""
    codes = [cells.indices.dictionary_encode() for cells in (old, new)]
    values = [
        cells.dictionary.take(used.dictionary)
        for cells, used in zip((old, new), codes, strict=True)
    ]
    chunks = pa.chunked_array(values).dictionary_encode().chunks
    numbers = np.concatenate([np.empty(0, dtype=np.int64), *map(_codes_of, chunks)])
    left, right = (
        np.append(part, _NULL)[_codes_of(used)]
        for part, used in zip(np.split(numbers, [len(values[0])]), codes, strict=True)
    )
    return np.asarray(left != right)


def _codes_of(cells: pa.DictionaryArray) -> Int64Array:
    codes = pc.fill_null(cells.indices.cast(pa.int64()), _NULL)
    return np.asarray(codes.to_numpy(zero_copy_only=False))


def _is_same_array(one: pa.Array, other: pa.Array) -> bool:
    """Whether two arrays are the same memory."""
    places = [
        [None if buffer is None else buffer.address for buffer in each.buffers()]
        for each in (one, other)
    ]
    return places[0] == places[1] and (one.offset, len(one)) == (other.offset, len(other))


def _lists_differ(old: pa.Array, new: pa.Array) -> BoolArray:
    """Lists differ in length or in an element; elements are compared flat, then counted per
    list."""
    left_lengths = _list_lengths(old)
    differ = np.asarray(left_lengths != _list_lengths(new))
    candidates = np.flatnonzero(~differ & (left_lengths > 0))
    if len(candidates) == 0:
        return differ
    chosen = pa.array(candidates)
    elements = cells_differ(old.take(chosen).flatten(), new.take(chosen).flatten())
    lengths = left_lengths[candidates]
    starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    differ[candidates] = np.logical_or.reduceat(elements, starts)
    return differ


def _list_lengths(values: pa.Array) -> Int64Array:
    """Elements per list; -1 for null lists, so that flat elements line up with valid lists only."""
    lengths = pc.fill_null(pc.list_value_length(values).cast(pa.int64()), -1)
    return np.asarray(lengths.to_numpy(zero_copy_only=False))


def _objects_differ(old: pa.Array, new: pa.Array) -> BoolArray:
    """The rare nested types without a kernel (maps, unions, fixed-size lists, list views)."""
    pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
    return np.fromiter((a != b for a, b in pairs), dtype=np.bool_, count=len(old))
