"""One column addressed by slot numbers 0..len-1; picks the representation that fits its use.

* Append-only: immutable Arrow chunks (:mod:`.chunks`), zero copy in and out.
* After the first overwrite: fixed-width cells in one growable numpy buffer (:mod:`.fixed`), into
  which those of large columns move with the writes (:mod:`.thawing`); others in a log of chunks
  with a position per slot (:mod:`.log`).
* Dictionary, run-end and null columns: :mod:`.encoded`.

Invariant: what ``take`` and ``slice`` returned never changes afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from barrage.errors import SchemaError
from barrage.model.storage.chunks import ChunkLog
from barrage.model.storage.encoded import DictionaryColumn, NullColumn, RunEndColumn
from barrage.model.storage.fixed import FixedColumn, fixed_dtype
from barrage.model.storage.log import LogColumn
from barrage.model.storage.thawing import ThawingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.model.storage.growth import Int64Array
    from barrage.model.storage.picks import Picks

COMPACT_ROWS = 1 << 17
"""Rows copied at a time by :meth:`ColumnStore.compacted`."""

THAWED_AT_ONCE_MAX = 1 << 17
"""Columns of so many cells, or fewer, become writable at once."""


class _Representation(Protocol):
    @property
    def length(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def overwritten_nbytes(self) -> int: ...
    @property
    def pinning_nbytes(self) -> int: ...
    def pinned(self) -> _Representation: ...
    def append(self, values: pa.Array) -> None: ...
    def take(self, slots: Int64Array) -> pa.Array: ...
    def slice(self, start: int, stop: int) -> pa.Array | pa.ChunkedArray: ...
    def truncate(self, length: int) -> None: ...


class ColumnStore:
    """A growable column of one Arrow type. Not thread-safe; results may be handed to any thread."""

    __slots__ = ("_cells", "_is_overwritten", "type")

    def __init__(self, data_type: pa.DataType) -> None:
        self.type = data_type
        self._is_overwritten = False
        self._cells: _Representation = _representation(data_type)

    def __len__(self) -> int:
        return self._cells.length

    @property
    def nbytes(self) -> int:
        """Bytes held, garbage and spare room included."""
        return self._cells.nbytes

    @property
    def overwritten_nbytes(self) -> int:
        """Bytes of cells that are written in place, and that reading copies."""
        return self._cells.overwritten_nbytes

    @property
    def pinning_nbytes(self) -> int:
        """Bytes that :meth:`pinned` copies now: those of columns that are small, or that are pinned
        in many states already."""
        return self._cells.pinning_nbytes

    def pinned(self) -> ColumnStore:
        """A store of the same cells, which later calls of this one do not change. It may be read
        on another thread, and is never written. Costs nearly the same for any length; while it is
        held, later calls save for it what they overwrite (:mod:`.pinning`)."""
        copied = ColumnStore.__new__(ColumnStore)
        copied.type = self.type
        copied._is_overwritten = self._is_overwritten
        copied._cells = self._cells.pinned()
        return copied

    def append(self, values: pa.Array | pa.ChunkedArray) -> None:
        """Add cells at slots len.. ; SchemaError when the type differs."""
        if values.type != self.type:
            raise self._misfit(values)
        if not isinstance(values, pa.ChunkedArray):
            self._cells.append(values)
        elif isinstance(self._cells, ChunkLog):
            self._cells.append_pieces(values)
        else:
            for chunk in values.chunks:
                self._cells.append(chunk)

    def write(self, slots: Int64Array, values: pa.Array | pa.ChunkedArray) -> None:
        """Overwrite the cells at ``slots`` (distinct, each below len) with as many values."""
        if values.type != self.type:
            raise self._misfit(values)
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if len(slots) != len(values):
            raise ValueError(f"{len(slots)} slots but {len(values)} values")
        if len(slots) == 0:
            return
        if isinstance(self._cells, ChunkLog):
            self._cells = _overwritable(self._cells)
        self._cells.write(slots, values)  # type: ignore[attr-defined]
        self._settle()

    def take(self, slots: Int64Array) -> pa.Array:
        """The cells at ``slots``, any order, repeats allowed."""
        return self._cells.take(np.asarray(slots, dtype=np.int64))

    def slice(self, start: int, stop: int) -> pa.Array | pa.ChunkedArray:
        """The cells at slots ``start..stop-1``; zero-copy while the column was never
        overwritten."""
        return self._cells.slice(start, stop)

    def truncate(self, length: int) -> None:
        """Drop the cells at slots ``length`` and beyond; what is appended next gets these slots."""
        if length < len(self):
            self._cells.truncate(length)
            self._settle()

    def tidy(self, cell_count: int) -> None:
        """Go on with what writes have begun and not ended, by so many cells: becoming writable,
        giving garbage back."""
        tidy = getattr(self._cells, "tidy", None)
        if tidy is not None:
            tidy(cell_count)
            self._settle()

    def is_mostly_unused(self, cell_count: int) -> bool:
        """Whether this is a dictionary of which most is in no cell, when so many are in use."""
        held = self._cells
        return isinstance(held, DictionaryColumn) and held.is_mostly_unused(cell_count)

    def give_up_unused(self) -> None:
        """Make a dictionary anew of which most is in no cell any more. Costs what the cells are."""
        held = self._cells
        if not isinstance(held, DictionaryColumn) or not held.is_mostly_unused(len(self)):
            return
        fresh = _representation(self.type)
        for start in range(0, len(self), COMPACT_ROWS):
            slots = np.arange(start, min(start + COMPACT_ROWS, len(self)), dtype=np.int64)
            fresh.append(held.take_narrowed(slots))
        self._cells = fresh

    def _settle(self) -> None:
        if isinstance(self._cells, ThawingColumn) and self._cells.is_thawed:
            self._cells = self._cells.cells

    def clear(self) -> None:
        """Be as new: no cells, and what is appended next gets the slots from 0 on."""
        if isinstance(self._cells, ChunkLog):
            self._cells.truncate(0)
        else:
            self._cells = _representation(self.type)

    def forget_before(self, slot: int) -> None:
        """Cells before ``slot`` will not be read again; their memory is freed chunk by chunk.

        Overwritten columns only free it when they are compacted.
        """
        forget = getattr(self._cells, "forget_before", None)
        if forget is not None:
            forget(slot)

    def own(self, owned: Callable[[pa.Array], pa.Array]) -> None:
        """Move cells to other memory: ``owned`` returns an array, or a copy of it. Each array is
        given once; cells that were overwritten, or are encoded, are copies in any case."""
        if isinstance(self._cells, ChunkLog | LogColumn):
            self._cells.own(owned)

    def compacted(self, slots: Int64Array) -> ColumnStore:
        """A new store with the cells at ``slots`` at 0.., in the same representation."""
        fresh = ColumnStore(self.type)
        if isinstance(fresh._cells, ChunkLog) and not isinstance(self._cells, ChunkLog):
            fresh._cells = _overwritable(fresh._cells)
        for start in range(0, len(slots), COMPACT_ROWS):
            fresh._cells.append(self.take(slots[start : start + COMPACT_ROWS]))
        return fresh

    def spread(self, slots: Int64Array, length: int) -> ColumnStore:
        """A new store of ``length`` cells, which has those of this one at ``slots``, ascending. The
        others take no more room than they must, and may not be read."""
        fresh = ColumnStore(self.type)
        if isinstance(self._cells, RunEndColumn):
            fresh._cells = self._cells.spread(slots, length)
            return fresh
        has_room = isinstance(self._cells, DictionaryColumn) or fixed_dtype(self.type) is not None
        for start in range(0, length, COMPACT_ROWS):
            stop = min(start + COMPACT_ROWS, length)
            first, last = (int(place) for place in np.searchsorted(slots, [start, stop]))
            places = np.full(stop - start, -1, dtype=np.int64)
            places[slots[first:last] - start] = np.arange(last - first)
            if has_room and last > first:
                fresh.append(self.take(first + np.maximum(places, 0)))
            else:
                cells = self.take(np.arange(first, last, dtype=np.int64))
                fresh.append(cells.take(pa.array(places, mask=places < 0)))
        return fresh

    def _misfit(self, values: pa.Array | pa.ChunkedArray) -> SchemaError:
        return SchemaError(f"values of type {values.type} do not fit a column of {self.type}")


def take_cells(stores: Sequence[ColumnStore], slots: Int64Array) -> tuple[pa.Array, ...]:
    """The cells at ``slots`` of several columns, as :meth:`ColumnStore.take`.

    Columns that are only appended to are mostly cut into chunks alike, because they got the same
    batches: then the slots are looked up once.
    """
    slots = np.ascontiguousarray(slots, dtype=np.int64)
    picks: Picks | None = None
    taken = []
    for store in stores:
        cells = store._cells
        if isinstance(cells, ChunkLog) and len(slots):
            picks = picks or cells.picks(slots)
            taken.append(cells.take(slots, picks))
        else:
            taken.append(cells.take(slots))
    return tuple(taken)


def _representation(data_type: pa.DataType) -> _Representation:
    if pa.types.is_dictionary(data_type):
        return DictionaryColumn(data_type, ColumnStore(pa.int32()))
    if pa.types.is_run_end_encoded(data_type):
        return RunEndColumn(data_type, ColumnStore(data_type.value_type))
    if pa.types.is_null(data_type):
        return NullColumn(data_type)
    return ChunkLog(data_type)


def _overwritable(chunks: ChunkLog) -> FixedColumn | ThawingColumn | LogColumn:
    """The same cells in a form that takes overwrites. Forgotten slots read as null from here on."""
    dtype = fixed_dtype(chunks.type)
    if chunks.base == 0:
        if dtype is None:
            return LogColumn.of_chunks(chunks)
        if chunks.length > THAWED_AT_ONCE_MAX:
            return ThawingColumn(chunks, dtype)
    cells: FixedColumn | LogColumn = (
        LogColumn(chunks.type) if dtype is None else FixedColumn(chunks.type, dtype)
    )
    held = chunks.chunks()
    missing = chunks.length - sum(len(chunk) for chunk in held)
    if missing:
        cells.append(pa.nulls(missing, chunks.type))
    for chunk in held:
        cells.append(chunk)
    return cells
