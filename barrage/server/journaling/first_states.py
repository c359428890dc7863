"""What a journal needs that no cycle has made: a table as it stands, and nothing at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from barrage.journal.records.numbering import contiguous
from barrage.journal.records.table_state import TableState
from barrage.model.row_ids import RowIdMap
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from barrage.engine.tables.source import SourceTable


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


def whole_state(table: SourceTable, schema: pa.Schema, *, wall_ns: int) -> TableState:
    """A table as it stands, as the state a history in memory begins with. ``schema`` is that of
    its entries; the rows are numbered in key order."""
    keys = table.row_keys
    fields = [schema.field(index) for index in range(2, len(schema))]
    cells = zip(table.read(keys), fields, strict=True)
    return TableState(
        version=table.changed_step,
        wall_ns=wall_ns,
        ids=RowIdMap.of(keys, np.arange(len(keys), dtype=np.int64)),
        rows=pa.table([contiguous([each], field.type) for each, field in cells], pa.schema(fields)),
        next_offset=len(keys),
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
