"""When a set is kept as bits, when it goes back, and what it costs."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap64

import barrage
from barrage.rowset import RowSet, set_forms
from barrage.rowset.bit_row_set import BitRowSet
from barrage.rowset.bits import Bits

MANY = set_forms.RANGES_MIN
BACK = set_forms.RANGES_BACK
KEY_MAX = 2**63 - 1


def pairs(count: int) -> RowSet:
    """So many ranges of two keys, with gaps of two."""
    firsts = np.arange(count) * 4
    return RowSet.from_ranges(firsts, firsts + 1)


def half_full(count: int = 100_000, seed: int = 1) -> RowSet:
    return RowSet.from_keys(np.random.default_rng(seed).integers(0, 2 * count, count))


@pytest.mark.parametrize("count", [MANY - 1, MANY])
def test_a_set_goes_to_bits_at_so_many_ranges(count: int) -> None:
    rows = pairs(count)
    assert rows.is_bits == (count == MANY)
    keys = rows.to_numpy()
    for same in (RowSet.from_keys(keys[::-1]), RowSet.from_sorted_keys(keys)):
        assert same == rows
        assert same.is_bits == rows.is_bits


@pytest.mark.parametrize("step", [2, 3, 50])
def test_single_keys_go_to_bits_where_these_are_four_times_smaller(step: int) -> None:
    rows = RowSet.from_sorted_keys(np.arange(20 * MANY) * step)
    assert rows.is_bits == (step < 50)


def test_sets_that_bits_do_not_make_four_times_smaller_stay_ranges() -> None:
    sort_keys = (1 << 40) + 64 * np.arange(100_000)
    assert not RowSet.from_sorted_keys(sort_keys).is_bits
    firsts = np.arange(100_000) * 1000
    assert not RowSet.from_ranges(firsts, firsts + 100).is_bits
    assert not RowSet.of_range(0, KEY_MAX).is_bits
    assert not RowSet.from_keys(np.random.default_rng(1).integers(0, KEY_MAX, 100_000)).is_bits
    assert RowSet.from_ranges(firsts // 50, firsts // 50 + 10).is_bits


def test_long_ranges_and_far_keys_are_counted() -> None:
    """A container for each 65,536 keys of a range, a bitmap for each 2^32 keys."""
    firsts = np.arange(MANY) * 2**22
    assert not RowSet.from_ranges(firsts, firsts + 2**21).is_bits
    clusters = (np.arange(64)[:, np.newaxis] << 33) + np.arange(0, 8 * MANY, 2)
    assert RowSet.from_sorted_keys(clusters.reshape(-1)).is_bits
    apart = (np.arange(MANY // 2)[:, np.newaxis] << 33) + np.arange(0, 200, 2)
    assert not RowSet.from_sorted_keys(apart.reshape(-1)).is_bits


@pytest.mark.parametrize("left", [BACK, BACK - 1])
def test_a_set_goes_back_below_half_as_many_ranges(left: int) -> None:
    """At once where it has so few keys, otherwise when it is used again."""
    kept = pairs(MANY) - pairs(MANY - left)
    assert (kept.range_count, kept.is_bits) == (left, True)
    used = kept | RowSet((kept.last + 1,))
    assert (used.range_count, used.is_bits) == (left, left == BACK)
    fewer = pairs(MANY) - pairs(MANY - BACK // 2) - RowSet((kept.last,))
    assert (fewer.size, fewer.is_bits) == (BACK - 1, False)
    assert not (fewer | RowSet((1,))).is_bits


def test_a_set_near_the_border_does_not_go_to_and_fro() -> None:
    rows, few = pairs(MANY), RowSet((0, 1, 4, 5))
    for _ in range(3):
        rows = rows - few
        assert rows.is_bits
        rows = rows | few
    short = pairs(MANY - 1)
    for _ in range(3):
        short = (short | few) - few
        assert not short.is_bits


def test_a_set_of_few_ranges_goes_back_when_it_is_used_again() -> None:
    rows = half_full()
    filled = rows | RowSet.of_span(1000, 200_000)
    assert filled.is_bits
    assert filled.range_count < BACK
    changed = filled - RowSet((500, 150_000))
    assert not changed.is_bits
    assert changed.size == filled.size - (500 in filled) - 1
    assert filled - RowSet((500, 150_000)) == changed


@pytest.mark.parametrize("step", [1 << 11, 1 << 15])
def test_a_sparse_rest_goes_back_when_ranges_are_not_twice_as_large(step: int) -> None:
    keys = np.arange(MANY) * step
    rest = BitRowSet.of_bits(Bits.of_ranges((keys, keys)), 0)
    assert rest.is_bits
    assert (rest - RowSet((0, 5))).is_bits == (step == 1 << 11)


def test_ranges_are_counted_only_when_they_may_be_few(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    count = BitRowSet.range_count.fget
    monkeypatch.setattr(
        BitRowSet, "range_count", property(lambda rows: counted.append(1) or count(rows))
    )
    rows = half_full()
    for key in range(1, 400, 2):
        rows = (rows | RowSet((key, key + 200))) - RowSet((key + 100, key + 300))
    assert rows.is_bits
    assert not counted


def test_appending_goes_to_bits_when_the_arrays_are_copied_anyway() -> None:
    rows = pairs(MANY - 10)
    for _ in range(20):
        rows |= RowSet.of_range(rows.last + 3, rows.last + 4)
    assert rows.is_bits
    assert rows == pairs(MANY + 10)


def test_ranges_that_do_not_pay_are_looked_at_now_and_then_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    pays = set_forms.pays
    monkeypatch.setattr(set_forms, "pays", lambda ranges: looks.append(1) or pays(ranges))
    rows = RowSet.from_sorted_keys(64 * np.arange(100_000))
    del looks[:]
    for key in range(2 * set_forms.STEPS_BETWEEN + 2):
        rows = rows - RowSet((64 * 50 * key + 640, 64 * 50 * key + 704, 64 * 50 * key + 1280))
    assert len(looks) == 2


@pytest.mark.parametrize("shape", ["half full", "clusters"])
def test_memory_is_that_of_the_serialized_bitmap(shape: str) -> None:
    made = half_full()
    if shape == "clusters":
        firsts = np.arange(0, 1_000_000, 20)
        made = RowSet.from_ranges(firsts, firsts + 10)
    serialized = len(BitMap64(made.to_numpy().tolist()).serialize())
    made = RowSet.from_ranges(*made.range_list)
    assert made.is_bits
    assert made.nbytes <= 1.5 * serialized
    result = made - RowSet((0, 1000))
    assert result.nbytes <= 1.5 * serialized
    result.rank(1000)
    assert result.nbytes <= 1.5 * serialized
    result.rank_many([1000])
    assert result.nbytes > 1.5 * serialized
    assert result.packed().nbytes <= 1.5 * serialized


def test_the_bound_on_bytes_never_changes() -> None:
    rows = half_full()
    bound = rows.bytes_max
    rows.rank(10)
    rows.to_numpy()
    rows | half_full(seed=2)
    assert rows.bytes_max == bound
    assert rows.nbytes <= bound
    assert RowSet((1, 2, 5)).bytes_max == set_forms.OBJECT_BYTES + 48
    assert RowSet(range(0, 100, 5)).bytes_max == set_forms.OBJECT_BYTES + 8 * 20


def test_what_is_shown_cannot_be_written_to() -> None:
    rows = half_full()
    for shown in (rows.firsts, rows.lasts, rows.to_numpy()):
        with pytest.raises(ValueError, match="read-only"):
            shown[0] = 1
    assert rows == half_full()


def test_threads_that_use_a_set_at_once_see_the_same() -> None:
    """Forms made on first use are made by whoever comes first, or by several."""
    wrong: list[str] = []
    for seed in range(20):
        rows, other = half_full(20_000, seed), half_full(20_000, seed + 100)
        keys = rows.to_numpy()
        plain = np.setdiff1d(keys, other.to_numpy())
        rows = RowSet.from_sorted_keys(keys)
        start = threading.Barrier(4)

        def use(number: int, rows=rows, other=other, keys=keys, plain=plain, start=start) -> None:
            start.wait(60)
            if number % 2 and not np.array_equal((rows - other).to_numpy(), plain):
                wrong.append("difference")
            if rows.rank(int(keys[5000])) != 5000 or rows.select(700) != keys[700]:
                wrong.append("lookup")
            if rows.range_count != len(rows.firsts) or rows.first != keys[0]:
                wrong.append("ranges")

        threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong


def test_only_one_module_knows_the_bitmap_library() -> None:
    package = Path(barrage.__file__).parent
    knowing = [file.name for file in package.rglob("*.py") if "import BitMap" in file.read_text()]
    assert knowing == ["bits.py"]


def test_operations_do_not_change_their_operands() -> None:
    """Bitmaps are never written to once a set holds them."""
    a, b = half_full(seed=3), half_full(seed=4)
    before = a.to_numpy().tolist(), b.to_numpy().tolist()
    few = RowSet((1, 3, 5))
    for result in (a | b, a & b, a - b, a ^ b, a | few, a - few, few - a, a.clip(50, 150_000)):
        result.rank(77)
        result | RowSet.of_range(7, 900)
    a.slice(10, 90_000).offset(70_000)
    assert (a.to_numpy().tolist(), b.to_numpy().tolist()) == before


def test_one_key_at_a_time_is_looked_up_in_a_bitmap_of_few_containers() -> None:
    rows = half_full() | RowSet((10**6,))
    keys = rows.to_numpy()
    cost = rows.nbytes
    places = [0, 1, len(keys) // 2, len(keys) - 1]
    assert [rows.select(place) for place in places] == keys[places].tolist()
    assert [rows.rank(key) for key in keys[places].tolist()] == places
    assert [rows.rank(key + 1) for key in keys[places].tolist()] == [each + 1 for each in places]
    assert (rows.rank(0), rows.rank(1), rows.rank(KEY_MAX)) == (0, int(keys[0] == 0), len(keys))
    assert rows.nbytes == cost
    assert rows.rank_many(keys[places]).tolist() == places
    assert rows.nbytes > cost


def test_a_few_changes_to_many_containers_need_no_bitmap() -> None:
    keys = np.unique(np.random.default_rng(3).integers(0, 2**28, 200_000))
    rows = RowSet.from_sorted_keys(keys)
    assert rows.is_bits
    cost = rows.nbytes
    few = RowSet(keys[[0, 5000, -1]].tolist()) | RowSet.of_range(2**28 + 2, 2**28 + 100)
    for changed, expected in (
        (rows | few, np.union1d(keys, few.to_numpy())),
        (rows - few, np.setdiff1d(keys, few.to_numpy())),
        (rows ^ few, np.setxor1d(keys, few.to_numpy())),
    ):
        assert changed.is_bits
        assert abs(changed.nbytes - cost) < 1000
        assert rows.nbytes == cost
        np.testing.assert_array_equal(changed.to_numpy(), expected)
