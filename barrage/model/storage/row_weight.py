"""For how many rows one counts where what counts is how long an engine is busy with it."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

COLUMNS_OF_A_ROW: Final = 4
BYTES_OF_A_ROW: Final = 128
"""A row of more columns, or of more bytes, counts for several."""


def row_weight(rows: pa.Table | pa.RecordBatch, *, has_key: bool) -> int:
    """A table with a key compares, and writes, each cell by itself; others take rows as they are.
    What a dictionary has is not of its rows."""
    if not has_key:
        return 1
    sizes = [int(each.nbytes) for each in rows.columns if not pa.types.is_dictionary(each.type)]
    row_count: int = rows.num_rows
    columns: int = rows.num_columns
    row_bytes = sum(sizes) // max(row_count, 1)
    return max(-(-columns // COLUMNS_OF_A_ROW), -(-row_bytes // BYTES_OF_A_ROW), 1)
