"""The ticking table in Spark: equal to the server's at its version, whatever happens between."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
from barrage.errors import ConfigError
from barrage.spark import barrage_ticking_table
from spark_sink.ticking_batches import TickingTableError
from tests.spark.serving import login_options, options_for

SCHEMA = {"id": "int64", "symbol": "string", "size": "float64"}
SECONDS = 60


def publish(server, *, rows: int = 100, name: str = "trades"):
    table = server.create_table(name, SCHEMA, key="id")
    table.upsert(made(range(rows), 0))
    return table


def ticking_table(spark, server, table: str, *, options: dict | None = None, **named):
    options = {**(options or {}), **login_options()}
    return barrage_ticking_table(spark, server.uri, table, options=options, **named)


def made(ids, value: float) -> dict:
    keys = list(ids)
    return {"id": keys, "symbol": [f"s{i % 7}" for i in keys], "size": [value + i for i in keys]}


def rows_of(frame) -> list[tuple]:
    return sorted(tuple(row) for row in frame.collect())


def rows_at(table, version: int) -> list[tuple]:
    """The server's own rows at a version."""
    found = table.as_of(version).to_arrow()
    return sorted(tuple(row.values()) for row in found.to_pylist())


def random_changes(table, chance: random.Random, count: int) -> None:
    for _ in range(count):
        kind = chance.choice(["new", "change", "remove"])
        some = sorted(chance.sample(range(200), 5))
        if kind == "remove":
            known = {row["id"] for row in table.to_arrow().to_pylist()}
            table.remove([i for i in some if i in known])
        else:
            table.upsert(made(some, chance.randrange(1000)))


def test_the_view_equals_the_remote_table_at_its_version(spark, server):
    table = publish(server)
    chance = random.Random(1)
    with ticking_table(spark, server, "trades", compact_every=3) as ticking:
        assert rows_of(spark.table("trades")) == rows_at(table, ticking.version.version)
        frozen, seen = ticking.df(), rows_of(ticking.df())
        for _ in range(5):
            random_changes(table, chance, 4)
            ticking.wait_for(table.cursor.version, SECONDS)
            assert rows_of(spark.table("trades")) == rows_at(table, ticking.version.version)
        assert rows_of(frozen) == seen, "a DataFrame keeps the version it was made at"
        found = spark.sql("select count(*), sum(size) from trades").collect()[0]
        assert found[0] == len(rows_of(ticking.df()))
        assert str(ticking.version) == str(table.cursor)
        root = Path(ticking._plan.root)
        assert root.exists()
    assert not spark.catalog.tableExists("trades")
    assert not root.exists()


def test_it_goes_on_after_a_restart_exactly_once(spark, server, tmp_path):
    table = publish(server)
    chance = random.Random(2)
    place = str(tmp_path / "mirror")
    last = None
    for _ in range(3):
        with ticking_table(
            spark, server, "trades", view="mirror", location=place, compact_every=2
        ) as ticking:
            if last is not None:
                assert ticking.version >= last
            random_changes(table, chance, 5)
            ticking.wait_for(table.cursor.version, SECONDS)
            assert rows_of(ticking.df()) == rows_at(table, ticking.version.version)
            last = ticking.version
        random_changes(table, chance, 5)
    assert rows_of(spark.table("mirror")) == rows_at(table, last.version), "the view stays"


def test_a_lost_checkpoint_begins_anew(spark, server, tmp_path):
    table = publish(server)
    place, first, second = (str(tmp_path / name) for name in ("mirror", "c1", "c2"))
    for checkpoint in (first, second):
        with ticking_table(
            spark, server, "trades", location=place, checkpointLocation=checkpoint
        ) as ticking:
            table.upsert(made([3, 500], 7))
            ticking.wait_for(table.cursor.version, SECONDS)
            assert rows_of(ticking.df()) == rows_at(table, ticking.version.version)


def test_a_table_made_anew_is_read_anew(spark, server):
    publish(server)
    with ticking_table(spark, server, "trades") as ticking:
        before = ticking.version.epoch
        server.drop_table("trades")
        table = publish(server, rows=3)
        deadline = time.monotonic() + SECONDS
        while ticking.version.epoch == before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ticking.wait_for(table.cursor.version, SECONDS)
        assert rows_of(ticking.df()) == rows_at(table, ticking.version.version)


