"""One update as the user sees it: what was added, removed, shifted and modified.

Row sets are row keys for a full subscription and positions of the view for a viewport
(``is_view``); removed ones mean the state before the update, all others the state after it. Tables
are built on first use from the received buffers, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.model.update import FullUpdate, ViewUpdate
from barrage.rowset import RowSet, RowSetShiftData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.updates.rekeying import Rekeying
    from barrage.model.cursor import Cursor

EMPTY = RowSet.empty()


@dataclass(frozen=True, kw_only=True)
class Update:
    """One consistent step from one state to the next."""

    first_step: int
    last_step: int
    """Steps of the server's update graph that this update covers; -1 where the server has no steps.
    """
    is_snapshot: bool
    """Answers a subscription or a change of it."""
    is_replacement: bool
    """Forget all rows you know: ``added`` is the whole state. True for the first update of every
    iterator, after a reconnect, and when the columns changed."""
    is_view: bool
    added_rows: RowSet
    removed_rows: RowSet
    shifts: RowSetShiftData
    modified_rows: dict[str, RowSet]
    """Only columns with modified rows."""
    table_size: int
    """Rows of the whole table after this update."""
    source_time_ns: int | None
    """When the server committed the newest change in here, in nanoseconds since the epoch, if it
    says so."""
    cursor: Cursor | None
    """The place of the state after this update in the table's history; None when it has none."""
    schema: pa.Schema
    _added: Sequence[pa.Array | pa.ChunkedArray] | pa.Table
    _modified: dict[str, pa.Array | pa.ChunkedArray]
    _removed: Sequence[pa.Array | pa.ChunkedArray] | None

    @cached_property
    def added(self) -> pa.Table:
        """Values of ``added_rows``."""
        if isinstance(self._added, pa.Table):
            return self._added
        return pa.Table.from_arrays(list(self._added), schema=self.schema)

    @property
    def modified(self) -> dict[str, pa.Array | pa.ChunkedArray]:
        """New values of ``modified_rows``, per column."""
        return self._modified

    @cached_property
    def removed(self) -> pa.Table:
        """The rows that were removed, with their last values; without rows when
        ``is_replacement``."""
        if not self._removed:
            return self.schema.empty_table()
        return pa.Table.from_arrays(self._removed, schema=self.schema)

    @property
    def conflated(self) -> int:
        """How many steps of the server were merged into this update; 1 when none were."""
        return max(self.last_step - self.first_step + 1, 1)

    @property
    def row_count(self) -> int:
        """Rows with new values."""
        return len(self.added_rows) + max(map(len, self.modified_rows.values()), default=0)

    @property
    def nbytes(self) -> int:
        """Bytes of the cells in here."""
        modified = sum(cells.nbytes for cells in self._modified.values())
        return int(self.added.nbytes + self.removed.nbytes + modified)

    def recordable(self) -> FullUpdate:
        """The update as a subscriber of the whole table was told it, in the form in which
        :class:`barrage.journal.ChangeTracker` takes it."""
        is_new = self.is_replacement
        return FullUpdate(
            first_step=self.first_step,
            last_step=self.last_step,
            is_snapshot=is_new,
            effective_viewport=None,
            is_effective_reverse=False,
            effective_columns=None,
            table_size=self.table_size,
            added_columns=tuple(self.added.columns),
            modified_columns=tuple(
                self.modified[field.name]
                if field.name in self.modified
                else pa.nulls(0, field.type)
                for field in self.schema
            ),
            source_time_ns=self.source_time_ns,
            removed_keys_pre=EMPTY if is_new else self.removed_rows,
            shifts=RowSetShiftData.empty() if is_new else self.shifts,
            added_keys_post=self.added_rows,
            included_keys_post=None,
            modified_keys_post=tuple(
                self.modified_rows.get(name, EMPTY) for name in self.schema.names
            ),
        )

    def __repr__(self) -> str:
        parts = [f"steps {self.first_step}-{self.last_step}", f"+{len(self.added_rows)}"]
        parts.append(f"-{len(self.removed_rows)}")
        parts += [f"{name}~{len(rows)}" for name, rows in self.modified_rows.items()]
        if not self.shifts.is_empty:
            parts.append(f"{len(self.shifts)} shifts")
        if self.is_replacement:
            parts.append("replacement")
        return f"<Update {' '.join(parts)}, {self.table_size} rows in the table>"


def relative_update(
    message: FullUpdate | ViewUpdate,
    *,
    schema: pa.Schema,
    columns: Sequence[int],
    table_size: int,
    removed: Sequence[pa.Array | pa.ChunkedArray] | None,
    cursor: Cursor | None = None,
    rekeying: Rekeying | None = None,
) -> Update:
    """The update that ``message`` is, for somebody who holds the state before it.

    ``columns`` are the subscribed ones in the order to show them, as ``schema`` and the cells
    ``removed`` are;
    ``rekeying`` when that somebody knows the rows by other keys than the message does.
    """
    is_view = isinstance(message, ViewUpdate)
    if isinstance(message, ViewUpdate):
        added_rows, removed_rows = message.added_positions, message.removed_positions
        shifts, modified_rows = RowSetShiftData.empty(), message.modified_positions
    else:
        added_rows, removed_rows = message.data_keys_post, message.removed_keys_pre or EMPTY
        shifts, modified_rows = message.shifts, message.modified_keys_post or ()
        if rekeying is not None:
            removed_rows, shifts = rekeying.changes(message)
    changed = {
        name: index
        for name, index in zip(schema.names, columns, strict=True)
        if index < len(modified_rows) and not modified_rows[index].is_empty
    }
    return Update(
        first_step=message.first_step,
        last_step=message.last_step,
        is_snapshot=message.is_snapshot,
        is_replacement=False,
        is_view=is_view,
        added_rows=added_rows,
        removed_rows=removed_rows,
        shifts=shifts,
        modified_rows={name: modified_rows[index] for name, index in changed.items()},
        table_size=table_size,
        source_time_ns=message.source_time_ns,
        cursor=cursor,
        schema=schema,
        _added=[message.added_columns[index] for index in columns],
        _modified={name: message.modified_columns[index] for name, index in changed.items()},
        _removed=removed,
    )


def replacing_update(
    table: pa.Table,
    *,
    row_keys: RowSet | None,
    table_size: int,
    steps: tuple[int, int],
    source_time_ns: int | None,
    cursor: Cursor | None = None,
) -> Update:
    """The update that replaces whatever somebody holds by ``table``. ``row_keys`` None: a view."""
    return Update(
        first_step=steps[0],
        last_step=steps[1],
        is_snapshot=True,
        is_replacement=True,
        is_view=row_keys is None,
        added_rows=RowSet.of_span(0, table.num_rows) if row_keys is None else row_keys,
        removed_rows=EMPTY,
        shifts=RowSetShiftData.empty(),
        modified_rows={},
        table_size=table_size,
        source_time_ns=source_time_ns,
        cursor=cursor,
        schema=table.schema,
        _added=table,
        _modified={},
        _removed=None,
    )
