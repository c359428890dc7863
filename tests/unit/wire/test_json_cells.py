"""Cells as JSON: exact, whatever their type."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pytest

from barrage.wire.json_cells import json_values


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (pa.array([2**63 - 1, -(2**63), None]), [2**63 - 1, -(2**63), None]),
        (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
        (pa.array([1.5, float("nan"), float("inf"), None]), [1.5, None, None, None]),
        (pa.array([True, None]), [True, None]),
        (pa.array(["a", None]).dictionary_encode(), ["a", None]),
        (pa.array([1], pa.timestamp("ns")), ["1970-01-01T00:00:00.000000001"]),
        (pa.array([1], pa.timestamp("ns", "UTC")), ["1970-01-01T00:00:00.000000001Z"]),
        (pa.array([0], pa.timestamp("s", "UTC")), ["1970-01-01T00:00:00Z"]),
        (pa.array([datetime.date(2026, 1, 31)]), ["2026-01-31"]),
        (pa.array([1], pa.time64("ns")), ["00:00:00.000000001"]),
        (pa.array([1_500_000_001, -1, None], pa.duration("ns")),
         ["PT1.500000001S", "-PT0.000000001S", None]),
        (pa.array([90], pa.duration("s")), ["PT90S"]),
        (pa.array([1_005], pa.duration("ms")), ["PT1.005S"]),
        (pa.array([b"\x00\xff"]), ["00ff"]),
        (pa.array([Decimal("1.10")]), ["1.10"]),
        (pa.array([[1, None], None]), [[1, None], None]),
        (pa.array([{"a": [b"\x01"]}], pa.struct({"a": pa.list_(pa.binary())})), [{"a": ["01"]}]),
        (pa.chunked_array([["a"], ["b"]]), ["a", "b"]),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)  # fmt: skip
def test_cells_are_told_exactly(cells, expected):
    assert json_values(cells) == expected
    assert json.loads(json.dumps(json_values(cells))) == expected
