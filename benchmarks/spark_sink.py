"""Rows a second of the Spark sink: one query writing to a table of a server, and the same query
writing Parquet with Spark's own sink.

Both read the same Parquet files with Spark's file stream in one micro-batch, in one session of two
task threads; the best of several runs counts, after one that warms up. The rows have ten columns.
Each run writes to a table, or folder, of its own. The server keeps a journal in memory; Spark's
files are not synced to the disk either.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import shapes
from benchmarks.processes import Child, child
from benchmarks.report import compared, result

ROWS = 2_000_000
FILES = 8
RUNS = 3


def serve(pipe: Connection) -> None:
    """Words are names of tables to count and drop."""
    import barrage

    with barrage.Server(journal="memory") as server:
        pipe.send(server.uri)
        while (name := pipe.recv()) is not None:
            pipe.send(len(server.table(name)))
            server.drop_table(name)


def seconds_of(writer: Any) -> float:
    """Run a query to its end; the seconds of its one micro-batch, planning and logs included."""
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    assert len(batches) == 1, batches
    return float(batches[0]["durationMs"]["triggerExecution"]) / 1000


def best_rate(start: Callable[[int], Any], runs: int, done: Callable[[int], None]) -> float:
    """Rows a second of the best run; the first only warms up."""
    best = 0.0
    for number in range(runs + 1):
        seconds = seconds_of(start(number))
        done(number)
        if number:
            best = max(best, 1 / seconds)
    return best


def measure(server: Child, rows: int, runs: int, work: Path) -> list[Any]:
    from tests.spark.session import start_session

    options = "-XX:+UseSerialGC -Duser.timezone=UTC"
    spark = start_session(work, spark__driver__extraJavaOptions=options, spark__driver__memory="2g")
    try:
        folder = work / "in"
        folder.mkdir()
        part = rows // FILES
        for number in range(FILES):
            pq.write_table(
                shapes.batch(number * part, part),
                folder / f"{number}.parquet",
                coerce_timestamps="us",
                allow_truncated_timestamps=True,
            )
        schema = spark.read.parquet(str(folder)).schema

        def rows_of(kind: str, number: int) -> Any:
            stream = spark.readStream.schema(schema).parquet(str(folder))
            return stream.writeStream.option("checkpointLocation", str(work / f"c-{kind}{number}"))

        def to_server(number: int) -> Any:
            writer = rows_of("server", number).format("barrage")
            return writer.option("uri", server.ready).option("table", f"t{number}")

        def check(number: int) -> None:
            assert server.ask(f"t{number}") == rows

        def to_parquet(number: int) -> Any:
            writer = rows_of("parquet", number).format("parquet")
            return writer.option("path", str(work / f"out{number}"))

        parquet = best_rate(to_parquet, runs, lambda _: None) * rows
        ours = best_rate(to_server, runs, check) * rows
    finally:
        spark.stop()
    return [
        compared(
            f"Spark sink, append, {rows:,} rows of ten columns",
            ours,
            "rows/s",
            baseline="Spark's Parquet sink",
            baseline_value=parquet,
            at_least=0.5,
        )
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    if importlib.util.find_spec("pyspark") is None:
        return result("spark_sink", [])
    rows = 400_000 if quick else ROWS
    with tempfile.TemporaryDirectory() as work, child(serve) as server:
        return result("spark_sink", measure(server, rows, 2 if quick else RUNS, Path(work)))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
