"""Reading values for messages, and what all messages of one moment have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrage.rowset import RowSet

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table
    from barrage.model.viewport import ColumnSet
    from barrage.rowset.arrays import Int64Array

Column: TypeAlias = pa.Array | pa.ChunkedArray

Entry = TypeVar("Entry")

COMBINE_ROWS_MAX = 64 * 1024
"""Chunked columns of at most this many rows are copied into one array, which is cheaper to slice
and to write."""

ARRAY_BYTES_MAX = 2**31 - 1
"""Most bytes of one array: the offsets of texts and lists have 32 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Steps covered, size of the table afterwards, and when the newest of them was committed."""

    first_step: int
    last_step: int
    table_size: int
    source_time_ns: int | None


@lru_cache(maxsize=4096)
def span(start: int, stop: int) -> RowSet:
    """Half-open span, remembered: views of equal size are told the same few spans over and over."""
    return RowSet.of_span(start, stop)


class TableReader:
    """One table, with one column entry per *schema* column in everything it reads; columns that
    were not asked for have no rows."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.column_count = len(table.schema)
        self.all_columns: ColumnSet = tuple(range(self.column_count))
        self.no_values: tuple[Column, ...] = tuple(
            pa.nulls(0, type=field.type) for field in table.schema
        )
        self.no_rows: tuple[RowSet, ...] = (RowSet.empty(),) * self.column_count

    def columns_of(self, keys: RowSet, columns: ColumnSet) -> tuple[Column, ...]:
        """Values of the rows ``keys``."""
        if keys.is_empty or not columns:
            return self.no_values
        return self.spread(self.table.read(keys, columns), columns)

    def spread(self, values: tuple[Column, ...], columns: ColumnSet) -> tuple[Column, ...]:
        """Put the values of ``columns`` at their places in the schema."""
        if len(columns) == self.column_count:
            return values
        filled = list(self.no_values)
        for column, column_values in zip(columns, values, strict=True):
            filled[column] = column_values
        return tuple(filled)

    def only(
        self, entries: tuple[Entry, ...], columns: ColumnSet, none: tuple[Entry, ...]
    ) -> tuple[Entry, ...]:
        """Of one entry per schema column those of ``columns``, and ``none`` for the others."""
        if len(columns) == self.column_count:
            return entries
        kept = list(none)
        for column in columns:
            kept[column] = entries[column]
        return tuple(kept)

    def modified_of(self, modified: tuple[RowSet, ...]) -> tuple[Column, ...]:
        """Values of each column's own modified rows; columns with equal rows are read together."""
        groups: dict[RowSet, list[int]] = {}
        for column, keys in enumerate(modified):
            if not keys.is_empty:
                groups.setdefault(keys, []).append(column)
        values = list(self.no_values)
        for keys, columns in groups.items():
            for column, found in zip(columns, self.table.read(keys, tuple(columns)), strict=True):
                values[column] = found
        return tuple(values)


def compact(column: Column) -> Column:
    """One array where that is cheap."""
    return whole(column) if len(column) <= COMBINE_ROWS_MAX else column


def whole(column: Column) -> Column:
    """One array, but for a column that none can hold."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return column.combine_chunks() if column.nbytes <= ARRAY_BYTES_MAX else column


def taken(column: Column, picks: Int64Array, counts: Int64Array) -> Column:
    """The rows ``picks``: so many for each of ``counts``, ascending. In pieces where no array can
    hold them all, and for a column that none can hold."""
    if isinstance(column, pa.Array) and _taken_bytes(column, picks, len(counts)) <= ARRAY_BYTES_MAX:
        return column.take(pa.array(picks))
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    stops = np.cumsum([len(chunk) for chunk in chunks])
    parts: list[pa.Array] = []
    for rows in np.split(picks, np.cumsum(counts)[:-1]):
        start = 0
        for chunk, in_chunk in zip(
            chunks, np.split(rows, np.searchsorted(rows, stops[:-1])), strict=True
        ):
            if len(in_chunk):
                parts.append(chunk.take(pa.array(in_chunk - start)))
            start += len(chunk)
    return pa.chunked_array(parts, column.type)


def _taken_bytes(column: pa.Array, picks: Int64Array, count: int) -> int:
    """Bytes that offsets have to number in the values of ``picks`` at most; no row is in there
    more than ``count`` times."""
    bytes_max: int = column.nbytes * count
    if bytes_max <= ARRAY_BYTES_MAX:
        return bytes_max
    if pa.types.is_primitive(column.type):
        return 0  # It has no offsets.
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        return int(lengths[picks].sum(dtype=np.int64))
    return bytes_max
