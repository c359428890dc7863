"""One short column of every Arrow type a Deephaven client can upload."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa


def sample_columns() -> dict[str, pa.Array]:
    """Two rows each, the second null where the type can be."""
    return {
        "null": pa.nulls(2),
        "bool": pa.array([True, None]),
        **{
            str(kind): pa.array([7, None], kind)
            for kind in (
                *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
                *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
                *(pa.float32(), pa.float64()),
                *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
                *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
                pa.timestamp("us", "America/New_York"),
                pa.timestamp("ns", "UTC"),
                *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
            )
        },
        "float16": pa.array([1.5, None]).cast(pa.float16()),
        "date32": pa.array([datetime.date(2024, 2, 29), None], pa.date32()),
        "date64": pa.array([datetime.date(2024, 2, 29), None], pa.date64()),
        "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
        "string": pa.array(["a", None]),
        "binary": pa.array([b"a\x00", None]),
        "fixed_binary": pa.array([b"ab", None], pa.binary(2)),
        "decimal128": pa.array([Decimal("-1.50"), None], pa.decimal128(10, 2)),
        "decimal256": pa.array([Decimal("1.50"), None], pa.decimal256(50, 2)),
        "list": pa.array([[1, None], None]),
        "list_of_strings": pa.array([["a", None], None]),
        "list_view": pa.array([[1, None], None], pa.list_view(pa.int64())),
        "fixed_list": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int32())),
        "dense_union": pa.UnionArray.from_dense(
            pa.array([0, 1], pa.int8()),
            pa.array([0, 0], pa.int32()),
            [pa.array([1]), pa.array(["x"])],
        ),
        "sparse_union": pa.UnionArray.from_sparse(
            pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])]
        ),
    }
