"""The journal on this side, over a server that keeps none: the reader as Spark calls it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

import barrage
from barrage.errors import ConfigError
from spark_sink.types import arrow_target
from tests.helpers.reader_query import Query
from tests.helpers.server_process import wait_until
from tests.spark.feeds import apply_feed

SCHEMA = {"sym": "string", "qty": "int64"}


@pytest.fixture
def server():
    with barrage.Server(journal="none") as running:
        yield running


def rows(count: int, first: int = 0) -> list[dict]:
    return [{"sym": f"s{i}", "qty": i} for i in range(first, first + count)]


def test_a_table_without_a_journal_is_followed(server, tmp_path):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(10))
    query = Query(server.uri, tmp_path)
    assert query.batch()
    assert query.kinds == ["insert"] * 10
    table.upsert([{"sym": "s0", "qty": 100}, {"sym": "new", "qty": 1}])
    table.remove([{"sym": "s1"}])
    query.follow(table)
    assert len(list((tmp_path / "trades" / "batches").iterdir())) == 0, "done batches are removed"
    query.reader.stop()


def test_times_of_day_keep_their_nanoseconds_and_dictionaries_their_values(server, tmp_path):
    kinds = {"at": pa.time64("ns"), "side": pa.dictionary(pa.int32(), pa.string())}
    table = server.create_table("trades", pa.schema(kinds.items()))
    table.add(pa.table({"at": [47062262946754], "side": ["buy"]}, schema=pa.schema(kinds.items())))
    query = Query(server.uri, tmp_path)
    query.follow_to(lambda: [{"at": 47062262946754, "side": "buy"}])
    query.reader.stop()


def test_a_sorted_list_keeps_identities_through_inserts(server, tmp_path):
    table = server.create_table("trades", SCHEMA, kind="list")
    table.insert(0, rows(20))
    query = Query(server.uri, tmp_path)
    query.batch()
    before = dict(query.state)
    table.insert(0, rows(5, 100))
    table.insert(10, rows(5, 200))
    query.follow(table)
    assert before.items() <= query.state.items()
    query.reader.stop()


@pytest.mark.parametrize("key", ["", "sym"])
def test_what_happened_while_nobody_followed_is_the_difference(server, tmp_path, key):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(10))
    options = {"keyColumns": key} if key else {}
    query = Query(server.uri, tmp_path, **options)
    query.batch()
    query.reader.stop()
    table.upsert([{"sym": "s0", "qty": 100}, {"sym": "new", "qty": 1}])
    table.remove([{"sym": "s1"}])
    query.open()
    assert query.batch()
    if key:
        assert sorted(query.kinds) == ["delete", "insert", "update_postimage"]
    else:
        assert sorted(query.kinds) == ["delete", "delete", "insert", "insert"]
    query.follow(table)
    query.reader.stop()


def test_a_batch_that_was_planned_is_planned_again_with_the_same_rows(server, tmp_path):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(10))
    query = Query(server.uri, tmp_path)
    query.batch()
    start, state = query.offset, dict(query.state)
    table.upsert(rows(5, 8))
    wait_until(lambda: query.batch(is_committed=False))
    end, after = query.offset, dict(query.state)
    query.reader.stop()
    table.remove([{"sym": "s0"}])
    query.open()
    query.offset, query.state = start, state
    target = arrow_target(query.schema)
    feed = [
        row
        for partition in query.reader.partitions(start, end)
        for batch in query.copy.read(partition)
        for row in batch.cast(target).to_pylist()
    ]
    apply_feed(query.state, feed)
    assert query.state == after
    query.offset = end
    query.follow(table)
    query.reader.stop()


def test_columns_filter_and_limits_work_as_with_a_server(server, tmp_path):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(20))
    query = Query(server.uri, tmp_path, columns="qty", filter="qty >= 10", maxRowsPerTrigger="8")
    sizes = []
    while query.batch():
        sizes.append(len(query.kinds))
    assert sum(sizes) == 10
    assert len(sizes) > 1
    assert query.values() == [{"qty": qty} for qty in range(10, 20)]
    query.reader.stop()


def test_two_queries_cannot_have_one_journal(server, tmp_path, monkeypatch):
    monkeypatch.setattr("spark_sink.client_journal.LOCK_SECONDS", 0.2)
    server.create_table("trades", SCHEMA, key="sym")
    first, second = Query(server.uri, tmp_path), Query(server.uri, tmp_path)
    first.batch()
    with pytest.raises(ConfigError, match="journalLocation"):
        second.batch()
    first.reader.stop()


def test_a_location_is_a_path(server):
    server.create_table("trades", SCHEMA, key="sym")
    query = Query(server.uri, Path("s3://bucket/x"))
    query.given["journalLocation"] = "s3://bucket/x"
    query.open()
    with pytest.raises(ConfigError, match="journalLocation"):
        query.batch()


def test_a_table_that_is_gone_is_told(server, tmp_path):
    table = server.create_table("trades", SCHEMA, key="sym")
    table.upsert(rows(1))
    query = Query(server.uri, tmp_path, reconnectTimeoutMs="1500")
    query.batch()
    server.drop_table("trades")

    def has_failed() -> bool:
        try:
            query.batch()
        except Exception as error:
            return "trades" in str(error)
        return False

    wait_until(has_failed)
    query.reader.stop()
