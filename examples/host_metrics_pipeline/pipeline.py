"""CPU load of this machine, averaged per second by Spark, as a table that ticks.

    host metrics -> server -> Spark (windowed aggregation) -> server -> barrage watch

The server keeps a journal of the table ``cpu``, which Spark reads as a stream. The averages go back
to the server as the table ``cpu_by_second``: in update mode, keyed by the second, so that a row
changes while its second lasts. Everything runs on this machine until the grid is closed, or for
``--seconds``.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.streaming.query import StreamingQuery

import barrage
from barrage.cli.host_tables import HostTables
from barrage.spark import register
from spark_sink.java_runtime import ensure_java

TABLE = "cpu_by_second"
FIRST_ROW_SECONDS_MAX = 120


def start_spark(folder: str) -> SparkSession:
    """A small local session. The workers must run this interpreter, not the first of the path."""
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("host metrics")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.local.dir", folder)
        .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)  # for outputMode("update")
    return spark


def start_query(spark: SparkSession, uri: str, folder: str) -> StreamingQuery:
    """Read ``cpu``, average it per second, and write the averages as they become known."""
    # The table is only appended to, so its rows will do; no change types are needed.
    samples = (
        spark.readStream.format("barrage")
        .option("uri", uri)
        .option("readChangeFeed", "false")
        .option("columns", "time,percent,iowait")
        .load("cpu")
    )
    by_second = (
        samples.withWatermark("time", "5 seconds")
        .groupBy(sql.window("time", "1 second").alias("window"))
        .agg(
            sql.round(sql.avg("percent"), 1).alias("percent"),
            sql.max("percent").alias("highest"),
            sql.round(sql.avg("iowait"), 1).alias("iowait"),
            sql.count("*").alias("samples"),
        )
        .select(sql.col("window.start").alias("second"), "percent", "highest", "iowait", "samples")
    )
    return (
        by_second.writeStream.format("barrage")
        .outputMode("update")
        .option("uri", uri)
        .option("keyColumns", "second")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start(TABLE)
    )


def wait_for_rows(uri: str, query: StreamingQuery) -> None:
    """Until the first averages are there; raises what ended the query."""
    deadline = time.monotonic() + FIRST_ROW_SECONDS_MAX
    with barrage.connect(uri) as session:
        while TABLE not in [table.name for table in session.tables()]:
            if query.exception() is not None:
                raise query.exception()
            if time.monotonic() > deadline:
                raise TimeoutError(f"table {TABLE} did not come")
            time.sleep(0.2)


def watch(uri: str, seconds: int | None) -> None:
    """The grid of ``barrage watch``, newest second first; as plain lines when asked to end."""
    address = f"{uri.partition('://')[2]}/{TABLE}"
    words = ["watch", address, "--sort=-second"]
    if seconds is not None:
        words += ["--rows=5", f"--seconds={seconds}"]
    print("barrage", *words, flush=True)
    run = [sys.executable, "-c", "from barrage.cli.main import main; main()"]
    subprocess.run([*run, *words], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, help="watch plain lines for so long, then end")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        barrage.Server(journal="memory") as server,
        HostTables(server),
    ):
        spark = start_spark(folder)
        query = start_query(spark, server.uri, folder)
        try:
            wait_for_rows(server.uri, query)
            watch(server.uri, arguments.seconds)
        finally:
            # Spark tells at length that a batch under way was interrupted, which is what we want.
            spark.sparkContext.setLogLevel("OFF")
            query.stop()
            spark.stop()


if __name__ == "__main__":
    main()
