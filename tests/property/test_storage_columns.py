"""A column store of every type against a Python list: append, overwrite, gather, slice, compact."""

from __future__ import annotations

import decimal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.model.storage import ColumnStore, cells_differ
from barrage.model.storage import chunks as chunks_module
from tests.helpers.examples import examples

D = decimal.Decimal

CELLS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [1, None, -128]),
    "int32": (pa.int32(), [1, None, 3, -5]),
    "uint64": (pa.uint64(), [0, None, 2**64 - 1]),
    "double": (pa.float64(), [1.0, float("nan"), None, -0.0, 0.0]),
    "float": (pa.float32(), [1.5, None]),
    "bool": (pa.bool_(), [True, None, False]),
    "string": (pa.string(), ["a", None, "", "something longer"]),
    "large_string": (pa.large_string(), ["x", None, ""]),
    "binary": (pa.binary(), [b"a", None, b""]),
    "fixed_binary": (pa.binary(3), [b"abc", None, b"abd"]),
    "decimal128": (pa.decimal128(10, 2), [D("1.23"), None, D("-1.00")]),
    "decimal256": (pa.decimal256(40, 2), [D("1.23"), None]),
    "timestamp": (pa.timestamp("ns", "UTC"), [1, None, 5]),
    "date32": (pa.date32(), [1, None]),
    "date64": (pa.date64(), [86_400_000, None]),
    "time64": (pa.time64("ns"), [5, None]),
    "duration": (pa.duration("ns"), [5, None]),
    "interval": (pa.month_day_nano_interval(), [(1, 2, 3), None, (1, 2, 4)]),
    "list": (pa.list_(pa.int64()), [[1, None], None, [], [3], [1, 2]]),
    "nested": (pa.list_(pa.list_(pa.string())), [[["a"], None], None, [], [[]], [["b"], None]]),
    "fixed_list": (pa.list_(pa.int32(), 2), [[1, 2], None, [3, None]]),
    "struct": (pa.struct([("a", pa.int32())]), [{"a": 1}, None, {"a": None}]),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], None, []]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None, "c"]),
    "small_dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None, "c"]),
    "run_end": (pa.run_end_encoded(pa.int32(), pa.string()), ["a", "a", None]),
    "null": (pa.null(), [None]),
}


ACTIONS = ["append", "write", "compact", "truncate", "append chunks"]


def array_of(data_type: pa.DataType, cells: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(data_type):
        return pa.array(cells, data_type.value_type).dictionary_encode().cast(data_type)
    if pa.types.is_run_end_encoded(data_type):
        plain = pa.array(cells, data_type.value_type)
        return pc.run_end_encode(plain, run_end_type=data_type.run_end_type)
    return pa.array(cells, data_type)


def texts(values: pa.Array | pa.ChunkedArray | list[Any]) -> list[str]:
    cells = values if isinstance(values, list) else values.to_pylist()
    return [repr(cell) for cell in cells]


@pytest.mark.parametrize("name", sorted(CELLS))
@given(data=st.data())
@examples(6)
def test_store_behaves_like_a_list(name: str, data: st.DataObject) -> None:
    data_type, choices = CELLS[name]
    cells = st.lists(st.sampled_from(choices), max_size=9)
    store, model = ColumnStore(data_type), []
    handed_out: list[tuple[Any, list[str]]] = []
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(ACTIONS))
        if action.startswith("append"):
            values = array_of(data_type, data.draw(cells))
            chunked = pa.chunked_array([values[:2], values[2:]], type=data_type)
            store.append(values if action == "append" else chunked)
            model += values.to_pylist()
        elif action == "write" and model:
            slots = data.draw(st.lists(st.integers(0, len(model) - 1), unique=True, max_size=5))
            size = len(slots)
            values = array_of(
                data_type,
                data.draw(st.lists(st.sampled_from(choices), min_size=size, max_size=size)),
            )
            store.write(np.array(slots, np.int64), values)
            for slot, value in zip(slots, values.to_pylist(), strict=True):
                model[slot] = value
        elif action == "compact" and model:
            slots = sorted(data.draw(st.sets(st.integers(0, len(model) - 1))))
            store = store.compacted(np.array(slots, np.int64))
            model = [model[slot] for slot in slots]
        elif action == "truncate":
            length = data.draw(st.integers(0, len(model)))
            store.truncate(length)
            del model[length:]
        assert len(store) == len(model)
        start = data.draw(st.integers(0, len(model)))
        stop = data.draw(st.integers(start, len(model)))
        sliced = store.slice(start, stop)
        sliced.validate(full=True)
        assert sliced.type == data_type
        assert texts(sliced) == texts(model[start:stop])
        if model:
            wanted = data.draw(st.lists(st.integers(0, len(model) - 1), max_size=6))
            taken = store.take(np.array(wanted, np.int64))
            taken.validate(full=True)
            assert taken.type == data_type
            assert texts(taken) == texts([model[slot] for slot in wanted])
            handed_out.append((taken, texts(taken)))
        handed_out.append((sliced, texts(sliced)))
    for values, before in handed_out:
        assert texts(values) == before, "what was handed out never changes"