def test_a_large_snapshot_in_chunks_is_shown_when_it_is_whole(spark, server):
    publish(server, rows=1000)
    options = {"maxRowsPerTrigger": 300}
    with ticking_table(spark, server, "trades", options=options) as ticking:
        assert len(rows_of(ticking.df())) == 1000
        assert ticking.query.lastProgress is not None


def test_an_empty_table_and_a_filter(spark, server):
    table = server.create_table("empty", SCHEMA, key="id")
    options = {"columns": "symbol,size", "filter": "size > 10"}
    with ticking_table(spark, server, "empty", options=options) as ticking:
        assert rows_of(ticking.df()) == []
        table.upsert(made([1, 2], 9.5))
        ticking.wait_for(table.cursor.version, SECONDS)
        assert rows_of(ticking.df()) == [("s1", 10.5), ("s2", 11.5)]


def test_a_wait_that_cannot_end_says_why(spark, server):
    table = publish(server)
    ticking = ticking_table(spark, server, "trades")
    with pytest.raises(TimeoutError, match="version 999999"):
        ticking.wait_for(999_999, 0.3)
    with pytest.raises(TimeoutError):
        ticking.wait_for(("0" * 16, 1), 0.3)
    waiting = []

    def wait() -> None:
        try:
            ticking.wait_for(999_999)
        except TickingTableError as error:
            waiting.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    ticking.stop()
    thread.join(SECONDS)
    assert len(waiting) == 1
    assert "will not come" in waiting[0]
    assert table.cursor is not None


def test_what_cannot_be_is_refused(spark, server, tmp_path):
    publish(server)
    for arguments, told in (
        ({"location": "s3://bucket/x"}, "is not a path"),
        ({"format": "delta"}, "needs a location"),
        ({"checkpointLocation": str(tmp_path)}, "needs a location"),
        ({"options": {"startingOffsets": "latest"}}, "always begins with a snapshot"),
        ({"compact_every": 0}, "compact_every"),
    ):
        with pytest.raises(ConfigError, match=told):
            ticking_table(spark, server, "trades", **arguments)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_others_read_it_as_a_lake_table(spark, server, tmp_path, kind):
    pytest.importorskip("deltalake" if kind == "delta" else "sqlalchemy")
    table = publish(server, rows=20)
    place = tmp_path / "lake"
    chance = random.Random(3)
    for _ in range(2):
        with ticking_table(
            spark, server, "trades", location=str(place), format=kind, compact_every=2
        ) as ticking:
            for _ in range(3):
                random_changes(table, chance, 2)
                ticking.wait_for(table.cursor.version, SECONDS)
            # The lake follows the folder in the same batch: what is shown is in both.
            with ticking._applying:
                assert lake_rows(kind, place) == rows_at(table, ticking.version.version)


def lake_rows(kind: str, place) -> list[tuple]:
    """Rows as a reader sees them that knows nothing of us."""
    if kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(str(place)).to_pyarrow_table()
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("barrage", type="sql", uri=f"sqlite:///{place}/catalog.db")
        found = catalog.load_table("barrage.trades").scan().to_arrow()
    rows = found.drop_columns(["_row_id"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_batches_without_a_helper_by_the_recipe(spark, server, tmp_path):
    """The recipe of the documentation: a user's own foreachBatch, idempotent by version."""
    table = publish(server, rows=10)
    applied: dict[int, tuple] = {}
    done = {"version": -1}

    def apply(changes, batch):
        rows = changes.orderBy("_commit_version").collect()
        if not rows or rows[-1]["_commit_version"] <= done["version"]:
            return
        for row in rows:
            if row["_change_type"] == "truncate":
                applied.clear()
            elif row["_change_type"] == "delete":
                applied.pop(row["_row_id"])
            else:
                applied[row["_row_id"]] = (row["id"], row["symbol"], row["size"])
        done["version"] = rows[-1]["_commit_version"]

    stream = spark.readStream.format("barrage").options(**options_for(server)).load("trades")
    query = (
        stream.writeStream.option("checkpointLocation", str(tmp_path / "c"))
        .foreachBatch(apply)
        .start()
    )
    random_changes(table, random.Random(4), 6)
    deadline = time.monotonic() + SECONDS
    while done["version"] < table.cursor.version and time.monotonic() < deadline:
        time.sleep(0.05)
    query.stop()
    assert sorted(applied.values()) == rows_at(table, done["version"])
    assert done["version"] == table.cursor.version
