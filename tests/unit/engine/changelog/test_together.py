"""Numbers that are equal, brought together; the ways for one number agree with those for many."""

from __future__ import annotations

import numpy as np
import pytest

from barrage.engine.changelog.together import distinct, distinct_and_index, runs_of_equals


@pytest.mark.parametrize("values", [[], [7], [3, 1, 3, 2], [5, 5], [-3, 9, -3]])
def test_distinct_values_ascend(values: list[int]) -> None:
    assert distinct(np.array(values, dtype=np.int64)).tolist() == sorted(set(values))


@pytest.mark.parametrize("values", [[], [7], [3, 1, 3, 2], [5, 5], [0, 40, 0]])
def test_the_index_leads_back_to_the_values(values: list[int]) -> None:
    once, index = distinct_and_index(np.array(values, dtype=np.int64))
    assert once.tolist() == sorted(set(values))
    assert once[index].tolist() == values


@pytest.mark.parametrize(
    ("pairs", "runs"),
    [
        ([(4, 2)], [[(4, 2)]]),
        ([(2, 1), (1, 9), (2, 1)], [[(1, 9)], [(2, 1), (2, 1)]]),
        ([(1, 2), (1, 1)], [[(1, 1)], [(1, 2)]]),
    ],
)
def test_equal_pairs_stand_in_one_run(
    pairs: list[tuple[int, int]], runs: list[list[tuple[int, int]]]
) -> None:
    major, minor = np.array(pairs, dtype=np.int64).T
    order, starts = runs_of_equals(major, minor)
    stops = [*starts[1:].tolist(), len(pairs)]
    found = [
        [pairs[place] for place in order[start:stop]]
        for start, stop in zip(starts.tolist(), stops, strict=True)
    ]
    assert found == runs