@pytest.mark.parametrize("name", sorted(CELLS))
@given(data=st.data())
@examples(4)
def test_cells_differ_is_cell_by_cell_inequality(name: str, data: st.DataObject) -> None:
    data_type, choices = CELLS[name]
    pairs = data.draw(
        st.lists(st.tuples(st.sampled_from(choices), st.sampled_from(choices)), max_size=20)
    )
    old = array_of(data_type, [None, *(a for a, _ in pairs)])[1:]
    new = array_of(data_type, [b for _, b in pairs])
    expected = [a != b for a, b in zip(texts(old), texts(new), strict=True)]
    assert cells_differ(old, new).tolist() == expected
    assert cells_differ(pa.chunked_array([old], old.type), new).tolist() == expected


INDEX_TYPES = [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()]
NAN_BITS = [0x7FF8000000000000, 0x7FF8000000000001, 0xFFF8000000000000]
ODD_NANS = np.array(NAN_BITS, dtype=np.uint64).view(np.float64)
IN_DICTIONARIES = [
    "int8", "int32", "uint64", "double", "odd nan", "float", "bool", "string", "large_string",
    "binary", "fixed_binary", "decimal128", "decimal256", "timestamp", "date32", "date64", "time64",
    "duration", "interval", "list", "struct", "map", "null",
]  # fmt: skip


def drawn_dictionary(data: st.DataObject, name: str, index_type: pa.DataType) -> pa.DictionaryArray:
    """With values that occur more than once, that are null, or that nobody uses; a slice."""
    if name == "odd nan":
        picks = data.draw(st.lists(st.integers(0, len(NAN_BITS) - 1), min_size=1, max_size=6))
        values = pa.array(ODD_NANS[picks], from_pandas=False)
    else:
        data_type, choices = CELLS[name]
        cells = data.draw(st.lists(st.sampled_from(choices), min_size=1, max_size=6))
        values = pa.array([None, *cells], data_type)[data.draw(st.integers(0, 1)) :]
    code = st.one_of(st.none(), st.integers(0, len(values) - 1))
    codes = pa.array(data.draw(st.lists(code, min_size=24, max_size=24)), index_type)
    return pa.DictionaryArray.from_arrays(codes, values)


@pytest.mark.parametrize("name", IN_DICTIONARIES)
@given(data=st.data())
@examples(5)
def test_cells_of_dictionaries_differ_as_they_do_written_out(
    name: str, data: st.DataObject
) -> None:
    index_type = data.draw(st.sampled_from(INDEX_TYPES))
    old = drawn_dictionary(data, name, index_type)
    if data.draw(st.booleans()):
        new = drawn_dictionary(data, name, index_type)
    else:
        code = st.one_of(st.none(), st.integers(0, len(old.dictionary) - 1))
        codes = pa.array(data.draw(st.lists(code, min_size=24, max_size=24)), index_type)
        new = pa.DictionaryArray.from_arrays(codes, old.dictionary)
    start = data.draw(st.integers(0, 12))
    old, new = old[start:], new[start:]
    plain_old, plain_new = old.dictionary_decode(), new.dictionary_decode()
    assert cells_differ(old, new).tolist() == cells_differ(plain_old, plain_new).tolist()
    assert not cells_differ(old, old).any() or name == "map"


