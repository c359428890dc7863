"""A script: source, sink in every output mode and a ticking table, in a session of its own.

``python whole_pipeline.py SETTINGS.json``: ``server`` (the options for it), ``work`` folder,
``session`` (its settings; ``remote`` for Spark Connect, ``master`` otherwise). Prints one JSON
object with what the test checks. Runs with nothing of ours importable but what ``PYTHONPATH`` has.
"""

import json
import sys
from pathlib import Path

SECONDS = 120


def start(session: dict):
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    remote = session.pop("remote", None)
    builder = builder.master(session.pop("master")) if remote is None else builder.remote(remote)
    for key, value in session.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def run(writer) -> None:
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(SECONDS)
    assert query.exception() is None, query.exception()


def where_the_package_is(spark) -> list[str]:
    """The files the workers import us from, each with its process's parent."""

    def look(batches):
        import os

        import pyarrow as pa

        import spark_sink.sink

        for _ in batches:
            found = f"{os.getppid()} {spark_sink.sink.__file__}"
            yield pa.RecordBatch.from_pylist([{"found": found}])

    rows = spark.range(8, numPartitions=4).mapInArrow(look, "found string").collect()
    return sorted({row.found for row in rows})


def main() -> None:
    told = json.loads(Path(sys.argv[1]).read_text())
    work = Path(told["work"])
    spark = start(told["session"])
    from barrage.spark import barrage_ticking_table, register

    # Append and changes need no registration: Spark finds the format by itself.
    feed = spark.readStream.format("barrage").options(**told["server"]).load("trades")

    def sink(rows, table: str, mode: str, **options):
        return (
            rows.writeStream.format("barrage")
            .outputMode(mode)
            .options(**told["server"])
            .option("table", table)
            .option("checkpointLocation", str(work / f"checkpoint-{table}"))
            .options(**options)
        )

    run(sink(feed, "copy", "append", keyColumns="id"))
    register(spark)
    totals = feed.groupBy("symbol").sum("size").withColumnRenamed("sum(size)", "size")
    run(sink(totals, "totals", "update", keyColumns="symbol"))
    run(sink(totals, "all_totals", "complete", keyColumns="symbol"))
    spark.range(5).write.format("barrage").mode("append").options(**told["server"]).save("five")
    found = {"workers": where_the_package_is(spark)}
    uri, login = told["server"].pop("uri"), told["server"]
    ticking = barrage_ticking_table(
        spark,
        uri,
        "trades",
        location=str(work / "mirror"),
        options=login,
        wait_seconds=SECONDS,
    )
    found["view"] = spark.sql("select count(*), sum(size) from trades").collect()[0][:]
    found["version"] = list(ticking.version)
    batch = spark.createDataFrame([(10_000, "new", 1.0)], "id long, symbol string, size double")
    writer = batch.write.format("barrage").mode("append").options(uri=uri, **login)
    writer.option("keyColumns", "id").save("trades")
    ticking.wait_for(ticking.version.version + 1, SECONDS)
    found["later"] = spark.table("trades").count()
    ticking.stop()
    print(json.dumps(found, default=list))
    spark.stop()


if __name__ == "__main__":
    main()
