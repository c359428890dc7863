"""The index of keys while it grows: its keys move into a larger table with those that are added,
and at every moment it is the dict it stands for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.model.storage import ColumnStore, key_index
from barrage.model.storage.hashing import hash_rows
from barrage.model.storage.key_index import KeyIndex
from tests.helpers.examples import examples


class Model:
    """An index beside a dict, and the column both stand for."""

    def __init__(self) -> None:
        self.store = ColumnStore(pa.int64())
        self.index = KeyIndex(lambda: [self.store])
        self.slots: dict[int, int] = {}

    def add(self, keys: list[int]) -> None:
        fresh = [key for key in keys if key not in self.slots]
        column = pa.array(fresh, pa.int64())
        first = len(self.store)
        self.store.append(column)
        slots = np.arange(first, first + len(fresh))
        self.index.add(hash_rows([column]), slots)
        self.slots |= dict(zip(fresh, slots.tolist(), strict=True))

    def remove(self, keys: list[int]) -> None:
        known = sorted({key for key in keys if key in self.slots})
        gone = np.array([self.slots.pop(key) for key in known], np.int64)
        self.index.remove(hash_rows([pa.array(known, pa.int64())]), gone)

    def pack(self) -> None:
        """Keys move to the first slots, in their order."""
        was = np.array(sorted(self.slots.values()), np.int64)
        now = np.arange(len(was))
        cells = self.store.take(was)
        self.store.write(now, cells)
        self.index.moved(hash_rows([cells]), was, now)
        self.store.truncate(len(now))
        places = dict(zip(was.tolist(), now.tolist(), strict=True))
        self.slots = {key: places[slot] for key, slot in self.slots.items()}
        self.index.give_up_spare()

    def rebuild(self) -> None:
        self.index.rebuild(np.array(sorted(self.slots.values()), np.int64))

    def check(self, keys: list[int]) -> None:
        column = pa.array(keys, pa.int64())
        found = self.index.lookup([column], hash_rows([column])).tolist()
        assert found == [self.slots.get(key, -1) for key in keys]
        assert self.index.count == len(self.slots)


keys = st.lists(st.integers(0, 5000), unique=True, max_size=40)
spans = st.tuples(st.integers(0, 5000), st.integers(0, 1500)).map(
    lambda span: list(range(span[0], span[0] + span[1]))
)
steps = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "pack", "rebuild"]), keys | spans),
    max_size=14,
)


@pytest.fixture(autouse=True, scope="module")
def nothing_moves_at_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "MOVED_AT_ONCE_MAX", 0)
        patch.setattr(key_index, "READY_ENTRIES_MIN", 0)
        patch.setattr(key_index, "PAGE_ENTRIES", 3)
        patch.setattr(key_index, "CAPACITY_MIN", 16)
        patch.setattr(key_index, "MOVED_TOGETHER", 8)
        yield


@given(steps=steps)
@examples(150)
def test_an_index_that_grows_is_a_dict(steps: list[tuple[str, list[int]]]) -> None:
    model = Model()
    for what, chosen in steps:
        if what == "add":
            model.add(chosen)
        elif what == "remove":
            model.remove(chosen)
        elif what == "pack":
            model.pack()
        else:
            model.rebuild()
        model.check([*chosen, *list(model.slots)[:200]])
    model.check(list(range(0, 6500, 3)))


def test_adding_moves_a_few_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many cells are hashed again while a table of ten thousand keys grows: never many at
    once."""
    model, entered = Model(), []
    original = KeyIndex._enter_slots

    def counted(self: KeyIndex, slots: np.ndarray) -> None:
        entered.append(len(slots))
        original(self, slots)

    monkeypatch.setattr(KeyIndex, "_enter_slots", counted)
    for start in range(0, 10_000, 10):
        model.add(list(range(start, start + 10)))
    assert max(entered) <= 50
    assert sum(entered) <= 30_000
    model.check(list(range(10_010)))


def test_a_table_that_lost_most_of_its_keys_becomes_small() -> None:
    model = Model()
    model.add(list(range(20_000)))
    model.remove(list(range(19_800)))
    model.pack()
    model.check(list(range(19_700, 20_010)))
    for start in range(0, 400, 10):
        model.check(list(range(start, start + 10)))
        model.add(list(range(30_000 + start, 30_010 + start)))
    assert model.index.nbytes <= 16_384 * 8


def test_keys_that_come_and_go_leave_no_larger_table() -> None:
    model = Model()
    for start in range(0, 40_000, 20):
        model.add(list(range(start, start + 20)))
        model.remove(list(range(start - 100, start - 80)))
    assert len(model.slots) == 100
    assert model.index.nbytes <= 4096 * 8
    model.check(list(range(39_800, 40_010)))


def test_the_memory_of_a_larger_table_is_ready_before_it_is_needed() -> None:
    model, grown = Model(), 0
    for first in range(0, 20_000, 20):
        index = model.index
        known, coming, ready = index._entries, index._next, index._next_ready
        model.add(list(range(first, first + 20)))
        if index._entries is not known and len(known) > 1000:
            assert index._entries is coming
            assert ready == len(coming)
            grown += 1
    assert grown >= 4
    model.check(list(range(0, 20_500, 7)))
