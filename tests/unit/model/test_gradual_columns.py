"""Columns that change their form with the writes that need it, a few cells with each: at every
moment they are the list they stand for, and so are the copies that were pinned meanwhile."""

from __future__ import annotations

import ctypes
import decimal
import mmap
import os
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.model.storage import ColumnStore, column_store, growth, log, pinning, thawing
from barrage.model.storage.chunks import ChunkLog
from barrage.model.storage.growth import GrowArray
from barrage.model.storage.log import LogColumn
from barrage.model.storage.thawing import ThawingColumn
from tests.helpers.examples import examples
from tests.helpers.stored_cells import check_stored

CELLS: dict[pa.DataType, list[Any]] = {
    pa.int64(): [None, 0, -1, 2**62],
    pa.float64(): [0.5, 1.5],
    pa.bool_(): [True, False, None],
    pa.decimal128(20, 2): [None, decimal.Decimal("1.25"), decimal.Decimal("-3.50")],
    pa.string(): ["", "short", "a text that is longer than the others", None],
    pa.list_(pa.int8()): [[], [1, None], None, [2, 3, 4]],
    pa.dictionary(pa.int32(), pa.string()): ["x", "y", "z", None],
    pa.run_end_encoded(pa.int32(), pa.string()): ["x", "y", None],
}

counts = st.integers(0, 30)
steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "write", "write", "write", "truncate", "pin", "tidy"]),
        st.integers(0, 200),
        counts,
        st.integers(0, 3),
    ),
    max_size=40,
)


@pytest.fixture(autouse=True, scope="module")
def few_cells_at_a_time():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_store, "THAWED_AT_ONCE_MAX", 0)
        patch.setattr(thawing, "THAWED_TOGETHER", 5)
        patch.setattr(log, "GARBAGE_ROWS_MIN", 3)
        patch.setattr(log, "CLEANED_TOGETHER", 4)
        patch.setattr(log, "COPY_ROWS", 3)
        patch.setattr(log, "REBASED_POSITIONS_MIN", 90)
        patch.setattr(growth, "SLACK_ROWS_MIN", 1)
        patch.setattr(pinning, "OWN_MEMORY_MIN", 16)
        yield


