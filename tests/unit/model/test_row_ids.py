"""Row ids: the cases with an answer one can write down, and large maps."""

from __future__ import annotations

import numpy as np
import pytest

from barrage.limits import ROW_KEY_MAX
from barrage.model.row_ids import BLOCK_RUNS, RowIdMap
from barrage.rowset import RowSet, RowSetShiftData

EMPTY = RowSet.empty()
STAY = RowSetShiftData.empty()
NO_IDS = np.empty(0, dtype=np.int64)


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def shifts(*triples: tuple[int, int, int]) -> RowSetShiftData:
    return RowSetShiftData.from_shifts(triples)


def as_dict(rows: RowIdMap) -> dict[int, int]:
    return dict(zip(rows.keys, rows.ids.tolist(), strict=True))


def test_example_of_the_module() -> None:
    rows = RowIdMap.of(RowSet.of_range(0, 9), np.arange(10))
    rows = rows.apply(RowSet([4]), shifts((5, 9, 2)), RowSet([4, 5]), ids(20, 21))
    rows.validate()
    assert rows.run_count == 3
    assert rows.keys == RowSet.of_range(0, 11) - RowSet([6])
    assert rows.ids.tolist() == [0, 1, 2, 3, 20, 21, 5, 6, 7, 8, 9]


def test_appending_for_ever_is_one_run() -> None:
    rows = RowIdMap.empty()
    for start in range(0, 1000, 10):
        rows = rows.apply(
            EMPTY, STAY, RowSet.of_span(start, start + 10), np.arange(start, start + 10)
        )
    assert rows.run_count == 1
    assert len(rows) == 1000
    assert rows.ids_of(RowSet([3, 999])).tolist() == [3, 999]


def test_a_ring_that_forgets_its_oldest_rows_stays_one_run() -> None:
    rows = RowIdMap.of(RowSet.of_span(0, 100), np.arange(100))
    for start in range(100, 1000, 10):
        gone = RowSet.of_span(start - 100, start - 90)
        rows = rows.apply(
            gone, STAY, RowSet.of_span(start, start + 10), np.arange(start, start + 10)
        )
    assert (rows.run_count, rows.keys.first, rows.ids[0]) == (1, 900, 900)


def test_a_key_given_again_in_the_same_cycle_names_another_row() -> None:
    rows = RowIdMap.of(RowSet([5, 6]), ids(0, 1)).apply(RowSet([5]), STAY, RowSet([5]), ids(2))
    assert as_dict(rows) == {5: 2, 6: 1}


def test_rows_shift_apart_and_together_again() -> None:
    rows = RowIdMap.of(RowSet.of_range(0, 5), np.arange(6))
    apart = rows.apply(EMPTY, shifts((3, 5, 10)), EMPTY, NO_IDS)
    assert apart.run_count == 2
    together = apart.apply(EMPTY, shifts((13, 15, -10)), EMPTY, NO_IDS)
    assert together.run_count == 1
    assert as_dict(together) == as_dict(rows)


def test_touching_shifts_of_different_widths_cut_a_run() -> None:
    rows = RowIdMap.of(RowSet.of_range(0, 5), np.arange(6))
    moved = rows.apply(EMPTY, shifts((0, 1, 10), (2, 3, 20), (4, 9, 30)), EMPTY, NO_IDS)
    assert as_dict(moved) == {10: 0, 11: 1, 22: 2, 23: 3, 34: 4, 35: 5}


def test_shifts_of_keys_nobody_has_move_nothing() -> None:
    rows = RowIdMap.of(RowSet([5]), ids(0))
    assert as_dict(rows.apply(EMPTY, shifts((7, 2**62, 1)), EMPTY, NO_IDS)) == {5: 0}


def test_keys_at_the_ends_of_the_key_space() -> None:
    rows = RowIdMap.of(RowSet([0, ROW_KEY_MAX]), ids(7, 8))
    assert rows.ids_of(RowSet([0, ROW_KEY_MAX])).tolist() == [7, 8]
    rows = rows.apply(RowSet([0]), shifts((ROW_KEY_MAX, ROW_KEY_MAX, -ROW_KEY_MAX)), EMPTY, NO_IDS)
    assert as_dict(rows) == {0: 8}
    assert as_dict(rows.apply(RowSet([0]), STAY, EMPTY, NO_IDS)) == {}


def test_nothing_happens_to_an_empty_map() -> None:
    rows = RowIdMap.empty().apply(EMPTY, shifts((0, 9, 1)), EMPTY, NO_IDS)
    assert len(rows) == 0
    assert rows.keys.is_empty
    assert rows.ids_of(EMPTY).tolist() == []


