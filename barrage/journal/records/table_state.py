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
import pyarrow.compute as pc

from barrage.journal.records.numbering import IdTracker
from barrage.journal.records.record import NO_POSITIONS, OP_ADD, OP_AFTER, Entry
from barrage.journal.records.stream_names import names_to_forget
from barrage.model.row_ids import RowIdMap
from barrage.model.storage.fixed import build_fixed, fixed_dtype, read_fixed, read_valid
from barrage.model.storage.picks import Picks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

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
    """Positions after some moved, in the order of their last move; the oldest of producers go
    first, those of streams never."""
    if not moved:
        return positions
    merged = {name: value for name, value in positions.items() if name not in moved}
    merged.update(moved)
    for name in names_to_forget(merged, producers_max):
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
    return TableState(
        version=entries[-1].step,
        wall_ns=entries[-1].wall_ns,
        ids=ids,
        rows=_rows_after(base, entries, ids, is_appended=is_appended),
        next_offset=entries[-1].next_offset,
        positions=positions,
    )


def _rows_after(
    base: TableState, entries: list[Entry], ids: RowIdMap, *, is_appended: bool
) -> pa.Table:
    """The rows under ``ids``, which are those of ``base`` and of later records."""
    if is_appended:
        added = [pa.Table.from_batches([entry.rows]) for entry in entries]
        width = len(base.rows.schema)
        return pa.concat_tables([base.rows, *(rows.select(range(2, 2 + width)) for rows in added)])
    parts, part_ids = zip(*(_surviving(entry) for entry in entries), strict=True)
    later, later_ids = pa.concat_tables(parts), np.concatenate(part_ids)
    living, base_ids = ids.ids, base.row_ids
    kept = int(np.count_nonzero(living < base.next_offset))
    if np.array_equal(living[:kept], base_ids):
        # No old row is gone, and new ones stand behind them: old cells stay where they are.
        is_old = later_ids < base.next_offset
        old = _overwritten(
            base, base_ids, later=later, later_ids=later_ids, places=np.flatnonzero(is_old)
        )
        return pa.concat_tables([old, _gathered(later, later_ids, living[kept:])])
    cells = pa.concat_tables([base.rows, later])
    return _gathered(cells, np.concatenate((base_ids, later_ids)), living)


def _overwritten(
    base: TableState,
    base_ids: Int64Array,
    *,
    later: pa.Table,
    later_ids: Int64Array,
    places: Int64Array,
) -> pa.Table:
    """The rows of ``base`` with the newest cells of those rows that have some at ``places`` of
    ``later``. Chunks without any are not copied."""
    if len(places) == 0:
        return base.rows
    if (base_ids[1:] > base_ids[:-1]).all():
        positions, _ = _find(base_ids, later_ids[places])
    else:
        order = np.argsort(base_ids, kind="stable")
        positions = order[_find(base_ids[order], later_ids[places])[0]]
    newest = np.full(len(base_ids), -1, dtype=np.int64)
    # Where an index occurs twice, numpy keeps the later value: the newest cells.
    newest[positions] = places
    fresh_chunks = _joined(later)
    chunks = []
    start = 0
    for batch in base.rows.to_batches():
        sources = newest[start : start + batch.num_rows]
        start += batch.num_rows
        mask = sources >= 0
        if mask.any():
            fresh = _picked(fresh_chunks, sources[mask])
            batch = _merged(batch, mask, fresh)
        chunks.append(batch)
    return pa.Table.from_batches(chunks, schema=base.rows.schema)


def _merged(
    old: pa.RecordBatch, mask: npt.NDArray[np.bool_], fresh: Sequence[pa.Array]
) -> pa.RecordBatch:
    """``old`` with the rows of ``mask`` taken from ``fresh``, in order."""
    return pa.RecordBatch.from_arrays(
        [
            _merged_cells(before, mask, after)
            for before, after in zip(old.columns, fresh, strict=True)
        ],
        schema=old.schema,
    )


def _merged_cells(before: pa.Array, mask: npt.NDArray[np.bool_], after: pa.Array) -> pa.Array:
    kind = before.type
    dtype = fixed_dtype(kind)
    if dtype is not None:
        # Copying all and writing a few costs a tenth of what Arrow's kernel takes.
        values = read_fixed(before, dtype).copy()
        values[mask] = read_fixed(after, dtype)
        old_valid, new_valid = read_valid(before), read_valid(after)
        valid = None
        if old_valid is not None or new_valid is not None:
            valid = np.ones(len(mask), np.bool_) if old_valid is None else old_valid.copy()
            valid[mask] = True if new_valid is None else new_valid
        return build_fixed(kind, values, valid)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pc.replace_with_mask(before, pa.array(mask), after)
    places = np.arange(len(mask), dtype=np.int64)
    places[mask] = np.arange(len(mask), len(mask) + len(after))
    return pa.concat_arrays([before, after]).take(pa.array(places))


def _find(ascending: Int64Array, ids: Int64Array) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Where each id is in ``ascending``, which is not empty, and whether it is there."""
    count = len(ascending)
    first = int(ascending[0])
    if int(ascending[-1]) - first + 1 == count:
        # One run, as of all tables that nothing was ever removed from.
        places = ids - first
        return places, (places >= 0) & (places < count)
    places = np.searchsorted(ascending, ids)
    is_found = places < count
    is_found[is_found] = ascending[places[is_found]] == ids[is_found]
    return places, is_found


def _surviving(entry: Entry) -> tuple[pa.Table, Int64Array]:
    """The rows of an entry that may live on: additions and new values."""
    rows = pa.Table.from_batches([entry.rows])
    if entry.update.added_keys_post.size < rows.num_rows:
        ops = entry.ops
        rows = rows.filter(pa.array((ops == OP_ADD) | (ops == OP_AFTER)))
    return rows.select(range(2, rows.num_columns)), rows.column(1).to_numpy()


def _gathered(cells: pa.Table, ids: Int64Array, living: Int64Array) -> pa.Table:
    """For each living id the last row of ``cells`` that has it, in the order of ``living``."""
    if len(living) == 0:
        return cells.slice(0, 0)
    order = np.argsort(living, kind="stable")
    slots, is_living = _find(living[order], ids)
    places = np.empty(len(living), dtype=np.int64)
    places[order[slots[is_living]]] = np.flatnonzero(is_living)
    return pa.Table.from_arrays(_picked(_joined(cells), places), schema=cells.schema)


def _picked(chunks: list[pa.RecordBatch], places: Int64Array) -> list[pa.Array]:
    """The rows at ``places``, of which there is at least one."""
    ends = np.cumsum([chunk.num_rows for chunk in chunks]).tolist()
    picks = Picks(places, [0, *ends[:-1]], ends[-1])
    return [
        picks.taken_from([chunk.column(index) for chunk in chunks])
        for index in range(chunks[0].num_columns)
    ]


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
