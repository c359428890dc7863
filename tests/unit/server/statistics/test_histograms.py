"""Counts of durations by fixed bounds, against a sorted list of what was observed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barrage.histogram import BOUNDS_NS, BOUNDS_S, Histogram
from tests.helpers.examples import examples

DURATIONS = st.one_of(
    st.integers(0, 10**12),
    st.sampled_from(BOUNDS_NS),
    st.sampled_from(BOUNDS_NS).map(lambda bound: bound + 1),
)


@examples(100)
@given(st.lists(DURATIONS, max_size=40), st.floats(0.01, 1.0))
def test_a_histogram_says_what_a_list_would(observed, share):
    histogram = Histogram()
    for took_ns in observed:
        histogram.observe(took_ns)
    reading = histogram.taken()
    assert reading.count == len(observed)
    assert reading.total_ns == sum(observed)
    assert reading.cumulative == [
        *(sum(each <= bound for each in observed) for bound in BOUNDS_NS),
        len(observed),
    ]
    told = reading.quantile_s(share)
    if not observed:
        assert told is None
        return
    at_least = sorted(observed)[max(0, -int(-share * len(observed) // 1) - 1)]
    assert at_least / 1e9 <= told <= max(observed) / 1e9


def test_bounds_rise_and_many_are_counted_at_once():
    assert list(BOUNDS_S) == sorted(set(BOUNDS_S))
    assert (BOUNDS_S[0], BOUNDS_S[-1]) == (1e-4, 50.0)
    histogram = Histogram()
    histogram.observe(-5, 3)
    histogram.observe(10**15, 2)
    reading = histogram.taken()
    assert (reading.counts[0], reading.counts[-1], reading.total_ns) == (3, 2, 2 * 10**15)
    assert reading.quantile_s(0.99) == 10**6, "beyond all bounds it is the longest"
