"""Sets kept as ranges and as bits do the same: every operation, with operands in each form, against
``set[int]``, and small sets of keys at any place."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.rowset import RowSet, RowSetShiftData, portable, set_forms
from barrage.rowset import bits as bit_sets
from barrage.rowset.bit_row_set import BitRowSet
from barrage.rowset.bits import Bits
from barrage.rowset.containers import STRETCH
from barrage.wire.row_sets.row_set_codec import decode_row_set, encode_row_set
from tests.helpers.strategies_rows import KEY_STOP, Cells, any_keys, cell_pairs, key_sets

OPERATIONS = [operator.or_, operator.and_, operator.sub, operator.xor]
BOTH = [False, True]


@contextmanager
def bits_of_any_size() -> Iterator[None]:
    """Bits stay bits, however small they are."""
    was = set_forms.RANGES_BACK, set_forms.stays
    set_forms.RANGES_BACK, set_forms.stays = 1, lambda count, containers: True
    try:
        yield
    finally:
        set_forms.RANGES_BACK, set_forms.stays = was


def in_form(rows: RowSet, *, is_bits: bool) -> RowSet:
    """The same set; a set that is too wide for bits stays as it is."""
    if not is_bits or rows.is_empty or set_forms.is_wide(rows.range_list):
        return rows
    return BitRowSet.of_bits(Bits.of_ranges(rows.range_list), 0)


def keys_near(*sets: set[int]) -> list[int]:
    """Members, and what stands beside them."""
    members = {key for keys in sets for key in keys}
    near = {key + step for key in members for step in (-1, 0, 1)}
    return sorted(key for key in near | {0, KEY_STOP - 1} if 0 <= key < KEY_STOP)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("a_is_bits", BOTH)
@pytest.mark.parametrize("b_is_bits", BOTH)
@given(a=key_sets(), b=key_sets())
def test_algebra_agrees_with_sets(
    operation, a_is_bits: bool, b_is_bits: bool, a: set[int], b: set[int]
) -> None:
    with bits_of_any_size():
        rows_a = in_form(RowSet(a), is_bits=a_is_bits)
        rows_b = in_form(RowSet(b), is_bits=b_is_bits)
        result = operation(rows_a, rows_b)
        expected = operation(a, b)
        assert list(result) == sorted(expected)
        assert result.to_numpy().tolist() == sorted(expected)
        again = operation(result, rows_b)
        assert list(again) == sorted(operation(expected, b))
        assert list(rows_a) == sorted(a)
        assert list(rows_b) == sorted(b)
        assert (rows_a == rows_b) == (a == b)
        assert rows_a.overlaps(rows_b) == bool(a & b)
        assert rows_a.contains_all(rows_b) == (b <= a)


@pytest.mark.parametrize("operation", OPERATIONS)
@given(pair=cell_pairs(), is_left=st.booleans(), keys=key_sets())
def test_algebra_of_bits_with_ranges_of_any_width(
    operation, pair: tuple[Cells, Cells], is_left: bool, keys: set[int]
) -> None:
    wide = pair[0].row_set()
    plain = RowSet(keys)
    expected = operation(plain, wide) if is_left else operation(wide, plain)
    with bits_of_any_size():
        bits = in_form(plain, is_bits=True)
        result = operation(bits, wide) if is_left else operation(wide, bits)
        assert result == expected
        assert expected == result
        assert result.size == expected.size
        assert bits.overlaps(wide) == wide.overlaps(bits) == plain.overlaps(wide)
        assert bits.contains_all(wide) == plain.contains_all(wide)
        assert wide.contains_all(bits) == wide.contains_all(plain)


@given(keys=key_sets().filter(bool), extra=st.lists(any_keys, max_size=5))
def test_one_set_in_both_forms(keys: set[int], extra: list[int]) -> None:
    plain = RowSet(keys)
    with bits_of_any_size():
        bits = in_form(plain, is_bits=True)
        assert bits.is_bits
        assert (bits.size, len(bits), bool(bits)) == (plain.size, len(plain), True)
        assert (bits.first, bits.last) == (plain.first, plain.last)
        assert (bits.range_count, bits.is_contiguous) == (plain.range_count, plain.is_contiguous)
        assert list(bits.ranges()) == list(plain.ranges())
        assert bits.firsts.tolist() == plain.firsts.tolist()
        assert bits.lasts.tolist() == plain.lasts.tolist()
        assert hash(bits) == hash(plain)
        assert repr(bits) == repr(plain)
        assert bits.to_text() == plain.to_text()
        assert pickle.loads(pickle.dumps(bits)) == plain
        assert bits.packed() == plain == plain.packed()
        probes = [*keys_near(keys), *extra]
        assert bits.contains_many(probes).tolist() == [key in keys for key in probes]
        assert [key in bits for key in probes] == [key in keys for key in probes]
        ranks = [sum(key < probe for key in keys) for probe in probes]
        assert bits.rank_many(probes).tolist() == [bits.rank(key) for key in probes] == ranks
        assert (bits.rank(-5), bits.rank(KEY_STOP)) == (0, len(keys))
        places = list(range(len(keys)))
        assert bits.select_many(places).tolist() == sorted(keys)
        assert [bits.select(place) for place in places] == sorted(keys)
        for place in (-1, len(keys)):
            with pytest.raises(IndexError):
                bits.select(place)
            with pytest.raises(IndexError):
                bits.select_many([place])


@given(
    keys=key_sets().filter(bool), first=any_keys, last=any_keys, places=st.sets(st.integers(0, 40))
)
def test_parts_and_positions_in_both_forms(
    keys: set[int], first: int, last: int, places: set[int]
) -> None:
    ordered = sorted(keys)
    plain = RowSet(keys)
    with bits_of_any_size():
        bits = in_form(plain, is_bits=True)
        assert list(bits.clip(first, last)) == [key for key in ordered if first <= key <= last]
        start, stop = min(places, default=0), max(places, default=0)
        assert list(bits.slice(start, stop)) == ordered[start:stop]
        positions = RowSet(places)
        expected = [ordered[place] for place in sorted(places) if place < len(ordered)]
        for asked in (positions, in_form(positions, is_bits=True)):
            chosen = bits.keys_at(asked)
            assert list(chosen) == list(plain.keys_at(asked)) == expected
            there = positions.clip(0, len(keys) - 1)
            for part in (chosen, in_form(chosen, is_bits=True)):
                assert bits.positions_of(part) == plain.positions_of(part) == there
        missing = next(key for key in range(len(keys) + 1) if key not in keys)
        with pytest.raises(ValueError, match="no position"):
            bits.positions_of(RowSet((missing,)))


@given(keys=key_sets().filter(bool), delta=st.integers(-(2**40), 2**40))
def test_moves_in_both_forms(keys: set[int], delta: int) -> None:
    with bits_of_any_size():
        bits = in_form(RowSet(keys), is_bits=True)
        if min(keys) + delta < 0 or max(keys) + delta >= KEY_STOP:
            with pytest.raises(ValueError, match="leaves the key space"):
                bits.offset(delta)
        else:
            assert list(bits.offset(delta)) == [key + delta for key in sorted(keys)]
        if max(keys) < 2**62:
            shifts = RowSetShiftData.from_shifts([(min(keys), max(keys), 5)])
            assert list(shifts.apply(bits)) == [key + 5 for key in sorted(keys)]
            assert shifts.unapply(shifts.apply(bits)) == bits
            assert list(shifts.restrict(bits)) == [(min(keys), max(keys), 5)]
        mirrored = bits.mirror(KEY_STOP)
        assert list(mirrored) == [KEY_STOP - 1 - key for key in sorted(keys, reverse=True)]


CONTENTS = {
    "array": np.arange(0, STRETCH, 97),
    "bitmap": np.flatnonzero(np.arange(STRETCH) % 3),
    "runs": np.flatnonzero(np.arange(STRETCH) % 1000 > 300),
    "one key": np.array((STRETCH - 1,)),
    "all keys": np.arange(STRETCH),
}


@pytest.mark.further
@given(
    contents=st.dictionaries(
        st.integers(0, 12), st.sampled_from(sorted(CONTENTS)), min_size=4, max_size=8
    ),
    touched=st.lists(
        st.tuples(st.integers(0, 13 * STRETCH - 1), st.integers(0, STRETCH + 9)), max_size=6
    ),
    gone=st.lists(st.integers(0, 12), max_size=2),
)
def test_a_change_of_a_few_containers_leaves_the_others(
    contents: dict[int, str], touched: list[tuple[int, int]], gone: list[int]
) -> None:
    members = [high * STRETCH + CONTENTS[name] for high, name in sorted(contents.items())]
    keys = np.concatenate(members)
    spans = [*touched, *((high * STRETCH, STRETCH - 1) for high in gone)]
    other = RowSet.empty()
    for first, more in spans:
        other |= RowSet.of_range(first, first + more)
    was = bit_sets.CONTAINERS_MANY, bit_sets.TOUCHED_DIVISOR
    bit_sets.CONTAINERS_MANY, bit_sets.TOUCHED_DIVISOR = 1, 1
    try:
        with bits_of_any_size():
            rows = BitRowSet.of_bits(Bits(portable.of_ranges(RowSet(keys).range_list)), 0)
            results = [
                operation(rows, other) for operation in (operator.or_, operator.sub, operator.xor)
            ]
    finally:
        bit_sets.CONTAINERS_MANY, bit_sets.TOUCHED_DIVISOR = was
    more = other.to_numpy()
    for result, expected in zip(
        results,
        (np.union1d(keys, more), np.setdiff1d(keys, more), np.setxor1d(keys, more)),
        strict=True,
    ):
        assert np.array_equal(result.to_numpy(), expected)
        assert result == RowSet(expected)
        places = np.arange(0, len(expected), 1 + len(expected) // 50)
        assert result.select_many(places).tolist() == expected[places].tolist()
        assert result.rank_many(expected[places]).tolist() == places.tolist()
        assert result.contains_many(expected[places]).all()
    assert np.array_equal(rows.to_numpy(), keys)


@given(keys=key_sets())
def test_the_wire_does_not_know_the_form(keys: set[int]) -> None:
    plain = RowSet(keys)
    with bits_of_any_size():
        encoded = encode_row_set(in_form(plain, is_bits=True))
    assert encoded == encode_row_set(plain)
    assert decode_row_set(encoded) == plain


@given(
    seed=st.integers(0, 2**32),
    count=st.integers(set_forms.RANGES_MIN // 2, 3 * set_forms.RANGES_MIN),
    spread=st.sampled_from((2, 3, 9, 40)),
)
def test_large_sets_choose_their_form_and_agree(seed: int, count: int, spread: int) -> None:
    """The real borders; operands may end up on either side."""
    draw = np.random.default_rng(seed)
    keys = [np.unique(draw.integers(0, spread * count, count)) for _ in range(2)]
    a, b = (RowSet.from_sorted_keys(each) for each in keys)
    few = RowSet(draw.choice(spread * count, 20).tolist())
    for operation, expected in zip(
        OPERATIONS,
        (np.union1d(*keys), np.intersect1d(*keys), np.setdiff1d(*keys), np.setxor1d(*keys)),
        strict=True,
    ):
        result = operation(a, b)
        assert np.array_equal(result.to_numpy(), expected)
        ranges = RowSet.from_ranges(*result.range_list)
        assert ranges == result
        assert encode_row_set(ranges) == encode_row_set(result)
        changed = operation(result, few)
        assert changed == operation(ranges, few)
        assert changed.range_count == len(changed.firsts)
