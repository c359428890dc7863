"""Real queries over real servers: the source as users start it."""

from __future__ import annotations

import json
import threading

import pyarrow as pa
import pytest

from barrage.server.history import journal_watch
from barrage.server.settings.config import ServerConfig
from spark_sink.connection import ServerConnection
from tests.helpers.secured import IS_SECURED
from tests.helpers.server_process import wait_until
from tests.spark.feeds import Collected, run, sorted_rows
from tests.spark.serving import options_for, serving

SCHEMA = {"sym": "string", "qty": "int64"}


def source(spark, server, table: str = "trades", **options: str):
    """A stream over a table, as the documentation has it: nothing is registered."""
    reader = spark.readStream.format("barrage").options(**options_for(server))
    return reader.option("table", table).options(**options).load()


def rows(count: int, first: int = 0) -> list[dict]:
    return [{"sym": f"s{i}", "qty": i} for i in range(first, first + count)]


def test_a_snapshot_then_changes_through_restarts(spark, server, checkpoint):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(50))
    collected = Collected()
    run(source(spark, server), checkpoint, collected)
    assert collected.values() == sorted_rows(table)
    for number in range(3):
        table.upsert([{"sym": f"s{number}", "qty": -1}, {"sym": f"new{number}", "qty": number}])
        table.remove([{"sym": f"s{number + 10}"}])
    run(source(spark, server), checkpoint, collected)
    assert collected.values() == sorted_rows(table)
    run(source(spark, server), checkpoint, collected)
    assert len(collected.batches) == 2, "an idle run has no batch"


