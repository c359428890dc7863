"""Row sets against ``set[int]``, and against interval choices where sets are too large to list."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.rowset import RowSet, RowSetBuilder, arrays
from tests.helpers.strategies_rows import (
    KEY_STOP,
    Cells,
    any_keys,
    cell_pairs,
    gap_row_sets,
    key_sets,
)

OPERATIONS = [operator.or_, operator.and_, operator.sub, operator.xor]


def assert_maximal(rows: RowSet) -> None:
    firsts, lasts = rows.firsts.tolist(), rows.lasts.tolist()
    assert all(first <= last for first, last in zip(firsts, lasts, strict=True))
    assert all(after > last + 1 for last, after in zip(lasts, firsts[1:], strict=False))
    assert not rows.firsts.flags.writeable
    assert not rows.lasts.flags.writeable


@pytest.mark.parametrize("operation", OPERATIONS)
@given(a=key_sets(), b=key_sets())
def test_algebra_agrees_with_sets(operation, a: set[int], b: set[int]) -> None:
    result = operation(RowSet(a), RowSet(b))
    assert list(result) == sorted(operation(a, b))
    assert_maximal(result)


@pytest.mark.parametrize("operation", OPERATIONS)
@given(pair=cell_pairs())
def test_algebra_agrees_with_interval_choices_at_any_size(
    operation, pair: tuple[Cells, Cells]
) -> None:
    a, b = pair
    expected = a.of(operation(a.chosen, b.chosen))
    result = operation(a.row_set(), b.row_set())
    assert result == expected.row_set()
    assert result.size == expected.size()
    assert_maximal(result)


@given(pair=cell_pairs())
def test_overlap_and_containment_at_any_size(pair: tuple[Cells, Cells]) -> None:
    a, b = pair
    assert a.row_set().overlaps(b.row_set()) == bool(a.chosen & b.chosen)
    assert a.row_set().contains_all(b.row_set()) == (b.chosen <= a.chosen)


@given(pair=cell_pairs(), key=any_keys)
def test_rank_select_and_slice_at_any_size(pair: tuple[Cells, Cells], key: int) -> None:
    cells, rows = pair[0], pair[0].row_set()
    rank = sum(max(0, min(stop, key) - start) for start, stop in cells.spans())
    assert rows.rank(key) == rank
    assert rows.rank_many([key]).tolist() == [rank]
    assert rows.rank(KEY_STOP) == rows.size == cells.size()
    assert rows.clip(0, key - 1).size == rank
    if key in rows:
        assert rows.select(rank) == key
        assert rows.select_many([rank]).tolist() == [key]
        assert rows.positions_of(RowSet((key,))) == RowSet((rank,))
    assert rows.slice(0, rank) | rows.slice(rank, rows.size) == rows
    assert rows.slice(0, rank) == rows.clip(0, key - 1)


@given(pair=cell_pairs())
def test_keys_at_and_positions_of_are_inverse(pair: tuple[Cells, Cells]) -> None:
    rows, chosen = pair[0].row_set(), pair[0].row_set() & pair[1].row_set()
    positions = rows.positions_of(chosen)
    assert positions.size == chosen.size
    assert rows.keys_at(positions) == chosen
    assert_maximal(positions)


@given(keys=key_sets(), positions=st.sets(st.integers(0, 45)))
def test_positions_past_the_end_are_ignored(keys: set[int], positions: set[int]) -> None:
    ordered = sorted(keys)
    expected = [ordered[p] for p in sorted(positions) if p < len(ordered)]
    assert list(RowSet(keys).keys_at(RowSet(positions))) == expected


@given(keys=key_sets(), probes=st.lists(any_keys, max_size=20))
def test_membership_and_rank_of_many(keys: set[int], probes: list[int]) -> None:
    rows = RowSet(keys)
    probe_array = np.array(probes, dtype=np.int64)
    expected = [probe in keys for probe in probes]
    assert rows.contains_many(probe_array).tolist() == expected
    assert [probe in rows for probe in probes] == expected
    ranks = [sum(key < probe for key in keys) for probe in probes]
    assert rows.rank_many(probe_array).tolist() == ranks
    assert [rows.rank(probe) for probe in probes] == ranks


@given(keys=key_sets(), first=any_keys, last=any_keys)
def test_clip_keeps_what_lies_between(keys: set[int], first: int, last: int) -> None:
    assert list(RowSet(keys).clip(first, last)) == sorted(k for k in keys if first <= k <= last)


@given(keys=key_sets())
def test_every_construction_gives_the_same_set(keys: set[int]) -> None:
    ordered = np.array(sorted(keys), dtype=np.int64)
    rows = RowSet(keys)
    builder = RowSetBuilder()
    for key in keys:
        builder.add_key(key)
    alternatives = [
        RowSet.from_sorted_keys(ordered),
        RowSet.from_keys(np.concatenate((ordered[::-1], ordered))),
        RowSet.from_ranges(ordered, ordered),
        RowSet.from_overlapping(np.repeat(ordered, 2), np.repeat(ordered, 2)),
        RowSet.parse(rows.to_text()),
        builder.build(),
    ]
    assert all(other == rows and hash(other) == hash(rows) for other in alternatives)
    assert rows.to_numpy().tolist() == ordered.tolist()
    assert len(rows) == len(keys)


@given(rows=gap_row_sets(), delta=st.integers(-(2**40), 2**40))
def test_offset_moves_every_key(rows: RowSet, delta: int) -> None:
    if rows and (rows.first + delta < 0 or rows.last + delta >= KEY_STOP):
        with pytest.raises(ValueError, match="leaves the key space"):
            rows.offset(delta)
        return
    moved = rows.offset(delta)
    assert moved.offset(-delta) == rows
    expected = [(first + delta, last + delta) for first, last in rows.ranges()]
    assert list(moved.ranges()) == expected


@given(pair=cell_pairs())
def test_mirror_twice_is_identity_and_keeps_the_size(pair: tuple[Cells, Cells]) -> None:
    rows = pair[0].row_set()
    mirrored = rows.mirror(KEY_STOP)
    assert mirrored.size == rows.size
    assert mirrored.mirror(KEY_STOP) == rows
    if rows:
        assert mirrored.first == KEY_STOP - 1 - rows.last


@pytest.mark.parametrize("is_union", [True, False])
@given(pair=cell_pairs())
def test_splicing_equals_merging(is_union: bool, pair: tuple[Cells, Cells]) -> None:
    a, b = pair[0].row_set(), pair[1].row_set()
    if a.is_empty or b.is_empty:
        return
    lists = (a.firsts, a.lasts), (b.firsts, b.lasts)
    spliced = RowSet.from_ranges(*arrays.splice(*lists, is_union=is_union))
    assert spliced == RowSet.from_ranges(*(arrays.union if is_union else arrays.difference)(*lists))


@given(a=key_sets(), parts=st.lists(key_sets(members_max=8), max_size=5))
def test_sets_that_grew_do_not_disturb_each_other(a: set[int], parts: list[set[int]]) -> None:
    grown, expected, seen = RowSet(a), set(a), []
    for part in parts:
        seen.append((grown, sorted(expected)))
        grown |= RowSet(part)
        expected |= part
    assert list(grown) == sorted(expected)
    assert all(list(rows) == keys for rows, keys in seen)
