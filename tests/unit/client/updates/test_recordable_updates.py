"""Updates in the form in which a journal on the client's side takes them."""

from __future__ import annotations

import dataclasses

import pyarrow as pa

from barrage.client.updates.update import replacing_update
from barrage.journal import ChangeTracker
from barrage.rowset import RowSet

ROWS = pa.table({"s": ["a", "b"], "n": [1, 2]})
WHOLE = replacing_update(
    ROWS, row_keys=RowSet.from_keys([3, 8]), table_size=2, steps=(4, 4), source_time_ns=7
)


def test_a_whole_state_is_a_snapshot():
    told = WHOLE.recordable()
    assert told.is_snapshot
    assert told.removed_keys_pre.is_empty
    assert told.source_time_ns == 7
    change = ChangeTracker(ROWS.schema).apply(told, step=1)
    assert change is not None
    assert len(change.update.added_keys_post) == 2


def test_cells_of_columns_that_did_not_change_are_none():
    tracker = ChangeTracker(ROWS.schema)
    tracker.apply(WHOLE.recordable(), step=1)
    row = RowSet.from_keys([8])
    update = dataclasses.replace(
        WHOLE,
        is_snapshot=False,
        is_replacement=False,
        added_rows=RowSet.empty(),
        modified_rows={"n": row},
        _added=ROWS.slice(0, 0),
        _modified={"n": pa.array([20])},
    )
    told = update.recordable()
    assert [len(cells) for cells in told.modified_columns] == [0, 1]
    assert told.modified_keys_post == (RowSet.empty(), row)
    assert tracker.apply(told, step=2) is not None
    assert tracker.state()[1].to_pylist() == [{"s": "a", "n": 1}, {"s": "b", "n": 20}]
