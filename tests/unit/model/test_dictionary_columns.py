"""Dictionary columns whose batches bring dictionaries of their own: the values stay what they are,
and a batch costs what it brings."""

from __future__ import annotations

import math
import threading

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import SchemaError
from barrage.model.storage import ColumnStore, distinct, encoded
from barrage.model.storage.encoded import with_used_values

TEXT = pa.dictionary(pa.int32(), pa.string())


def column(codes: list[int | None], values: list[object], kind: pa.DataType = TEXT) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array(codes, kind.index_type), pa.array(values, kind.value_type)
    )


def everything(store: ColumnStore) -> list[object]:
    return store.slice(0, len(store)).to_pylist()


def test_duplicates_and_nulls_of_a_dictionary() -> None:
    store = ColumnStore(TEXT)
    store.append(column([0, 1, 2, None, 3], ["a", None, "a", "b"]))
    store.append(column([1, 0, None], ["b", "c"]))
    store.write(np.array([0, 3]), column([0, 1], [None, "d"]))
    expected = [None, None, "a", "d", "b", "c", "b", None]
    assert store.take(np.arange(8)).to_pylist() == expected
    assert everything(store) == expected
    assert sorted(store.slice(0, 8).dictionary.to_pylist()) == ["a", "b", "c", "d"]


def test_values_are_told_apart_by_their_bits() -> None:
    kind = pa.dictionary(pa.int32(), pa.float64())
    store = ColumnStore(kind)
    store.append(column([0, 1, 2], [math.nan, 0.0, -0.0], kind))
    store.append(column([2, 1, 0], [math.nan, 0.0, -0.0], kind))
    found = everything(store)
    assert [math.copysign(1, cell) for cell in found[1:5]] == [1, -1, -1, 1]
    assert math.isnan(found[0])
    assert math.isnan(found[5])
    assert len(store.slice(0, 6).dictionary) == 3


def test_the_dictionary_before_is_known_by_its_bits() -> None:
    kind = pa.dictionary(pa.int32(), pa.float64())
    store = ColumnStore(kind)
    for value in (0.0, -0.0, math.nan, math.nan, 0.0):
        store.append(column([0], [value], kind))
    found = everything(store)
    assert [math.copysign(1, cell) for cell in (found[0], found[1], found[4])] == [1, -1, 1]
    assert len(store.slice(0, 5).dictionary) == 3


@pytest.mark.parametrize(
    "value_type", [pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), TEXT, pa.float16()], ids=str
)
def test_dictionaries_of_nested_values_and_half_floats_are_refused(value_type: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="dictionary of"):
        ColumnStore(pa.dictionary(pa.int32(), value_type))


def test_a_dictionary_of_nothing() -> None:
    kind = pa.dictionary(pa.int32(), pa.null())
    store = ColumnStore(kind)
    store.append(column([0, None], [None], kind))
    assert everything(store) == [None, None]


def test_a_batch_costs_what_it_brings(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many values the column knows, those of the batch alone are looked at."""
    store = ColumnStore(TEXT)
    known = [f"value {number}" for number in range(20_000)]
    store.append(column(list(range(20_000)), known))
    hashed: list[int] = []
    original = distinct.hash_rows

    def counted(rows: list[pa.Array]) -> np.ndarray:
        hashed.append(len(rows[0]))
        return original(rows)

    monkeypatch.setattr(distinct, "hash_rows", counted)
    store.append(column([0, 1, 2], ["value 7", "new", "value 19999"]))
    assert sum(hashed) == 3
    assert store.take(np.array([20_000, 20_001, 20_002])).to_pylist() == [
        "value 7",
        "new",
        "value 19999",
    ]


def test_few_cells_of_a_large_dictionary_bring_what_they_use() -> None:
    store = ColumnStore(TEXT)
    many = encoded.WHOLE_VALUES + 1
    store.append(column(list(range(many)), [str(number) for number in range(many)]))
    few = store.take(np.array([5, 5, 9]))
    assert few.dictionary.to_pylist() == ["5", "9"]
    assert len(store.slice(0, many).dictionary) == many
    assert store.pinned().take(np.array([many - 1])).to_pylist() == [str(many - 1)]


@pytest.mark.parametrize("index_type", [pa.int32(), pa.int8()])
def test_a_dictionary_of_which_most_is_unused_is_given_up(
    monkeypatch: pytest.MonkeyPatch, index_type: pa.DataType
) -> None:
    monkeypatch.setattr(encoded, "WHOLE_VALUES", 8)
    kind = pa.dictionary(index_type, pa.string())
    store = ColumnStore(kind)
    for start in range(0, 600, 60):
        texts = [f"text {number}" for number in range(start, start + 60)]
        store.append(column([*range(60)], texts, kind))
    store.give_up_unused()
    assert store._cells._value_count == 600  # type: ignore[attr-defined]
    store.truncate(100)
    store.write(np.array([3]), column([None], [], kind))
    pin, size = store.pinned(), store.nbytes
    store.give_up_unused()
    assert store.nbytes < size
    expected = [f"text {number}" for number in range(100)]
    expected[3] = None  # type: ignore[call-overload]
    for each in (store, pin):
        assert everything(each) == expected
    store.append(column([0, 1], ["text 5", "new"], kind))
    store.write(np.array([0]), column([0], ["text 7"], kind))
    assert store.take(np.array([0, 7, 100, 101])).to_pylist() == [
        *["text 7"] * 2,
        *["text 5", "new"],
    ]


def test_a_pinned_column_is_read_while_the_other_grows() -> None:
    store = ColumnStore(TEXT)
    store.append(column([0, 1], ["a", "b"]))
    wrong: list[object] = []

    def read(pinned: ColumnStore, expected: list[str]) -> None:
        for _ in range(20):
            found = everything(pinned)
            if found != expected:
                wrong.append(found)

    threads, expected = [], ["a", "b"]
    for number in range(30):
        threads.append(threading.Thread(target=read, args=(store.pinned(), list(expected))))
        threads[-1].start()
        store.append(column([0, 1], [f"n{number}", "a"]))
        expected += [f"n{number}", "a"]
        assert everything(store) == expected
    for thread in threads:
        thread.join()
    assert not wrong


def test_rows_with_the_values_they_use() -> None:
    wide = column([7, None, 3], [str(number) for number in range(100)])
    exact = column([0, 1, 0], ["x", "y"])
    rows = pa.table({"wide": wide, "exact": exact, "plain": [1, 2, 3]})
    used = with_used_values(rows)
    assert used.equals(rows) or used.to_pylist() == rows.to_pylist()
    assert used.schema == rows.schema
    assert sorted(used.column("wide").chunk(0).dictionary.to_pylist()) == ["3", "7"]
    assert used.column("exact").chunk(0).dictionary.to_pylist() == ["x", "y"]
    assert used.slice(3).num_rows == 0
