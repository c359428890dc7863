"""Reading values for messages, and what all messages of one moment have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import pyarrow as pa

from barrage.rowset import RowSet

if TYPE_CHECKING:
    from barrage.engine.tables.table import Table
    from barrage.model.viewport import ColumnSet

Column: TypeAlias = pa.Array | pa.ChunkedArray

Entry = TypeVar("Entry")

COMBINE_ROWS_MAX = 64 * 1024
"""Chunked columns of at most this many rows are copied into one array, which is cheaper to slice
and to write."""


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
    if isinstance(column, pa.ChunkedArray) and len(column) <= COMBINE_ROWS_MAX:
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column
