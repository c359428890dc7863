"""Rows of columns as the arrays of one batch: in place where they are in one chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def piece_of(column: Column, start: int, rows: int) -> pa.Array:
    """Rows [start, start + rows) as one array; copies only where chunks meet."""
    if len(column) != rows:
        column = column.slice(start, rows)
    if isinstance(column, pa.ChunkedArray):
        chunks = column.chunks
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)
    return column


def uncopied(columns: Sequence[Column], start: int, count: int) -> int:
    """How many rows to put into a batch that may have ``count``: fewer, down to half, when these
    are in one chunk and need not be copied. Columns mostly have the same chunks, so the first one
    that has any says where they end."""
    for column in columns:
        if len(column) > start:
            if not isinstance(column, pa.ChunkedArray):
                return count
            piece = column.slice(start, count)
            first = count if piece.num_chunks < 2 else len(piece.chunk(0))
            return first if first * 2 >= count else count
    return count
