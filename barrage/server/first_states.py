"""Changes a journal needs that no cycle has made: a table as it stands, and nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from barrage.engine.source import SourceTable


def whole_change(table: SourceTable, step: int) -> TableChange:
    """All rows of a table as added by one step: how the history of one begins that has rows."""
    empty = RowSet.empty()
    update = TableUpdate(
        first_step=step,
        last_step=step,
        removed_keys_pre=empty,
        shifts=RowSetShiftData.empty(),
        added_keys_post=table.row_keys,
        modified_keys_post=(empty,) * len(table.schema),
    )
    none = table.read(empty)
    return TableChange(
        update=update,
        removed=none,
        modified_keys_post=empty,
        before=none,
        after=none,
        added=table.read(table.row_keys),
    )


def empty_change(table: SourceTable, step: int) -> TableChange:
    """No change of the rows: what carries the position of a producer whose write made none."""
    none = table.read(RowSet.empty())
    return TableChange(
        update=TableUpdate.nothing(step=step, column_count=len(table.schema)),
        removed=none,
        modified_keys_post=RowSet.empty(),
        before=none,
        after=none,
        added=none,
    )
