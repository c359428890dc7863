"""The oldest PySpark that is supported, in an interpreter of its own.

``BARRAGE_OLDEST_SPARK`` names the Python of an environment with PySpark 4.2 and our dependencies;
without it there is nothing to run. The whole suite runs there as well, with that environment's
pytest.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.spark.test_cluster import check, package, run_pipeline, settings, table

__all__ = ["package", "table"]

OLDEST = os.environ.get("BARRAGE_OLDEST_SPARK")

pytestmark = pytest.mark.skipif(OLDEST is None, reason="BARRAGE_OLDEST_SPARK is not set")


def test_the_whole_pipeline_on_the_oldest_pyspark(server, table, package, tmp_path):
    assert OLDEST is not None
    asked = [OLDEST, "-c", "import pyspark; print(pyspark.__version__)"]
    version = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    assert version.startswith("4.2."), "the oldest that pyproject.toml allows"
    session = settings(tmp_path, package, master="local[2,4]")
    found = run_pipeline(tmp_path, package, server, session, python=OLDEST)
    check(server, table, found)
