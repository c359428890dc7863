"""Writes order_book.parquet: how the levels of an order book change, for `barrage replay`.

A price walks; around it twenty levels on either side change their sizes. The rows are those of a
table with the key `side, level`, each with the time at which it is to come.
"""

import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

LEVELS = 20
CHANGES = 20_000
PER_SECOND = 200


def changes(count: int, seed: int = 5) -> pa.Table:
    """So many changed levels, one after another."""
    rng = np.random.default_rng(seed)
    side = rng.integers(0, 2, count)
    level = rng.geometric(0.15, count) % LEVELS
    middle = 100 + np.cumsum(rng.normal(0, 0.01, count))
    away = np.where(side == 0, -1, 1) * (level + 1) * 0.05
    start = time.time_ns()
    return pa.table(
        {
            "time": pa.array(start + np.arange(count) * 10**9 // PER_SECOND).cast(
                pa.timestamp("ns", "UTC")
            ),
            "side": np.where(side == 0, "BID", "ASK"),
            "level": level,
            "price": np.round(middle + away, 2),
            "size": rng.integers(1, 50, count) * 100,
        }
    )


if __name__ == "__main__":
    path = sys.argv[1] if len(sys.argv) > 1 else "order_book.parquet"
    pq.write_table(changes(CHANGES), path)
    print(f"{path}: barrage replay {path} localhost:10000/book --time time --key side,level")
