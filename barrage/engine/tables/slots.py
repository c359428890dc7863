"""The cells of a table whose row key is the slot number: one ColumnStore per column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.model.storage import ColumnStore, take_cells
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.engine.tables.cells import Cells
    from barrage.rowset.arrays import Int64Array

ROWS_PER_SLICE_MIN = 512
"""Runs at least this long on average are read as slices instead of gathered."""


class SlotStorage:
    """Columns of equal length; slots are handed out in ascending order by ``append``."""

    __slots__ = ("columns",)

    def __init__(self, schema: pa.Schema) -> None:
        self.columns = [ColumnStore(field.type) for field in schema]

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self.columns)

    @property
    def overwritten_nbytes(self) -> int:
        """Bytes of cells that are written in place, and that reading copies."""
        return sum(column.overwritten_nbytes for column in self.columns)

    @property
    def pinning_nbytes(self) -> int:
        """Bytes that :meth:`pinned` copies now."""
        return sum(column.pinning_nbytes for column in self.columns)

    def is_mostly_unused(self, row_count: int) -> bool:
        """Whether most of a dictionary is in no row, when so many slots have one."""
        return any(column.is_mostly_unused(row_count) for column in self.columns)

    def pinned(self) -> SlotStorage:
        """The cells there are now, which stay as they are, for reading only."""
        copied = SlotStorage.__new__(SlotStorage)
        copied.columns = [column.pinned() for column in self.columns]
        return copied

    def append(self, rows: pa.Table) -> None:
        batches = rows.to_batches()
        # Arrays are cheaper to look at than columns of one chunk.
        values = batches[0].columns if len(batches) == 1 else rows.columns
        for column, cells in zip(self.columns, values, strict=True):
            column.append(cells)

    def write(self, slots: Int64Array, cells: Sequence[pa.Array]) -> None:
        """Overwrite the rows at ``slots``, which are distinct; ``cells`` by column."""
        for column, values in zip(self.columns, cells, strict=True):
            column.write(slots, values)

    def clear(self) -> None:
        """Drop all slots; what was read stays as it is."""
        for column in self.columns:
            column.clear()

    def truncate(self, length: int) -> None:
        """Drop the slots from ``length`` on; the next ones appended get their numbers."""
        for column in self.columns:
            column.truncate(length)

    def forget_before(self, slot: int) -> None:
        for column in self.columns:
            column.forget_before(slot)

    def compact(self, slots: Int64Array) -> None:
        """Keep only ``slots`` and renumber them 0.. ; one column at a time, to hold one copy at
        most."""
        for index, column in enumerate(self.columns):
            self.columns[index] = column.compacted(slots)

    def spread(self, slots: Int64Array, length: int) -> None:
        """Be ``length`` slots: those there are now become ``slots``, ascending; the others may not
        be read."""
        for index, column in enumerate(self.columns):
            self.columns[index] = column.spread(slots, length)

    def tidy(self, cell_count: int) -> None:
        """Go on, by so many cells, with what writes have begun in the columns."""
        for column in self.columns:
            column.tidy(cell_count // len(self.columns))

    def read(self, keys: RowSet, columns: Sequence[int]) -> tuple[Cells, ...]:
        """Cells of the slots in ``keys``, ascending; zero-copy for contiguous append-only data."""
        if keys.is_empty:
            return tuple(pa.nulls(0, self.columns[index].type) for index in columns)
        if keys.is_contiguous:
            start, stop = keys.first, keys.last + 1
            return tuple(self.columns[index].slice(start, stop) for index in columns)
        if len(keys) >= ROWS_PER_SLICE_MIN * keys.range_count:
            return tuple(self._read_runs(keys, index) for index in columns)
        return self.take(keys.to_numpy(), columns)

    def read_slots(
        self, slots: Int64Array, columns: Sequence[int] | None = None
    ) -> tuple[Cells, ...]:
        """Cells of slots in any order, all columns by default; zero-copy for long runs of
        append-only data."""
        if columns is None:
            columns = range(len(self.columns))
        if len(slots) == 0:
            return self.read(RowSet.empty(), columns)
        begins = np.flatnonzero(slots[1:] != slots[:-1] + 1) + 1
        if not len(begins):
            first = int(slots[0])
            return self.read(RowSet.of_span(first, first + len(slots)), columns)
        if len(slots) < ROWS_PER_SLICE_MIN * (len(begins) + 1):
            return self.take(slots, columns)
        firsts = slots[np.append(0, begins)]
        stops = firsts + np.diff(np.concatenate(([0], begins, [len(slots)])))
        spans = list(zip(firsts.tolist(), stops.tolist(), strict=True))
        return tuple(self._read_spans(spans, index) for index in columns)

    def _read_runs(self, keys: RowSet, index: int) -> pa.ChunkedArray:
        return self._read_spans([(first, last + 1) for first, last in keys.ranges()], index)

    def _read_spans(self, spans: Sequence[tuple[int, int]], index: int) -> pa.ChunkedArray:
        store = self.columns[index]
        chunks: list[pa.Array] = []
        for start, stop in spans:
            cells = store.slice(start, stop)
            chunks.extend(cells.chunks if isinstance(cells, pa.ChunkedArray) else [cells])
        return pa.chunked_array(chunks, type=store.type)

    def take(self, slots: Int64Array, columns: Sequence[int]) -> tuple[pa.Array, ...]:
        return take_cells([self.columns[index] for index in columns], slots)


def rows_at(rows: pa.Table, places: Int64Array) -> pa.Table:
    """Some of the rows, in any order."""
    if not any(pa.types.is_run_end_encoded(field.type) for field in rows.schema):
        return rows.take(pa.array(places))
    columns = [cells_at(column.combine_chunks(), places) for column in rows.columns]
    return pa.table(columns, schema=rows.schema)


def cells_at(cells: pa.Array, places: Int64Array) -> pa.Array:
    """Some of the cells, in any order."""
    if not pa.types.is_run_end_encoded(cells.type):
        return cells.take(pa.array(places))
    # Arrow takes no cells of such an array.
    taken = pc.run_end_decode(cells).take(pa.array(places))
    return pc.run_end_encode(taken, run_end_type=cells.type.run_end_type)
