"""Compressed row sets are what they were made of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.rowset import RowSet
from barrage.rowset.resting import SMALL_RANGES_MAX, RestingRows
from tests.helpers.strategies_rows import cell_pairs, key_sets

KEY_MAX = 2**63 - 1


def check(rows: RowSet) -> RestingRows:
    resting = RestingRows(rows)
    again = resting.rows()
    assert again == rows
    assert again.is_bits == rows.is_bits
    if not rows.is_bits and rows.range_count > SMALL_RANGES_MAX:
        assert (again.firsts is again.lasts) == (rows.firsts is rows.lasts)
    assert resting.size == rows.size
    assert resting.nbytes <= rows.bytes_max + 1000
    return resting


@given(keys=key_sets(), pair=cell_pairs())
def test_small_and_wide_sets_come_back(keys: set[int], pair) -> None:
    check(RowSet(keys))
    for cells in pair:
        check(cells.row_set())


@given(
    gaps=st.lists(st.integers(2, 2**40), min_size=SMALL_RANGES_MAX, max_size=200),
    lengths=st.integers(0, 2**40),
    is_single=st.booleans(),
)
def test_many_ranges_come_back(gaps: list[int], lengths: int, is_single: bool) -> None:
    steps = np.array(gaps, dtype=np.int64)
    width = 0 if is_single else lengths
    firsts = np.cumsum(steps + width)
    lasts = firsts + (0 if is_single else width)
    check(RowSet.from_ranges(firsts, lasts))


@pytest.mark.parametrize("count", [0, 1, SMALL_RANGES_MAX, SMALL_RANGES_MAX + 1, 10_000])
def test_extremes_come_back(count: int) -> None:
    ends = RowSet([0, KEY_MAX])
    check(RowSet(range(5, 5 + 3 * count, 3)) | ends)
    check(RowSet.from_ranges(np.arange(count) * 10, np.arange(count) * 10 + 3) | ends)


def test_a_part_does_not_keep_the_whole() -> None:
    rows = RowSet(range(0, 300_000, 3))
    part = RestingRows(rows.clip(0, 30))
    assert part.rows().firsts.base is None or part.rows().firsts.base.size < 100


def test_what_engines_hold_compresses() -> None:
    """Bytes per row, of a filtered, a freshly sorted and a churned sorted table."""
    count = 100_000
    draw = np.random.default_rng(5)
    sorted_keys = (1 << 40) + 64 * np.arange(count)
    churned = np.concatenate((sorted_keys[draw.random(count) < 0.8], sorted_keys[::5] + 32))
    for keys, bytes_per_row in (
        (np.flatnonzero(draw.random(2 * count) < 0.5), 0.5),
        (sorted_keys, 0.01),
        (churned, 0.7),
    ):
        rows = RowSet.from_keys(keys)
        assert check(rows).nbytes < bytes_per_row * rows.size
