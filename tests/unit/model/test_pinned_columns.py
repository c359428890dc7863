"""Columns that are pinned: nothing is copied then, and each pin stays the list the column was."""

from __future__ import annotations

import decimal
import threading
import weakref
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.model.storage import ColumnStore, column_store, growth, log, pinning, thawing
from barrage.model.storage.growth import BitArray, GrowArray
from barrage.model.storage.thawing import ThawingColumn
from tests.helpers.examples import examples
from tests.helpers.stored_cells import check_stored

CELLS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [None, 0, -1, 127],
    pa.int16(): [1, 2, 3],
    pa.float32(): [None, 0.5, 1.5],
    pa.int64(): [None, 0, -1, 2**62],
    pa.bool_(): [True, False, None],
    pa.decimal128(20, 2): [None, decimal.Decimal("1.25"), decimal.Decimal("-3.50")],
    pa.decimal256(40, 2): [decimal.Decimal("1.25"), decimal.Decimal("-3.50"), None],
    pa.binary(3): [b"abc", b"xyz", None],
    pa.string(): ["", "short", "a text that is longer than the others", None],
    pa.list_(pa.int8()): [[], [1, None], None, [2, 3, 4]],
    pa.struct([("a", pa.int8())]): [{"a": 1}, {"a": None}, None],
    pa.dictionary(pa.int32(), pa.string()): ["x", "y", "z", None],
    pa.run_end_encoded(pa.int32(), pa.string()): ["x", "y", None],
    pa.run_end_encoded(pa.int32(), pa.int64()): [5, None, 6],
    pa.null(): [None],
}

KINDS = ["append", "write", "write", "write", "truncate", "pin", "pin", "pin again", "drop"]
KINDS += ["tidy", "clear", "look"]

steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 200), st.integers(0, 30), st.integers(0, 3)),
    max_size=60,
)


@pytest.fixture
def small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    set_small_numbers(monkeypatch)


def set_small_numbers(patch: pytest.MonkeyPatch) -> None:
    """Thresholds that columns of a few cells cross."""
    patch.setattr(column_store, "THAWED_AT_ONCE_MAX", 20)
    patch.setattr(thawing, "THAWED_TOGETHER", 5)
    patch.setattr(log, "GARBAGE_ROWS_MIN", 3)
    patch.setattr(log, "CLEANED_TOGETHER", 4)
    patch.setattr(log, "COPY_ROWS", 3)
    patch.setattr(log, "REBASED_POSITIONS_MIN", 90)
    patch.setattr(growth, "SLACK_ROWS_MIN", 1)
    patch.setattr(growth, "COPIED_ENTRIES_MAX", 3)
    patch.setattr(growth, "PINS_MAX", 3)
    patch.setattr(growth, "MOVED_TOGETHER", 5)
    patch.setattr(growth, "MOVED_PER_ENTRY", 4)
    patch.setattr(pinning, "OWN_MEMORY_MIN", 16)
    patch.setattr(pinning, "SAVED_TOGETHER_MIN", 2)
    patch.setattr(pinning, "SAVED_TOGETHER_MAX", 8)


