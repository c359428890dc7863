"""Messages in view positions for viewport subscriptions (barrage-wire.md section 9): one view of
any form.

Contiguous views, of which there may be thousands, have their own module (`span_messages`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.engine.changelog.reader import span
from barrage.engine.changelog.viewport_plan import PositionDelta, view_delta
from barrage.model.update import ViewUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from barrage.engine.changelog.reader import Column, Stamp, TableReader
    from barrage.engine.changelog.subscription import Shape


def quiet_view(reader: TableReader, stamp: Stamp, *, is_reverse: bool) -> ViewUpdate:
    """Nothing changed in the view; it is told the table's size all the same."""
    return view_update(
        stamp,
        is_reverse=is_reverse,
        removed=RowSet.empty(),
        added=RowSet.empty(),
        added_columns=reader.no_values,
        modified=reader.no_rows,
        modified_columns=reader.no_values,
    )


def view_update(
    stamp: Stamp,
    *,
    is_reverse: bool,
    removed: RowSet,
    added: RowSet,
    added_columns: tuple[Column, ...],
    modified: tuple[RowSet, ...],
    modified_columns: tuple[Column, ...],
) -> ViewUpdate:
    return ViewUpdate(
        first_step=stamp.first_step,
        last_step=stamp.last_step,
        is_snapshot=False,
        effective_viewport=None,
        is_effective_reverse=is_reverse,
        effective_columns=None,
        table_size=stamp.table_size,
        added_columns=added_columns,
        modified_columns=modified_columns,
        source_time_ns=stamp.source_time_ns,
        removed_positions=removed,
        added_positions=added,
        modified_positions=modified,
    )


def view_message(
    reader: TableReader, delta: PositionDelta, shape: Shape, *, stamp: Stamp
) -> ViewUpdate | None:
    """The delta of one view of any form; None if nothing changes in it."""
    view = view_delta(delta, shape.window(delta.size_before), shape.window(delta.size_after))
    modified = list(reader.no_rows)
    modified_keys = list(reader.no_rows)
    is_modified = False
    for rows, columns in delta.modified_groups(shape.column_indices):
        kept = view.kept & rows
        if not kept.is_empty:
            is_modified = True
            in_view = view.window.positions_of(kept)
            keys = delta.keys_after.keys_at(kept)
            for column in columns:
                modified[column], modified_keys[column] = in_view, keys
    if not is_modified and view.removed.is_empty and view.added.is_empty:
        return None
    added_keys = delta.keys_after.keys_at(view.window - view.kept)
    return view_update(
        stamp,
        is_reverse=shape.is_reverse,
        removed=view.removed,
        added=view.added,
        added_columns=reader.columns_of(added_keys, shape.column_indices),
        modified=tuple(modified),
        modified_columns=reader.modified_of(tuple(modified_keys)),
    )


def view_snapshot(
    reader: TableReader,
    shape: Shape,
    old: Shape | None,
    *,
    stamp: Stamp,
    size_known: int | None = None,
) -> ViewUpdate:
    """The snapshot that answers a request: only rows the client lacks (section 9.1).

    ``old`` is the shape whose rows at this same moment the client holds, None for a new
    subscription. With ``size_known`` it holds those of an earlier moment, when the table had so
    many rows, and all of them go.
    """
    keys = reader.table.row_keys
    size = len(keys)
    window = shape.window(size)
    held = RowSet.empty()
    if old is not None:
        held = old.window(size if size_known is None else size_known)
    if old is not None and size_known is None and is_usable(old, shape):
        gone, lacking = held - window, window - held
    else:
        gone, lacking = held, window
    return ViewUpdate(
        first_step=stamp.first_step,
        last_step=stamp.last_step,
        is_snapshot=True,
        effective_viewport=None if shape.viewport is None else shape.viewport.positions,
        is_effective_reverse=shape.is_reverse,
        effective_columns=reader.all_columns if shape.columns is None else shape.columns,
        table_size=stamp.table_size,
        added_columns=reader.columns_of(keys.keys_at(lacking), shape.column_indices),
        modified_columns=reader.no_values,
        source_time_ns=stamp.source_time_ns,
        removed_positions=held.positions_of(gone),
        added_positions=window.positions_of(lacking),
        modified_positions=reader.no_rows,
    )


def is_usable(old: Shape, new: Shape) -> bool:
    """Whether rows held under ``old`` count under ``new``: not if a column is new or the direction
    flips."""
    return old.is_reverse == new.is_reverse and set(new.column_indices) <= set(old.column_indices)


def view_resync(reader: TableReader, shape: Shape, size_known: int, *, stamp: Stamp) -> ViewUpdate:
    """A delta for somebody of whom only the table size at his last message is remembered: all rows
    go and come."""
    keys = reader.table.row_keys
    window = shape.window(len(keys))
    return view_update(
        stamp,
        is_reverse=shape.is_reverse,
        removed=span(0, len(shape.window(size_known))),
        added=span(0, len(window)),
        added_columns=reader.columns_of(keys.keys_at(window), shape.column_indices),
        modified=reader.no_rows,
        modified_columns=reader.no_values,
    )
