"""From what the engine hands over to what the journal records: rows get their numbers and ids.

Most cycles only add rows. Their ids follow from their numbers, and nothing needs the map of ids
until a row is removed or modified; so cycles are only noted and put into the map together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import pyarrow as pa

from barrage.journal.records.record import OP_ADD, OP_AFTER, OP_BEFORE, OP_REMOVE, Entry

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from barrage.model.row_ids import RowCycle, RowIdMap
    from barrage.model.table_change import TableChange
    from barrage.model.update import TableUpdate
    from barrage.rowset.arrays import Int64Array

_NOTED_MAX: Final = 256
_NOTED_ROWS_MAX: Final = 1 << 18
"""Cycles noted before they are put into the map, and rows of all of them."""

_OPS_CACHED: Final = 1 << 16
_ADD_OPS: Final = pa.Array.from_buffers(
    # pa.array() would import pandas, where that is installed, before anything is asked for.
    *(pa.int8(), _OPS_CACHED, [None, pa.py_buffer(np.full(_OPS_CACHED, OP_ADD, dtype=np.int8))])
)

Cells: TypeAlias = pa.Array | pa.ChunkedArray


class IdTracker:
    """The map of row ids while changes go by. Cycles without shifts wait until it is asked for."""

    __slots__ = ("_ids", "_noted", "_noted_rows")

    def __init__(self, ids: RowIdMap) -> None:
        self._ids = ids
        self._noted: list[RowCycle] = []
        self._noted_rows = 0

    @property
    def ids(self) -> RowIdMap:
        """The map after everything that was applied."""
        if self._noted:
            self._ids = self._ids.apply_all(self._noted)
            self._noted, self._noted_rows = [], 0
        return self._ids

    def apply(self, update: TableUpdate, first_added_id: int) -> None:
        """Follow a cycle; its added rows have consecutive ids. ValueError, now or when the map is
        asked for next, when it does not fit."""
        removed, added = update.removed_keys_pre, update.added_keys_post
        if removed.is_empty and added.is_empty and update.shifts.is_empty:
            return
        ids = np.arange(first_added_id, first_added_id + added.size, dtype=np.int64)
        self._noted.append((removed, update.shifts, added, ids))
        self._noted_rows += removed.size + added.size
        if len(self._noted) >= _NOTED_MAX or self._noted_rows >= _NOTED_ROWS_MAX:
            self._ids = self.ids


def history_row_count(change: TableChange, *, is_blink: bool) -> int:
    """Rows a change has in the history, and so how many numbers it takes."""
    removed = 0 if is_blink else change.update.removed_keys_pre.size
    return removed + 2 * change.modified_keys_post.size + change.update.added_keys_post.size


@dataclass(frozen=True, slots=True)
class PendingChange:
    """A change as the engine handed it over."""

    change: TableChange
    step: int
    wall_ns: int
    positions: Mapping[str, int]


class EntryBuilder:
    """Numbers the rows of one table's changes, in the order they are handed over."""

    def __init__(
        self, schema: pa.Schema, ids: RowIdMap, next_offset: int, *, is_blink: bool
    ) -> None:
        self._schema = schema
        self._kinds = [field.type for field in schema][2:]
        self._tracker = IdTracker(ids)
        self._next_offset = next_offset
        self._is_blink = is_blink

    @property
    def ids(self) -> RowIdMap:
        """Which row is under which key after the last change."""
        return self._tracker.ids

    def build(self, pending: PendingChange) -> Entry:
        """The entry of the next change."""
        change, update = pending.change, pending.change.update
        first = self._next_offset
        count = history_row_count(change, is_blink=self._is_blink)
        added_count = update.added_keys_post.size
        if count == added_count:
            self._tracker.apply(update, first)
            columns = self._added_columns(change, first, count)
        else:
            columns = self._all_columns(change, first, count)
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._next_offset = first + count
        return Entry(
            step=pending.step,
            wall_ns=pending.wall_ns,
            update=update,
            rows=rows,
            first_offset=first,
            positions=pending.positions,
        )

    def _added_columns(self, change: TableChange, first: int, count: int) -> list[pa.Array]:
        ops = (
            _ADD_OPS.slice(0, count)
            if count <= _OPS_CACHED
            else pa.array(np.full(count, OP_ADD, dtype=np.int8))
        )
        ids = pa.array(np.arange(first, first + count, dtype=np.int64))
        pairs = zip(change.added, self._kinds, strict=True)
        return [ops, ids, *(contiguous([cells], kind) for cells, kind in pairs)]

    def _all_columns(self, change: TableChange, first: int, count: int) -> list[pa.Array]:
        """All rows of a change that has more than additions."""
        update, modified = change.update, change.modified_keys_post
        added_count = update.added_keys_post.size
        removed_count = count - 2 * modified.size - added_count
        row_ids = np.empty(count, dtype=np.int64)
        if removed_count:
            row_ids[:removed_count] = self.ids.ids_of(update.removed_keys_pre)
        self._tracker.apply(update, first + count - added_count)
        if modified.size:
            ids = self.ids.ids_of(modified)
            row_ids[removed_count : count - added_count : 2] = ids
            row_ids[removed_count + 1 : count - added_count : 2] = ids
        row_ids[count - added_count :] = np.arange(first + count - added_count, first + count)
        ops = np.full(count, OP_ADD, dtype=np.int8)
        ops[:removed_count] = OP_REMOVE
        ops[removed_count : count - added_count : 2] = OP_BEFORE
        ops[removed_count + 1 : count - added_count : 2] = OP_AFTER
        pairs = pa.array(_pairs(modified.size)) if modified.size else None
        cells = [
            _history_cells(change, index, kind, pairs=pairs, has_removed=removed_count > 0)
            for index, kind in enumerate(self._kinds)
        ]
        return [pa.array(ops), pa.array(row_ids), *cells]


