"""The tables the cases of ``pydeephaven_operations.py`` are about."""

from __future__ import annotations

import math

import pyarrow as pa

NAN = math.nan

TRADES = pa.table(
    {
        "Id": pa.array(range(7), pa.int64()),
        "Sym": pa.array(["a", "b", "a", None, "b", "c", "a"]),
        "Size": pa.array([1, 2, 3, None, 5, -6, 3], pa.int32()),
        "Count": pa.array([10, 20, None, 40, 50, 60, 70], pa.int64()),
        "Price": pa.array([1.5, NAN, 2.5, None, -3.0, 0.25, 2.5]),
        "Small": pa.array([1.5, 2, 2.5, None, -3.0, 0.25, 8], pa.float32()),
        "Flag": pa.array([True, False, None, True, True, False, True]),
        "Time": pa.array([1, 2, 3, None, 5, 6, 2**60], pa.timestamp("ns", "UTC")),
        "Letter": pa.array([65, 66, 67, None, 68, 69, 65], pa.uint16()),
    }
)
"""Rows with nulls and a NaN."""

MORE = pa.table(
    [
        pa.array([7, 8, 9, 10], pa.int64()),
        pa.array(["d", "b", None, "a"]),
        pa.array([4, 7, 8, -1], pa.int32()),
        pa.array([None, 1, 2, 3], pa.int64()),
        pa.array([4.5, 0.125, 9.0, NAN]),
        pa.array([4.5, 0.125, 9.0, None], pa.float32()),
        pa.array([None, True, False, False]),
        pa.array([None, 7, 8, 9], pa.timestamp("ns", "UTC")),
        pa.array([None, 70, 71, 72], pa.uint16()),
    ],
    schema=TRADES.schema,
)
"""Rows that come later."""

SECTORS = pa.table({"Sym": ["a", "b", "d"], "Sector": ["metal", "oil", "gas"], "Rank": [1, 2, 3]})
"""One row per symbol; not every symbol."""

TWICE = pa.table(
    {"Sym": ["a", "a", "b"], "Sector": ["metal", "paper", "oil"], "Rank": [10, 10, 30]}
)
"""Two rows of one symbol."""

NUMBERS = pa.table(
    {
        "K": ["p", "p", "q", "q", "r", "r", "s"],
        "X": [NAN, -3.0, -3.0, NAN, None, None, 1.0],
    }
)
