"""Entries cut and joined into parts of about one batch, and what a part knows beside its cells.

Worked example: an entry of 150,000 added rows is three parts of one slice each; 300 entries of one
row are one part of 300 slices. A cut never separates a row's -C from its +C.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from barrage.journal.change_feed.feed_rows import BATCH_BYTES, BATCH_ROWS, FeedRows, rows_per_batch
from barrage.journal.change_feed.feed_schema import DELETE, INSERT, POSTIMAGE, PREIMAGE
from barrage.journal.records.record import OP_AFTER, OP_BEFORE, OP_REMOVE
from barrage.rowset import RowSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from barrage.journal.records.record import Entry
    from barrage.rowset.arrays import BoolArray, Int64Array

HISTORY_COLUMNS: Final = 2
"""Columns of an entry's rows before those of the table: ``op`` and ``row_id``."""

_NANOS_PER_MICRO: Final = 1000

_CODES: Final = np.empty(4, dtype=np.int8)
_CODES[:] = INSERT
_CODES[OP_REMOVE], _CODES[OP_BEFORE], _CODES[OP_AFTER] = DELETE, PREIMAGE, POSTIMAGE

_TINY_BYTES: Final = 1 << 15

EMPTY: Final = RowSet.empty()


def table_schema(entry: Entry) -> pa.Schema:
    """Schema of the table's columns as they are recorded."""
    return pa.schema(list(entry.rows.schema)[HISTORY_COLUMNS:])


class Recorded:
    """An entry and how its rows are laid out: removed, pairs of before and after, added."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.row_count: int = entry.rows.num_rows

    @property
    def is_added(self) -> bool:
        """Whether it has nothing but added rows."""
        added: int = self.entry.update.added_keys_post.size
        return added == self.row_count

    @cached_property
    def removed_count(self) -> int:
        """-R rows; a blink table has none whatever its update removes."""
        added_count: int = self.entry.update.added_keys_post.size
        return self.row_count - added_count - 2 * self.pair_count

    @cached_property
    def pair_count(self) -> int:
        return len(self.modified_keys)

    @cached_property
    def modified_keys(self) -> RowSet:
        """Keys of the rows modified in any column, after the cycle."""
        modified = self.entry.update.modified_keys_post
        distinct = {id(keys): keys for keys in modified if not keys.is_empty}
        return reduce(or_, distinct.values(), EMPTY)

    @property
    def wall_micros(self) -> int:
        """Time of the cycle, as the feed has it."""
        return self.entry.wall_ns // _NANOS_PER_MICRO

    def cuts(self, row_count: int) -> list[int]:
        """Where slices of about ``row_count`` rows begin and end."""
        borders = [*range(0, self.row_count, max(2, row_count)), self.row_count]
        first, last = self.removed_count, self.removed_count + 2 * self.pair_count
        return [at + 1 if first < at < last and (at - first) % 2 else at for at in borders]


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows ``start`` to ``stop`` of an entry."""

    recorded: Recorded
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def rows(self) -> pa.RecordBatch:
        rows = self.recorded.entry.rows
        return rows if len(self) == len(rows) else rows.slice(self.start, len(self))

    def _span(self, begin: int, count: int, *, width: int = 1) -> tuple[int, int]:
        """Which of the ``count`` things of ``width`` rows from row ``begin`` on are inside."""
        low = min(max(self.start - begin, 0), count * width)
        high = min(max(self.stop - begin, 0), count * width)
        return low // width, high // width

    @property
    def _pairs(self) -> tuple[int, int]:
        """Numbers, half open, of the entry's updated rows inside."""
        recorded = self.recorded
        return self._span(recorded.removed_count, recorded.pair_count, width=2)

    def row_keys(self) -> Int64Array:
        """Where each row stands: before the cycle if it was removed, else after it."""
        update, recorded = self.recorded.entry.update, self.recorded
        removed = self._span(0, recorded.removed_count)
        begin = recorded.removed_count + 2 * recorded.pair_count
        added = self._span(begin, self.recorded.row_count - begin)
        parts = [
            update.removed_keys_pre.slice(*removed).to_numpy() if removed[1] else EMPTY.to_numpy(),
            np.repeat(recorded.modified_keys.slice(*self._pairs).to_numpy(), 2),
            update.added_keys_post.slice(*added).to_numpy(),
        ]
        return np.concatenate(parts)

    def modified(self, indices: Sequence[int]) -> tuple[int, BoolArray]:
        """The first updated row inside, and for each pair from there on which of the columns
        ``indices`` changed: shape (pairs, columns). At most a few bytes per byte of cells."""
        recorded = self.recorded
        start, stop = self._pairs
        keys = recorded.modified_keys.slice(start, stop)
        matrix = np.zeros((len(keys), len(indices)), dtype=np.bool_)
        modified = recorded.entry.update.modified_keys_post
        for place, index in enumerate(indices):
            inside = modified[index]
            if len(inside) == recorded.pair_count:
                matrix[:, place] = True
                continue
            if len(keys) < recorded.pair_count and not keys.is_empty:
                inside = inside.clip(keys.first, keys.last)
            if len(inside) == len(keys):
                matrix[:, place] = True
            elif not (inside.is_empty or keys.is_empty):
                matrix[keys.positions_of(inside).to_numpy(), place] = True
        return recorded.removed_count + 2 * start - self.start, matrix


