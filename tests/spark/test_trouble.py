"""What users stumble over: a server that is away for a moment, a table that is gone, a query that
is stopped, and errors that say what is wrong."""

from __future__ import annotations

import json
import threading

import pytest

from barrage.spark import register, root_cause
from tests.helpers.secured import IS_SECURED
from tests.helpers.server_process import wait_until
from tests.spark.feeds import Collected, run, sorted_rows
from tests.spark.serving import options_for, serving

SCHEMA = {"sym": "string", "qty": "int64"}
AWAY_SECONDS = 2.0
HURRY = {"reconnectTimeoutMs": "1500"}


def stream(spark, server, table: str = "trades", **options: str):
    reader = spark.readStream.format("barrage").option("table", table)
    return reader.options(**(options_for(server) | options)).load()


def rows(count: int, first: int = 0) -> list[dict]:
    return [{"sym": f"s{i}", "qty": i} for i in range(first, first + count)]


def started(frame, collected, checkpoint: str):
    writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", checkpoint)
    return writer.start()


def test_a_busy_query_waits_out_a_restart_of_the_server(spark, checkpoint, tmp_path):
    data = tmp_path / "data"
    server = serving(data=data)
    server.start()
    port = server.port
    try:
        table = server.create_table("trades", SCHEMA, key="sym")
        table.upsert(rows(10))
        collected = Collected()
        query = started(stream(spark, server), collected, checkpoint)
        wait_until(lambda: len(collected.batches) > 0)
        for number in range(3):
            stop = threading.Event()
            writer = threading.Thread(target=keep_writing, args=(table, stop, number))
            writer.start()
            seen = len(collected.batches)
            wait_until(lambda seen=seen: len(collected.batches) > seen)
            stop.set()
            writer.join()
            table.upsert(rows(10, 1000 * number))
            server.stop()
            threading.Event().wait(AWAY_SECONDS)
            server = serving(port=port, data=data)
            server.start()
            table = server.table("trades")
        table.upsert(rows(10, 10_000))
        wait_until(
            lambda: query.exception() is not None or collected.values() == sorted_rows(table)
        )
        assert query.exception() is None
        wait_until(lambda: waits(query) >= 1)
        query.stop()
    finally:
        server.stop()


def keep_writing(table, stop: threading.Event, number: int) -> None:
    while not stop.is_set():
        table.upsert(rows(20, 100 * number))


def waits(query) -> int:
    last = query.lastProgress
    latest = None if last is None else last["sources"][0]["latestOffset"]
    return json.loads(latest)["waits"] if latest else 0


def test_a_table_that_is_gone_fails_the_query_with_its_name(spark, server, checkpoint):
    server.create_table("trades", SCHEMA, key="sym").upsert(rows(3))
    collected = Collected()
    query = started(stream(spark, server, **HURRY), collected, checkpoint)
    wait_until(lambda: len(collected.batches) > 0)
    server.drop_table("trades")
    wait_until(lambda: query.exception() is not None)
    told = root_cause(query.exception())
    assert "'trades'" in told
    assert "is gone" in told


@pytest.mark.parametrize("is_failing", [True, False])
def test_a_table_that_comes_back_anew_while_a_query_runs(spark, server, checkpoint, is_failing):
    server.create_table("trades", SCHEMA, key="sym").upsert(rows(3))
    collected = Collected()
    options = {} if is_failing else {"failOnDataLoss": "false"}
    query = started(stream(spark, server, **options), collected, checkpoint)
    wait_until(lambda: len(collected.batches) > 0)
    server.drop_table("trades")
    threading.Event().wait(0.5)
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(5, 50))
    if is_failing:
        wait_until(lambda: query.exception() is not None)
        assert "failOnDataLoss=false" in root_cause(query.exception())
    else:
        wait_until(lambda: collected.values() == sorted_rows(table))
        query.stop()


def test_a_column_more_reaches_a_query_after_its_restart(spark, server, tmp_path):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(3))
    options = {"failOnDataLoss": "false"}
    whole, some = Collected(), Collected()
    query = started(stream(spark, server, **options), whole, str(tmp_path / "whole"))
    named = stream(spark, server, columns="sym,qty", **options)
    naming = started(named, some, str(tmp_path / "some"))
    wait_until(lambda: whole.batches and some.batches)
    server.drop_table("trades")
    table = server.create_table("trades", {**SCHEMA, "venue": "string"}, key="sym")
    table.upsert([{**row, "venue": "x"} for row in rows(5)])
    wait_until(lambda: query.exception() is not None)
    assert "restart the query" in root_cause(query.exception())
    assert "venue" not in whole.batches[max(whole.batches)].column_names
    again = started(stream(spark, server, **options), whole, str(tmp_path / "whole"))
    wait_until(lambda: whole.values() == sorted_rows(table))
    table.upsert([{"sym": "s1", "qty": 7, "venue": None}])
    wait_until(lambda: whole.values() == sorted_rows(table))
    # Whoever names columns is not concerned by others.
    wait_until(lambda: some.values() == sorted(table_rows(table, SCHEMA), key=repr))
    assert naming.isActive
    for each in (again, naming):
        each.stop()


