"""Replicas that begin with rows somebody kept, and rows that are numbered anew."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.errors import SchemaError
from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData

SCHEMA = pa.schema([("x", pa.int64()), ("s", pa.string()), ("y", pa.float64())])
EMPTY = RowSet.empty()
ROWS = pa.table({"y": [1.5, 2.5, 3.5], "x": [1, 2, 3]})
NOTHING = tuple(pa.array([], field.type) for field in SCHEMA)


def full(added, cells, *, removed=EMPTY, shifts=()):
    return FullUpdate(
        first_step=1, last_step=1, is_snapshot=False, effective_viewport=None,
        is_effective_reverse=False, effective_columns=None, table_size=0, added_columns=cells,
        modified_columns=NOTHING, removed_keys_pre=removed,
        shifts=RowSetShiftData.from_shifts(shifts), added_keys_post=added,
        included_keys_post=None, modified_keys_post=(EMPTY,) * 3,
    )  # fmt: skip


def test_kept_rows_are_numbered_and_take_deltas():
    replica = FullReplica.holding(SCHEMA, (0, 2), ROWS)
    assert replica.is_whole
    assert replica.row_keys == RowSet.parse("0-2")
    assert replica.to_arrow().to_pydict() == {"x": [1, 2, 3], "y": [1.5, 2.5, 3.5]}
    cells = (pa.array([9]), NOTHING[1], pa.array([9.5]))
    replica.apply(full(RowSet.parse("7"), cells, removed=RowSet.parse("1"), shifts=[(2, 2, 4)]))
    replica.validate()
    assert replica.row_keys == RowSet.parse("0,6-7")
    assert replica.to_arrow().column("x").to_pylist() == [1, 3, 9]


def test_relabelling_numbers_rows_and_tells_their_keys():
    replica = FullReplica.holding(SCHEMA, None, ROWS.append_column("s", pa.array(list("abc"))))
    replica.apply(full(EMPTY, NOTHING, shifts=[(1, 1, 9), (2, 2, 18)]))
    assert replica.relabel() == RowSet.parse("0,10,20")
    assert replica.row_keys == replica.present_keys == RowSet.parse("0-2")
    assert replica.is_whole
    replica.validate()
    assert replica.to_arrow().column("s").to_pylist() == ["a", "b", "c"]


def test_a_replica_without_state_is_not_whole():
    assert not FullReplica(SCHEMA).is_whole
    assert not ViewReplica(SCHEMA).is_whole


def test_a_kept_view_takes_deltas():
    replica = ViewReplica.holding(SCHEMA, (0, 2), ROWS, table_size=50)
    assert replica.is_whole
    assert replica.table_size == 50
    replica.apply(
        ViewUpdate(
            first_step=1, last_step=1, is_snapshot=False, effective_viewport=None,
            is_effective_reverse=False, effective_columns=None, table_size=51,
            added_columns=(pa.array([9]), NOTHING[1], pa.array([9.5])), modified_columns=NOTHING,
            removed_positions=RowSet.parse("0"), added_positions=RowSet.parse("2"),
            modified_positions=(EMPTY,) * 3,
        )
    )  # fmt: skip
    assert replica.to_arrow().column("x").to_pylist() == [2, 3, 9]
    assert replica.table_size == 51


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (ROWS.drop_columns("x"), "the rows have the columns y, the subscription has x, y"),
        (ROWS.rename_columns(["y", "z"]), "the rows have the columns y, z"),
        (pa.table({}), "the rows have the columns none"),
        (ROWS.set_column(1, "x", pa.array(list("abc"))), "column 'x' of the rows is string"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, text):
    with pytest.raises(SchemaError, match=text):
        FullReplica.holding(SCHEMA, (0, 2), rows)


def test_types_are_brought_into_line():
    rows = pa.table({"x": pa.array([1], pa.int8()), "y": pa.array([2], pa.int32())})
    assert FullReplica.holding(SCHEMA, (0, 2), rows).to_arrow().schema.types == [
        pa.int64(), pa.float64(),
    ]  # fmt: skip


def test_no_rows_are_rows_too():
    replica = FullReplica.holding(SCHEMA, (0, 2), ROWS.slice(0, 0))
    assert len(replica) == 0
    assert replica.relabel().is_empty
