"""The table every end-to-end benchmark uses: ten columns, about 79 bytes a row.

Three int64, one timestamp, four float64 and two short strings.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("quantity", pa.int64()),
        ("venue", pa.int64()),
        ("time", pa.timestamp("ns", tz="UTC")),
        ("bid", pa.float64()),
        ("ask", pa.float64()),
        ("last", pa.float64()),
        ("volume", pa.float64()),
        ("symbol", pa.string()),
        ("side", pa.string()),
    ]
)
_SYMBOLS = pa.array([f"S{number:04d}" for number in range(1000)])
_SIDES = pa.array(["buy", "sell"])
_EPOCH_NS = 1_700_000_000_000_000_000


def batch(first_id: int, rows: int, *, seed: int = 0) -> pa.Table:
    """``rows`` rows with ids ``first_id ...``; the other columns are random from the seed."""
    draw = np.random.default_rng(seed + first_id)
    ids = np.arange(first_id, first_id + rows)
    return pa.table(
        [
            pa.array(ids),
            pa.array(draw.integers(1, 10_000, rows)),
            pa.array(draw.integers(0, 16, rows)),
            pa.array(_EPOCH_NS + ids * 1000).cast(pa.timestamp("ns", tz="UTC")),
            *(pa.array(draw.random(rows)) for _ in range(4)),
            _SYMBOLS.take(pa.array(draw.integers(0, 1000, rows))),
            _SIDES.take(pa.array(draw.integers(0, 2, rows))),
        ],
        schema=SCHEMA,
    )
