"""The session itself: it starts, and its workers are this interpreter."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.mark.skipif("OLDEST_SPARK" not in os.environ, reason="make test-spark-oldest")
def test_the_oldest_pyspark_that_is_allowed(spark):
    assert spark.version.startswith("4.2.")


def test_workers_run_this_interpreter(spark):
    def executable(batches):
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"path": sys.executable}])

    rows = spark.range(1).mapInArrow(executable, "path string").collect()
    assert [row.path for row in rows] == [sys.executable]
