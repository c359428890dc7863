"""Sets of one range against `set[int]`: every small range with every small set, and both ends of
the key space."""

import operator
import pickle
from itertools import combinations

import numpy as np
import pytest

from barrage.limits import ROW_KEY_MAX
from barrage.rowset import RowSet
from barrage.rowset.bit_row_set import BitRowSet
from barrage.rowset.bits import Bits
from barrage.rowset.one_range import OneRange

UNIVERSE = range(6)
OPERATIONS = [operator.or_, operator.and_, operator.sub, operator.xor]
SETS = [set(keys) for count in range(7) for keys in combinations(UNIVERSE, count)]
SPANS = [(first, last) for first in UNIVERSE for last in UNIVERSE if first <= last]


def as_bits(keys: set[int]) -> RowSet:
    return BitRowSet.of_bits(Bits.of_ranges(RowSet(keys).range_list), 0)


def is_one_range(keys: set[int]) -> bool:
    return bool(keys) and max(keys) - min(keys) + 1 == len(keys)


@pytest.mark.parametrize("shift", [0, ROW_KEY_MAX - 5])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_algebra_with_every_small_set(operation, shift: int) -> None:
    for first, last in SPANS:
        span = RowSet.of_range(first + shift, last + shift)
        for keys in SETS:
            other = RowSet(key + shift for key in keys)
            for left, right in ((span, other), (other, span)):
                result = operation(left, right)
                expected = operation(set(left), set(right))
                assert list(result) == sorted(expected)
                assert isinstance(result, OneRange) == is_one_range(expected)
                assert result == RowSet(expected)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_algebra_with_bits(operation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrage.rowset.set_forms.RANGES_BACK", 1)
    sets = [(keys, as_bits(keys)) for keys in SETS if keys]
    for first, last in SPANS:
        span = RowSet.of_range(first, last)
        for keys, bits in sets:
            for left, right in ((span, bits), (bits, span)):
                assert list(operation(left, right)) == sorted(operation(set(left), set(right)))
            assert (span == bits) == (bits == span) == (set(span) == keys)
            assert span.overlaps(bits) == bits.overlaps(span) == bool(set(span) & keys)
            assert span.contains_all(bits) == (keys <= set(span))


@pytest.mark.parametrize("shift", [0, ROW_KEY_MAX - 5])
def test_relations_and_positions(shift: int) -> None:
    for first, last in SPANS:
        members = list(range(first + shift, last + shift + 1))
        span = RowSet.of_range(members[0], members[-1])
        assert (span.size, list(span), span.to_numpy().tolist()) == (len(members), members, members)
        assert pickle.loads(pickle.dumps(span)) == span
        for keys in SETS:
            other = RowSet(key + shift for key in keys)
            assert (span == other) == (other == span) == (set(members) == set(other))
            assert (span != other) or hash(span) == hash(other)
            assert span.overlaps(other) == other.overlaps(span) == bool(set(members) & set(other))
            assert span.contains_all(other) == (set(other) <= set(members))
            assert other.contains_all(span) == (set(members) <= set(other))
            assert list(span.keys_at(RowSet(keys))) == [
                members[place] for place in sorted(keys) if place < len(members)
            ]
            if set(other) <= set(members):
                assert list(span.positions_of(other)) == [key - members[0] for key in other]
            else:
                with pytest.raises(ValueError, match="no position"):
                    span.positions_of(other)


@pytest.mark.parametrize("shift", [0, ROW_KEY_MAX - 5])
def test_parts_and_moves(shift: int) -> None:
    for first, last in SPANS:
        members = list(range(first + shift, last + shift + 1))
        span = RowSet.of_range(members[0], members[-1])
        for low in range(-2, 8):
            for high in range(-2, 8):
                kept = [key for key in members if low + shift <= key <= high + shift]
                assert list(span.clip(low + shift, high + shift)) == kept
                assert list(span.slice(low, high)) == members[max(low, 0) : max(high, 0)]
        probes = [0, *range(max(shift - 2, 0), min(shift + 8, ROW_KEY_MAX + 1))]
        ranks = [sum(key < probe for key in members) for probe in probes]
        assert [span.rank(probe) for probe in probes] == ranks
        assert span.rank_many(probes).tolist() == ranks
        assert span.contains_many(probes).tolist() == [probe in members for probe in probes]
        assert [probe in span for probe in probes] == [probe in members for probe in probes]
        assert list(span.offset(-first)) == [key - first for key in members]
        mirrored = [members[-1] - key for key in reversed(members)]
        assert list(span.mirror(members[-1] + 1)) == mirrored


def test_numbers_of_numpy_become_integers_of_python() -> None:
    """Whose sums do not wrap at 2^63."""
    span = RowSet.of_range(np.int64(3), np.int64(ROW_KEY_MAX))
    two, high = np.int64(2), np.int64(ROW_KEY_MAX)
    cut = RowSet.of_range(0, 10)
    made = [span, span.clip(two, high), cut.offset(two), cut.mirror(high), cut.slice(two, high)]
    made += [cut - RowSet.of_range(np.int64(9), high), RowSet.from_keys(np.arange(5))]
    for rows in made:
        assert isinstance(rows, OneRange)
        assert (type(rows.first), type(rows.last), type(rows.size)) == (int, int, int)
    assert (span.size, span.rank(ROW_KEY_MAX)) == (2**63 - 3, ROW_KEY_MAX - 3)


def test_refusals() -> None:
    span = RowSet.of_range(3, 5)
    for place in (-1, 3):
        with pytest.raises(IndexError):
            span.select(place)
        with pytest.raises(IndexError):
            span.select_many([place])
    for delta in (-4, ROW_KEY_MAX - 4):
        with pytest.raises(ValueError, match="leaves the key space"):
            span.offset(delta)
    for size in (5, ROW_KEY_MAX + 2):
        with pytest.raises(ValueError, match="cannot be mirrored"):
            span.mirror(size)
    assert "3" not in span


def test_its_arrays_are_read_only_and_shared_where_it_is_one_key() -> None:
    firsts, lasts = RowSet.of_range(3, 5).range_list
    assert (firsts.tolist(), lasts.tolist()) == ([3], [5])
    with pytest.raises(ValueError, match="read-only"):
        firsts[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        RowSet.of_range(0, 100_000).to_numpy()[0] = 1
    single = RowSet.of_range(7, 7)
    assert single.firsts is single.lasts


@pytest.mark.parametrize("count", [1, 2**15 - 1, 2**15, 2**15 + 1, 3 * 2**15 + 7])
@pytest.mark.parametrize("first", [0, 5, ROW_KEY_MAX - 200_000])
def test_all_keys_across_the_blocks_they_are_made_in(first: int, count: int) -> None:
    keys = RowSet.of_range(first, first + count - 1).to_numpy()
    np.testing.assert_array_equal(keys, np.arange(first, first + count, dtype=np.int64))
    last = RowSet.of_range(ROW_KEY_MAX - count + 1, ROW_KEY_MAX).to_numpy()
    assert (int(last[0]), int(last[-1])) == (ROW_KEY_MAX - count + 1, ROW_KEY_MAX)


def test_the_whole_key_space() -> None:
    whole = RowSet.of_range(0, ROW_KEY_MAX)
    assert whole.size == 2**63
    assert (whole.rank(ROW_KEY_MAX), whole.select(ROW_KEY_MAX)) == (ROW_KEY_MAX, ROW_KEY_MAX)
    assert whole - RowSet((0, 5, ROW_KEY_MAX)) == RowSet.from_ranges([1, 6], [4, ROW_KEY_MAX - 1])
    assert whole | RowSet((1, 3)) == whole
    assert (whole - RowSet.of_range(1, 2)) | RowSet.of_range(1, 2) == whole