def name_lists(names: pa.Array, matrix: BoolArray, rows: Int64Array) -> pa.ListArray:
    """For each of ``rows`` the names of the columns true in that row of the matrix; null for -1."""
    sizes = np.zeros(len(rows) + 1, dtype=np.int32)
    is_null = rows < 0
    chosen = matrix[rows[~is_null]]
    sizes[1:][~is_null] = chosen.sum(axis=1)
    return pa.ListArray.from_arrays(
        pa.array(np.cumsum(sizes, dtype=np.int32)),
        names.take(pa.array(np.nonzero(chosen)[1])),
        mask=pa.array(is_null),
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one or more consecutive entries, about one batch."""

    slices: list[Slice]

    def __len__(self) -> int:
        return sum(map(len, self.slices))

    def rows(self, indices: Sequence[int]) -> pa.RecordBatch:
        """``op``, ``row_id`` and the table columns with these indices; a view of one slice, joined
        of many."""
        wanted = [0, 1, *(index + HISTORY_COLUMNS for index in indices)]
        # Columns may be named twice, so by number; a batch of all columns needs no choosing.
        batches = [
            rows if wanted == list(range(rows.num_columns)) else rows.select(wanted)
            for rows in (part.rows for part in self.slices)
        ]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def feed_rows(
        self,
        schema: pa.Schema,
        indices: Sequence[int],
        *,
        row_key: bool,
        modified: Sequence[int] | None,
    ) -> FeedRows:
        """All rows of the part with the cells of ``indices``; ``modified`` are the columns to look
        for modifications in."""
        rows = self.rows(indices)
        counts = [len(part) for part in self.slices]
        names = pa.array([schema.field(index).name for index in modified or ()], pa.string())
        return FeedRows(
            codes=_CODES[rows.column(0).to_numpy()],
            versions=_repeated([part.recorded.entry.step for part in self.slices], counts),
            micros=_repeated([part.recorded.wall_micros for part in self.slices], counts),
            ids=rows.column(1),
            keys=np.concatenate([part.row_keys() for part in self.slices]) if row_key else None,
            modified=None if modified is None else self._modified_columns(names, modified),
            cells=rows.select(range(HISTORY_COLUMNS, rows.num_columns)),
        )

    def _modified_columns(self, names: pa.Array, indices: Sequence[int]) -> pa.ListArray:
        """Of each updated row the names of the columns whose cells changed; else null."""
        matrices = []
        places = np.full(len(self), -1, dtype=np.int64)
        start = number = 0
        for piece in self.slices:
            begin, matrix = piece.modified(indices)
            numbers = np.arange(number, number + len(matrix))
            places[start + begin : start + begin + 2 * len(matrix)] = np.repeat(numbers, 2)
            matrices.append(matrix)
            start, number = start + len(piece), number + len(matrix)
        return name_lists(names, np.concatenate(matrices), places)


def _repeated(values: list[int], counts: list[int]) -> Int64Array:
    if len(values) == 1:
        return np.full(counts[0], values[0], dtype=np.int64)
    return np.repeat(np.array(values, dtype=np.int64), counts)


def _byte_count(rows: pa.RecordBatch) -> int:
    """Bytes of the rows; of few rows their buffers, which may have some padding, as looking at
    each column's cells takes longer than all the rest."""
    held: int = rows.get_total_buffer_size()
    exact: int = held if held < _TINY_BYTES else rows.nbytes
    return exact


def parts_of(entries: Iterable[Entry]) -> Iterator[Part]:
    """The rows of ``entries`` in parts of about one batch, in order."""
    waiting: list[Slice] = []
    row_count = byte_count = 0
    for entry in entries:
        count = entry.rows.num_rows
        if count == 0:
            continue
        recorded = Recorded(entry)
        size = _byte_count(entry.rows)
        is_small = count <= BATCH_ROWS and size <= BATCH_BYTES
        if waiting and (
            not is_small or row_count + count > BATCH_ROWS or byte_count + size > BATCH_BYTES
        ):
            yield Part(waiting)
            waiting, row_count, byte_count = [], 0, 0
        if is_small:
            waiting.append(Slice(recorded, 0, count))
            row_count, byte_count = row_count + count, byte_count + size
            continue
        for start, stop in pairwise(recorded.cuts(rows_per_batch(entry.rows))):
            if start < stop:
                yield Part([Slice(recorded, start, stop)])
    if waiting:
        yield Part(waiting)