@pytest.mark.parametrize("data_type", CELLS, ids=str)
@given(steps=steps, size=st.integers(0, 120))
@examples(40)
def test_a_column_is_a_list(
    data_type: pa.DataType, steps: list[tuple[str, int, int, int]], size: int
) -> None:
    kinds = CELLS[data_type]
    cells = [kinds[n % len(kinds)] for n in range(size)]
    store, pinned = ColumnStore(data_type), []
    store.append(pa.array(cells, data_type))
    for what, at, count, salt in steps:
        fresh = [kinds[(n * n + salt) % len(kinds)] for n in range(count)]
        if what == "append":
            store.append(pa.array(fresh, data_type))
            cells = cells + fresh
        elif what == "write":
            slots = np.random.default_rng(at).permutation(len(cells))[:count]
            store.write(slots, pa.array(fresh[: len(slots)], data_type))
            cells = list(cells)
            for slot, cell in zip(slots, fresh, strict=False):
                cells[slot] = cell
        elif what == "truncate":
            cells = cells[: max(0, len(cells) - at // 8)]
            store.truncate(len(cells))
        elif what == "tidy":
            store.tidy(at // 8)
        else:
            pinned.append((store.pinned(), cells))
        check_stored(store, cells)
    for kept, expected in pinned:
        check_stored(kept, expected)


@pytest.mark.parametrize(
    ("data_type", "cell"), [(pa.int64(), 7), (pa.float32(), 0.5), (pa.string(), "x")]
)
def test_a_first_overwrite_copies_a_few_cells(
    data_type: pa.DataType, cell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ColumnStore(data_type)
    store.append(pa.array([cell] * 1000, data_type))
    taken = counted_cells(monkeypatch)
    appended = counted_cells(monkeypatch, "append")
    store.write(np.array([500]), pa.array([None], data_type))
    assert sum(taken) <= 5
    assert sum(appended) <= 1
    for slot in range(300):
        store.write(np.array([slot]), pa.array([None], data_type))
    assert max(taken, default=0) <= 5
    assert not isinstance(store._cells, ThawingColumn)
    assert store.slice(0, 1000).to_pylist() == [None] * 300 + [cell] * 200 + [None] + [cell] * 499


def test_cleaning_a_log_copies_a_few_cells_for_each_that_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ColumnStore(pa.string())
    store.append(pa.array([f"text {n}" for n in range(1000)]))
    appended = counted_cells(monkeypatch, "append")
    for turn in range(600):
        store.write(np.arange(turn, turn + 3) % 1000, pa.array([f"turn {turn}"] * 3))
    # Three that are written, and two that are cleaned for each of them, three at a time.
    assert max(appended) <= 3
    cells = store._cells
    assert isinstance(cells, LogColumn)
    assert cells._log.length - cells._log.base <= 3 * 1000


@pytest.mark.parametrize("data_type", [pa.string(), pa.int64()])
def test_what_was_truncated_is_given_back_without_further_writes(data_type: pa.DataType) -> None:
    store = ColumnStore(data_type)
    cells = pa.array([str(number) for number in range(100, 900)]).cast(data_type)
    for start in range(0, 800, 100):
        store.append(pa.concat_arrays([cells[start : start + 100]]))
    store.write(np.array([3]), cells[:1])
    store.truncate(30)
    for _ in range(60):
        store.tidy(2)
    store._cells.append(cells[:1])  # Appending goes on where it ended.
    assert not isinstance(store._cells, ThawingColumn)
    assert store.slice(0, 31).to_pylist()[:4] == [*cells[:3].to_pylist(), cells[0].as_py()]
    if isinstance(store._cells, LogColumn):
        assert store._cells._log.length - store._cells._log.base <= 2 * 31


@pytest.mark.parametrize("data_type", CELLS, ids=str)
def test_cells_that_are_spread_leave_the_others_small(data_type: pa.DataType) -> None:
    kinds = CELLS[data_type]
    store = ColumnStore(data_type)
    cells = [kinds[number % len(kinds)] for number in range(50)]
    store.append(pa.array(cells, data_type))
    slots = np.arange(50) * 7 + 3
    spread = store.spread(slots, 400)
    assert len(spread) == 400
    assert spread.take(slots).to_pylist() == cells
    spread.append(pa.array(cells[:2], data_type))
    assert spread.slice(400, 402).to_pylist() == cells[:2]


def test_long_texts_that_are_spread_are_there_once() -> None:
    store = ColumnStore(pa.string())
    store.append(pa.array(["x" * 10_000] * 10))
    spread = store.spread(np.arange(10) * 100, 1000)
    assert spread.nbytes < 1.2 * store.nbytes


def resident_pages(array: np.ndarray[Any, Any]) -> int:
    """How many whole pages of the array's memory the system has handed out."""
    page = mmap.PAGESIZE
    first = -(-array.ctypes.data // page)
    count = (array.ctypes.data + array.nbytes) // page - first
    pages = (ctypes.c_ubyte * count)()
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.mincore(ctypes.c_void_p(first * page), ctypes.c_size_t(count * page), pages)
    assert failed == 0, os.strerror(ctypes.get_errno())
    return sum(each & 1 for each in pages)


@pytest.mark.skipif(sys.platform != "linux", reason="mincore")
def test_zeros_are_not_touched_whatever_memory_there_was_before() -> None:
    # The C library now keeps blocks of up to this size, full of ones.
    kept = [np.ones(30 << 20, dtype=np.uint8) for _ in range(2)]
    del kept
    made = GrowArray.zeros(np.bool_, 2 << 20)
    assert resident_pages(made.peek()) == 0
    made.write(np.array([5]), True)
    assert made.take(np.array([4, 5])).tolist() == [False, True]
    assert resident_pages(made.peek()) == 1


def test_zeros_that_grow_move_a_few_at_a_time() -> None:
    made = GrowArray.zeros(np.int64, 1 << 20)
    made.write(np.arange(1 << 20), np.arange(1 << 20))
    begun = made.nbytes
    while made.nbytes == begun:
        made.append_constant(7, 1 << 10)
    # In two buffers until the last has moved.
    appended = made.length - (1 << 20)
    assert made.nbytes > 2 * begun
    assert made.slice(0, 1 << 20).tolist() == list(range(1 << 20))
    made.tidy(made.length)
    assert made.nbytes < 2 * begun
    expected = [*range(1 << 20), *[7] * appended]
    assert made.slice(0, made.length).tolist() == expected


@pytest.mark.skipif(sys.platform != "linux", reason="mincore")
@pytest.mark.parametrize("length", [0, 3, 100_000])
def test_zeros_that_are_mostly_truncated_become_small(length: int) -> None:
    made = GrowArray.zeros(np.int64, 1 << 20)
    made.write(np.arange(1 << 20), np.arange(1 << 20))
    memory = made.peek()
    made.truncate(length)
    assert made.nbytes <= 8 * (9 / 8 * length + growth.SLACK_ROWS_MIN)
    assert resident_pages(memory) <= made.nbytes // mmap.PAGESIZE + 1
    del memory
    assert made.slice(0, length).tolist() == list(range(length))
    made.append(np.arange(length, 1 << 20))
    assert made.slice(0, 1 << 20).tolist() == list(range(1 << 20))


def test_a_buffer_that_is_mostly_spare_becomes_smaller() -> None:
    store = ColumnStore(pa.int64())
    store.append(pa.array(np.arange(10_000)))
    for slot in range(0, 10_000, 5):
        store.write(np.array([slot]), pa.array([1]))
    full = store.nbytes
    store.truncate(100)
    assert store.nbytes < full / 50
    assert store.slice(98, 100).to_pylist() == [98, 99]


def counted_cells(monkeypatch: pytest.MonkeyPatch, name: str = "take") -> list[int]:
    """How many cells each call of a method of the chunks was about."""
    calls: list[int] = []
    original = getattr(ChunkLog, name)

    def counted(self: ChunkLog, cells: Any, *more: Any) -> Any:
        calls.append(len(cells))
        return original(self, cells, *more)

    monkeypatch.setattr(ChunkLog, name, counted)
    return calls
