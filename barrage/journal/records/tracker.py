"""What happened to a table somebody else keeps, as changes a journal can record.

A server without a journal says what changes while one is connected, and after a reconnect only
what there is. :class:`ChangeTracker` turns both into :class:`~barrage.model.table_change
.TableChange`: updates as they come, with the cells of before; a new snapshot as the difference to
the state it had last, by the key columns where the table has some, else by whole rows (then a row
that changed in between is removed and added).

Rows of these changes do not stand under the remote table's row keys, whose order a snapshot after
a gap may have changed at will, but under numbers the tracker gives: a new row gets the next one,
behind all others, and keeps it until it is removed. So nothing ever shifts, and rows are in the
order in which they came.

Cost: the cells of the table once, as a replica. Not thread-safe.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.errors import RemoteProtocolError, SchemaError
from barrage.journal.records.record import plain_type
from barrage.journal.records.row_matching import matching_rows
from barrage.model.replica import FullReplica
from barrage.model.row_ids import RowIdMap
from barrage.model.storage import cells_differ
from barrage.model.table_change import TableChange
from barrage.model.update import TableUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.model.update import FullUpdate
    from barrage.rowset.arrays import BoolArray, Int64Array

EMPTY = RowSet.empty()


class ChangeTracker:
    """Follows one full subscription to all columns of a remote table.

    Until the first state of a subscription is complete it *waits*; then it *follows*. Between
    :meth:`restart` and completeness no change is told.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        key: Sequence[str] = (),
        keys: RowSet = EMPTY,
        rows: pa.Table | None = None,
    ) -> None:
        """``keys`` and ``rows`` (in key order) are the state that was recorded last, if any.

        SchemaError when the rows do not have the columns of ``schema``, ValueError when there is
        not one row per key or a key column does not exist.
        """
        self._schema = pa.schema([(field.name, plain_type(field.type)) for field in schema])
        self._key = [schema.names.index(name) for name in key]
        self._rows = self._schema.empty_table() if rows is None else self._checked(rows)
        if len(keys) != len(self._rows):
            raise ValueError(f"{len(keys)} keys for {len(self._rows)} rows")
        self._keys = keys.to_numpy()
        self._next_key = keys.last + 1 if keys else 0
        self._replica = FullReplica(self._schema)
        self._numbers = RowIdMap.empty()
        self._follows = False

    def _checked(self, rows: pa.Table) -> pa.Table:
        if rows.schema.names != self._schema.names:
            raise SchemaError(f"columns {rows.schema.names} are not {self._schema.names}")
        return pa.table(
            [_plain(column, kind) for column, kind in self._columns_of(rows)], schema=self._schema
        )

    def _columns_of(self, rows: pa.Table) -> list[tuple[pa.ChunkedArray, pa.DataType]]:
        return list(zip(rows.columns, self._schema.types, strict=True))

    @property
    def is_following(self) -> bool:
        """Whether the state is complete, so that each update is a change."""
        return self._follows

    def state(self) -> tuple[RowSet, pa.Table]:
        """The state after the last change that was told: numbers of the rows, and rows in that
        order."""
        keys, rows = self._keys, self._rows
        if self._follows:
            keys, rows = self._numbers.ids, self._replica.to_arrow()
        order = _order(keys)
        if order is not None:
            keys, rows = keys[order], rows.take(pa.array(order))
        return RowSet.from_sorted_keys(keys), self._checked(rows)

    def restart(self) -> None:
        """The next update begins a new subscription: the remote's row keys mean nothing any
        more."""
        if self._follows:
            self._keys, self._rows = self._numbers.ids, self._replica.to_arrow()
            self._follows = False
        self._replica = FullReplica(self._schema)

    def apply(self, update: FullUpdate, *, step: int) -> TableChange | None:
        """The next update of the subscription. ``step`` is that of the change told, if any: None
        while the state is incomplete, and when nothing changed.

        Columns may be encoded as the schema says or plain, as clients have them.
        RemoteProtocolError when the update does not fit; the tracker needs a restart then.
        """
        update = self._plain_update(update)
        if self._follows and not update.is_snapshot:
            return self._followed(update, step)
        if self._follows:
            # A snapshot within a subscription: what it says is there may have changed unsaid.
            self._keys, self._rows = self._numbers.ids, self._replica.to_arrow()
            self._follows = False
        self._replica.apply(update)
        if not self._is_complete():
            return None
        if len(self._replica.columns) != len(self._schema):
            raise RemoteProtocolError("a tracker needs all columns, the subscription has some")
        return self._caught_up(step)

    def _plain_update(self, update: FullUpdate) -> FullUpdate:
        def plain(columns: Sequence[pa.Array | pa.ChunkedArray]) -> tuple[Any, ...]:
            if len(columns) != len(self._schema):
                return tuple(columns)
            kinds = zip(columns, self._schema.types, strict=True)
            return tuple(_plain(column, kind) for column, kind in kinds)

        return replace(
            update,
            added_columns=plain(update.added_columns),
            modified_columns=plain(update.modified_columns),
        )

    def _is_complete(self) -> bool:
        replica = self._replica
        return not replica.has_window and len(replica.present_keys) == len(replica.row_keys)

    # -- a new state ------------------------------------------------------------------------------

    def _caught_up(self, step: int) -> TableChange | None:
        """The difference between what was told last and what is there."""
        old_keys, old = self._keys, self._plain_columns(self._rows)
        new = self._plain_columns(self._replica.to_arrow())
        compared = self._key or range(len(old))
        in_old, in_new = matching_rows(
            [old[index] for index in compared],
            [new[index] for index in compared],
            old_count=len(old_keys),
            new_count=len(self._replica),
        )
        keys = np.full(len(self._replica), -1, dtype=np.int64)
        keys[in_new] = old_keys[in_old]
        is_new = keys < 0
        first, self._next_key = self._next_key, self._next_key + int(np.count_nonzero(is_new))
        keys[is_new] = np.arange(first, self._next_key)
        self._numbers = RowIdMap.of(self._replica.row_keys, keys)
        self._follows = True
        self._keys, self._rows = keys[:0], self._rows.slice(0, 0)

        is_gone = np.ones(len(old_keys), dtype=np.bool_)
        is_gone[in_old] = False
        modified = self._differing(old, new, in_old=in_old, in_new=in_new)
        any_modified = reduce(np.logical_or, modified, np.zeros(len(in_new), dtype=np.bool_))
        return self._change(
            step,
            removed=(old_keys[is_gone], _taken(old, np.flatnonzero(is_gone))),
            modified=keys[in_new[any_modified]],
            by_column=[keys[in_new[rows]] for rows in modified],
            before=_taken(old, in_old[any_modified]),
            after=_taken(new, in_new[any_modified]),
            added=(keys[is_new], _taken(new, np.flatnonzero(is_new))),
        )

    def _differing(
        self,
        old: list[pa.ChunkedArray],
        new: list[pa.ChunkedArray],
        *,
        in_old: Int64Array,
        in_new: Int64Array,
    ) -> list[BoolArray]:
        """Per column, which of the rows that are in both states changed. Rows found by all their
        cells did not."""
        if not self._key:
            return []
        differing = [np.zeros(len(in_new), dtype=np.bool_) for _ in old]
        for index in set(range(len(old))) - set(self._key):
            (before,), (after,) = _taken([old[index]], in_old), _taken([new[index]], in_new)
            differing[index] = cells_differ(before, after)
        return differing

    # -- an update --------------------------------------------------------------------------------

    def _followed(self, update: FullUpdate, step: int) -> TableChange | None:
        replica, numbers = self._replica, self._numbers
        removed = update.removed_keys_pre or EMPTY
        try:
            removed_numbers = numbers.ids_of(removed)
            kept = numbers.apply(removed, update.shifts, EMPTY, np.empty(0, dtype=np.int64))
        except ValueError as error:
            raise RemoteProtocolError(f"the update does not fit: {error}") from error
        # Rows whose cells are sent although they were there are modified in every column.
        kept_keys = update.shifts.apply(replica.row_keys - removed)
        again = update.data_keys_post & kept_keys
        fresh = update.added_keys_post - again
        by_column = [
            again | keys - fresh
            for keys in update.modified_keys_post or (EMPTY,) * len(self._schema)
        ]
        modified = reduce(or_, by_column, EMPTY)
        if not kept_keys.contains_all(modified):
            raise RemoteProtocolError("a row is modified that was never sent")
        removed_cells = self._plain_columns(replica.rows(removed))
        before = self._plain_columns(replica.rows(update.shifts.unapply(modified)))
        replica.apply(update)
        if not self._is_complete():
            raise RemoteProtocolError("rows were added without their cells")
        first, self._next_key = self._next_key, self._next_key + len(fresh)
        added = np.arange(first, self._next_key, dtype=np.int64)
        self._numbers = kept.apply(EMPTY, RowSetShiftData.empty(), fresh, added)
        return self._change(
            step,
            removed=(removed_numbers, removed_cells),
            modified=kept.ids_of(modified),
            by_column=[kept.ids_of(keys) for keys in by_column],
            before=before,
            after=self._plain_columns(replica.rows(modified)),
            added=(added, self._plain_columns(replica.rows(fresh))),
        )

    def _plain_columns(self, rows: pa.Table) -> list[pa.ChunkedArray]:
        return [_plain(column, kind) for column, kind in self._columns_of(rows)]

    def _change(
        self,
        step: int,
        *,
        removed: tuple[Int64Array, list[pa.ChunkedArray]],
        modified: Int64Array,
        by_column: Sequence[Int64Array],
        before: list[pa.ChunkedArray],
        after: list[pa.ChunkedArray],
        added: tuple[Int64Array, list[pa.ChunkedArray]],
    ) -> TableChange | None:
        """Numbers and cells in any order, put into the order of the numbers. ``by_column`` without
        entries: in no column."""
        if not (len(removed[0]) or len(modified) or len(added[0])):
            return None
        columns = by_column or [modified[:0]] * len(self._schema)
        return TableChange(
            update=TableUpdate(
                first_step=step,
                last_step=step,
                removed_keys_pre=RowSet.from_keys(removed[0]),
                shifts=RowSetShiftData.empty(),
                added_keys_post=RowSet.from_keys(added[0]),
                modified_keys_post=tuple(RowSet.from_keys(numbers) for numbers in columns),
            ),
            removed=_in_order(*removed),
            modified_keys_post=RowSet.from_keys(modified),
            before=_in_order(modified, before),
            after=_in_order(modified, after),
            added=_in_order(*added),
        )


def _order(numbers: Int64Array) -> Int64Array | None:
    """What sorts the numbers; None when they are."""
    return None if bool((numbers[1:] > numbers[:-1]).all()) else np.argsort(numbers)


def _in_order(numbers: Int64Array, columns: list[pa.ChunkedArray]) -> tuple[pa.ChunkedArray, ...]:
    order = _order(numbers)
    return tuple(columns if order is None else _taken(columns, order))


def _taken(columns: Sequence[pa.ChunkedArray], places: Int64Array) -> list[pa.ChunkedArray]:
    at = pa.array(places)
    return [column.take(at) for column in columns]


def _plain(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The column as a journal keeps it; SchemaError when it is of another type."""
    if column.type == kind:
        return column
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    if plain_type(column.type) != kind:
        raise SchemaError(f"cells of type {column.type} are no {kind}")
    if pa.types.is_run_end_encoded(column.type):
        decoded = [pc.run_end_decode(chunk) for chunk in column.chunks]
        return _plain(pa.chunked_array(decoded, type=column.type.value_type), kind)
    return column.cast(kind)
