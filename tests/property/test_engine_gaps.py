"""Keys in gaps, key maps and the key index against naive models."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine.keys import gaps as gaps_module
from barrage.engine.keys.gaps import KEY_LIMIT, KEY_ORIGIN, SPACING, assign_keys, fresh_keys
from barrage.engine.keys.key_map import KeyMap
from barrage.model.storage import ColumnStore, growth
from barrage.model.storage.hashing import hash_rows
from barrage.model.storage.key_index import KeyIndex, first_duplicate
from barrage.rowset import RowSetShiftData, Shift
from tests.helpers.examples import examples


def assigned(kept: np.ndarray, gaps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """New keys of all kept rows, and of the inserted ones."""
    rows, keys, new = assign_keys(kept, gaps)
    assert np.all(keys != kept[rows])
    now = kept.copy()
    now[rows] = keys
    return now, new


def insert_rows(kept: np.ndarray, places: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """New keys of kept rows, of inserted rows, and all together in order."""
    now, new = assigned(kept, np.array(sorted(places), np.int64))
    return now, new, np.insert(now, np.array(sorted(places), np.int64), new)


@given(
    steps=st.lists(st.integers(1, 6), max_size=60),
    places=st.lists(st.integers(0, 60), max_size=40),
)
def test_order_is_kept_and_keys_are_distinct(steps: list[int], places: list[int]) -> None:
    kept = KEY_ORIGIN + np.cumsum(np.array(steps, np.int64))
    now, new, merged = insert_rows(kept, [place % (len(kept) + 1) for place in places])
    assert len(now) == len(kept)
    assert len(new) == len(places)
    assert np.all(np.diff(merged) > 0)
    assert np.all(merged >= 0)


@given(places=st.lists(st.integers(0, 10**6), min_size=1, max_size=120))
def test_inserting_one_by_one_never_breaks_the_order(places: list[int]) -> None:
    keys = fresh_keys(0)
    for place in places:
        _, _, keys = insert_rows(keys, [place % (len(keys) + 1)])
        assert np.all(np.diff(keys) > 0)


def test_rows_in_front_and_at_the_end_move_nothing() -> None:
    kept = fresh_keys(1000)
    now, new, _ = insert_rows(kept, [0] * 50 + [1000] * 50)
    assert np.array_equal(now, kept)
    assert np.all(np.abs(np.diff(new[:50])) == SPACING)
    assert np.all(np.diff(new[50:]) == SPACING)


def test_a_full_gap_moves_only_its_neighbourhood() -> None:
    kept = fresh_keys(100_000)
    kept[50_000] = kept[49_999] + 1
    now, _, merged = insert_rows(kept, [50_000])
    moved = np.flatnonzero(now != kept)
    assert len(moved) <= 4 * gaps_module.WINDOW_ROWS
    assert np.all(np.abs(moved - 50_000) <= 2 * gaps_module.WINDOW_ROWS)
    assert np.all(np.diff(merged) > 0)


def test_the_same_place_again_and_again_is_cheap() -> None:
    keys = fresh_keys(10_000)
    moved = 0
    for _ in range(500):
        now, new = assigned(keys, np.array([5000]))
        moved += int(np.count_nonzero(now != keys))
        keys = np.insert(now, 5000, new)
    assert np.all(np.diff(keys) > 0)
    assert moved < 500 * 64, "amortised logarithmic"


@pytest.mark.parametrize("place", [0, 3])
def test_a_used_up_end_of_the_key_space_renumbers(place: int) -> None:
    kept = np.array([1, 5, KEY_LIMIT - 1], np.int64)
    now, new, merged = insert_rows(kept, [place])
    assert merged[0] == KEY_ORIGIN
    assert np.all(np.diff(merged) == SPACING)
    assert len(now) == 3
    assert len(new) == 1


@pytest.fixture(scope="module")
def pinned_in_place():
    """Small arrays are not copied when they are pinned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growth, "COPIED_ENTRIES_MAX", 0)
        patch.setattr(growth, "SLACK_ROWS_MIN", 1)
        yield


