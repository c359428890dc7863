"""Column stores: representation, memory, forgetting, errors."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage.errors import SchemaError
from barrage.model.storage import ColumnStore
from barrage.model.storage.chunks import FROZEN_ROWS, ChunkLog
from barrage.model.storage.log import GARBAGE_ROWS_MIN


def test_append_only_columns_are_read_without_copying() -> None:
    values = pa.array(np.arange(100_000))
    store = ColumnStore(pa.int64())
    store.append(values)
    read = store.slice(10, 60)
    assert read.buffers()[1].address == values.buffers()[1].address
    assert read.to_pylist() == list(range(10, 60))


def test_one_row_appends_leave_few_chunks() -> None:
    log = ChunkLog(pa.int64())
    for number in range(3000):
        log.append(pa.array([number]))
    assert len(log.chunks()) < 20
    assert log.slice(0, 3000).to_pylist() == list(range(3000))


def test_large_chunks_are_never_copied_again() -> None:
    log = ChunkLog(pa.int64())
    parts = [pa.array(np.arange(FROZEN_ROWS)) for _ in range(5)]
    for part in parts:
        log.append(part)
    addresses = [chunk.buffers()[1].address for chunk in log.chunks()]
    assert addresses == [part.buffers()[1].address for part in parts]


def test_a_thin_slice_does_not_keep_the_large_buffer() -> None:
    large = pa.array(np.arange(1_000_000))
    log = ChunkLog(pa.int64())
    log.append(large[500:510])
    assert log.chunks()[0].get_total_buffer_size() < 1000
    assert log.slice(0, 10).to_pylist() == list(range(500, 510))


@pytest.mark.parametrize("data_type", [pa.int64(), pa.float64(), pa.bool_(), pa.int8()])
def test_memory_stays_near_arrow_size_while_growing(data_type: pa.DataType) -> None:
    store = ColumnStore(data_type)
    part = pa.array(np.arange(50_000) % 2).cast(data_type)
    store.append(part)
    store.write(np.array([0]), part[:1])
    for _ in range(40):
        store.append(part)
        assert store.nbytes <= 1.5 * part.nbytes * (len(store) / len(part)) + 100_000


def test_the_log_of_overwritten_strings_is_compacted() -> None:
    store = ColumnStore(pa.string())
    rows = 2 * GARBAGE_ROWS_MIN
    store.append(pa.array([f"value {n:06}" for n in range(rows)]))
    live = store.nbytes
    slots = np.arange(0, rows, 2)
    for turn in range(8):
        store.write(slots, pa.array([f"other {turn:06}"] * len(slots)))
    assert store.nbytes < 2.2 * live
    assert store.take(np.array([0, 1, 2])).to_pylist() == [
        "other 000007",
        "value 000001",
        "other 000007",
    ]


def test_forgotten_slots_free_memory_and_keep_numbers() -> None:
    store = ColumnStore(pa.int64())
    for start in range(0, 10 * FROZEN_ROWS, FROZEN_ROWS):
        store.append(pa.array(np.arange(start, start + FROZEN_ROWS)))
    before = store.nbytes
    store.forget_before(9 * FROZEN_ROWS)
    assert store.nbytes * 9 < before
    assert len(store) == 10 * FROZEN_ROWS
    assert store.take(np.array([9 * FROZEN_ROWS + 5])).to_pylist() == [9 * FROZEN_ROWS + 5]
    store.write(np.array([9 * FROZEN_ROWS]), pa.array([-1]))
    assert store.slice(9 * FROZEN_ROWS, 9 * FROZEN_ROWS + 2).to_pylist() == [
        -1,
        9 * FROZEN_ROWS + 1,
    ]


def test_batches_with_other_dictionaries_are_recoded() -> None:
    store = ColumnStore(pa.dictionary(pa.int32(), pa.string()))
    store.append(pa.array(["a", "b"]).dictionary_encode())
    store.append(pa.array(["c", None, "b"]).dictionary_encode())
    store.append(
        pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int32()), pa.array([None, "a"]))
    )
    read = store.slice(0, 7)
    assert read.to_pylist() == ["a", "b", "c", None, "b", "a", None]
    assert read.dictionary.to_pylist() == ["a", "b", "c"]


def test_small_dictionary_codes_hold_what_is_read_at_once() -> None:
    store = ColumnStore(pa.dictionary(pa.int8(), pa.string()))
    for start in (0, 100):
        part = pa.array([f"v{n}" for n in range(start, start + 100)])
        store.append(part.dictionary_encode().cast(store.type))
    assert store.slice(150, 152).to_pylist() == ["v150", "v151"]
    with pytest.raises(SchemaError, match="200 distinct values do not fit"):
        store.slice(0, 200)


def test_types_and_lengths_are_checked() -> None:
    store = ColumnStore(pa.int64())
    with pytest.raises(SchemaError, match="string do not fit a column of int64"):
        store.append(pa.array(["x"]))
    store.append(pa.array([1, 2]))
    with pytest.raises(ValueError, match="2 slots but 1 values"):
        store.write(np.array([0, 1]), pa.array([1]))
    store.write(np.array([], np.int64), pa.array([], pa.int64()))
    assert store.slice(0, 2).to_pylist() == [1, 2]


def test_slots_that_are_not_held_are_refused() -> None:
    store = ColumnStore(pa.string())
    store.append(pa.array(["a", "b"]))
    for slots in ([0, 2], [-1]):
        with pytest.raises(IndexError):
            store.take(np.array(slots))
