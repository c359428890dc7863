"""A client's copy of a table: applies the updates of one subscription to columnar state.

Two kinds, because the two kinds of subscription speak different spaces (barrage-wire.md sections 9
and 10): :class:`FullReplica` in row keys, :class:`ViewReplica` in positions of the subscriber's own
view. Both apply in the fixed order remove, shift, add, modify, vectorised, O(rows in the update +
log rows in the table) plus one copy of the slot array where rows enter or leave in the middle.

A replica that refused an update is of no further use; what was read before stays as it was, as
everything read is immutable. Not thread safe.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.errors import RemoteProtocolError, SchemaError
from barrage.model.replica_rows import ReplicaRows, columns_by_rows
from barrage.model.viewport import Viewport, effective_columns
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from barrage.model.update import FullUpdate, UpdateMessage, ViewUpdate
    from barrage.model.viewport import ColumnSet
    from barrage.rowset import RowSetShiftData

    Cells: TypeAlias = Sequence[pa.Array | pa.ChunkedArray]
    """One entry per subscribed column, in the order of the table."""

EMPTY = RowSet.empty()


class FullReplica:
    """The rows of a full subscription by key.

    ``row_keys`` are the keys of the whole table, ``present_keys`` those whose cells are here; they
    differ only while the server hands out a large state in several snapshots.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = ReplicaRows(schema)
        self._keys = EMPTY
        self._present = EMPTY
        self._server_viewport: Viewport | None = None
        self._has_snapshot = False
        self._table: weakref.ref[pa.Table] | None = None

    @classmethod
    def holding(cls, schema: pa.Schema, columns: ColumnSet | None, rows: pa.Table) -> FullReplica:
        """A replica that holds ``rows`` already, under the keys 0 to n-1. ``rows`` has exactly the
        subscribed columns, by name and in any order; SchemaError when it does not fit."""
        held = effective_columns(columns, len(schema))
        replica = cls(schema)
        replica._rows.hold(held)
        replica._has_snapshot = True
        replica._keys = replica._present = RowSet.of_span(0, rows.num_rows)
        replica._rows.insert(replica._keys, _cells_of(schema, held, rows))
        return replica

    @property
    def is_whole(self) -> bool:
        """All rows of the table are here, and stay until they are removed."""
        return self._has_snapshot and self._present is self._keys and not self.has_window

    def relabel(self) -> RowSet:
        """Number the rows 0 to n-1, which is how a resumed subscription calls them; returns the
        keys they had. Only when :attr:`is_whole`."""
        before = self._keys
        self._keys = self._present = RowSet.of_span(0, len(before))
        return before

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def schema(self) -> pa.Schema:
        """The whole table's schema; :meth:`to_arrow` has the subscribed columns only."""
        return self._schema

    @property
    def columns(self) -> ColumnSet:
        return self._rows.columns

    @property
    def row_keys(self) -> RowSet:
        return self._keys

    @property
    def present_keys(self) -> RowSet:
        return self._present

    @property
    def table_size(self) -> int:
        return len(self._keys)

    @property
    def has_window(self) -> bool:
        """Rows leave without being named as removed, by sliding out of the server's viewport."""
        return self._server_viewport is not None

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._keys.nbytes

    def to_arrow(self) -> pa.Table:
        """All rows whose cells are present, in row order; immutable. Built once per update as long
        as somebody keeps it."""
        table = None if self._table is None else self._table()
        if table is None:
            table = self._rows.read()
            self._table = weakref.ref(table)
        return table

    def own(self, owned: Callable[[pa.Array], pa.Array]) -> None:
        """Hold ``owned(cells)``, the same cells perhaps in other memory, wherever cells are kept as
        they came."""
        self._rows.own(owned)
        self._table = None

    def rows(self, row_keys: RowSet) -> pa.Table:
        """The present ones of ``row_keys``, in order."""
        return self._rows.read(self._positions_of(row_keys))

    def cells(self, row_keys: RowSet) -> Cells:
        """The columns of :meth:`rows`, which cost less than a table."""
        return self._rows.cells(self._positions_of(row_keys))

    def _positions_of(self, row_keys: RowSet) -> RowSet:
        return self._present.positions_of(row_keys & self._present)

    def apply(self, update: FullUpdate) -> None:
        """Apply one update (barrage-wire.md section 10); RemoteProtocolError if it does not fit."""
        columns = self._columns_after(update)
        _check_added(update, columns, rows=len(update.data_keys_post))
        self._table = None
        if update.is_snapshot:
            self._has_snapshot = True
            self._server_viewport = None
            if update.effective_viewport is not None:
                self._server_viewport = Viewport(
                    positions=update.effective_viewport, is_reverse=update.is_effective_reverse
                )
        if update.removed_keys_pre is not None and not update.removed_keys_pre.is_empty:
            self._remove(update.removed_keys_pre)
        if not update.shifts.is_empty:
            self._shift(update.shifts)
        if update.is_snapshot:
            self._forget_stale(update)
            self._rows.hold(columns)
        self._add(update)
        self._modify(update)
        self._drop_outside()
        self._rows.tidy()

    def _columns_after(self, update: UpdateMessage) -> ColumnSet:
        if not (update.is_snapshot or self._has_snapshot):
            raise RemoteProtocolError("a subscription must begin with a snapshot, got a delta")
        if not update.is_snapshot:
            return self._rows.columns
        return effective_columns(update.effective_columns, len(self._schema))

    def _remove(self, removed: RowSet) -> None:
        is_whole = self._present is self._keys
        gone = removed & self._present
        self._rows.delete(self._present.positions_of(gone))
        self._keys = self._keys - removed
        self._present = self._keys if is_whole else self._present - removed

    def _shift(self, shifts: RowSetShiftData) -> None:
        is_whole = self._present is self._keys
        try:
            self._keys = shifts.apply(self._keys)
        except ValueError as error:
            raise RemoteProtocolError(f"a shift moves rows onto others: {error}") from error
        self._present = self._keys if is_whole else shifts.apply(self._present)

    def _forget_stale(self, update: FullUpdate) -> None:
        """Before a snapshot changes the columns: cells that come again, and cells that leave the
        view."""
        stale = self._present & update.data_keys_post
        if self._server_viewport is not None:
            keys = self._keys | update.added_keys_post
            stale = stale | (self._present - keys.keys_at(self._server_viewport.resolve(len(keys))))
        if not stale.is_empty:
            self._rows.delete(self._present.positions_of(stale))
            self._present = self._present - stale

    def _add(self, update: FullUpdate) -> None:
        added, data_keys = update.added_keys_post, update.data_keys_post
        if added.is_empty and data_keys.is_empty:
            return
        repeated = data_keys & self._present
        if not repeated.is_empty:
            # Cells that are sent again replace the old ones: forget those first.
            self._rows.delete(self._present.positions_of(repeated))
            self._present = self._present - repeated
        is_whole = self._present is self._keys and update.included_keys_post is None
        self._present = self._present | data_keys
        self._keys = self._present if is_whole else self._keys | added
        if not is_whole and len(self._present) == len(self._keys):
            self._present = self._keys
        self._rows.insert(self._present.positions_of(data_keys), update.added_columns)

    def _modify(self, update: FullUpdate) -> None:
        if update.modified_keys_post is None:
            return
        together = columns_by_rows(update.modified_keys_post, self._rows.columns)
        for keys, columns in together.items():
            for column in columns:
                if len(update.modified_columns[column]) != len(keys):
                    raise RemoteProtocolError(
                        f"column {column} has {len(keys)} modified rows but "
                        f"{len(update.modified_columns[column])} values"
                    )
            positions = self._modified_positions(keys, columns[0])
            self._rows.write(columns, positions, update.modified_columns)

    def _modified_positions(self, keys: RowSet, column: int) -> RowSet:
        try:
            return self._present.positions_of(keys)
        except ValueError:
            raise RemoteProtocolError(
                f"column {column} of row {(keys - self._present).first} is modified "
                "but that row was never sent"
            ) from None

    def _drop_outside(self) -> None:
        """While growing, cells outside the part handed out so far may not be kept: deltas no longer
        update them."""
        if self._server_viewport is None:
            return
        visible = self._keys.keys_at(self._server_viewport.resolve(len(self._keys)))
        outside = self._present - visible
        if not outside.is_empty:
            self._rows.delete(self._present.positions_of(outside))
            self._present = self._present - outside

    def validate(self) -> None:
        """Raise AssertionError when an invariant is broken; for tests."""
        self._rows.validate()
        assert len(self._rows) == len(self._present)
        assert self._keys.contains_all(self._present)


