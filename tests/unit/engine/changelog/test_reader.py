"""Values of many views as one array, and columns that no array can hold."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine.changelog.reader import ARRAY_BYTES_MAX, compact, taken, whole
from tests.helpers.told import arrays_of_bytes

TEXT_BYTES = ARRAY_BYTES_MAX - 100


@pytest.fixture(scope="module")
def long_text() -> pa.Array:
    """A row of 2 GiB, of which the system is never asked for a page."""
    content = pa.py_buffer(np.zeros(TEXT_BYTES, np.uint8))
    offsets = pa.py_buffer(np.array([0, TEXT_BYTES], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, content])


@pytest.mark.parametrize("join", [whole, compact])
def test_a_column_that_no_array_can_hold_stays_in_chunks(join, long_text: pa.Array) -> None:
    column = pa.chunked_array([long_text, long_text])
    assert join(column) is column
    assert join(column.slice(0, 1)).equals(long_text)


def test_numbers_and_texts_that_fit_are_taken_at_once() -> None:
    picks = np.arange(100).repeat(2) // 2
    for values in (pa.array(range(100)), pa.array(["ab", None] * 50), pa.array([b"", b"c"] * 50)):
        with arrays_of_bytes(values.nbytes * 3):
            found = taken(values, picks, np.array([100, 100]))
        assert isinstance(found, pa.Array)
        assert found.equals(values.take(pa.array(picks)))


def cell(kind: pa.DataType, number: int) -> object:
    if kind == pa.string():
        return "x" * number
    return number if kind == pa.int32() else [number] * (number % 3)


rows = st.sets(st.integers(0, 19)).map(sorted)


@given(
    views=st.lists(rows, min_size=1, max_size=6),
    cuts=st.sets(st.integers(1, 19)).map(sorted),
    bytes_max=st.sampled_from([0, 40, 200, ARRAY_BYTES_MAX]),
    kind=st.sampled_from([pa.int32(), pa.string(), pa.list_(pa.int8())]),
)
def test_rows_are_those_that_were_picked(views, cuts, bytes_max, kind) -> None:
    values = pa.array([cell(kind, number) for number in range(20)], kind)
    column = pa.chunked_array(
        [values[a:b] for a, b in zip([0, *cuts], [*cuts, 20], strict=True)], kind
    )
    picks = np.array([each for view in views for each in view], dtype=np.int64)
    counts = np.array([len(view) for view in views], dtype=np.int64)
    with arrays_of_bytes(bytes_max):
        found = taken(whole(column), picks, counts)
    assert found.to_pylist() == values.take(pa.array(picks)).to_pylist()