@given(data=st.data())
@examples(10)
def test_cells_of_several_dictionaries_differ_as_they_do_written_out(data: st.DataObject) -> None:
    words = st.lists(st.sampled_from(["a", "b", "", "something longer"]), min_size=1, max_size=4)
    code = st.one_of(st.none(), st.integers(0, 3))

    def cells() -> pa.DictionaryArray:
        values = data.draw(words) + ["c"] * 3
        codes = pa.array(data.draw(st.lists(code, min_size=12, max_size=12)), pa.int32())
        return pa.DictionaryArray.from_arrays(codes, values)

    old, new = (pa.chunked_array([cells() for _ in range(2)]) for _ in range(2))
    plain = [pa.chunked_array([c.dictionary_decode() for c in each.chunks]) for each in (old, new)]
    assert cells_differ(old, new).tolist() == cells_differ(*plain).tolist()


POOLS: list[pa.MemoryPool] = []
"""Whatever was allocated of them may still be there."""


@contextmanager
def most_allocated() -> Iterator[pa.MemoryPool]:
    """A pool that knows how much of it was allocated at a time."""
    usual = pa.default_memory_pool()
    POOLS.append(pa.proxy_memory_pool(usual))
    pa.set_memory_pool(POOLS[-1])
    try:
        yield POOLS[-1]
    finally:
        pa.set_memory_pool(usual)


def test_cells_of_dictionaries_are_compared_without_being_written_out() -> None:
    """A text of 256 KiB in a thousand cells."""
    zeros = np.zeros(1_000, np.int32)
    old, new, other = (
        pa.DictionaryArray.from_arrays(zeros, ["x" * (1 << 18) + end]) for end in ("a", "a", "b")
    )
    with most_allocated() as pool:
        assert not cells_differ(old, new).any()
        assert cells_differ(old, other).all()
    assert pool.max_memory() < 8 << 20


def test_of_a_large_dictionary_what_the_cells_have_is_looked_at() -> None:
    texts = pa.array([*(str(number) * (1 << 18) for number in range(10, 50)), "z", "u"])
    old = pa.DictionaryArray.from_arrays(pa.array([40, 41] * 20, pa.int32()), texts)
    new = pa.DictionaryArray.from_arrays(pa.array([1, 0] * 20, pa.int32()), ["u", "w"])
    with most_allocated() as pool:
        assert cells_differ(old, new).tolist() == [True, False] * 20
    assert pool.max_memory() < 2 << 20


@given(
    sizes=st.lists(st.integers(0, 40), max_size=40),
    reads=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2000)), max_size=5),
)
def test_chunks_merge_without_changing_what_is_read(
    sizes: list[int], reads: list[tuple[int, int]]
) -> None:
    frozen = chunks_module.FROZEN_ROWS
    chunks_module.FROZEN_ROWS = 32
    try:
        log = chunks_module.ChunkLog(pa.int64())
        total = 0
        for size in sizes:
            log.append(pa.array(range(total, total + size), pa.int64()))
            total += size
        assert log.length == total
        assert len(log.chunks()) <= total // 8 + 12
        for a, b in reads:
            start, stop = sorted((a % (total + 1), b % (total + 1)))
            assert log.slice(start, stop).to_pylist() == list(range(start, stop))
            slots = np.array([a % total, b % total, a % total] if total else [], np.int64)
            assert log.take(slots).to_pylist() == slots.tolist()
    finally:
        chunks_module.FROZEN_ROWS = frozen


def test_texts_that_come_and_go_at_the_end_leave_no_garbage() -> None:
    store = ColumnStore(pa.string())
    store.append(pa.array(["first"] * 1000))
    store.write(np.array([0]), pa.array(["overwritten"]))
    for round_ in range(200):
        store.append(pa.array([f"row {round_} {row}" for row in range(1000)]))
        store.truncate(1000)
    assert store.nbytes < 3_000_000
    assert store.take(np.array([0, 999])).to_pylist() == ["overwritten", "first"]
