"""The sink in real queries: every output mode, every write mode, failures, and what is left."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")
from pyspark.errors import StreamingQueryException

from barrage.spark import barrage_update_sink, java_causes, register, root_cause
from tests.spark.file_stream import FileStream, run_to_end
from tests.spark.serving import connect, login_options, options_for

ROWS = "symbol string, size long"


@pytest.fixture
def files(tmp_path) -> FileStream:
    return FileStream(tmp_path / "in", ROWS)


def batch(*pairs: tuple[str, int]) -> dict:
    return {"symbol": [pair[0] for pair in pairs], "size": [pair[1] for pair in pairs]}


def rows_of(server, table: str = "out") -> list[tuple]:
    with connect(server) as session:
        found = session.table(table).snapshot()
    return sorted(tuple(row.values()) for row in found.to_pylist())


def staged_bytes(server) -> int:
    return server._app.journals.staging.byte_count


def sink(rows, server, checkpoint: str, **options):
    """The chain of the documentation, up to its start."""
    return (
        rows.writeStream.format("barrage")
        .options(**options_for(server))
        .option("table", options.pop("table", "out"))
        .option("checkpointLocation", checkpoint)
        .options(**options)
    )


def test_append_adds_each_batch_once_in_one_cycle(spark, server, files, checkpoint):
    files.put(batch(("a", 1), ("b", 2)))
    files.put(batch(("a", 3)))
    run_to_end(sink(files.read(spark), server, checkpoint))
    assert rows_of(server) == [("a", 1), ("a", 3), ("b", 2)]
    first = server.table("out").cursor
    files.put(batch(*((f"s{i}", i) for i in range(30_000))))
    run_to_end(sink(files.read(spark).repartition(3), server, checkpoint))
    last = server.table("out").cursor
    changes = server.table("out").changes(first.version)
    assert len(changes) == 30_000
    assert set(changes["_commit_version"].to_pylist()) == {last.version}, "one cycle a batch"
    assert len(rows_of(server)) == 30_003
    run_to_end(sink(files.read(spark), server, checkpoint))
    assert server.table("out").cursor == last
    assert staged_bytes(server) == 0


def test_a_lost_commit_log_applies_the_last_batch_no_second_time(spark, server, files, checkpoint):
    files.put(batch(("a", 1)))
    files.put(batch(("b", 2)))
    run_to_end(sink(files.read(spark), server, checkpoint))
    # What a driver leaves that was killed between the sink's commit and Spark's.
    for name in ("1", ".1.crc"):
        Path(checkpoint, "commits", name).unlink()
    files.put(batch(("c", 3)))
    run_to_end(sink(files.read(spark), server, checkpoint))
    assert rows_of(server) == [("a", 1), ("b", 2), ("c", 3)]


def test_complete_mode_ticks_only_what_differs(spark, server, files, checkpoint):
    files.put(batch(("a", 1), ("b", 2)))
    totals = files.read(spark).groupBy("symbol").sum("size").withColumnRenamed("sum(size)", "size")
    start = sink(totals, server, checkpoint, keyColumns="symbol").outputMode("complete")
    run_to_end(start)
    assert rows_of(server) == [("a", 1), ("b", 2)]
    first = server.table("out").cursor
    files.put(batch(("b", 5), ("c", 1)))
    run_to_end(start)
    assert rows_of(server) == [("a", 1), ("b", 7), ("c", 1)]
    changes = server.table("out").changes(first.version).to_pylist()
    assert sorted((row["_change_type"], row["symbol"]) for row in changes) == [
        ("insert", "c"),
        ("update_postimage", "b"),
    ]


def test_update_mode_through_the_hook(spark, server, files, checkpoint):
    register(spark)
    files.put(batch(("a", 1), ("b", 2)))
    files.put(batch(("b", 5), ("c", 1)))
    totals = files.read(spark).groupBy("symbol").sum("size").withColumnRenamed("sum(size)", "size")
    for _ in range(2):
        run_to_end(sink(totals, server, checkpoint, keyColumns="symbol").outputMode("update"))
        assert rows_of(server) == [("a", 1), ("b", 7), ("c", 1)]
    assert staged_bytes(server) == 0


def test_update_mode_through_foreach_batch(spark, server, files, checkpoint):
    files.put(batch(("a", 1), ("b", 2)))
    files.put(batch(("b", 5), ("c", 1)))
    totals = files.read(spark).groupBy("symbol").sum("size").withColumnRenamed("sum(size)", "size")
    applied = barrage_update_sink(server.uri, "out", keyColumns="symbol", **login_options())
    writer = totals.writeStream.foreachBatch(applied).outputMode("update")
    run_to_end(writer.option("checkpointLocation", checkpoint))
    assert rows_of(server) == [("a", 1), ("b", 7), ("c", 1)]


def test_update_mode_needs_keys_and_says_so(spark, server, files, checkpoint):
    register(spark)
    files.put(batch(("a", 1)))
    totals = files.read(spark).groupBy("symbol").count()
    with pytest.raises(StreamingQueryException) as failed:
        run_to_end(sink(totals, server, checkpoint).outputMode("update"))
    assert "set option keyColumns to the grouping columns" in root_cause(failed.value)


def test_other_sinks_are_left_alone_by_the_hook(spark, files, checkpoint):
    register(spark)
    files.put(batch(("a", 1)))
    totals = files.read(spark).groupBy("symbol").count()
    query = totals.writeStream.start(
        format="memory", queryName="left_alone", outputMode="update", checkpointLocation=checkpoint
    )
    query.processAllAvailable()
    query.stop()
    assert [tuple(row) for row in spark.table("left_alone").collect()] == [("a", 1)]


def test_append_with_keys_upserts(spark, server, files, checkpoint):
    files.put(batch(("a", 1), ("b", 2)))
    files.put(batch(("b", 5), ("a", 6)))
    run_to_end(sink(files.read(spark), server, checkpoint, keyColumns="symbol"))
    assert rows_of(server) == [("a", 6), ("b", 5)]


def test_a_change_feed_is_applied(spark, server, tmp_path, checkpoint):
    feed = FileStream(
        tmp_path / "feed", "_change_type string, _commit_version long, _row_id long, " + ROWS
    )
    header = ("_change_type", "_commit_version", "_row_id", "symbol", "size")

    def put(*changes: tuple) -> None:
        feed.put(pa.table(dict(zip(header, map(list, zip(*changes, strict=True)), strict=True))))

    put(("insert", 1, 0, "a", 1), ("insert", 1, 1, "b", 2))
    put(("update_postimage", 2, 0, "a", 9), ("delete", 3, 0, "a", 9), ("insert", 4, 2, "c", 3))
    written = sink(feed.read(spark), server, checkpoint, keyColumns="symbol")
    run_to_end(written)
    assert rows_of(server) == [("b", 2), ("c", 3)]
    put(("truncate", 7, None, None, None), ("insert", 7, 5, "d", 4))
    run_to_end(written)
    assert rows_of(server) == [("d", 4)]


def test_batch_writes_append_overwrite_and_come_once(spark, server):
    rows = spark.createDataFrame([("a", 1), ("b", 2)], ROWS)

    def write(mode: str, frame=rows, **options) -> None:
        writer = frame.write.format("barrage").mode(mode).options(**options_for(server))
        writer.options(**options).save("out")

    write("overwrite")
    write("append")
    assert rows_of(server) == [("a", 1), ("a", 1), ("b", 2), ("b", 2)]
    write("overwrite", rows.where("size = 2"))
    assert rows_of(server) == [("b", 2)]
    for _ in range(2):
        write("append", txnAppId="nightly", txnVersion=17)
    assert rows_of(server) == [("a", 1), ("b", 2), ("b", 2)]
    write("append", rows.where("size > 9"))
    assert len(rows_of(server)) == 3
    assert staged_bytes(server) == 0


@pytest.mark.parametrize("write_mode", ["append", "upsert"])
def test_merge_schema_does_what_the_refusal_says(spark, server, write_mode):
    """What the text advises works, and it is not advised where it would not."""
    keys = {"keyColumns": "symbol"} if write_mode == "upsert" else {}

    def write(rows: list[tuple], columns: str, **options) -> None:
        writer = spark.createDataFrame(rows, columns).write.format("barrage").mode("append")
        writer.options(**options_for(server), **keys, **options).save("out")

    write([("a", 1, 0.5)], "symbol string, size long, price double")
    with pytest.raises(Exception) as refused:
        write([("b", 2)], ROWS)
    assert "'price' is missing" in root_cause(refused.value)
    assert "mergeSchema=true, which writes nulls" in root_cause(refused.value)
    write([("b", 2)], ROWS, mergeSchema="true")
    assert rows_of(server) == [("a", 1, 0.5), ("b", 2, None)]
    with pytest.raises(Exception) as refused:
        write([("c", 3, "x")], f"{ROWS}, venue string", mergeSchema="true")
    told = root_cause(refused.value)
    assert "'venue'" in told
    assert "select those, or write to a new table" in told
    assert "mergeSchema" not in told
    assert len(rows_of(server)) == 2


def test_types_arrive_as_they_are(spark, server):
    spark.sql(
        "select cast(1 as byte) b, cast(2 as short) s, 3 i, 4L l, cast(0.5 as float) f, 0.25d d, "
        "true t, 'x' c, cast('ab' as binary) y, date'2026-01-02' e, "
        "timestamp'2026-01-02 03:04:05.678901' at, timestamp_ntz'2026-01-02 03:04:05' n, "
        "cast(12.34 as decimal(9,2)) m, array(1, 2) a, cast(null as string) z"
    ).write.format("barrage").mode("append").options(**options_for(server)).save("types")
    with connect(server) as session:
        (found,) = session.table("types").snapshot().to_pylist()
    assert (found["b"], found["s"], found["i"], found["l"]) == (1, 2, 3, 4)
    assert (found["f"], found["d"], found["t"], found["c"], found["y"]) == (
        0.5, 0.25, True, "x", b"ab",
    )  # fmt: skip
    assert str(found["e"]) == "2026-01-02"
    assert found["at"].isoformat() == "2026-01-02T03:04:05.678901+00:00"
    assert found["n"].isoformat() == "2026-01-02T03:04:05"
    assert (str(found["m"]), found["a"], found["z"]) == ("12.34", [1, 2], None)


def fail_once(marker: str):
    """A step of the query that fails on the first attempt of one task, after some rows."""

    def run(batches):
        from pyspark import TaskContext

        for each in batches:
            yield each
            path = Path(marker)
            if TaskContext.get().partitionId() == 0 and not path.exists():
                path.touch()
                raise RuntimeError("the first attempt fails")

    return run


@pytest.mark.parametrize("mode", ["append", "update"])
def test_a_task_that_is_tried_again_adds_its_rows_once(
    spark, server, files, checkpoint, tmp_path, mode
):
    register(spark)
    files.put(batch(*((f"s{i}", i) for i in range(25_000))))
    rows = files.read(spark).repartition(2)
    if mode == "update":
        rows = rows.groupBy("symbol").sum("size").withColumnRenamed("sum(size)", "size")
    rows = rows.mapInArrow(fail_once(str(tmp_path / "failed")), ROWS)
    run_to_end(sink(rows, server, checkpoint, keyColumns="symbol").outputMode(mode))
    assert (tmp_path / "failed").exists()
    found = rows_of(server)
    assert len(found) == 25_000
    assert sum(size for _, size in found) == sum(range(25_000))
    assert staged_bytes(server) == 0


def test_a_failed_batch_leaves_nothing_and_runs_again(spark, server, files, checkpoint, tmp_path):
    gate = tmp_path / "closed"
    gate.touch()

    def refuse(batches):
        yield from batches
        if gate.exists():
            raise RuntimeError("the gate is closed")

    files.put(batch(*((f"s{i}", i) for i in range(100))))
    writer = sink(files.read(spark).mapInArrow(refuse, ROWS), server, checkpoint)
    with pytest.raises(StreamingQueryException) as failed:
        run_to_end(writer)
    assert any("the gate is closed" in text for text in java_causes(failed.value))
    assert staged_bytes(server) == 0
    assert "out" not in [table.name for table in barrage_tables(server)]
    gate.unlink()
    run_to_end(writer)
    assert len(rows_of(server)) == 100


def barrage_tables(server) -> list:
    with connect(server) as session:
        return list(session.tables())


def test_a_server_that_is_away_is_named_with_the_options(spark, server, files, checkpoint):
    files.put(batch(("a", 1)))
    told_to_reach = options_for(server)
    server.stop()
    writer = files.read(spark).writeStream.format("barrage").option("table", "out")
    writer = writer.options(**told_to_reach).option("checkpointLocation", checkpoint)
    with pytest.raises(StreamingQueryException) as failed:
        run_to_end(writer.option("fetchNumRetries", 0))
    told = root_cause(failed.value)
    assert "table 'out', batch 0, partition 0" in told
    assert "option uri" in told


def test_a_table_that_forgot_the_query_is_refused_unless_told_otherwise(
    spark, server, files, checkpoint
):
    files.put(batch(("a", 1)))
    run_to_end(sink(files.read(spark), server, checkpoint))
    server.drop_table("out")
    files.put(batch(("b", 2)))
    with pytest.raises(StreamingQueryException) as failed:
        run_to_end(sink(files.read(spark), server, checkpoint))
    told = root_cause(failed.value)
    assert "table 'out', batch 1" in told
    assert "failOnDataLoss=false" in told
    run_to_end(sink(files.read(spark), server, checkpoint, failOnDataLoss=False))
    assert rows_of(server) == [("b", 2)]


def test_options_that_do_not_fit_are_named(spark, server, files, checkpoint):
    files.put(batch(("a", 1)))
    for options, told in (
        ({"writeMode": "merge"}, "option writeMode is one of append, upsert"),
        ({"writeMode": "upsert"}, "writeMode=upsert needs option keyColumns"),
        ({"keyColumn": "a"}, "did you mean 'keyColumns'"),
        ({"createTable": "false"}, "createTable=true"),
    ):
        with pytest.raises(StreamingQueryException) as failed:
            run_to_end(sink(files.read(spark), server, checkpoint, **options))
        assert told in root_cause(failed.value)


def test_a_second_query_with_a_fixed_name_repeats_nothing(spark, server, files, tmp_path):
    files.put(batch(("a", 1)))
    for number in range(2):
        writer = sink(files.read(spark), server, str(tmp_path / f"c{number}"), txnAppId="feed")
        run_to_end(writer)
    assert rows_of(server) == [("a", 1)]
    told = json.loads(Path(tmp_path, "c0", "metadata").read_text())
    assert "id" in told
