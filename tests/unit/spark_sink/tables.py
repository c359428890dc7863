"""Tables the tests of the source share."""

from __future__ import annotations

import pyarrow as pa

TRADES = pa.schema([("sym", pa.string()), ("qty", pa.int64())])


def trades(count: int, first: int = 0) -> list[dict]:
    """That many rows, told apart by their quantity."""
    return [{"sym": "ABC"[i % 3], "qty": i} for i in range(first, first + count)]
