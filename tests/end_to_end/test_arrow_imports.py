"""Nobody waits for what Arrow imports with its first array."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            importers.append(threading.current_thread().name)

importers = []
sys.meta_path.insert(0, Finder())
import barrage

assert importers == []
with barrage.Server() as server:
    table = server.create_table("quotes", {"symbol": "string", "price": "float64"}, key="symbol")
    table.upsert({"symbol": ["A"], "price": [1.0]})
    with barrage.connect(server.uri) as session:
        assert session.table("_server").snapshot().num_rows
print(*importers)
"""


@pytest.mark.further
def test_no_thread_that_serves_imports_pandas():
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    (importer,) = ran.stdout.split()
    assert importer.startswith("asyncio_"), "a thread of the loop's pool"
