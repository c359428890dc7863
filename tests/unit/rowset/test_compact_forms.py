"""What set operations touch and what form they leave: neither may change by leaps with the size of
the smaller set."""

from __future__ import annotations

import numpy as np
import pytest

from barrage.rowset import RowSet, arrays

KEYS = 100_000

SHAPES = {
    "single keys": RowSet.from_sorted_keys(np.arange(KEYS) * 3),
    "ranges": RowSet.from_ranges(np.arange(KEYS) * 10, np.arange(KEYS) * 10 + 4),
}


class Lookups:
    """Stands for numpy in the module of range arithmetic, and counts what is looked up by binary
    search: the one thing there that costs more than a copy."""

    def __init__(self) -> None:
        self.count = 0

    def __getattr__(self, name: str):
        return getattr(np, name)

    def searchsorted(self, where, what, side: str = "left"):
        self.count += np.size(what)
        return np.searchsorted(where, what, side=side)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Lookups:
    counted = Lookups()
    monkeypatch.setattr(arrays, "np", counted)
    return counted


def few_of(rows: RowSet, count: int) -> RowSet:
    places = np.linspace(0, rows.size - 1, count).astype(np.int64)
    return RowSet.from_sorted_keys(rows.select_many(places))


@pytest.mark.parametrize("shape", list(SHAPES))
@pytest.mark.parametrize("count", [1, 511, 512, 513, 1000, 4000])
def test_changing_a_large_set_by_a_few_keys_looks_up_only_those(
    lookups: Lookups, shape: str, count: int
) -> None:
    large = SHAPES[shape]
    few = few_of(large, count)
    lookups.count = 0
    rest = large - few
    assert lookups.count <= 16 * count + 16
    lookups.count = 0
    whole = rest | few
    assert lookups.count <= 16 * count + 16
    assert whole == large
    assert rest.size == large.size - count
    assert (large & few) == few
    assert (few - rest) == few


@pytest.mark.parametrize("count", [1, 513, 20_000, KEYS])
def test_a_union_of_overlapping_single_keys_stays_compact(count: int) -> None:
    """Half of the smaller set is in the larger one, the other half between its keys."""
    large = RowSet.from_sorted_keys(np.arange(KEYS) * 1000)
    few = few_of(large, count)
    union = large | (few | few.offset(2))
    assert union.size == KEYS + count
    assert union.firsts is union.lasts
    assert union.nbytes == 8 * union.size


def test_small_overlapping_single_keys_stay_compact() -> None:
    union = RowSet(range(0, 100, 5)) | RowSet(range(0, 100, 10))
    assert union.firsts is union.lasts
    assert union == RowSet(range(0, 100, 5))


@pytest.mark.parametrize("keys", [[], [4], [4, 4], [4, 4, 5, 5, 6], [1, 1, 3, 5, 5, 6, 9, 9]])
def test_repeated_sorted_keys_become_maximal_ranges(keys: list[int]) -> None:
    firsts, lasts = arrays.from_sorted(np.array(keys, dtype=np.int64))
    assert [*zip(firsts.tolist(), lasts.tolist(), strict=True)] == list(RowSet(keys).ranges())
