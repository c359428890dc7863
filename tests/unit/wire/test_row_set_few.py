"""The loop for few ranges writes what the vectorised writer writes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from barrage.rowset import RowSet
from barrage.wire.row_sets.row_set_codec import (
    _deltas_of_ranges,
    decode_row_set,
    encode_row_set,
)
from barrage.wire.row_sets.row_set_few import RANGES_FEW_MAX, encode_few
from barrage.wire.row_sets.row_set_writer import write_deltas

GAPS = st.one_of(
    st.integers(1, 5),
    st.integers(120, 135),
    st.integers(32_760, 32_775),
    st.integers(1, 2**33),
)


@given(st.lists(st.tuples(GAPS, GAPS | st.just(0)), max_size=RANGES_FEW_MAX))
def test_few_and_many_write_the_same_bytes(steps):
    firsts, lasts, key = [], [], -1
    for gap, length in steps:
        firsts.append(key + 1 + gap)
        lasts.append(firsts[-1] + length)
        key = lasts[-1]
    rows = RowSet.from_ranges(firsts, lasts)
    encoded = encode_few(firsts, lasts)
    assert encoded == encode_row_set(rows)
    if firsts:
        assert encoded == write_deltas(_deltas_of_ranges(rows))
    assert decode_row_set(encoded) == rows
