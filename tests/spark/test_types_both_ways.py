"""Columns of many types from Spark into a table and back: what comes out is what went in."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException

from barrage.spark import root_cause
from tests.spark.feeds import Collected, run, sorted_rows
from tests.spark.file_stream import FileStream, run_to_end
from tests.spark.serving import options_for

NESTED = pa.table(
    {
        "id": [1, 2, 3],
        "place": pa.array(
            [
                {"city": "Bern", "at": {"lat": 46.9, "lon": 7.4}, "tags": ["a", None]},
                {"city": None, "at": None, "tags": None},
                None,
            ],
            pa.struct(
                [
                    ("city", pa.string()),
                    ("at", pa.struct([("lat", pa.float64()), ("lon", pa.float64())])),
                    ("tags", pa.list_(pa.string())),
                ]
            ),
        ),
        "legs": pa.array(
            [[{"n": 1, "t": "x"}, None], [], None],
            pa.list_(pa.struct([("n", pa.int64()), ("t", pa.string())])),
        ),
        "more": pa.array(
            [[("k", {"v": 1})], [], None], pa.map_(pa.string(), pa.struct([("v", pa.int32())]))
        ),
    }
)
SPARK_TYPES = (
    "id bigint, place struct<city: string, at: struct<lat: double, lon: double>, "
    "tags: array<string>>, legs array<struct<n: bigint, t: string>>, "
    "more map<string, struct<v: int>>"
)


def loaded(spark, server, table: str, **options: str):
    reader = spark.readStream.format("barrage").options(**options_for(server), **options)
    return reader.load(table)


def test_structs_and_what_is_nested_in_them_go_both_ways(spark, server, tmp_path):
    files = FileStream(tmp_path / "files", SPARK_TYPES)
    files.put(NESTED)
    checkpoints = [str(tmp_path / f"checkpoint{number}") for number in range(3)]
    writer = (
        files.read(spark).writeStream.format("barrage").options(**options_for(server), table="out")
    )
    writer = writer.option("keyColumns", "id").option("checkpointLocation", checkpoints[0])
    run_to_end(writer)
    table = server.table("out")
    assert sorted_rows(table) == sorted(NESTED.to_pylist(), key=repr)
    assert table.to_arrow().schema.field("place").type == NESTED.schema.field("place").type
    collected = Collected()
    stream = loaded(spark, server, "out")
    run(stream, checkpoints[1], collected)
    assert collected.values() == sorted_rows(table)
    towns = stream.where("place.at.lat > 40").select("_row_id", "place.city")
    found = Collected()
    run(towns, checkpoints[2], found)
    assert [row["city"] for row in found.rows()] == ["Bern"]
    files.put(NESTED.slice(1, 1).set_column(1, NESTED.schema.field("place"), NESTED["place"][:1]))
    run_to_end(writer)
    run(stream, checkpoints[1], collected)
    assert collected.sizes() == [3, 1], "a field that changed is a change of its row"
    assert collected.values() == sorted_rows(table)


def test_a_time_of_day_is_sparks_time_where_that_is_wanted(spark, server, checkpoint):
    times = [dt.time(9, 30, 0, 125), None, dt.time(23, 59, 59)]
    server.create_table("times", data=pa.table({"t": pa.array(times, pa.time64("ns"))}))
    spark.conf.set("spark.sql.timeType.enabled", "true")
    try:
        stream = loaded(spark, server, "times", readChangeFeed="false", timeOfDay="time")
        assert dict(stream.dtypes) == {"t": "time(6)"}
        writer = stream.where("t > time'09:00' or t is null").writeStream.format("barrage")
        writer = writer.options(**options_for(server), table="out")
        run_to_end(writer.option("checkpointLocation", checkpoint))
    finally:
        spark.conf.unset("spark.sql.timeType.enabled")
    written = server.table("out").to_arrow()
    assert written["t"].to_pylist() == times
    assert pa.types.is_time64(written.schema.field("t").type)


def test_a_variant_is_written_as_json_when_asked_for(spark, server, tmp_path):
    files = FileStream(tmp_path / "files", "id bigint, text string")
    files.put({"id": [1, 2], "text": ['{"a": [1, null, "x"]}', None]})
    rows = files.read(spark).selectExpr("id", "parse_json(text) as v")
    writer = rows.writeStream.format("barrage").options(**options_for(server), table="out")
    with pytest.raises(StreamingQueryException) as failed:
        run_to_end(writer.option("checkpointLocation", str(tmp_path / "c1")))
    assert "column 'v' is a variant" in root_cause(failed.value)
    assert "variantAsJson=true" in root_cause(failed.value)
    writer = writer.option("variantAsJson", True)
    run_to_end(writer.option("checkpointLocation", str(tmp_path / "c2")))
    assert server.table("out").to_arrow().to_pylist() == [
        {"id": 1, "v": '{"a":[1,null,"x"]}'},
        {"id": 2, "v": None},
    ]


def test_a_decimal_spark_does_not_have_is_refused_by_its_column(spark, server):
    wide = pa.array([1], pa.decimal256(50, 2))
    server.create_table("wide", data=pa.table({"a": [1], "amount": wide}))
    with pytest.raises(Exception) as caught:
        loaded(spark, server, "wide")
    assert "column 'amount'" in root_cause(caught.value)
    assert "38 digits" in root_cause(caught.value)
    assert loaded(spark, server, "wide", columns="a", readChangeFeed="false").columns == ["a"]
