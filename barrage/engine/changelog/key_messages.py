"""Messages in row keys: full subscriptions, and the 2020 draft's viewports (barrage-wire.md
sections 2.6, 8, 10)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from barrage.engine.changelog.subscription import Shape, ShapeKind
from barrage.engine.changelog.viewport_plan import PositionDelta, view_delta
from barrage.engine.tables.moved_rows import each_once, union_of
from barrage.model.update import FullUpdate, TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from barrage.engine.changelog.reader import Stamp, TableReader


def key_delta(
    reader: TableReader, update: TableUpdate, delta: PositionDelta, *, shape: Shape, stamp: Stamp
) -> FullUpdate:
    """What ``update`` means for one shape in key space.

    A full subscription gets the values of all added rows. A draft viewport gets those of every row
    in its window that it lacks, added or scoped in, and modifications of the rows it keeps; it is
    told all row keys anyway.
    """
    included: RowSet | None = None
    data_keys = update.added_keys_post
    modified = update.modified_keys_post
    if shape.kind is not ShapeKind.FULL:
        view = view_delta(delta, shape.window(delta.size_before), shape.window(delta.size_after))
        data_keys = included = delta.keys_after.keys_at(view.window - view.kept)
        kept_keys = delta.keys_after.keys_at(view.kept)
        modified = each_once(modified, lambda keys: keys & kept_keys)
    if len(shape.column_indices) < reader.column_count:
        wanted = frozenset(shape.column_indices)
        modified = tuple(
            keys if column in wanted else RowSet.empty() for column, keys in enumerate(modified)
        )
    if shape.is_last_column_covering and shape.column_indices:
        modified = _covered(modified, shape.column_indices[-1])
    return FullUpdate(
        first_step=stamp.first_step,
        last_step=stamp.last_step,
        is_snapshot=False,
        effective_viewport=None,
        is_effective_reverse=shape.is_reverse,
        effective_columns=None,
        table_size=stamp.table_size,
        added_columns=reader.columns_of(data_keys, shape.column_indices),
        modified_columns=reader.modified_of(modified),
        source_time_ns=stamp.source_time_ns,
        removed_keys_pre=update.removed_keys_pre,
        shifts=update.shifts,
        added_keys_post=update.added_keys_post,
        included_keys_post=included,
        modified_keys_post=modified,
    )


def _covered(modified: tuple[RowSet, ...], column: int) -> tuple[RowSet, ...]:
    """``modified`` with the rows of all columns in ``column``."""
    return (*modified[:column], union_of(modified), *modified[column + 1 :])


def key_snapshot(reader: TableReader, shape: Shape, held: RowSet, *, stamp: Stamp) -> FullUpdate:
    """The table's state for ``shape`` without the values of the keys in ``held``, which the client
    has.

    Names all row keys of the table again, as every snapshot in key space does (section 8.1).
    """
    keys = reader.table.row_keys
    included = keys
    if shape.kind is not ShapeKind.FULL:
        included = keys.keys_at(shape.window(len(keys))) - held
    return FullUpdate(
        first_step=stamp.first_step,
        last_step=stamp.last_step,
        is_snapshot=True,
        effective_viewport=None if shape.viewport is None else shape.viewport.positions,
        is_effective_reverse=shape.is_reverse,
        effective_columns=reader.all_columns if shape.columns is None else shape.columns,
        table_size=stamp.table_size,
        added_columns=reader.columns_of(included, shape.column_indices),
        modified_columns=reader.no_values,
        source_time_ns=stamp.source_time_ns,
        removed_keys_pre=RowSet.empty(),
        shifts=RowSetShiftData.empty(),
        added_keys_post=keys,
        included_keys_post=included,
        modified_keys_post=reader.no_rows,
    )


def key_resync(reader: TableReader, shape: Shape, known: RowSet, *, stamp: Stamp) -> FullUpdate:
    """A delta for somebody of whom only the known keys are remembered: all of them go, the whole
    table comes."""
    is_full = shape.kind is ShapeKind.FULL
    snapshot = key_snapshot(reader, shape, RowSet.empty(), stamp=stamp)
    return replace(
        snapshot,
        is_snapshot=False,
        effective_viewport=None,
        effective_columns=None,
        removed_keys_pre=known,
        included_keys_post=None if is_full else snapshot.included_keys_post,
    )
