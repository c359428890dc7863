"""``spark.read.format("barrage")``: a table at a version, its changes, and a view that is live."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from barrage.spark import register
from tests.spark.serving import options_for

SCHEMA = {"sym": "string", "qty": "int64"}


@pytest.fixture
def trades(server):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert([{"sym": f"s{i}", "qty": i} for i in range(10)])
    return table


def read(spark, server, **options: str):
    register(spark)
    reader = spark.read.format("barrage").options(**options_for(server)).options(**options)
    return reader.load("trades")


def test_a_batch_read_is_the_table_as_it_was_loaded(spark, server, trades):
    frame = read(spark, server)
    assert frame.columns == ["sym", "qty"]
    trades.remove([{"sym": "s0"}])
    frame.createOrReplaceTempView("loaded")
    assert spark.sql("select count(*), sum(qty) from loaded").first()[:] == (10, 45)
    assert read(spark, server).count() == 9
    assert read(spark, server, columns="qty", filter="qty > 7").collect() == [(8,), (9,)]


def test_a_batch_read_at_a_version_or_a_time(spark, server, trades):
    first = trades.upsert([{"sym": "s0", "qty": 100}])
    threading.Event().wait(0.05)
    between = datetime.now(UTC)
    threading.Event().wait(0.05)
    trades.remove([{"sym": "s0"}])
    for options in ({"versionAsOf": str(first)}, {"timestampAsOf": between.isoformat()}):
        found = read(spark, server, **options)
        assert found.where("sym = 's0'").first().qty == 100
    with pytest.raises(Exception, match="versionAsOf"):
        read(spark, server, versionAsOf="100000").count()


def test_a_batch_read_of_changes(spark, server, trades):
    first = trades.upsert([{"sym": "s0", "qty": 100}])
    last = trades.remove([{"sym": "s1"}])
    trades.upsert([{"sym": "later", "qty": 1}])
    options = {"readChangeFeed": "true", "startingVersion": str(first), "endingVersion": str(last)}
    feed = read(spark, server, **options).orderBy("_commit_version")
    assert [(row._change_type, row.sym) for row in feed.collect()] == [
        ("update_postimage", "s0"),
        ("delete", "s1"),
    ]
    assert read(spark, server, readChangeFeed="true").count() == 13


def test_a_live_view_shows_what_is_newest_and_one_version_a_query(spark, server, trades):
    read(spark, server, liveView="true").createOrReplaceTempView("live")
    assert spark.sql("select count(*) from live").first()[0] == 10
    trades.upsert([{"sym": "new", "qty": 1}])
    assert spark.sql("select count(*) from live").first()[0] == 11
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            trades.upsert([{"sym": "new", "qty": 1}, {"sym": "s0", "qty": 5}])
            trades.remove([{"sym": "new"}])

    writer = threading.Thread(target=tick)
    writer.start()
    try:
        for _ in range(5):
            pairs = spark.sql(
                "select (select count(*) from live), (select count(*) from live where qty >= 0)"
            ).first()
            assert pairs[0] == pairs[1]
    finally:
        stop.set()
        writer.join()


def test_a_view_over_a_view_of_the_feed_without_registering(spark, server, trades):
    reader = spark.read.format("barrage").options(**options_for(server)).option("table", "trades")
    assert reader.option("readChangeFeed", "false").load().columns == ["sym", "qty"]
