"""Answers to one-off snapshot requests (barrage-wire.md section 7.3). Subscriptions get theirs from
the producer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.changelog.reader import TableReader
from barrage.model.update import STATIC_STEP, FullUpdate
from barrage.model.viewport import effective_columns
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table
    from barrage.model.viewport import ColumnSet, Viewport


def snapshot_messages(
    table: Table,
    columns: ColumnSet | None,
    viewport: Viewport | None,
    *,
    step: int,
    is_reverse_echo: bool = False,
) -> list[FullUpdate]:
    """Answer one snapshot request at a cycle boundary: one message, or none when a static table has
    nothing to send.

    ``step`` is the graph's step; a static table is numbered -1 instead. Values are in key order
    also for a reverse viewport, and are views of the table's memory as far as possible, whatever
    the number of rows.
    """
    keys = table.row_keys
    is_nothing = keys.is_empty or (viewport is not None and viewport.positions.is_empty)
    if table.is_static and is_nothing:
        return []
    reader = TableReader(table)
    included = keys if viewport is None else keys.keys_at(viewport.resolve(len(keys)))
    at_step = STATIC_STEP if table.is_static else step
    return [
        FullUpdate(
            first_step=at_step,
            last_step=at_step,
            is_snapshot=True,
            effective_viewport=None if viewport is None else viewport.positions,
            is_effective_reverse=is_reverse_echo if viewport is None else viewport.is_reverse,
            effective_columns=columns,
            table_size=None,
            added_columns=reader.columns_of(
                included, effective_columns(columns, reader.column_count)
            ),
            modified_columns=reader.no_values,
            removed_keys_pre=None,
            shifts=RowSetShiftData.empty(),
            added_keys_post=keys,
            included_keys_post=included,
            modified_keys_post=None,
        )
    ]


def rows_messages(table: Table, start: int, stop: int, *, step: int) -> list[FullUpdate]:
    """The rows at positions ``start`` up to ``stop`` as if they were a table, under the keys they
    have: such ranges, one after the other, are what :func:`snapshot_messages` tells at once. None
    when there are no rows."""
    if start >= stop:
        return []
    keys = table.row_keys.keys_at(RowSet.of_span(start, stop))
    reader = TableReader(table)
    at_step = STATIC_STEP if table.is_static else step
    return [
        FullUpdate(
            first_step=at_step,
            last_step=at_step,
            is_snapshot=True,
            effective_viewport=None,
            is_effective_reverse=False,
            effective_columns=None,
            table_size=None,
            added_columns=reader.columns_of(keys, reader.all_columns),
            modified_columns=reader.no_values,
            removed_keys_pre=None,
            shifts=RowSetShiftData.empty(),
            added_keys_post=keys,
            included_keys_post=keys,
            modified_keys_post=None,
        )
    ]
