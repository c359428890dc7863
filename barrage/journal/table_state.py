"""The rows of a table at a version, and the way from one version to a later one.

Replaying does not apply change after change to the rows: the map of row ids says which rows live in
the end and where, and each one's cells are those of the last record that has its id. So the cost is
one pass over the records and one gather of the rows, however many changes there were; and nothing
is copied where rows were only added at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from barrage.journal.numbering import IdTracker
from barrage.journal.record import NO_POSITIONS, OP_ADD, OP_AFTER, Entry
from barrage.model.row_ids import RowIdMap
from barrage.model.storage.picks import Picks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from barrage.rowset import RowSet
    from barrage.rowset.arrays import Int64Array

_FOLD_BYTES_MIN: Final = 64 << 20
"""Bytes of records gathered before they are folded into the rows."""

_CHUNK_ROWS: Final = 1 << 16
"""Shorter chunks than this are joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """All rows of a table at one version, in key order. Immutable, readable by any thread."""

    version: int
    wall_ns: int
    ids: RowIdMap
    rows: pa.Table
    """The table's columns in plain types, one row per key."""
    next_offset: int
    """Number that the next row of the history gets."""
    positions: Mapping[str, int] = field(default_factory=lambda: NO_POSITIONS)

    @property
    def keys(self) -> RowSet:
        """Keys of all rows."""
        return self.ids.keys

    @property
    def row_ids(self) -> Int64Array:
        """Ids of all rows, in key order."""
        return self.ids.ids

    @classmethod
    def nothing(cls, schema: pa.Schema, *, version: int, wall_ns: int) -> TableState:
        """A table without rows. ``schema`` is that of entries."""
        fields = [schema.field(index) for index in range(2, len(schema))]
        return cls(
            version=version,
            wall_ns=wall_ns,
            ids=RowIdMap.empty(),
            rows=pa.schema(fields).empty_table(),
            next_offset=0,
        )


def replayed(
    base: TableState, entries: Iterable[Entry], *, producers_max: int = 10_000
) -> TableState:
    """The state after ``entries``, which follow on ``base``."""
    state = base
    waiting: list[Entry] = []
    waiting_bytes = 0
    for entry in entries:
        waiting.append(entry)
        waiting_bytes += entry.rows.nbytes
        if waiting_bytes > max(_FOLD_BYTES_MIN, state.rows.nbytes):
            state = _folded(state, waiting, producers_max)
            waiting, waiting_bytes = [], 0
    return _folded(state, waiting, producers_max) if waiting else state


def moved_positions(
    positions: Mapping[str, int], moved: Mapping[str, int], producers_max: int
) -> Mapping[str, int]:
    """Positions after some moved, in the order of their last move; the oldest go first."""
    if not moved:
        return positions
    merged = {name: value for name, value in positions.items() if name not in moved}
    merged.update(moved)
    for name in list(merged)[: max(0, len(merged) - producers_max)]:
        del merged[name]
    return merged


def _folded(base: TableState, entries: list[Entry], producers_max: int) -> TableState:
    tracker, positions = IdTracker(base.ids), base.positions
    is_appended = True
    last = base.keys.last if not base.keys.is_empty else -1
    for entry in entries:
        update = entry.update
        added = update.added_keys_post
        is_appended &= (
            update.removed_keys_pre.is_empty
            and update.shifts.is_empty
            and entry.rows.num_rows == added.size
            and (added.is_empty or added.first > last)
        )
        if is_appended and not added.is_empty:
            last = added.last
        tracker.apply(update, entry.first_added_id)
        positions = moved_positions(positions, entry.positions, producers_max)
    ids = tracker.ids
    parts, part_ids = [base.rows], [base.row_ids]
    for entry in entries:
        rows, row_ids = _surviving(entry)
        parts.append(rows)
        part_ids.append(row_ids)
    cells = pa.concat_tables(parts)
    rows = cells if is_appended else _gathered(cells, np.concatenate(part_ids), ids.ids)
    return TableState(
        version=entries[-1].step,
        wall_ns=entries[-1].wall_ns,
        ids=ids,
        rows=rows,
        next_offset=entries[-1].next_offset,
        positions=positions,
    )


def _surviving(entry: Entry) -> tuple[pa.Table, Int64Array]:
    """The rows of an entry that may live on: additions and new values."""
    rows = pa.Table.from_batches([entry.rows])
    count = entry.update.added_keys_post.size
    if count < rows.num_rows:
        rows = rows.filter(pa.array(np.isin(entry.ops, (OP_ADD, OP_AFTER))))
    return rows.select(range(2, rows.num_columns)), rows.column(1).to_numpy()


def _gathered(cells: pa.Table, ids: Int64Array, living: Int64Array) -> pa.Table:
    """For each living id the last row of ``cells`` that has it, in the order of ``living``."""
    if len(living) == 0:
        return cells.slice(0, 0)
    order = np.argsort(living, kind="stable")
    ascending = living[order]
    slots = np.searchsorted(ascending, ids)
    is_living = slots < len(ascending)
    is_living[is_living] = ascending[slots[is_living]] == ids[is_living]
    places = np.empty(len(living), dtype=np.int64)
    # Where an index occurs twice, numpy keeps the later value: the newest cells.
    places[order[slots[is_living]]] = np.flatnonzero(is_living)
    chunks = _joined(cells)
    sizes = [chunk.num_rows for chunk in chunks]
    starts = [0, *np.cumsum(sizes)[:-1].tolist()]
    picks = Picks(places, starts, cells.num_rows)
    columns = [
        picks.taken_from([chunk.column(index) for chunk in chunks])
        for index in range(cells.num_columns)
    ]
    return pa.Table.from_arrays(columns, schema=cells.schema)


def _joined(cells: pa.Table) -> list[pa.RecordBatch]:
    """The rows in chunks, small neighbours joined, all columns cut alike."""
    chunks: list[pa.RecordBatch] = []
    small: list[pa.RecordBatch] = []
    for batch in [*cells.to_batches(), None]:
        if small and (batch is None or sum(len(b) for b in small) + len(batch) > _CHUNK_ROWS):
            chunks.append(small[0] if len(small) == 1 else pa.concat_batches(small))
            small = []
        if batch is not None and len(batch):
            small.append(batch)
    return chunks
