"""RowSetShiftData: what is refused, clamped and joined, and that nothing is expanded."""

from __future__ import annotations

import numpy as np
import pytest

from barrage.rowset import RowSet, RowSetShiftData, Shift

KEY_MAX = 2**63 - 1


def shifts(*triples: tuple[int, int, int]) -> RowSetShiftData:
    return RowSetShiftData.from_shifts(triples)


def test_no_shifts() -> None:
    none = RowSetShiftData.empty()
    rows = RowSet((1, 5))
    assert none == shifts() == RowSetShiftData.from_arrays([], [], [])
    assert none.is_empty
    assert len(none) == 0
    assert none.nbytes == 0
    assert none.inverse() is none
    assert none.apply(rows) is rows
    assert none.apply_keys([3]).tolist() == [3]
    assert none.restrict(rows) == none.then(none) == none
    with pytest.raises(TypeError):
        RowSetShiftData()


@pytest.mark.parametrize(
    ("triples", "message"),
    [
        ([(0, 1, 0)], "shift by 0"),
        ([(5, 4, 1)], "ends before it starts"),
        ([(-1, 4, 1)], "not negative"),
        ([(0, 4, -5)], "below 0"),
        ([(0, KEY_MAX, -(2**63))], "below 0"),
        ([(5, KEY_MAX, 1)], "past 2\\^63-1"),
        ([(5, KEY_MAX - 4, 5)], "past 2\\^63-1"),
        ([(0, 4, 1), (4, 6, 2)], "overlap or do not ascend"),
        ([(7, 8, 1), (4, 6, 1)], "overlap or do not ascend"),
        ([(0, 4, 10), (6, 8, 1)], "change the order"),
        ([(0, 4, 10), (6, 8, 8)], "change the order"),
    ],
)
def test_what_cannot_be_is_refused(triples, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RowSetShiftData.from_shifts(triples)


def test_arrays_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="1 first keys, 2 last keys, 1 deltas"):
        RowSetShiftData.from_arrays([1], [2, 3], [4])


def test_a_downward_start_below_its_delta_is_raised() -> None:
    assert list(shifts((0, 9, -5))) == [Shift(5, 9, -5)]


def test_touching_shifts_with_one_delta_are_one() -> None:
    assert list(shifts((0, 4, 7), (5, 9, 7), (10, 12, 8))) == [Shift(0, 9, 7), Shift(10, 12, 8)]
    assert list(shifts((0, 4, 7), (6, 9, 7))) == [Shift(0, 4, 7), Shift(6, 9, 7)]


def test_repr_hash_and_equality() -> None:
    data = shifts((10, 20, 5), (30, 40, -3))
    assert repr(data) == "RowSetShiftData(10-20+5, 30-40-3)"
    assert data == shifts((10, 20, 5), (30, 40, -3))
    assert hash(data) == hash(data) == hash(shifts((10, 20, 5), (30, 40, -3)))
    assert data != shifts((10, 20, 5))
    assert data != "data"
    assert data.nbytes == 48


def test_ranges_of_2_to_the_62_are_not_expanded() -> None:
    data = shifts((100, 2**62, 1), (2**62 + 10, KEY_MAX - 7, 7))
    rows = RowSet.from_ranges([0, 2**40, 2**62 + 20], [5, 2**61, KEY_MAX - 10])
    moved = data.apply(rows)
    assert list(moved.ranges()) == [(0, 5), (2**40 + 1, 2**61 + 1), (2**62 + 27, KEY_MAX - 3)]
    assert data.unapply(moved) == rows


def test_collisions_are_refused() -> None:
    with pytest.raises(ValueError, match="onto rows that stay"):
        shifts((10, 20, 5)).apply(RowSet((15, 20, 25)))


def test_rows_outside_every_shift_stay() -> None:
    rows = RowSet((1, 2, 50))
    assert shifts((10, 20, 5), (60, 70, 1)).apply(rows) == rows


def test_restrict_trims_to_rows_and_drops_the_rest() -> None:
    data = shifts((0, 100, 1000), (200, 300, 1000), (400, 500, 1100))
    assert list(data.restrict(RowSet((7, 90, 450)))) == [Shift(7, 90, 1000), Shift(450, 450, 1100)]
    assert data.restrict(RowSet((150,))).is_empty
    assert list(data.restrict(RowSet.of_range(0, 1000))) == list(data)


def test_opposite_shifts_compose_to_nothing() -> None:
    there = shifts((10, 20, 5))
    assert there.then(there.inverse()).is_empty


def test_a_later_shift_over_the_gap_of_an_earlier_one_keeps_the_order() -> None:
    # The row moved from 10 to 110 is removed in between; then a new row at 50 moves to 51.
    both = shifts((10, 20, 100)).then(shifts((50, 60, 1)))
    assert RowSetShiftData.from_arrays(both.firsts, both.lasts, both.deltas) == both
    assert both.apply_keys([10]).tolist() == [110]


def test_keys_keep_the_order_they_are_given_in() -> None:
    data = shifts((10, 20, 5), (30, 40, -3))
    assert data.apply_keys(np.array([40, 10, 25])).tolist() == [37, 15, 25]
    assert data.unapply_keys(np.array([37, 15])).tolist() == [40, 10]
