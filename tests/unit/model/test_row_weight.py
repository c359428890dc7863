"""For how many rows one counts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from barrage.model.storage.row_weight import row_weight

NUMBERS = np.arange(10)


def rows_of(*columns: object) -> pa.Table:
    return pa.table({f"c{i}": column for i, column in enumerate(columns)})


@pytest.mark.parametrize(
    ("rows", "weight"),
    [
        (rows_of(), 1),
        (rows_of(NUMBERS), 1),
        (rows_of(*[NUMBERS] * 4), 1),
        (rows_of(*[NUMBERS] * 5), 2),
        (rows_of(*[NUMBERS] * 16), 4),
        (rows_of(*[pa.array([True] * 10)] * 500), 125),
        (rows_of(pa.array(["x" * 1496] * 10)), 12),
        (rows_of(pa.array(["x" * 1496] * 10)).slice(0, 0), 1),
        (rows_of(pa.array(["x" * 100_000] * 10).dictionary_encode()), 1),
    ],
)
def test_many_columns_and_many_bytes_count(rows: pa.Table, weight: int) -> None:
    assert row_weight(rows, has_key=True) == weight
    assert row_weight(rows, has_key=False) == 1
    for batch in rows.to_batches():
        assert row_weight(batch, has_key=True) == weight