@given(
    data=st.data(),
    wide=st.booleans(),
)
def test_key_map_is_a_dict(pinned_in_place: None, data: st.DataObject, wide: bool) -> None:
    scale = 10**12 if wide else 3
    mapping, model, pins = KeyMap(), {}, []
    for _ in range(data.draw(st.integers(1, 10))):
        fresh = data.draw(st.sets(st.integers(0, 60))) - {key // scale for key in model}
        keys = np.array(sorted(key * scale for key in fresh), np.int64)
        values = np.arange(len(model), len(model) + len(keys))
        mapping.add(keys, values)
        model.update(zip(keys.tolist(), values.tolist(), strict=True))
        doomed = data.draw(st.sets(st.sampled_from(sorted(model)))) if model else set()
        mapping.remove(np.array(sorted(doomed), np.int64))
        model = {key: value for key, value in model.items() if key not in doomed}
        if model and data.draw(st.booleans()):
            shift = Shift(min(model), max(model), scale)
            mapping.shift(RowSetShiftData.from_shifts([shift]))
            model = {key + scale: value for key, value in model.items()}
        present = np.array(sorted(model), np.int64)
        mapping.assign(present, np.array([model[key] + 1 for key in sorted(model)], np.int64))
        model = {key: value + 1 for key, value in model.items()}
        found_keys, found_values = mapping.items()
        assert dict(zip(found_keys.tolist(), found_values.tolist(), strict=True)) == model
        assert mapping.lookup(present).tolist() == [model[key] for key in present.tolist()]
        assert mapping.count == len(model)
        if data.draw(st.booleans()):
            pins.append((mapping.pinned(), dict(model)))
    for pin, expected in pins:
        present = np.array(sorted(expected), np.int64)
        assert pin.lookup(present).tolist() == [expected[key] for key in present.tolist()]


key_cells = st.tuples(
    st.none() | st.integers(-3, 40),
    st.none() | st.text("ab", max_size=3) | st.sampled_from(["x" * 200, "x" * 199 + "y"]),
)


def columns_of(keys: list[tuple[int | None, str | None]]) -> list[pa.Array]:
    return [
        pa.array([number for number, _ in keys], pa.int32()),
        pa.array([text for _, text in keys], pa.string()),
    ]


@given(data=st.data(), is_colliding=st.booleans())
@examples(20)
def test_key_index_is_a_dict(data: st.DataObject, is_colliding: bool) -> None:
    """With colliding hashes only the comparison of cells tells keys apart."""

    def hashes_of(columns: list[pa.Array]) -> np.ndarray:
        hashes = hash_rows(columns)
        return hashes & np.uint64(3) if is_colliding else hashes

    stores = [ColumnStore(pa.int32()), ColumnStore(pa.string())]
    index, model = KeyIndex(lambda: stores), {}
    for _ in range(data.draw(st.integers(1, 6))):
        keys = data.draw(st.lists(key_cells, max_size=12, unique=True))
        columns = columns_of(keys)
        hashes = hashes_of(columns)
        found = index.lookup(columns, hashes)
        assert found.tolist() == [model.get(key, -1) for key in keys]
        absent = np.flatnonzero(found < 0)
        slots = np.arange(len(stores[0]), len(stores[0]) + len(absent))
        for store, column in zip(stores, columns, strict=True):
            store.append(column.take(pa.array(absent)))
        index.add(hashes[absent], slots)
        model.update({keys[row]: int(slot) for row, slot in zip(absent, slots, strict=True)})
        doomed = data.draw(st.lists(st.sampled_from(list(model)), unique=True)) if model else []
        gone = np.array([model.pop(key) for key in doomed], np.int64)
        index.remove(hashes_of(columns_of(doomed)), gone)
        assert index.count == len(model)


def test_key_index_grows_and_rebuilds() -> None:
    store = ColumnStore(pa.int64())
    index = KeyIndex(lambda: [store])
    keys = pa.array(np.arange(50_000) * 7)
    store.append(keys)
    index.add(hash_rows([keys]), np.arange(50_000))
    assert np.array_equal(index.lookup([keys], hash_rows([keys])), np.arange(50_000))
    other = pa.array(np.arange(1000) * 7 + 1)
    assert np.all(index.lookup([other], hash_rows([other])) == -1)
    index.rebuild(np.arange(0, 50_000, 2))
    found = index.lookup([keys], hash_rows([keys]))
    assert np.array_equal(found[::2], np.arange(0, 50_000, 2))
    assert np.all(found[1::2] == -1)
    assert index.nbytes < 64 * index.count


@given(keys=st.lists(key_cells, max_size=20), is_colliding=st.booleans())
def test_first_duplicate_finds_one_exactly_when_there_is_one(
    keys: list[tuple[int | None, str | None]], is_colliding: bool
) -> None:
    columns = columns_of(keys)
    hashes = hash_rows(columns)
    if is_colliding:
        hashes = hashes & np.uint64(1)
    row = first_duplicate(columns, hashes)
    if row is None:
        assert len(set(keys)) == len(keys)
    else:
        assert keys[row] in keys[:row]


@given(values=st.lists(st.none() | st.text(max_size=300), max_size=20), start=st.integers(0, 5))
@examples(20)
def test_text_hashes_depend_on_the_cell_alone(values: list[str | None], start: int) -> None:
    whole = pa.array(values, pa.string())
    part = whole[start:]
    for array in (part, part.cast(pa.large_string()), part.dictionary_encode()):
        single = [hash_rows([pa.array([cell], pa.string())])[0] for cell in part.to_pylist()]
        assert hash_rows([array]).tolist() == [int(value) for value in single]
