"""A replica fed with random updates equals a naive dict of rows, and a view equals a list of
rows."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData, Shift

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string())])
EMPTY = RowSet.empty()


def column_pair(values):
    return (
        pa.array(values, pa.int64()),
        pa.array([None if v % 5 == 0 else f"s{v}" for v in values], pa.string()),
    )


def subset(draw, items):
    return sorted(draw(st.sets(st.sampled_from(items)))) if items else []


def full_update(draw, model, number, *, is_snapshot):
    """A random legal update and its effect on ``model`` (key -> [x, s])."""
    removed = subset(draw, sorted(model))
    for key in removed:
        del model[key]
    shifts = []
    delta = draw(st.integers(-5, 5))
    if model and delta:
        keys = sorted(model)
        cut = draw(st.integers(0, len(keys) - 1))
        block = keys[cut:] if delta > 0 else keys[: cut + 1]
        if block[0] + delta >= 0:
            shifts = [Shift(block[0], block[-1], delta)]
            moved = {key + delta: model.pop(key) for key in block}
            model.update(moved)
    free = [key for key in range(60) if key not in model]
    added = subset(draw, free)
    values = [number * 1000 + index for index in range(len(added))]
    old = sorted(model)
    x_column, s_column = column_pair(values)
    for key, x, s in zip(added, x_column.to_pylist(), s_column.to_pylist(), strict=True):
        model[key] = [x, s]
    modified_rows, modified_values = [], []
    for column in (0, 1):
        keys = subset(draw, old)
        cells = column_pair([number * 7 + key for key in keys])[column]
        for key, cell in zip(keys, cells.to_pylist(), strict=True):
            model[key][column] = cell
        modified_rows.append(RowSet(keys))
        modified_values.append(cells)
    return FullUpdate(
        first_step=number,
        last_step=number,
        is_snapshot=is_snapshot,
        effective_viewport=None,
        is_effective_reverse=False,
        effective_columns=(0, 1) if is_snapshot else None,
        table_size=len(model),
        added_columns=column_pair(values),
        modified_columns=tuple(modified_values),
        removed_keys_pre=RowSet(removed),
        shifts=RowSetShiftData.from_shifts(shifts),
        added_keys_post=RowSet(added),
        included_keys_post=None,
        modified_keys_post=tuple(modified_rows),
    )


@given(st.data())
def test_full_replica_equals_a_dict(data):
    draw = data.draw
    replica, model = FullReplica(SCHEMA), {}
    seen = []
    for number in range(draw(st.integers(1, 8))):
        replica.apply(full_update(draw, model, number, is_snapshot=number == 0))
        replica.validate()
        expected = [list(model[key]) for key in sorted(model)]
        table = replica.to_arrow()
        assert [list(row.values()) for row in table.to_pylist()] == expected
        assert replica.row_keys == RowSet(model)
        seen.append((table, expected))
    for table, expected in seen:
        assert [list(row.values()) for row in table.to_pylist()] == expected


def view_update(draw, model, number, *, is_snapshot):
    """A random legal update of a view and its effect on the list ``model`` of [x, s]."""
    removed = subset(draw, list(range(len(model))))
    kept = [row for index, row in enumerate(model) if index not in set(removed)]
    count = draw(st.integers(0, 6))
    added = subset(draw, list(range(len(kept) + count)))[:count]
    while added and added[-1] >= len(kept) + len(added):
        added.pop()
    values = [number * 1000 + index for index in range(len(added))]
    x_column, s_column = column_pair(values)
    new_rows = iter(zip(x_column.to_pylist(), s_column.to_pylist(), strict=True))
    old_rows = iter(kept)
    model[:] = [
        list(next(new_rows)) if index in added else next(old_rows)
        for index in range(len(kept) + len(added))
    ]
    others = [index for index in range(len(model)) if index not in added]
    modified_rows, modified_values = [], []
    for column in (0, 1):
        positions = subset(draw, others)
        cells = column_pair([number * 7 + position for position in positions])[column]
        for position, cell in zip(positions, cells.to_pylist(), strict=True):
            model[position][column] = cell
        modified_rows.append(RowSet(positions))
        modified_values.append(cells)
    return ViewUpdate(
        first_step=number,
        last_step=number,
        is_snapshot=is_snapshot,
        effective_viewport=RowSet.of_span(0, 50) if is_snapshot else None,
        is_effective_reverse=False,
        effective_columns=(0, 1) if is_snapshot else None,
        table_size=1000 + len(model),
        added_columns=column_pair(values),
        modified_columns=tuple(modified_values),
        removed_positions=RowSet(removed),
        added_positions=RowSet(added),
        modified_positions=tuple(modified_rows),
    )


@given(st.data())
def test_view_replica_equals_a_list(data):
    draw = data.draw
    replica, model = ViewReplica(SCHEMA), []
    for number in range(draw(st.integers(1, 8))):
        replica.apply(view_update(draw, model, number, is_snapshot=number == 0))
        replica.validate()
        assert [list(row.values()) for row in replica.to_arrow().to_pylist()] == model
        assert replica.table_size == 1000 + len(model)
