"""Contiguous views computed together equal the same views computed one by one, by other means."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from barrage.engine.changelog.reader import ARRAY_BYTES_MAX, Stamp, TableReader
from barrage.engine.changelog.span_updates import span_updates
from barrage.engine.changelog.subscription import Shape
from barrage.engine.changelog.view_messages import quiet_view, view_message
from barrage.engine.changelog.viewport_plan import (
    PositionDelta,
    SpanPlan,
    Spans,
    union_of_windows,
)
from barrage.model.coalesce import coalesce
from barrage.model.update import ViewUpdate
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from barrage.rowset.many_sets import ManyRowSets
from tests.helpers.fake_table import FakeTable
from tests.helpers.told import arrays_of_bytes

viewports = st.lists(
    st.builds(
        lambda start, length, is_reverse: Viewport.of(start, start + length, is_reverse=is_reverse),
        st.integers(0, 25),
        st.integers(0, 12),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
columns = st.sampled_from([None, (0, 1, 2), (1,), (), (0, 2)])


def same_values(ours, other) -> bool:
    return [column.to_pylist() for column in ours] == [column.to_pylist() for column in other]


@given(
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 3),
    viewports=viewports,
    choices=st.lists(columns, min_size=12, max_size=12),
    bytes_max=st.sampled_from([0, ARRAY_BYTES_MAX]),
)
def test_views_together_equal_views_alone(seed, steps, viewports, choices, bytes_max) -> None:
    draw = Random(seed)
    table = FakeTable(sorted(draw.sample(range(60), draw.randrange(30))))
    before = table.row_keys
    update = table.random_update(draw)
    for _ in range(steps - 1):
        update = coalesce(update, table.random_update(draw))
    delta = PositionDelta(update, before, table.row_keys)
    reader = TableReader(table)
    stamp = Stamp(first_step=1, last_step=steps, table_size=table.size, source_time_ns=None)
    shapes = [
        Shape.of(choice, viewport, column_count=3, is_key_space=False)
        for choice, viewport in zip(choices, viewports, strict=False)
    ]
    spans = Spans(
        start=np.array([shape.start for shape in shapes]),
        stop=np.array([shape.stop for shape in shapes]),
        is_reverse=np.array([shape.is_reverse for shape in shapes]),
    )
    plan = SpanPlan.of(delta, spans)
    kinds = [(shape.column_indices, shape.is_reverse) for shape in shapes]
    for kind in dict.fromkeys(kinds):
        alike = [i for i, each in enumerate(kinds) if each == kind]
        with arrays_of_bytes(bytes_max):
            together = span_updates(
                reader,
                delta,
                plan.pick(np.array(alike)),
                columns=kind[0],
                is_reverse=kind[1],
                stamp=stamp,
            )
        for number, i in enumerate(alike):
            alone = view_message(reader, delta, shapes[i], stamp=stamp)
            assert alone is not None or not plan.is_moved[i]
            assert_same(
                together.view(number), alone or quiet_view(reader, stamp, is_reverse=kind[1])
            )


def assert_same(ours: ViewUpdate, alone: ViewUpdate) -> None:
    assert ours.is_effective_reverse == alone.is_effective_reverse
    assert ours.removed_positions == alone.removed_positions
    assert ours.added_positions == alone.added_positions
    assert ours.modified_positions == alone.modified_positions
    assert same_values(ours.added_columns, alone.added_columns)
    assert same_values(ours.modified_columns, alone.modified_columns)


windows = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 5)), max_size=9)


@given(members=st.sets(st.integers(0, 45)), windows=windows)
def test_window_sets_are_clipped_and_moved_members(members, windows) -> None:
    rows = RowSet(members)
    starts = np.array([start for start, _, _ in windows], dtype=np.int64)
    stops = np.array([start + length for start, length, _ in windows], dtype=np.int64)
    bases = np.array([max(0, start - under) for start, _, under in windows], dtype=np.int64)
    expected = [
        RowSet(m - base for m in members if start <= m < stop)
        for start, stop, base in zip(starts.tolist(), stops.tolist(), bases.tolist(), strict=True)
    ]
    assert ManyRowSets.of_windows(rows, starts, stops, bases=bases).pieces() == expected
    assert union_of_windows(starts, stops) == RowSet(
        p for start, length, _ in windows for p in range(start, start + length)
    )
