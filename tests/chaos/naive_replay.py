"""A journal read by somebody who knows its format and has none of its code: Arrow IPC streams of
rows with an operation and a row id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

ADD, REMOVE, BEFORE, AFTER = 0, 1, 2, 3


def replayed_rows(data: Path, table: str) -> dict[int, tuple[Any, ...]]:
    """The rows a table's journal leads to, by row id; AssertionError when an operation does not
    fit what the ones before it have left."""
    rows: dict[int, tuple[Any, ...]] = {}
    for segment in sorted((data / "tables" / table / "wal").glob("*.arrow")):
        with pa.OSFile(str(segment)) as file, pa.ipc.open_stream(file) as reader:
            for batch in reader:
                _apply(rows, batch)
    return rows


def _apply(rows: dict[int, tuple[Any, ...]], batch: pa.RecordBatch) -> None:
    columns = [column.to_pylist() for column in batch.columns]
    for operation, row_id, *cells in zip(*columns, strict=True):
        row = tuple(cells)
        if operation == ADD:
            assert row_id not in rows, f"row {row_id} is added twice"
            rows[row_id] = row
        elif operation == AFTER:
            assert row_id in rows, f"row {row_id} is changed and not there"
            rows[row_id] = row
        else:
            assert rows.get(row_id) == row, f"row {row_id} was {rows.get(row_id)}, not {row}"
            if operation == REMOVE:
                del rows[row_id]