def test_maps_do_not_change() -> None:
    before = RowIdMap.of(RowSet.of_range(0, 9), np.arange(10))
    before.apply(RowSet([1]), shifts((2, 9, 5)), RowSet([1]), ids(99))
    assert before.keys == RowSet.of_range(0, 9)
    assert before.ids.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("removed", "moves", "added", "new_ids", "message"),
    [
        (RowSet([3]), STAY, EMPTY, NO_IDS, "no row under key 3"),
        (EMPTY, STAY, RowSet([1]), ids(9), "two rows under key 1"),
        (EMPTY, shifts((0, 0, 1)), EMPTY, NO_IDS, "two rows under key 1"),
        (EMPTY, STAY, RowSet([7]), NO_IDS, "0 row ids for 1 row keys"),
    ],
)
def test_what_does_not_fit_is_refused(
    removed: RowSet, moves: RowSetShiftData, added: RowSet, new_ids: np.ndarray, message: str
) -> None:
    rows = RowIdMap.of(RowSet([0, 1, 2, 5]), np.arange(4))
    with pytest.raises(ValueError, match=message):
        rows.apply(removed, moves, added, new_ids)


@pytest.mark.further
def test_a_large_fragmented_map_against_plain_arrays() -> None:
    random = np.random.default_rng(7)
    count = 200_000
    keys = np.sort(random.choice(4 * count, count, replace=False))
    values = random.permutation(count)
    rows = RowIdMap.of(RowSet.from_sorted_keys(keys), values)
    for step in range(20):
        goes = np.zeros(len(keys), dtype=bool)
        goes[random.choice(len(keys), random.choice([1, 50, len(keys) // 3]), replace=False)] = True
        keys_kept, values_kept = keys[~goes], values[~goes]
        middle = int(keys_kept[random.integers(len(keys_kept))])
        moves = shifts((middle, 2**40, 1000))
        moved = np.where(keys_kept >= middle, keys_kept + 1000, keys_kept)
        free = np.setdiff1d(random.integers(0, moved[-1] + 500, 3000), moved)
        fresh = np.arange(len(free)) + count * (step + 2)
        rows = rows.apply(
            RowSet.from_sorted_keys(keys[goes]), moves, RowSet.from_sorted_keys(free), fresh
        )
        keys = np.concatenate((moved, free))
        order = np.argsort(keys)
        keys, values = keys[order], np.concatenate((values_kept, fresh))[order]
        assert np.array_equal(rows.keys.to_numpy(), keys)
        assert np.array_equal(rows.ids, values)
    rows.validate()


def test_blocks_that_were_not_touched_are_shared() -> None:
    count = 40 * BLOCK_RUNS
    before = RowIdMap.of(RowSet.of_span(0, count), np.arange(count)[::-1].copy())
    after = before.apply(
        RowSet([5]), shifts((count // 2, count, 7)), RowSet([5, count // 2]), ids(count, count + 1)
    )
    after.validate()
    shared = {id(block) for block in before._blocks} & {id(block) for block in after._blocks}
    assert len(shared) >= len(before._blocks) - 3
    assert after.ids_of(RowSet([4, 5, 6, count // 2, count // 2 + 7])).tolist() == [
        count - 5,
        count,
        count - 7,
        count + 1,
        count // 2 - 1,
    ]


def test_many_small_cycles_leave_no_crumbs() -> None:
    random = np.random.default_rng(3)
    count = 8 * BLOCK_RUNS
    rows = RowIdMap.of(RowSet.of_span(0, count), random.permutation(count))
    living = dict(enumerate(rows.ids.tolist()))
    for step in range(600):
        gone = np.unique(random.choice(list(living), 25))
        rows = rows.apply(RowSet.from_sorted_keys(gone), STAY, EMPTY, NO_IDS)
        for key in gone.tolist():
            del living[key]
        free = [int(key) for key in random.choice(count, 8) if int(key) not in living]
        fresh = RowSet(free)
        new = np.arange(len(fresh)) + count + 10 * step
        rows = rows.apply(EMPTY, STAY, fresh, new)
        living |= dict(zip(fresh, new.tolist(), strict=True))
        if step % 50 == 0:
            rows.validate()
            assert as_dict(rows) == living
    assert len(rows._blocks) <= 4 * (rows.run_count // BLOCK_RUNS + 8)
    assert as_dict(rows) == living