def table_rows(table, columns) -> list[dict]:
    return table.to_arrow().select(list(columns)).to_pylist()


def test_a_query_in_update_mode_is_stopped_and_not_failed(spark, server, tmp_path):
    register(spark)
    table = server.create_table("trades", SCHEMA)
    for number in range(5):
        stop = threading.Event()
        writer = threading.Thread(target=keep_adding, args=(table, stop))
        writer.start()
        totals = stream(spark, server, readChangeFeed="false", maxRowsPerTrigger="500")
        totals = totals.groupBy("sym").count()
        try:
            query = (
                totals.writeStream.format("barrage")
                .outputMode("update")
                .options(**options_for(server), keyColumns="sym")
                .option("checkpointLocation", str(tmp_path / f"checkpoint{number}"))
                .start("totals")
            )
            wait_until(lambda query=query: query.lastProgress is not None or not query.isActive)
            # In the middle of a batch, at another place each time.
            threading.Event().wait(0.07 * number)
            query.stop()
            assert query.exception() is None
        finally:
            stop.set()
            writer.join()


def keep_adding(table, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(0.01):
        table.add([{"sym": f"s{i % 50}", "qty": i} for i in range(number, number + 50)])
        number += 50


def test_the_cause_of_a_source_that_fails_is_found(spark, server, checkpoint):
    server.create_table("trades", SCHEMA)
    nowhere = server.uri.replace(str(server.port), "1")
    for load, told in (
        (lambda: stream(spark, server, "tradez"), "'tradez'"),
        (lambda: stream(spark, server, uri=nowhere, reconnectTimeoutMs="100"), "127.0.0.1:1"),
        (lambda: stream(spark, server, columns="price"), "price"),
    ):
        with pytest.raises(Exception) as caught:
            load()
        assert told in root_cause(caught.value)
        assert "An error occurred while" not in root_cause(caught.value)
    table = server.table("trades")
    table.add(rows(3))
    run(stream(spark, server), checkpoint, Collected())
    server.drop_table("trades")
    server.create_table("trades", SCHEMA).add(rows(5))
    with pytest.raises(Exception) as caught:
        run(stream(spark, server), checkpoint, Collected())
    assert "set option failOnDataLoss=false" in root_cause(caught.value)


def test_limits_count_the_rows_that_are_delivered(spark, server, checkpoint, tmp_path):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(100))
    collected = Collected()
    run(stream(spark, server), checkpoint, collected)
    for number in range(6):
        table.upsert([{"sym": f"s{i}", "qty": -number - 1} for i in range(100)])
    limited = stream(spark, server, maxRowsPerTrigger="250")
    query = run(limited, checkpoint, collected)
    assert collected.sizes()[1:] == [200, 200, 200]
    progress = [batch for batch in query.recentProgress if batch["numInputRows"]]
    latest = [json.loads(batch["sources"][0]["latestOffset"]) for batch in progress]
    assert [each["rowsBehindLatest"] for each in latest[-3:]] == [400, 200, 0]


def test_the_least_rows_of_a_batch_are_those_that_are_delivered(spark, server, checkpoint):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(100))
    collected = Collected()
    # So that a query without a batch tells soon that it has seen the rows and waits.
    progress = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(progress, "200")
    try:
        limited = stream(spark, server, minRowsPerTrigger="150", maxTriggerDelay="10m")
        query = started(limited, collected, checkpoint)
        wait_until(lambda: len(collected.batches) > 0)
        for number in range(2):
            wait_until(lambda number=number: rows_behind(query) == 100 * number)
            table.upsert([{"sym": f"s{i}", "qty": -number - 1} for i in range(100)])
        wait_until(lambda: len(collected.batches) > 1)
        assert collected.sizes() == [100, 200]
        query.stop()
    finally:
        spark.conf.unset(progress)


def rows_behind(query) -> int | None:
    last = query.lastProgress
    latest = None if last is None else last["sources"][0]["latestOffset"]
    return json.loads(latest).get("rowsBehindLatest") if latest else None


def test_a_view_is_refused_with_its_base_table_and_can_be_followed(spark, server, tmp_path):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(10))
    server.publish("totals", table.where("qty > 2").agg_by("sym", total="sum(qty)"))
    with pytest.raises(Exception) as caught:
        stream(spark, server, "totals")
    told = root_cause(caught.value)
    # Under rules nobody is told what a view is made of.
    base = (
        ("is derived from",) if IS_SECURED else ("made of: 'trades'", "options filter and columns")
    )
    assert all(words in told for words in base)
    options = {"journalLocation": str(tmp_path / "journal"), "keyColumns": "sym"}
    collected = Collected()
    followed = stream(spark, server, "totals", **options)
    run(followed, str(tmp_path / "checkpoint"), collected)
    table.upsert([{"sym": "s3", "qty": 30}, {"sym": "s4", "qty": 0}])
    run(stream(spark, server, "totals", **options), str(tmp_path / "checkpoint"), collected)
    expected = [{"sym": f"s{i}", "total": i} for i in range(5, 10)] + [{"sym": "s3", "total": 30}]
    assert sorted(collected.values(), key=repr) == sorted(expected, key=repr)
    assert collected.sizes() == [7, 2]
