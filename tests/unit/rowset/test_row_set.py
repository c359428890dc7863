"""RowSet: construction, refusals, text, positions at the edges, growth without copying."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from barrage.rowset import RowSet, RowSetBuilder, arrays

KEY_MAX = 2**63 - 1


def test_the_empty_set() -> None:
    empty = RowSet.empty()
    assert empty == RowSet() == RowSet.of_span(5, 5) == RowSet.parse("") == RowSet.from_keys([])
    assert (len(empty), empty.size, empty.range_count) == (0, 0, 0)
    assert empty.is_empty
    assert empty.is_contiguous
    assert not empty
    assert list(empty) == list(empty.ranges()) == empty.to_numpy().tolist() == []
    assert repr(empty) == "RowSet()"
    for name in ("first", "last"):
        with pytest.raises(ValueError, match=f"no {name} key"):
            getattr(empty, name)


def test_the_empty_set_in_every_operation() -> None:
    empty, some = RowSet.empty(), RowSet.parse("3-5,9")
    assert empty | some == some | empty == some
    assert empty & some == some & empty == empty - some == empty
    assert some - empty == some ^ empty == some
    assert not empty.overlaps(some)
    assert some.contains_all(empty)
    assert not empty.contains_all(some)
    assert empty.rank(7) == 0
    assert empty.rank_many([0, 7]).tolist() == [0, 0]
    assert empty.contains_many([0, 7]).tolist() == [False, False]
    assert empty.select_many([]).tolist() == []
    assert empty.keys_at(some) == some.keys_at(empty) == empty.slice(0, 9) == empty
    assert some.positions_of(empty) == empty.offset(3) == empty.mirror(0) == empty


def test_all_keys_there_are() -> None:
    everything = RowSet.of_range(0, KEY_MAX)
    assert everything.size == 2**63
    with pytest.raises(OverflowError):
        len(everything)
    assert bool(everything)
    assert everything.rank(KEY_MAX) == everything.select(KEY_MAX) == KEY_MAX
    assert everything.rank_many([0, KEY_MAX]).tolist() == [0, KEY_MAX]
    assert everything - RowSet((7,)) == RowSet.from_ranges([0, 8], [6, KEY_MAX])
    assert (everything - RowSet((0, KEY_MAX))).size == 2**63 - 2
    assert everything ^ RowSet.of_range(1, KEY_MAX) == RowSet((0,))
    assert everything.mirror(2**63) == everything


def test_touching_ranges_are_merged() -> None:
    assert RowSet.from_ranges([0, 5, 20], [4, 9, 20]) == RowSet.parse("0-9,20")
    assert RowSet((3, 1, 2, 2)) == RowSet.of_range(1, 3)
    assert (RowSet.of_range(0, 4) | RowSet.of_range(5, 9)).range_count == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RowSet((-1,)), "not negative"),
        (lambda: RowSet((2**63,)), "2\\^63-1"),
        (lambda: RowSet((2**64,)), "integers"),
        (lambda: RowSet.from_keys([0.5]), "must be integers, not float64"),
        (lambda: RowSet.from_keys([[1, 2]]), "one-dimensional"),
        (lambda: RowSet.from_sorted_keys([1, 1]), "ascend strictly"),
        (lambda: RowSet.from_sorted_keys([2, 1]), "ascend strictly"),
        (lambda: RowSet.from_ranges([1], [0]), "ends before it starts"),
        (lambda: RowSet.from_ranges([0, 3], [3, 5]), "overlap or do not ascend"),
        (lambda: RowSet.from_ranges([5, 0], [6, 1]), "overlap or do not ascend"),
        (lambda: RowSet.from_ranges([0], [1, 2]), "1 first keys but 2 last keys"),
        (lambda: RowSet.from_overlapping([5, 0], [6, 1]), "ascend by their first"),
        (lambda: RowSet.of_range(3, 2), "not a range"),
        (lambda: RowSet.of_range(-1, 2), "not a range"),
        (lambda: RowSet.of_span(0, 2**63 + 1), "not a range"),
        (lambda: RowSet.parse("4-2"), "ends before"),
        (lambda: RowSet.parse("x"), "invalid literal"),
        (lambda: RowSet((1, 2)).offset(-2), "leaves the key space"),
        (lambda: RowSet((KEY_MAX,)).offset(1), "leaves the key space"),
        (lambda: RowSet((5,)).mirror(5), "cannot be mirrored"),
        (lambda: RowSet((5,)).positions_of(RowSet((5, 6))), "have no position"),
        (lambda: RowSet((5,)).positions_of(RowSet((4,))), "have no position"),
    ],
)
def test_what_cannot_be_is_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("rows", [RowSet((1, 3, 5)), RowSet.of_range(1, 3)])
def test_positions_outside_are_index_errors(rows: RowSet) -> None:
    for position in (-1, 3):
        with pytest.raises(IndexError):
            rows.select(position)
        with pytest.raises(IndexError):
            rows.select_many([0, position])


def test_membership_of_odd_objects() -> None:
    rows = RowSet.of_range(0, KEY_MAX)
    assert -1 not in rows
    assert 2**63 not in rows
    assert "1" not in rows
    assert np.int64(4) in rows


def test_text_and_pickle() -> None:
    rows = RowSet.parse("0-9,12")
    assert repr(rows) == "RowSet(0-9,12)"
    assert rows.to_text() == "0-9,12"
    many = RowSet(range(0, 100, 2))
    assert repr(many).endswith("38,… 30 more ranges, last key 98)")
    assert RowSet.parse(many.to_text()) == many
    for each in (rows, many, RowSet.empty()):
        assert pickle.loads(pickle.dumps(each)) == each


def test_equality_with_other_things() -> None:
    assert RowSet((1,)) != {1}
    assert RowSet((1,)) != RowSet.of_range(1, 2)
    assert len({RowSet((1, 5)), RowSet((5, 1)), RowSet((1, 6))}) == 2
    assert RowSet(RowSet((1,))) == RowSet((1,))


def test_what_callers_hand_in_is_copied() -> None:
    keys = np.arange(0, 100, 2)
    rows = RowSet.from_sorted_keys(keys)
    keys[:] = 0
    assert rows == RowSet(range(0, 100, 2))
    with pytest.raises(ValueError, match="read-only"):
        rows.firsts[0] = 7


def test_one_range_costs_the_same_at_any_length() -> None:
    assert RowSet.of_span(0, 10**18).nbytes == RowSet.of_span(0, 10).nbytes == 16
    assert RowSet(range(0, 2000, 2)).nbytes == 8 * 1000


def test_appending_keys_shares_memory_with_the_shorter_set() -> None:
    short = RowSet.from_keys(np.arange(0, 1_000_000, 100)) | RowSet((3_000_000,))
    grown = short | RowSet((3_000_002, 3_000_004))
    assert np.shares_memory(short.firsts, grown.firsts)
    other = short | RowSet((4_000_000,))  # the room behind `short` is taken: this one must copy
    assert not np.shares_memory(short.firsts, other.firsts)
    assert grown.slice(10_000, 20_000).to_text() == "3000000,3000002,3000004"
    assert other.slice(10_000, 20_000).to_text() == "3000000,4000000"
    assert short.last == 3_000_000


def test_appending_ranges_shares_memory_and_keeps_ranks() -> None:
    firsts = np.arange(0, 10_000_000, 1000)
    short = RowSet.from_ranges(firsts, firsts + 4) | RowSet.of_range(20_000_000, 20_000_004)
    assert short.rank(20_000_000) == 50_000
    grown = short | RowSet.of_range(30_000_000, 30_000_001)
    grown |= RowSet.from_ranges([40_000_000, 40_000_010], [40_000_001, 40_000_013])
    assert np.shares_memory(short.firsts, grown.firsts)
    assert np.shares_memory(short.lasts, grown.lasts)
    assert grown.rank(40_000_011) == 50_005 + 2 + 2 + 1
    assert grown.select(50_009) == 40_000_010
    assert grown.size == 50_013


def test_extending_the_last_range_of_many() -> None:
    firsts = np.arange(0, 10_000_000, 1000)
    short = RowSet.from_ranges(firsts, firsts + 4)
    assert short.rank(10**7) == 50_000
    longer = short | RowSet.of_range(9_999_005, 9_999_009)
    assert longer.range_count == short.range_count
    assert (longer.size, longer.last) == (50_005, 9_999_009)
    further = longer | RowSet.from_ranges([9_999_010, 9_999_015], [9_999_012, 9_999_019])
    assert (further.range_count, further.size) == (short.range_count + 1, 50_013)
    assert further.rank(9_999_016) == 50_009
    assert short.last == 9_999_004


def test_a_small_part_does_not_keep_the_whole_alive() -> None:
    rows = RowSet(range(0, 10_000_000, 100))
    assert not np.shares_memory(rows.clip(0, 100).firsts, rows.firsts)
    assert np.shares_memory(rows.clip(0, 7_500_000).firsts, rows.firsts)


def test_few_changes_to_many_ranges() -> None:
    firsts = np.arange(0, 1_000_000, 10)
    many = RowSet.from_ranges(firsts, firsts + 4)
    few = RowSet((5, 7, 10, 500_001, 999_999))
    assert (many | few).size == many.size + 3
    assert (many - few).size == many.size - 2
    assert (many | few) - few == many - few
    assert (many & few).to_text() == "10,500001"


def test_builder_takes_anything_in_any_order() -> None:
    builder = RowSetBuilder()
    assert builder.build().is_empty
    builder.add_range(10, 20)
    builder.add_key(3)
    builder.add_range(15, 30)
    builder.add_keys([40, 2, 41])
    builder.add_row_set(RowSet((1, 99)))
    assert builder.build().to_text() == "1-3,10-30,40-41,99"
    builder.add_key(0)
    assert builder.build().to_text() == "0-3,10-30,40-41,99"
    with pytest.raises(ValueError, match="not a range"):
        builder.add_range(5, 4)


@pytest.mark.parametrize("gap", [2, 3, 50])
def test_algebra_of_many_fragments(gap: int) -> None:
    draw = np.random.default_rng(gap)
    a, b = (draw.choice(gap * 10_000, 10_000, replace=False) for _ in range(2))
    rows_a, rows_b = RowSet.from_keys(a), RowSet.from_keys(b)
    assert (rows_a | rows_b).to_numpy().tolist() == np.union1d(a, b).tolist()
    assert (rows_a & rows_b).to_numpy().tolist() == np.intersect1d(a, b).tolist()
    assert (rows_a - rows_b).to_numpy().tolist() == np.setdiff1d(a, b).tolist()
    assert (rows_a ^ rows_b).to_numpy().tolist() == np.setxor1d(a, b).tolist()


def test_a_set_with_itself() -> None:
    rows = RowSet.parse("1-3,7")
    assert rows | rows == rows & rows == rows
    assert (rows - rows).is_empty
    assert (rows ^ rows).is_empty
    assert rows.contains_all(rows)
    assert rows.positions_of(rows) == RowSet.of_span(0, 4)


def test_few_keys_below_and_among_many_single_keys() -> None:
    many = RowSet(range(1000, 7000, 2))
    assert list((RowSet((3, 5)) | many).ranges())[:3] == [(3, 3), (5, 5), (1000, 1000)]
    assert (many - RowSet((2000, 2001, 6998))).nbytes == 8 * (len(many) - 2)
    assert (many | RowSet((2001,))).slice(500, 503) == RowSet.of_range(2000, 2002)


def test_complement_of_nothing_is_everything() -> None:
    assert RowSet.from_ranges(*arrays.complement(arrays.NO_RANGES)).size == 2**63


def test_positions_in_one_long_range() -> None:
    rows = RowSet.of_range(10, KEY_MAX)
    positions = RowSet((0, 5, KEY_MAX - 10, KEY_MAX))
    assert rows.keys_at(positions) == RowSet((10, 15, KEY_MAX))
    assert rows.positions_of(RowSet((10, 15, KEY_MAX))) == RowSet((0, 5, KEY_MAX - 10))
