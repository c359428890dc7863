"""Cells as tables hand them out and operators compute with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

Cells: TypeAlias = pa.Array | pa.ChunkedArray
"""The values of one column for some rows."""

EVALUATED_ROWS = 1 << 18
"""Rows evaluated at a time, which bounds the temporaries of an expression over a large table."""


def single_chunks(cells: Iterable[Cells]) -> list[pa.Array]:
    """The same columns as plain arrays."""
    return [
        column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for column in cells
    ]
