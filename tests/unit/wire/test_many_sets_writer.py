"""Many row sets written at once are byte for byte those written one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from barrage.rowset import RowSet
from barrage.rowset.many_sets import ManyRowSets
from barrage.wire.row_sets.many_sets_writer import encode_many
from barrage.wire.row_sets.row_set_codec import encode_row_set

EDGES = [0, 1, 2, 126, 127, 128, 129, 255, 32765, 32766, 32767, 32768, 2**31 - 1, 2**31, 2**62]

keys = st.one_of(st.integers(0, 60), st.sampled_from(EDGES), st.integers(0, 2**62))
LENGTHS = [0, 1, 49, 126, 127, 128, 129, 40000]


def united(ranges: list[tuple[int, int]]) -> RowSet:
    """The rows of all ranges, given as first key and rows after it."""
    bounds = np.array(sorted(ranges), dtype=np.int64).reshape(-1, 2)
    return RowSet.from_overlapping(bounds[:, 0].copy(), bounds.sum(axis=1))


row_sets = st.lists(st.tuples(keys, st.sampled_from(LENGTHS)), max_size=6).map(united)


def many(sets: list[RowSet]) -> ManyRowSets:
    none = np.empty(0, dtype=np.int64)
    return ManyRowSets(
        firsts=np.concatenate([none, *(each.firsts for each in sets)]),
        lasts=np.concatenate([none, *(each.lasts for each in sets)]),
        stops=np.cumsum([each.range_count for each in sets], dtype=np.int64),
    )


@given(st.lists(row_sets, max_size=12))
def test_they_are_the_bytes_of_each_alone(sets: list[RowSet]) -> None:
    encoded = encode_many(many(sets))
    for index, rows in enumerate(sets):
        start = int(encoded.starts[index])
        written = encoded.content[start : start + int(encoded.lengths[index])].tobytes()
        assert written == encode_row_set(rows)


@given(st.lists(row_sets, max_size=12), st.data())
def test_sets_can_be_taken_out_again(sets: list[RowSet], data: st.DataObject) -> None:
    found = many(sets)
    assert [found[index] for index in range(len(sets))] == sets
    assert found.sizes.tolist() == [len(rows) for rows in sets]
    which = data.draw(st.lists(st.integers(0, len(sets) - 1), max_size=8)) if sets else []
    picked = found.pick(np.array(which, dtype=np.int64))
    assert [picked[index] for index in range(len(which))] == [sets[index] for index in which]


enclosures = st.tuples(st.integers(0, 5), row_sets, st.integers(0, 5))


@given(st.lists(enclosures, max_size=12))
def test_what_lies_below_and_above_is_added_to_each(
    enclosed: list[tuple[int, RowSet, int]],
) -> None:
    below = np.array([each[0] for each in enclosed], dtype=np.int64)
    inner = [rows.offset(int(low) + 1) for low, (_, rows, _) in zip(below, enclosed, strict=True)]
    above = [
        int(low) + 1 if rows.is_empty else rows.last + 2
        for low, rows in zip(below, inner, strict=True)
    ]
    stops = np.array([at + each[2] for at, each in zip(above, enclosed, strict=True)])
    found = many(inner).enclosed(below, np.array(above, dtype=np.int64), stops.astype(np.int64))
    assert len(found) == len(enclosed)
    for index, rows in enumerate(inner):
        low = RowSet.of_span(0, int(below[index]))
        assert found[index] == low | rows | RowSet.of_span(above[index], int(stops[index]))


def test_a_command_of_bytes_ends_at_127_of_them() -> None:
    for count in (126, 127, 128, 129):
        rows = RowSet.from_sorted_keys(np.arange(0, 2 * count, 2))
        encoded = encode_many(many([rows]))
        assert encoded.content.tobytes() == encode_row_set(rows)
