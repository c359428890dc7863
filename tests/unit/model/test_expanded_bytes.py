"""What rows take once they are cast, told before: against the cast itself, and where that would be
gigabytes."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from barrage.engine.tables.coercion import cast_values
from barrage.model.storage.expanded_bytes import (
    expanded_bytes,
    expanded_column_bytes,
    keeps_its_bytes,
)

WORDS = pa.array(["", "ab", None, "abcdef", "ü"])
CODES = pa.array([3, 3, None, 0, 1, 2, 4, 3], pa.int8())


def content_bytes(array: pa.Array) -> int:
    """Of texts: their characters and an offset each, whatever buffers they are kept in."""
    width = 8 if pa.types.is_large_string(array.type) else 4
    return sum(width + len((each or "").encode()) for each in array.to_pylist())


def runs(count: int, values: pa.Array) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array([count], pa.int32()), values)


def views(count: int, size: int) -> pa.Array:
    """Views that all show the same text."""
    view = struct.pack("<i4sii", size, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * count), pa.py_buffer(b"x" * size)]
    return pa.Array.from_buffers(pa.string_view(), count, buffers)


ENCODED = {
    "dictionary": pa.DictionaryArray.from_arrays(CODES, WORDS),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 7, 8, 11], pa.int16()), WORDS),
    "views": pa.array(["", "ab", None, "a text of more than twelve", "ü"] * 2).cast(
        pa.string_view()
    ),
    "large": WORDS.cast(pa.large_string()),
    "plain": WORDS,
}


@pytest.mark.parametrize("wanted", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("name", ENCODED)
@pytest.mark.parametrize("bounds", [(0, None), (1, 3), (2, 0)], ids=str)
def test_texts_are_told_as_the_cast_makes_them(name, wanted, bounds):
    array = ENCODED[name].slice(*bounds)
    made = cast_values(pa.chunked_array([array]), wanted)
    if array.type == wanted:
        assert expanded_column_bytes(array, wanted) == array.nbytes
    else:
        assert expanded_column_bytes(array, wanted) == content_bytes(made)
    chunks = pa.chunked_array([array, array], type=array.type)
    assert expanded_column_bytes(chunks, wanted) == 2 * expanded_column_bytes(array, wanted)


@pytest.mark.parametrize(
    ("wanted", "width"),
    [
        (pa.int64(), 8),
        (pa.float32(), 4),
        (pa.bool_(), 1),
        (pa.decimal128(20), 16),
        (pa.binary(30), 30),
        (pa.string(), 4),
        (pa.large_string(), 8),
        (pa.list_(pa.int64()), 4),
        (pa.list_(pa.int64(), 1000), 8000),
        (pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int16(), 5))]), 18),
        (pa.dictionary(pa.int32(), pa.string()), 4),
        (pa.run_end_encoded(pa.int32(), pa.int64()), 8),
        (pa.null(), 0),
    ],
    ids=str,
)
def test_nulls_are_as_wide_as_their_type(wanted, width):
    assert expanded_column_bytes(pa.nulls(1_000_000_000), wanted) == 1_000_000_000 * width


def test_what_would_be_gigabytes_is_told():
    count, size = 1 << 20, 1 << 14
    words = pa.array(["x" * size])
    codes = pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int8()).fill_null(0), words)
    for array in (codes, runs(count, words), views(count, size)):
        assert expanded_column_bytes(array, pa.string()) == count * (size + 4)
    numbers = runs(1 << 30, pa.array([1]))
    assert expanded_column_bytes(numbers, pa.float64()) == 8 << 30
    # A table keeps runs and views as plain values.
    assert expanded_column_bytes(runs(count, words), runs(1, words).type) == count * (size + 4)
    assert expanded_column_bytes(views(count, size), pa.string_view()) == count * (size + 4)


def test_a_dictionary_that_stays_one_counts_once():
    words = pa.array(["x" * 1000])
    codes = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int8()), words)
    assert expanded_column_bytes(codes, codes.type) == codes.nbytes
    wider = pa.dictionary(pa.int32(), pa.string())
    assert expanded_column_bytes(codes, wider) == 100 * 4 + words.nbytes


@pytest.mark.parametrize("bounds", [(0, None), (1, 2)], ids=str)
def test_members_of_nested_columns_are_counted(bounds):
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 6, pa.int8()), pa.array(["x" * 100]))
    offsets = pa.array([0, 1, 3, 6], pa.int32())
    text, each = pa.string(), 104
    lists = pa.ListArray.from_arrays(offsets, words).slice(*bounds)
    members = sum(map(len, lists.to_pylist()))
    assert expanded_column_bytes(lists, pa.list_(text)) == len(lists) * 4 + members * each
    assert expanded_column_bytes(lists, pa.large_list(text)) == len(lists) * 8 + members * each
    pairs = pa.FixedSizeListArray.from_arrays(words, 2).slice(*bounds)
    assert expanded_column_bytes(pairs, pa.list_(text, 2)) == len(pairs) * 2 * each
    structs = pa.StructArray.from_arrays([words, pa.nulls(6)], ["a", "b"]).slice(*bounds)
    wanted = pa.struct([("a", text), ("b", pa.int64())])
    assert expanded_column_bytes(structs, wanted) == len(structs) * (each + 8)
    maps = pa.MapArray.from_arrays(offsets, pa.array(list("abcdef")), words).slice(*bounds)
    wanted = pa.map_(text, text)
    assert expanded_column_bytes(maps, wanted) == len(maps) * 4 + members * (5 + each)
    starts, sizes = pa.array([0, 0, 1], pa.int32()), pa.array([6, 6, 5], pa.int32())
    shared = pa.ListViewArray.from_arrays(starts, sizes, words).slice(*bounds)
    members = sum(map(len, shared.to_pylist()))
    assert expanded_column_bytes(shared, pa.list_(text)) == len(shared) * 4 + members * each
    nothing = pa.ListArray.from_arrays(pa.array([0, 1 << 30], pa.int32()), pa.nulls(1 << 30))
    assert expanded_column_bytes(nothing, pa.list_(pa.int64())) == (8 << 30) + 4


def test_columns_go_by_name():
    rows = pa.record_batch({"a": pa.nulls(10), "b": [1] * 10, "c": [2] * 10})
    wanted = pa.schema([("b", pa.int64()), ("a", pa.int32()), ("d", pa.string())])
    assert expanded_bytes(rows, wanted) == 10 * (4 + 8 + 8 + 4)
    assert expanded_bytes(pa.Table.from_batches([rows]), wanted) == 10 * (4 + 8 + 8 + 4)


def test_rows_that_stay_as_they_are_are_not_looked_at():
    plain = pa.schema([("a", pa.int64()), ("w", pa.dictionary(pa.int32(), pa.string()))])
    assert keeps_its_bytes(plain, plain)
    assert keeps_its_bytes(plain, pa.schema([field.with_nullable(False) for field in plain]))
    assert not keeps_its_bytes(plain, pa.schema([("a", pa.int32()), plain.field(1)]))
    for kind in (pa.string_view(), pa.run_end_encoded(pa.int32(), pa.int8())):
        assert not keeps_its_bytes(pa.schema([("a", kind)]), pa.schema([("a", kind)]))


def test_empty_columns_take_nothing():
    for name, array in ENCODED.items():
        assert expanded_column_bytes(pa.array([], array.type), pa.large_binary()) == 0, name
        assert expanded_column_bytes(pa.chunked_array([], array.type), pa.binary()) == 0, name
    empty = pa.DictionaryArray.from_arrays(pa.nulls(3, pa.int8()), pa.array([], pa.string()))
    assert expanded_column_bytes(empty, pa.string()) == 12