class Modelled:
    """A column beside the list it stands for, and its pins beside the lists they stand for."""

    def __init__(self, data_type: pa.DataType, size: int) -> None:
        self.kinds = CELLS[data_type]
        self.cells = [self.kinds[n % len(self.kinds)] for n in range(size)]
        self.store = ColumnStore(data_type)
        self.store.append(pa.array(self.cells, data_type))
        self.pins: list[tuple[ColumnStore, list[Any]]] = []

    def do(self, what: str, at: int, count: int, salt: int) -> None:
        store, cells = self.store, self.cells
        fresh = [self.kinds[(n * n + salt) % len(self.kinds)] for n in range(count)]
        if what == "append":
            store.append(pa.array(fresh, store.type))
            self.cells = cells + fresh
        elif what == "write":
            slots = np.random.default_rng(at).permutation(len(cells))[:count]
            store.write(slots, pa.array(fresh[: len(slots)], store.type))
            self.cells = list(cells)
            for slot, cell in zip(slots, fresh, strict=False):
                self.cells[slot] = cell
        elif what in ("truncate", "clear"):
            self.cells = [] if what == "clear" else cells[: max(0, len(cells) - at // 8)]
            store.clear() if what == "clear" else store.truncate(len(self.cells))
        elif what == "tidy":
            store.tidy(at // 8)
        elif what == "pin":
            self.pins.append((store.pinned(), cells))
        elif self.pins:
            self._do_with_pin(what, at)

    def _do_with_pin(self, what: str, at: int) -> None:
        number = at % len(self.pins)
        pin, cells = self.pins[number]
        if what == "drop":
            del self.pins[number]
        elif what == "pin again":
            self.pins.append((pin.pinned(), cells))
        else:
            check_stored(pin, cells)

    def check(self) -> None:
        for store, cells in [(self.store, self.cells), *self.pins]:
            check_stored(store, cells)


@pytest.mark.parametrize("data_type", CELLS, ids=str)
@given(steps=steps, size=st.integers(0, 120))
@examples(60)
def test_each_pin_stays_the_list_the_column_was(
    data_type: pa.DataType, steps: list[tuple[str, int, int, int]], size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        set_small_numbers(patch)
        modelled = Modelled(data_type, size)
        for step in steps:
            modelled.do(*step)
            check_stored(modelled.store, modelled.cells)
        modelled.check()


@pytest.mark.parametrize("data_type", CELLS, ids=str)
def test_a_pin_after_a_buffer_was_left_sees_cells_that_moved_meanwhile(
    small_numbers: None, data_type: pa.DataType
) -> None:
    modelled = Modelled(data_type, 53)
    for step in [
        ("append", 0, 13, 0),
        ("write", 192, 1, 3),
        ("append", 0, 3, 3),
        ("pin", 0, 0, 0),
        ("append", 0, 4, 3),
        ("tidy", 99, 0, 0),
        ("tidy", 148, 0, 0),
        ("write", 150, 7, 2),
        ("append", 0, 16, 1),
        ("pin", 0, 0, 0),
        ("tidy", 199, 0, 0),
        ("pin", 0, 0, 0),
    ]:
        modelled.do(*step)
    modelled.check()


def overwritten(data_type: pa.DataType, rows: int) -> ColumnStore:
    """A column of which each cell has been written in place."""
    store = ColumnStore(data_type)
    cells = pa.array([str(number % 100) for number in range(rows)])
    cells = pa.array([None, *cells.cast(data_type).to_pylist()[1:]], data_type)
    store.append(cells)
    for start in range(0, rows, 50_000):
        slots = np.arange(start, min(start + 50_000, rows))
        store.write(slots, cells.take(pa.array(slots)))
    store.tidy(rows)
    assert not isinstance(store._cells, ThawingColumn)
    return store


@pytest.mark.parametrize("data_type", [pa.int64(), pa.int8(), pa.string(), pa.decimal128(9, 2)])
def test_to_pin_a_large_column_copies_nothing(data_type: pa.DataType) -> None:
    rows = 200_000
    store = overwritten(data_type, rows)
    assert store.overwritten_nbytes >= rows
    assert store.pinning_nbytes == 0
    pin = store.pinned()
    store.write(np.array([7, 150_000]), pa.array(["1", "2"]).cast(data_type))
    assert pin.take(np.array([0, 7, 150_000])).cast(pa.string()).to_pylist()[0] is None
    assert pin.take(np.array([7])) != store.take(np.array([7]))
    arrays = [array for array in (arrays_of(store), arrays_of(pin)) for array in array]
    pinned = [each._entries for each in arrays if isinstance(each, growth._PinnedArray)]
    assert pinned
    # Kept for the pin is what was overwritten: two cells, not the column.
    assert all(sum(s.used for s in entries._stretches) <= 2 for entries in pinned)
    buffers = {id(each._buffer) for each in arrays}
    assert {id(entries._buffers.buffer) for entries in pinned} <= buffers


def arrays_of(store: ColumnStore) -> list[GrowArray]:
    """The growable arrays a column is kept in."""
    cells = store._cells
    held = [getattr(cells, name, None) for name in ("_values", "_valid", "_distances")]
    held = [each._bytes if isinstance(each, BitArray) else each for each in held]
    return [each for each in held if isinstance(each, GrowArray)]


def test_a_state_that_is_pinned_again_is_the_same_pin(small_numbers: None) -> None:
    array = GrowArray(np.int64)
    array.append(np.arange(100))
    first, second = array.pinned(), array.pinned()
    assert first._entries is second._entries  # type: ignore[attr-defined]
    assert first.pinned() is first
    array.write(np.array([3]), -1)
    assert array.pinned()._entries is not first._entries  # type: ignore[attr-defined]


def test_so_many_states_are_pinned_before_one_is_copied(small_numbers: None) -> None:
    array = GrowArray(np.int64)
    array.append(np.arange(100))
    pins = []
    for number in range(3):
        assert array.pinning_nbytes == 0
        pins.append(array.pinned())
        assert array.pinning_nbytes == 0  # It would be the same pin.
        array.write(np.array([number]), -1)
    assert array.pinning_nbytes == 800
    copied = array.pinned()
    array.write(np.array([50]), -1)
    assert copied.slice(0, 100).tolist() == [-1, -1, -1, *range(3, 100)]
    assert copied.nbytes == 800
    assert [pin.slice(0, 4).tolist() for pin in pins] == [
        [0, 1, 2, 3],
        [-1, 1, 2, 3],
        [-1, -1, 2, 3],
    ]
    del pins[1]
    assert array.pinning_nbytes == 0


def test_nothing_is_saved_for_a_pin_that_nobody_has(small_numbers: None) -> None:
    array = GrowArray(np.int64)
    array.append(np.arange(100))
    pin = array.pinned()
    entries = weakref.ref(pin._entries)  # type: ignore[attr-defined]
    array.write(np.arange(10), -1)
    held = entries()
    assert held is not None
    assert held.nbytes > 100 * 8
    del pin, held
    assert entries() is None
    array.write(np.arange(10), -2)
    assert array._pins == []
    assert array.nbytes <= 8 * growth.grown_capacity(100)


def test_a_buffer_that_pins_read_is_left_when_it_is_full_and_given_back(
    small_numbers: None,
) -> None:
    array = GrowArray(np.int64)
    array.append(np.arange(100))
    pin = array.pinned()
    left = weakref.ref(array._buffer)
    array.append(np.arange(100, 114))
    assert array._leaving is not None
    array.write(np.array([2, 99, 112]), np.array([-2, -99, -112]))
    for number in range(10):
        array.append(np.array([number]))
    assert array._leaving is None
    # What the pin reads is not written any more, so nothing has to be saved for it.
    assert array._pins == []
    assert left() is not None
    assert pin.slice(0, 100).tolist() == list(range(100))
    expected = [*range(114), *range(10)]
    expected[2], expected[99], expected[112] = -2, -99, -112
    assert array.slice(0, 124).tolist() == expected
    del pin
    assert left() is None


def test_moving_out_of_a_buffer_goes_on_without_writes(small_numbers: None) -> None:
    array = GrowArray(np.int64)
    array.append(np.arange(200))
    pin = array.pinned()
    array.append(np.arange(30))
    assert array._leaving is not None
    for _ in range(40):
        array.tidy(5)
    assert array._leaving is None
    assert pin.slice(0, 200).tolist() == list(range(200))


def test_room_that_a_pin_has_kept_is_given_back(small_numbers: None) -> None:
    array = GrowArray(np.int64)
    array.append(np.arange(1000))
    pin = array.pinned()
    array.truncate(10)
    assert array.nbytes >= 8000
    array.append(np.full(5, -1))
    assert pin.slice(0, 1000).tolist() == list(range(1000))
    del pin
    array.tidy(0)
    assert array.nbytes < 400
    assert array.slice(0, 15).tolist() == [*range(10), *[-1] * 5]


@pytest.mark.parametrize("name", ["append", "truncate", "write", "add", "tidy", "reserve"])
def test_what_was_pinned_is_not_written(name: str) -> None:
    array = GrowArray(np.int64)
    array.append(np.arange(100))
    arguments = {"append": [np.arange(3)], "write": [np.array([1]), 5]}.get(name, [3])
    with pytest.raises(TypeError, match="pinned"):
        getattr(array.pinned(), name)(*arguments)
    bits = BitArray()
    bits.append(np.ones(9, np.bool_))
    with pytest.raises(TypeError, match="pinned"):
        bits.pinned().append(np.ones(1, np.bool_))


def test_saved_entries_that_readers_have_put_in_their_places_follow_later_ones() -> None:
    array = GrowArray(np.int64)
    array.append(np.arange(50_000))
    pin = array.pinned()
    for start in range(0, 50_000, 700):
        array.write(np.arange(start, min(start + 700, 50_000)), -1)
        read = pin.take(np.array([start, 25_000, 0, 49_999]))
        assert read.tolist() == [start, 25_000, 0, 49_999]
    assert pin.slice(10, 49_990).tolist() == list(range(10, 49_990))
    # What is in its place is not kept a second time.
    entries = pin._entries  # type: ignore[attr-defined]
    assert sum(stretch.nbytes for stretch in entries._stretches[:-1]) == 0


def test_pins_are_read_on_other_threads_while_the_column_is_written() -> None:
    store = ColumnStore(pa.int64())
    store.append(pa.array(np.zeros(40_000, np.int64)))
    store.write(np.array([0]), pa.array([0]))
    generator = np.random.default_rng(5)
    wrong: list[int] = []

    def read(pin: ColumnStore, value: int) -> None:
        for _ in range(20):
            found = pin.slice(0, len(pin)).to_numpy()
            if not (found == value).all():
                wrong.append(value)

    for value in range(1, 6):
        readers = [
            threading.Thread(target=read, args=(store.pinned(), value - 1)) for _ in range(2)
        ]
        for reader in readers:
            reader.start()
        order = generator.permutation(len(store))
        for part in np.array_split(order, 40):
            store.write(part, pa.array(np.full(len(part), value)))
        store.append(pa.array(np.full(9_000, value)))
        for reader in readers:
            reader.join()
    assert wrong == []


def test_first_values_are_seen_by_who_pins_later_while_a_buffer_is_left(
    small_numbers: None,
) -> None:
    array = GrowArray.zeros(np.int64, 100)
    pins = [array.pinned()]
    array.append(np.ones(14, np.int64))
    written: list[int] = []
    for slot in [*range(99, -1, -1)]:
        pins.append(array.pinned())
        array.write(np.array([slot]), slot, is_first=True)
        written.append(slot)
        assert array.pinned().take(np.array(written)).tolist() == written
        del pins[1:-1]
    assert array._leaving is None
    assert len(pins[0].slice(0, 100)) == 100
