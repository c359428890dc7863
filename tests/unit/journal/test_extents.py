"""How large columns become once dictionaries and runs are written out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.journal.records.extents import extent, is_bounded, rough_extent
from barrage.journal.records.record import plain_type

TEXTS = ["aa", "bbb", None, "aa"]
CODED = pa.array(TEXTS).dictionary_encode()
RUNS = pa.RunEndEncodedArray.from_arrays(pa.array([3, 10], pa.int32()), pa.array(["ab", "c"]))
LISTS = pa.array([["a", "bcd"], None, ["e"]], pa.list_(pa.string()))
VIEWS = pa.array(["abc", "d" * 20, None], pa.string_view())
FIXED = pa.array([["a", "b"], ["c", "dd"]], pa.list_(pa.string(), 2))
ALL_NULL = pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), pa.array([], pa.string()))

CASES = {
    "texts": (pa.array(TEXTS), 7),
    "texts-sliced": (pa.array(TEXTS).slice(1, 2), 3),
    "dictionary": (CODED, 7),
    "dictionary-sliced": (CODED.slice(1, 2), 3),
    "dictionary-null": (ALL_NULL, 0),
    "dictionary-empty": (pa.array([], CODED.type), 0),
    "runs": (RUNS, 13),
    "runs-sliced": (RUNS.slice(2, 4), 5),
    "lists-of-texts": (LISTS, 5),
    "lists-sliced": (LISTS.slice(2), 1),
    "lists-of-few": (pa.array([[1, 2], [3]]), 3),
    "lists-of-codes": (pa.ListArray.from_arrays([0, 1, 4], CODED), 7),
    "fixed-lists": (FIXED.slice(1), 3),
    "map": (pa.array([[("k", 1), ("ll", 2)]], pa.map_(pa.string(), pa.int64())), 3),
    "struct": (pa.array([{"s": "abc"}, None]), 3),
    "struct-of-runs": (pa.StructArray.from_arrays([RUNS], ["r"]).slice(2, 4), 5),
    "views": (VIEWS, 23),
    "views-sliced": (VIEWS.slice(1), 20),
    "chunks": (pa.chunked_array([["a"], ["bc"]]), 3),
    "no-chunks": (pa.chunked_array([], pa.string()), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_extent_is_that_of_the_plain_column(name):
    cells, size = CASES[name]
    assert is_bounded(plain_type(cells.type))
    assert extent([cells]) == size
    assert extent([cells, cells]) == 2 * size
    assert rough_extent(cells) >= size


@pytest.mark.parametrize(
    "kind",
    [pa.int64(), pa.bool_(), pa.null(), pa.binary(3), pa.large_string(), pa.decimal128(9)],
    ids=str,
)
def test_other_columns_are_not_bounded(kind):
    assert not is_bounded(kind)
    assert not is_bounded(pa.struct([("x", kind)]))
    if kind != pa.large_string():
        assert extent([pa.nulls(5, kind)]) == 0
