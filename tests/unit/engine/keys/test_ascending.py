"""Entries taken out of arrays, put in and looked up, against numpy's plain ways."""

from __future__ import annotations

import numpy as np
import pytest

from barrage.engine.keys import ascending
from barrage.engine.keys.ascending import (
    distinct,
    in_order,
    is_among,
    places_in,
    replaced,
    spans,
    without,
)


@pytest.fixture(params=[0, 4, 1000])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are replaced by masks, by pieces, or by what is cheaper."""
    monkeypatch.setattr(ascending, "FEW", request.param)
    monkeypatch.setattr(ascending, "SORTED_MIN", 3)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", range(40))
def test_taking_out_and_putting_in_is_deleting_and_inserting(seed: int) -> None:
    generator = np.random.default_rng(seed)
    size = int(generator.integers(0, 30))
    values = np.cumsum(generator.integers(1, 9, size))
    left_out = np.flatnonzero(generator.random(size) < generator.choice([0.0, 0.1, 0.6, 1.0]))
    kept = np.delete(values, left_out)
    gaps = np.sort(generator.integers(0, len(kept) + 1, generator.integers(0, 9)))
    entries = generator.integers(-9, 0, len(gaps))
    before = values.copy()
    result = replaced(values, left_out, gaps, entries=entries)
    assert result.tolist() == np.insert(kept, gaps, entries).tolist()
    remaining = without(values, left_out)
    assert len(remaining) == len(kept)
    assert remaining[np.arange(len(kept))].tolist() == kept.tolist()
    assert values.tolist() == before.tolist()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("span", [40, 10**12])
@pytest.mark.parametrize("seed", range(10))
def test_lookups_are_those_of_numpy(seed: int, span: int) -> None:
    generator = np.random.default_rng(seed)
    numbers = generator.integers(-span, span, generator.integers(0, 40))
    known = np.unique(generator.integers(-span, span, generator.integers(0, 40)))
    wanted = np.concatenate((numbers, generator.permutation(known)))
    assert places_in(known, wanted).tolist() == np.searchsorted(known, wanted).tolist()
    assert is_among(wanted, known).tolist() == np.isin(wanted, known).tolist()
    assert distinct(wanted).tolist() == np.unique(wanted).tolist()
    shuffled = generator.permutation(known)
    ordered, places = in_order(shuffled)
    assert ordered.tolist() == known.tolist()
    assert (ordered if places is None else ordered[places]).tolist() == shuffled.tolist()


def test_spans_may_be_empty() -> None:
    starts, counts = np.array([5, 9, 2]), np.array([2, 0, 3])
    assert spans(starts, counts).tolist() == [5, 6, 2, 3, 4]