def _pairs(count: int) -> Int64Array:
    """0, count, 1, count + 1, ...: -C and +C of each modified row beside each other."""
    order = np.empty(2 * count, dtype=np.int64)
    order[::2] = np.arange(count)
    order[1::2] = np.arange(count, 2 * count)
    return order


def _history_cells(
    change: TableChange,
    index: int,
    kind: pa.DataType,
    *,
    pairs: pa.Array | None,
    has_removed: bool,
) -> pa.Array:
    """One column of an entry."""
    parts: list[Cells] = [change.removed[index]] if has_removed else []
    if pairs is not None:
        both = contiguous([change.before[index], change.after[index]], kind)
        parts.append(both.take(pairs))
    if not change.update.added_keys_post.is_empty:
        parts.append(change.added[index])
    return contiguous(parts, kind)


def contiguous(parts: Sequence[Cells], kind: pa.DataType) -> pa.Array:
    """The parts as one array of a plain type; no copy when there is one chunk of that type."""
    chunks: list[pa.Array] = []
    for part in parts:
        chunks.extend(part.chunks if isinstance(part, pa.ChunkedArray) else [part])
    if len(chunks) > 1:
        chunks = [chunk for chunk in chunks if len(chunk)]
    plain = [chunk if chunk.type == kind else _plain(chunk, kind) for chunk in chunks]
    if len(plain) == 1:
        return plain[0]
    return pa.concat_arrays(plain) if plain else pa.array([], kind)


def _plain(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if values.type == kind:
        return values
    if pa.types.is_dictionary(values.type):
        return _plain(values.dictionary_decode(), kind)
    if pa.types.is_run_end_encoded(values.type):
        return _plain(pa.compute.run_end_decode(values), kind)
    return values.cast(kind)


class ByteEstimate:
    """Bytes that changes of one table take, without asking every array: columns of fixed width are
    multiplied. Called by the engine's thread."""

    __slots__ = ("_row_bytes", "_variable")

    def __init__(self, schema: pa.Schema) -> None:
        self._row_bytes = 16
        self._variable: list[int] = []
        for index, field in enumerate(list(schema)[2:]):
            try:
                self._row_bytes += (field.type.bit_width + 7) // 8
            except ValueError:
                self._variable.append(index)

    def of(self, change: TableChange) -> int:
        """An estimate, never far below."""
        update = change.update
        total = 0
        for cells, keys in (
            (change.removed, update.removed_keys_pre),
            (change.before, change.modified_keys_post),
            (change.after, change.modified_keys_post),
            (change.added, update.added_keys_post),
        ):
            if not keys.is_empty:
                total += self._row_bytes * keys.size
                for index in self._variable:
                    total += cells[index].nbytes
        return total
