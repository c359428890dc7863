"""The code of docs/spark.md runs as it stands, block after block, in one namespace."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import ClassVar

import pyarrow as pa
import pytest

import barrage
from barrage.spark import register
from tests.unit.cli.test_examples import python_blocks

SCHEMA = pa.schema({"ts": pa.timestamp("us", "UTC"), "sym": pa.string(), "qty": pa.int64()})
START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def trades(minute: int, *quantities: int) -> list[dict[str, object]]:
    moment = START + timedelta(minutes=minute)
    return [{"ts": moment, "sym": "ab"[i % 2], "qty": qty} for i, qty in enumerate(quantities)]


class Document:
    """The blocks of the page, with places of this run for those of the page."""

    run_blocks: ClassVar[set[str]] = set()

    def __init__(self, server: barrage.Server, table, work) -> None:
        first, last = table.cursor.version - 1, table.cursor.version
        self._places = {
            "localhost:10000": server.uri.removeprefix("grpc://"),
            '"ckpt': f'"{work}/ckpt',
            '"out"': f'"{work}/out"',
            '"trades.db"': f'"{work}/trades.db"',
            "1042": str(last),
            "1000": str(first),
            "startingVersion=1, endingVersion=2": f"startingVersion={last}, endingVersion={last}",
        }
        self.names: dict[str, object] = {"uri": server.uri}

    def run(self, *texts: str) -> None:
        """Run the one block that has all of ``texts``."""
        blocks = python_blocks("docs/spark.md")
        [block] = [block for block in blocks if all(text in block for text in texts)]
        places = "|".join(map(re.escape, self._places))
        self.run_blocks.add(block)
        block = re.sub(places, lambda found: self._places[found[0]], block)
        exec(compile(block, "docs/spark.md", "exec"), self.names)

    def __getitem__(self, name: str):
        return self.names[name]


def wait_until(is_true) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end
        threading.Event().wait(0.1)


@pytest.fixture
def server():
    """The page's own, which asks for nothing."""
    with barrage.Server(journal="memory") as running:
        yield running


@pytest.fixture
def document(server, tmp_path, spark):
    made = Document(server, server.create_table("first", SCHEMA), tmp_path)
    made.run("session.put")
    assert server.table("trades").schema == SCHEMA
    assert server.table("trades").to_arrow()["qty"].to_pylist() == [10, 20]
    server.drop_table("trades")
    table = server.create_table("trades", SCHEMA)
    table.add(trades(0, 1, 2, 3))
    table.add(trades(1, 10, 20))
    return Document(server, table, tmp_path)


def test_source_lag_and_recipes(document, server, tmp_path):
    document.run("import barrage.spark", "writeStream")
    document.run("def reader(", "versionAsOf")
    assert document["now"].count() == 5
    assert document["then"].count() == 5
    assert sorted({row._commit_version for row in document["what"].collect()}) == [
        server.table("trades").cursor.version - 1,
        server.table("trades").cursor.version,
    ]
    document["query"].processAllAvailable()
    document.run("BarrageLagListener")
    server.table("trades").add(trades(2, 100))
    document["query"].processAllAvailable()
    wait_until(lambda: document["lag"].lags(document["query"].id))

    document.run("netChanges")
    document.run("withWatermark")
    document.run("import sqlite3")
    for query in ("live", "copy", "query"):
        document[query].processAllAvailable()
        document[query].stop()
    with sqlite3.connect(tmp_path / "trades.db") as db:
        assert db.execute("select count(*), sum(qty) from trades where not is_gone").fetchone() == (
            6,
            136,
        )
    db.close()
    found = server.table("per_minute").to_arrow().to_pylist()
    assert sorted((row["sym"], row["minute"].minute, row["qty"]) for row in found) == [
        ("a", 0, 4),
        ("a", 1, 10),
        ("a", 2, 100),
        ("b", 0, 2),
        ("b", 1, 20),
    ]
    assert document["spark"].read.parquet(f"{tmp_path}/out").count() == 6


def test_the_ticking_table_and_the_sink(document, server, spark):
    register(spark)
    document.names["spark"] = spark
    document.run("from barrage.spark import barrage_ticking_table", "trades.stop()")

    plain = spark.readStream.format("barrage").options(uri=server.uri, readChangeFeed="false")
    rows = document.names["rows"] = plain.load("trades")
    document.names["totals"] = rows.groupBy("sym").sum("qty").withColumnRenamed("sum(qty)", "qty")
    document.names["day"] = spark.read.format("barrage").option("uri", server.uri).load("trades")
    document.run("appending = (")
    document.run("day.write")
    document.run("updating = (")
    for query in ("appending", "updating"):
        document[query].processAllAvailable()
        document[query].stop()
    assert len(server.table("copies")) == len(server.table("days")) == 5
    totals = {row["sym"]: row["qty"] for row in server.table("totals").to_arrow().to_pylist()}
    assert totals == {"a": 14, "b": 22}


def test_no_block_of_the_page_was_left_out():
    """After the others of this file, which run them."""
    assert Document.run_blocks == set(python_blocks("docs/spark.md"))
