"""The state a ticking table shows: always that of one consistent moment, also while the next one is
loading.

Between snapshots a replica takes update by update and every state is consistent. While a server
hands out a new state in parts, or after a reconnect until the new snapshot is complete, the last
consistent rows stay.

Thread safe: the loop that receives applies, any thread reads. Reading may cost O(rows) when rows
were inserted in the middle or cells overwritten, and nothing for append-only data; it is done at
most once per update.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.client.updates.rekeying import Rekeying
from barrage.client.updates.update import Update, relative_update, replacing_update
from barrage.errors import BarrageError, SchemaError
from barrage.model.cursor import Cursor
from barrage.model.replica import FullReplica, ViewReplica
from barrage.model.update import ViewUpdate
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.client.bodies.own_cells import LentMemory
    from barrage.model.replica import Cells, Replica
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet

    Shown = tuple[pa.Table, RowSet | None, int]
    """Rows, their keys (None for a view), rows of the whole table."""


class ShownReplica:
    """What one subscription holds."""

    def __init__(self, *, column_order: Sequence[str] | None = None) -> None:
        self._lock = threading.RLock()
        self._column_order = list(column_order) if column_order is not None else None
        self._order: _Order | None = None
        self._incoming: Replica | None = None
        self._shown: Replica | None = None
        self._kept: Shown | None = None
        self._rekeying: Rekeying | None = None
        self._cursor: Cursor | None = None
        self._steps = (-1, -1)
        self._source_time_ns: int | None = None
        self._lent: Callable[[], LentMemory] | None = None
        """Where cells may be that are kept and not ours; None when all are."""

    def keep(self, rows: pa.Table, *, is_view: bool, cursor: Cursor) -> None:
        """Show rows that were kept from an earlier life, before any stream."""
        with self._lock:
            keys = None if is_view else RowSet.of_span(0, rows.num_rows)
            self._kept = (rows, keys, rows.num_rows)
            self._cursor = cursor
            self._steps = (cursor.version, cursor.version)

    def order_columns(self, names: Sequence[str] | None) -> None:
        """The order in which tables show the columns; None: that of the table."""
        with self._lock:
            self._column_order = list(names) if names is not None else None

    def begin(self, schema: pa.Schema, *, has_view_positions: bool) -> None:
        """A new stream begins; the rows shown stay until its first state is complete."""
        with self._lock:
            self._incoming = ViewReplica(schema) if has_view_positions else FullReplica(schema)

    def resume(
        self, schema: pa.Schema, columns: ColumnSet | None, *, has_view_positions: bool
    ) -> None:
        """A new stream goes on from the state shown, whose rows it calls 0 to n-1 until its first
        update. SchemaError when that state has other columns than the stream."""
        with self._lock:
            shown = self._shown
            if self._kept is not None or shown is None or not shown.is_whole:
                self._incoming = self._shown = self._rebuilt(schema, columns, has_view_positions)
                self._kept = None
                return
            if not shown.schema.equals(schema):
                raise SchemaError(f"the table had the columns {shown.schema.names} before")
            self._incoming = shown
            if isinstance(shown, FullReplica):
                # Twice in a row when the stream before broke before its first update.
                keys = shown.relabel()
                self._rekeying = self._rekeying or Rekeying(keys)

    def _rebuilt(
        self, schema: pa.Schema, columns: ColumnSet | None, has_view_positions: bool
    ) -> Replica:
        if self._kept is None:
            raise BarrageError("there is no state to resume")
        rows, keys, size = self._kept
        if not rows.num_columns:
            raise SchemaError("rows without columns cannot be counted")
        if has_view_positions:
            return ViewReplica.holding(schema, columns, rows, table_size=size)
        replica = FullReplica.holding(schema, columns, rows)
        if self._rekeying is None and keys is not None and keys != replica.row_keys:
            self._rekeying = Rekeying(keys)
        return replica

    def own(self) -> None:
        """Copy whatever is kept in lent memory. O(rows) that came since the last time."""
        with self._lock:
            source, self._lent = self._lent, None
            if source is None:
                return
            lent = source()
            for replica in {id(each): each for each in (self._incoming, self._shown)}.values():
                if replica is not None:
                    replica.own(lent.owned)
            if self._kept is not None:
                table, keys, size = self._kept
                self._kept = (lent.owned_table(table), keys, size)

    def apply(
        self,
        message: FullUpdate | ViewUpdate,
        *,
        is_consistent: bool,
        keeps_removed: bool = False,
        epoch: str | None = None,
        lent: Callable[[], LentMemory] | None = None,
    ) -> Update | None:
        """Take one update. Returns what it means for somebody who follows the shown state; None
        while that stays. ``epoch`` is that of the table's history, if it has one.

        ``lent``: cells of the update may lie in memory it tells of, from any thread. They are kept
        there until :meth:`own`, or until somebody reads the rows.
        """
        with self._lock:
            self._lent = lent or self._lent
            replica = self._incoming
            if replica is None:
                raise BarrageError("an update came before the schema")
            is_shown = self._shown is replica and self._kept is None
            if is_shown and not is_consistent:
                self._kept = _shown_by(replica)
            columns_before = replica.columns
            removed = None
            if is_shown and is_consistent and keeps_removed:
                removed = self._removed_cells(replica, message)
            _apply(replica, message)
            if not is_consistent:
                return None
            self._shown, self._kept = replica, None
            self._cursor = cursor_of(epoch, message.last_step)
            rekeying, self._rekeying = self._rekeying, None
            self._steps = (message.first_step, message.last_step)
            self._source_time_ns = message.source_time_ns
            has_window = isinstance(replica, FullReplica) and replica.has_window
            if not is_shown or replica.columns != columns_before or has_window:
                return self._replacement()
            order = self._order_of(replica)
            return relative_update(
                message,
                schema=order.schema,
                columns=order.columns,
                table_size=replica.table_size,
                removed=None if removed is None else [removed[at] for at in order.places],
                cursor=self._cursor,
                rekeying=rekeying,
            )

    def replacement(self) -> Update | None:
        """The whole shown state as an update; None when there is none yet."""
        with self._lock:
            return self._replacement() if self.has_state else None

    def _replacement(self) -> Update:
        table, row_keys, size = self.read()
        return replacing_update(
            table,
            row_keys=row_keys,
            table_size=size,
            steps=self._steps,
            source_time_ns=self._source_time_ns,
            cursor=self._cursor,
        )

    def read(self) -> Shown:
        """The rows shown, their keys (None for a view), and the rows of the whole table."""
        with self._lock:
            # What is read may be held for long.
            self.own()
            if self._kept is not None:
                table, keys, size = self._kept
            elif self._shown is not None:
                table, keys, size = _shown_by(self._shown)
            else:
                raise BarrageError("no state yet; wait_ready() waits for the first one")
            if self._rekeying is not None and keys is not None:
                # Nobody has been told of the other keys yet.
                keys = self._rekeying.keys
            return self._ordered(table), keys, size

    def checkpoint(self) -> tuple[Cursor | None, pa.Table]:
        """The rows shown and their place in history."""
        with self._lock:
            return self._cursor, self.read()[0]

    @property
    def cursor(self) -> Cursor | None:
        """The place in history of the rows shown; None when the table has none."""
        return self._cursor

    @property
    def row_count(self) -> int:
        """Rows shown; 0 before the first state."""
        with self._lock:
            if self._kept is not None:
                return int(self._kept[0].num_rows)
            return 0 if self._shown is None else len(self._shown)

    @property
    def table_size(self) -> int:
        """Rows of the whole table; 0 before the first state."""
        with self._lock:
            if self._kept is not None:
                return self._kept[2]
            return 0 if self._shown is None else self._shown.table_size

    @property
    def nbytes(self) -> int:
        """Bytes of column data and row sets held."""
        with self._lock:
            return 0 if self._shown is None else self._shown.nbytes

    @property
    def has_state(self) -> bool:
        return self._shown is not None or self._kept is not None

    def _ordered(self, table: pa.Table) -> pa.Table:
        if self._column_order is None or table.column_names == self._column_order:
            return table
        known = [name for name in self._column_order if name in table.column_names]
        return table.select(known) if len(known) == table.num_columns else table

    def _order_of(self, replica: Replica) -> _Order:
        """How :meth:`_ordered` shows the subscribed columns."""
        order = self._order
        if (
            order is None
            or order.whole is not replica.schema
            or order.held != replica.columns
            or order.names != self._column_order
        ):
            order = self._order = _Order.of(replica, self._column_order)
        return order

    @staticmethod
    def _removed_cells(replica: Replica, message: FullUpdate | ViewUpdate) -> Cells | None:
        if isinstance(replica, ViewReplica):
            assert isinstance(message, ViewUpdate)
            rows: RowSet | None = message.removed_positions
        else:
            assert not isinstance(message, ViewUpdate)
            rows = message.removed_keys_pre
        return None if rows is None or rows.is_empty else replica.cells(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """The order in which the subscribed columns are shown; the same for update after update."""

    whole: pa.Schema
    held: ColumnSet
    names: list[str] | None
    """What it was made of."""
    places: Sequence[int]
    """Where each column is among those held."""
    columns: Sequence[int]
    """Where each column is in the table."""
    schema: pa.Schema

    @classmethod
    def of(cls, replica: Replica, names: list[str] | None) -> _Order:
        whole, held = replica.schema, replica.columns
        place_of = {whole.field(index).name: place for place, index in enumerate(held)}
        places = [place_of[name] for name in names or () if name in place_of]
        if len(places) != len(held):
            places = list(range(len(held)))
        columns = [held[place] for place in places]
        schema = pa.schema([whole.field(index) for index in columns], metadata=whole.metadata)
        return cls(
            whole=whole, held=held, names=names, places=places, columns=columns, schema=schema
        )


def cursor_of(epoch: str | None, step: int) -> Cursor | None:
    """The cursor of a state after ``step``; None without a history."""
    return None if epoch is None or step < 0 else Cursor(epoch, step)


def _shown_by(replica: Replica) -> Shown:
    keys = replica.present_keys if isinstance(replica, FullReplica) else None
    return replica.to_arrow(), keys, replica.table_size


def _apply(replica: Replica, message: FullUpdate | ViewUpdate) -> None:
    """The exchange made sure that the kinds fit."""
    if isinstance(replica, ViewReplica):
        assert isinstance(message, ViewUpdate)
        replica.apply(message)
    else:
        assert not isinstance(message, ViewUpdate)
        replica.apply(message)
