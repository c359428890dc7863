"""Merged updates against a plain dict that takes them one by one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from barrage.client.updates.update import relative_update
from barrage.client.updates.update_merge import is_mergeable, merged
from barrage.model.update import FullUpdate
from barrage.rowset import RowSet, RowSetShiftData

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])


@st.composite
def edits(draw):
    """A state, some updates that follow it, and the state after each: key to [x, s]."""
    state = {key: [key, f"s{key}"] for key in draw(st.sets(st.integers(0, 15), max_size=8))}
    start, updates, count = {key: list(row) for key, row in state.items()}, [], 100
    for step in range(1, draw(st.integers(2, 9)) + 1):
        removed = draw(st.sets(st.sampled_from(sorted(state)), max_size=3)) if state else set()
        cells = {key: state[key] for key in removed}
        kept = {key: row for key, row in state.items() if key not in removed}
        # Rows from a place on move up, as they do when rows are put in between.
        place, delta = draw(st.integers(0, 20)), draw(st.integers(0, 3))
        moved = sorted(key for key in kept if key >= place) if delta else []
        shifts = [(moved[0], moved[-1], delta)] if moved else []
        state = {key + delta if key in moved else key: row for key, row in kept.items()}
        free = [key for key in range(40) if key not in state]
        added = sorted(draw(st.sets(st.sampled_from(free), max_size=3)))
        old = sorted(state)
        changed = []
        for column in (0, 1):
            rows = sorted(draw(st.sets(st.sampled_from(old), max_size=3))) if old else []
            for key in rows:
                count += 1
                state[key] = [*state[key]]
                state[key][column] = count if column == 0 else f"s{count}"
            changed.append(rows)
        for key in added:
            count += 1
            state[key] = [count, f"s{count}"]
        updates.append(update_of(step, removed, cells, shifts, added, changed, state))
    return start, updates, state


def update_of(step, removed, cells, shifts, added, changed, state):
    def columns(keys, rows):
        return [
            pa.array([rows[key][0] for key in keys], pa.int64()),
            pa.array([rows[key][1] for key in keys], pa.string()),
        ]

    message = FullUpdate(
        first_step=step,
        last_step=step,
        is_snapshot=False,
        effective_viewport=None,
        is_effective_reverse=False,
        effective_columns=None,
        table_size=len(state),
        added_columns=tuple(columns(added, state)),
        modified_columns=tuple(columns(rows, state)[at] for at, rows in enumerate(changed)),
        source_time_ns=None,
        removed_keys_pre=RowSet(removed),
        shifts=RowSetShiftData.from_shifts(shifts),
        added_keys_post=RowSet(added),
        included_keys_post=None,
        modified_keys_post=tuple(map(RowSet, changed)),
    )
    return relative_update(
        message,
        schema=SCHEMA,
        columns=(0, 1),
        table_size=len(state),
        removed=columns(sorted(removed), cells) if removed else None,
    )


def apply(state, update):
    """What a consumer does; it finds the rows that leave as it knows them."""
    for key, row in zip(update.removed_rows, update.removed.to_pylist(), strict=True):
        assert key in state
        assert row.keys() == {"x", "s"}
        del state[key]
    keys = RowSet(state)
    after = update.shifts.apply(keys)
    state = dict(zip(after, (state[key] for key in keys), strict=True))
    for key, row in zip(update.added_rows, update.added.to_pylist(), strict=True):
        assert key not in state
        state[key] = [row["x"], row["s"]]
    for at, name in enumerate(("x", "s")):
        rows = update.modified_rows.get(name, RowSet.empty())
        for key, value in zip(rows, update.modified.get(name, ()), strict=True):
            assert key not in update.added_rows
            state[key] = [*state[key]]
            state[key][at] = value.as_py()
    return state


@given(edits())
def test_a_merged_update_has_the_effect_of_all(made):
    start, updates, end = made
    assert is_mergeable(updates)
    one = merged(updates)
    assert (one.first_step, one.last_step) == (1, updates[-1].last_step)
    assert apply(dict(start), one) == end
    assert one.schema == SCHEMA
    assert one.added.schema == SCHEMA