class ViewReplica:
    """The rows of a viewport subscription: a plain list of rows, ascending in table order, without
    keys."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._rows = ReplicaRows(schema)
        self._table_size = 0
        self._has_snapshot = False
        self._table: weakref.ref[pa.Table] | None = None

    @classmethod
    def holding(
        cls, schema: pa.Schema, columns: ColumnSet | None, rows: pa.Table, *, table_size: int
    ) -> ViewReplica:
        """A replica that holds the ``rows`` of the view already; like
        :meth:`FullReplica.holding`."""
        held = effective_columns(columns, len(schema))
        replica = cls(schema)
        replica._rows.hold(held)
        replica._has_snapshot = True
        replica._table_size = table_size
        span = RowSet.of_span(0, rows.num_rows)
        replica._rows.insert(span, _cells_of(schema, held, rows))
        return replica

    @property
    def is_whole(self) -> bool:
        """The view is complete."""
        return self._has_snapshot

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def schema(self) -> pa.Schema:
        """The whole table's schema; :meth:`to_arrow` has the subscribed columns only."""
        return self._schema

    @property
    def columns(self) -> ColumnSet:
        return self._rows.columns

    @property
    def row_keys(self) -> None:
        """A view has no keys."""
        return None

    @property
    def table_size(self) -> int:
        """Rows of the whole table, of which the view shows some."""
        return self._table_size

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes

    def to_arrow(self) -> pa.Table:
        """All rows of the view; immutable."""
        table = None if self._table is None else self._table()
        if table is None:
            table = self._rows.read()
            self._table = weakref.ref(table)
        return table

    def own(self, owned: Callable[[pa.Array], pa.Array]) -> None:
        """Hold ``owned(cells)``, the same cells perhaps in other memory, wherever cells are kept as
        they came."""
        self._rows.own(owned)
        self._table = None

    def rows(self, positions: RowSet) -> pa.Table:
        """The rows at ``positions`` of the view as it is now; positions past the end are
        ignored."""
        return self._rows.read(self._existing(positions))

    def cells(self, positions: RowSet) -> Cells:
        """The columns of :meth:`rows`, which cost less than a table."""
        return self._rows.cells(self._existing(positions))

    def _existing(self, positions: RowSet) -> RowSet:
        return positions.clip(0, len(self) - 1) if len(self) else EMPTY

    def apply(self, update: ViewUpdate) -> None:
        """Apply one update (barrage-wire.md section 9); RemoteProtocolError if it does not fit."""
        columns = self._columns_after(update)
        self._check(update, columns)
        self._table = None
        self._has_snapshot = True
        if not update.removed_positions.is_empty:
            self._rows.delete(update.removed_positions)
        if update.is_snapshot:
            self._rows.hold(columns)
        self._rows.insert(update.added_positions, update.added_columns)
        together = columns_by_rows(update.modified_positions, self._rows.columns)
        for positions, written in together.items():
            self._rows.write(written, positions, update.modified_columns)
        self._rows.tidy()
        self._table_size = update.table_size or 0

    def _columns_after(self, update: UpdateMessage) -> ColumnSet:
        if not (update.is_snapshot or self._has_snapshot):
            raise RemoteProtocolError("a subscription must begin with a snapshot, got a delta")
        if not update.is_snapshot:
            return self._rows.columns
        return effective_columns(update.effective_columns, len(self._schema))

    def _check(self, update: ViewUpdate, columns: ColumnSet) -> None:
        removed, added = update.removed_positions, update.added_positions
        _check_added(update, columns, rows=len(added))
        if not removed.is_empty and removed.last >= len(self):
            raise RemoteProtocolError(
                f"row {removed.last} is removed from a view of {len(self)} rows"
            )
        size = len(self) - len(removed) + len(added)
        if not added.is_empty and added.last >= size:
            raise RemoteProtocolError(f"row {added.last} is added to a view of {size} rows")
        for column, positions in enumerate(update.modified_positions):
            if positions.is_empty:
                continue
            if positions.last >= size:
                raise RemoteProtocolError(
                    f"row {positions.last} of column {column} is modified in a view of {size} rows"
                )
            if column in columns and len(update.modified_columns[column]) != len(positions):
                raise RemoteProtocolError(
                    f"column {column} has {len(positions)} modified rows but "
                    f"{len(update.modified_columns[column])} values"
                )

    def validate(self) -> None:
        """Raise AssertionError when an invariant is broken; for tests."""
        self._rows.validate()


Replica = FullReplica | ViewReplica


def _cells_of(
    schema: pa.Schema, columns: ColumnSet, rows: pa.Table
) -> list[pa.Array | pa.ChunkedArray]:
    """Cells of ``rows`` per schema column, empty for columns that are not held."""
    wanted = [schema.field(index).name for index in columns]
    if sorted(rows.column_names) != sorted(wanted):
        raise SchemaError(
            f"the rows have the columns {', '.join(rows.column_names) or 'none'}, "
            f"the subscription has {', '.join(wanted) or 'none'}"
        )
    cells: list[pa.Array | pa.ChunkedArray] = []
    for index, field in enumerate(schema):
        if index not in columns:
            cells.append(pa.nulls(0, field.type))
            continue
        column = rows.column(field.name)
        try:
            cells.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaError(
                f"column {field.name!r} of the rows is {column.type}, the table's is {field.type}"
            ) from error
    return cells


def _check_added(update: UpdateMessage, columns: Sequence[int], *, rows: int) -> None:
    for index in columns:
        if len(update.added_columns[index]) != rows:
            raise RemoteProtocolError(
                f"column {index} has {len(update.added_columns[index])} values "
                f"for {rows} added rows"
            )
