"""Reading the cells operators compute with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from barrage.engine.table import Cells

EVALUATED_ROWS = 1 << 18
"""Rows evaluated at a time, which bounds the temporaries of an expression over a large table."""


def single_chunks(cells: Iterable[Cells]) -> list[pa.Array]:
    """The same columns as plain arrays."""
    return [
        column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        for column in cells
    ]