def test_a_running_query_follows_the_table(spark, server, checkpoint):
    table = server.create_table("trades", SCHEMA, key="sym")
    collected = Collected()
    query = (
        source(spark, server)
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    for number in range(30):
        if number == 10:
            wait_until(lambda: len(collected.batches) > 0, timeout=60)
        table.upsert(rows(10, number * 5))
        if number % 3 == 0:
            table.remove([{"sym": f"s{number * 5}"}])
        threading.Event().wait(0.05)
    wait_until(lambda: collected.values() == sorted_rows(table), timeout=60)
    query.stop()
    assert len(collected.batches) > 2


def test_what_was_written_before_is_available(spark, server, checkpoint, monkeypatch):
    """Also where the server would not tell of it by itself for long."""
    monkeypatch.setattr(journal_watch, "_wake", lambda loop, news: None)
    monkeypatch.setattr(journal_watch, "HEARTBEAT_S", 600)
    table = server.create_table("trades", SCHEMA)
    collected = Collected()
    query = (
        source(spark, server)
        .writeStream.foreachBatch(collected)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        for number in range(20):
            table.add(rows(10, number * 10))
            query.processAllAvailable()
            assert sum(collected.sizes()) == number * 10 + 10
    finally:
        query.stop()


def test_rows_keep_their_identity_when_others_are_put_before_them(spark, server, checkpoint):
    table = server.create_table("trades", SCHEMA, kind="list")
    table.insert(0, rows(20))
    collected = Collected()
    run(source(spark, server), checkpoint, collected)
    before = {values["qty"]: identity for identity, values in collected.state().items()}
    for number in range(5):
        table.insert(0, rows(3, 100 + 10 * number))
        table.delete(10, 12)
    run(source(spark, server), checkpoint, collected)
    after = {values["qty"]: identity for identity, values in collected.state().items()}
    assert collected.values() == sorted_rows(table)
    kept = before.keys() & after.keys()
    assert len(kept) >= 10
    assert all(before[qty] == after[qty] for qty in kept)
    assert collected.sizes() == [20, 5 * 5], "shifted rows are no changes"


def test_plain_rows_of_a_table_that_only_grows(spark, server, checkpoint):
    table = server.create_table("trades", SCHEMA)
    table.add(rows(10))
    collected = Collected()
    stream = source(spark, server, readChangeFeed="false")
    assert stream.columns == ["sym", "qty"]
    run(stream, checkpoint, collected)
    table.add(rows(10, 10))
    run(source(spark, server, readChangeFeed="false"), checkpoint, collected)
    assert collected.rows() == rows(20)


def test_plain_rows_of_a_table_with_a_name_of_the_feeds(spark, server, checkpoint):
    table = server.create_table("trades", {"_row_id": "string", "qty": "int64"})
    table.add([{"_row_id": "a", "qty": 1}, {"_row_id": "a", "qty": 2}])
    collected = Collected()
    for _ in range(2):
        run(source(spark, server, readChangeFeed="false"), checkpoint, collected)
        table.add([{"_row_id": "b", "qty": 3}])
    assert [row["_row_id"] for row in collected.rows()] == ["a", "a", "b"]
    with pytest.raises(Exception, match="leave it out by option columns"):
        source(spark, server)


def test_limits_cut_the_snapshot_and_the_changes(spark, server, checkpoint):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(100))
    collected = Collected()
    options = {"maxRowsPerTrigger": "30"}
    run(source(spark, server, **options), checkpoint, collected)
    assert collected.sizes() == [25, 25, 25, 25]
    for number in range(10):
        table.upsert(rows(10, 200 + 10 * number))
    run(source(spark, server, **options), checkpoint, collected)
    assert collected.sizes()[4:] == [30, 30, 30, 10]
    assert collected.values() == sorted_rows(table)


def test_starts_other_than_a_snapshot(spark, server, tmp_path):
    table = server.create_table("trades", SCHEMA)
    versions = [table.add(rows(2, first)) for first in range(0, 10, 2)]
    collected = {}
    for name, options in {
        "earliest": {"startingOffsets": "earliest"},
        "latest": {"startingOffsets": "latest"},
        "version": {"startingVersion": str(versions[3])},
    }.items():
        collected[name] = Collected()
        run(source(spark, server, **options), str(tmp_path / name), collected[name])
    assert [row["qty"] for row in collected["earliest"].rows()] == list(range(10))
    assert collected["latest"].rows() == []
    assert [row["qty"] for row in collected["version"].rows()] == [6, 7, 8, 9]
    table.add(rows(1, 10))
    latest = source(spark, server, startingOffsets="latest")
    run(latest, str(tmp_path / "latest"), collected["latest"])
    assert [row["qty"] for row in collected["latest"].rows()] == [10]


def test_columns_and_filter_are_the_servers_work(spark, server, checkpoint):
    table = server.create_table("trades", {**SCHEMA, "note": "string"}, key="sym")
    table.upsert([{**row, "note": "x"} for row in rows(20)])
    collected = Collected()
    options = {"columns": "sym,qty", "filter": "qty >= 10", "includePreimage": "true"}
    run(source(spark, server, **options), checkpoint, collected)
    # One row enters the filter, one changes within it, one leaves it, one stays outside.
    table.upsert(
        [
            {"sym": f"s{i}", "qty": qty, "note": "y"}
            for i, qty in [(1, 50), (12, 51), (15, 3), (2, 1)]
        ]
    )
    run(source(spark, server, **options), checkpoint, collected)
    changes = sorted(
        (row["sym"], row["_change_type"], row["qty"]) for row in collected.batches[1].to_pylist()
    )
    assert changes == [
        ("s1", "insert", 50),
        ("s12", "update_postimage", 51),
        ("s12", "update_preimage", 12),
        ("s15", "delete", 15),
    ]
    expected = [{"sym": r["sym"], "qty": r["qty"]} for r in sorted_rows(table) if r["qty"] >= 10]
    assert collected.values() == expected


def test_net_changes_are_the_last_of_each_row(spark, server, checkpoint):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(5))
    collected = Collected()
    run(source(spark, server, netChanges="true"), checkpoint, collected)
    for value in range(10):
        table.upsert([{"sym": "s0", "qty": value}, {"sym": f"n{value}", "qty": value}])
    table.remove([{"sym": "n3"}, {"sym": "s1"}])
    run(source(spark, server, netChanges="true"), checkpoint, collected)
    assert collected.values() == sorted_rows(table)
    assert collected.sizes()[1] == 1 + 9 + 1, "the row that came and went leaves nothing"


def test_large_batches_are_read_by_several_tasks(spark, server, checkpoint):
    table = server.create_table("trades", SCHEMA)
    table.add(pa.table({"sym": ["x"] * 60_000, "qty": range(60_000)}))
    tasks = []

    def count(batch, number):
        tasks.append((batch.rdd.getNumPartitions(), batch.count(), batch.distinct().count()))

    stream = source(spark, server, minPartitions="3", readChangeFeed="false")
    for first in (60_000, 90_000):
        run(stream, checkpoint, count)
        table.add(pa.table({"sym": ["x"] * 30_000, "qty": range(first, first + 30_000)}))
    assert tasks == [(3, 60_000, 60_000), (3, 30_000, 30_000)]


def test_columns_of_many_types(spark, server, checkpoint):
    data = pa.table(
        {
            "i8": pa.array([1, None], pa.int8()),
            "i16": pa.array([1, None], pa.int16()),
            "i32": pa.array([1, None], pa.int32()),
            "f": pa.array([1.5, None], pa.float32()),
            "b": pa.array([True, None]),
            "s": pa.array(["ä", None]),
            "bin": pa.array([b"\0", None], pa.binary()),
            "t": pa.array([1_700_000_000_123_456_789, None], pa.timestamp("ns", "UTC")),
            "l": pa.array([["a", None], None], pa.list_(pa.string())),
        }
    )
    server.create_table("wide", data=data)
    collected = Collected()
    run(source(spark, server, "wide", readChangeFeed="false"), checkpoint, collected)
    first, second = collected.rows()
    assert set(second.values()) == {None}
    assert (first["i8"], first["s"], first["bin"], first["l"]) == (1, "ä", b"\0", ["a", None])
    assert first["t"].microsecond == 123_456


def test_progress_shows_how_far_behind_a_query_is(spark, server, checkpoint):
    from barrage.spark import BarrageLagListener

    told: list = []
    listener = BarrageLagListener(told.append)
    spark.streams.addListener(listener)
    table = server.create_table("trades", SCHEMA)
    for first in range(0, 50, 10):
        table.add(rows(10, first))
    options = {"startingOffsets": "earliest", "maxRowsPerTrigger": "20"}
    try:
        query = run(source(spark, server, **options), checkpoint, Collected())
        wait_until(lambda: len(told) >= 4, timeout=20)
    finally:
        spark.streams.removeListener(listener)
    behind = [lag.rows_behind_latest for lag in sorted(told, key=lambda lag: lag.batch)]
    assert behind == [50, 30, 10, 0]
    assert told[0].query_id == str(query.id)
    progress = [batch for batch in query.recentProgress if batch["numInputRows"]]
    latest = json.loads(progress[-1]["sources"][0]["latestOffset"])
    assert latest["versionsBehindLatest"] == 0
    assert {"rows", "bytes", "timestampMs"} <= latest.keys()


@pytest.mark.parametrize("is_failing", [True, False])
def test_a_table_that_begins_anew(spark, server, checkpoint, is_failing):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(10))
    options = {"failOnDataLoss": "true" if is_failing else "false"}
    collected = Collected()
    run(source(spark, server, **options), checkpoint, collected)
    server.drop_table("trades")
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(5, 100))
    if is_failing:
        with pytest.raises(Exception, match="failOnDataLoss=false"):
            run(source(spark, server, **options), checkpoint, collected)
        return
    run(source(spark, server, **options), checkpoint, collected)
    assert collected.rows()[10]["_change_type"] == "truncate"
    assert collected.values() == sorted_rows(table)


@pytest.mark.parametrize("is_failing", [True, False])
def test_a_journal_cut_past_the_offset(spark, checkpoint, is_failing):
    config = ServerConfig(journal="memory", journal_memory_bytes=64 * 1024)
    with serving(config=config) as server:
        table = server.create_table("trades", SCHEMA, key="sym")
        table.upsert(rows(10))
        options = {"failOnDataLoss": "true" if is_failing else "false", "consumerLease": "100ms"}
        collected = Collected()
        run(source(spark, server, **options), checkpoint, collected)
        threading.Event().wait(0.3)
        for number in range(20):
            table.upsert(rows(1000, 1000 * number))
        told = ServerConnection.of(options_for(server))
        wait_until(lambda: told.action("journal.info", table="trades")["earliest"] > 1, timeout=30)
        if is_failing:
            with pytest.raises(Exception, match="journal begins at version"):
                run(source(spark, server, **options), checkpoint, collected)
            return
        run(source(spark, server, **options), checkpoint, collected)
        assert collected.rows()[10]["_change_type"] == "truncate"
        assert collected.values() == sorted_rows(table)


def test_a_server_without_journals_is_followed_from_this_side(spark, checkpoint, tmp_path):
    options = {"journalLocation": str(tmp_path / "journal"), "keyColumns": "sym"}
    with serving(journal="none") as server:
        table = server.create_table("trades", SCHEMA, key="sym")
        table.upsert(rows(30))
        collected = Collected()
        run(source(spark, server, **options), checkpoint, collected)
        table.upsert(rows(10, 25))
        table.remove([{"sym": "s0"}])
        run(source(spark, server, **options), checkpoint, collected)
        assert collected.values() == sorted_rows(table)
        # Five rows as they were are no change; five are new, one is gone.
        assert collected.sizes() == [30, 6]


def test_what_is_wrong_is_named(spark, server, checkpoint):
    server.create_table("trades", SCHEMA, key="sym")
    server.create_table("mute", SCHEMA, journal="none")
    for table, options, words in (
        ("trades", {"failOnDataLos": "false"}, "failOnDataLoss"),
        ("tradez", {}, "not found" if IS_SECURED else "trades"),
        ("mute", {}, "journalLocation"),
        ("trades", {"columns": "price"}, "price"),
    ):
        with pytest.raises(Exception, match=words):
            source(spark, server, table, **options)
    plain = source(spark, server, readChangeFeed="false")
    with pytest.raises(Exception, match="readChangeFeed=true"):
        run(plain, checkpoint, Collected())
