"""Rows a second of the Spark source: one query over a table of a server, over the same rows in
Parquet with Spark's file stream, and over the same source yielding tuples.

Each reads the same rows in one micro-batch into Spark's ``noop`` sink, in one session of two task
threads; the best of several runs counts, after one that warms up. The table is append-only and has
been written by 100,000 rows a cycle; its changes are read as plain rows, and as the change feed.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks import shapes
from benchmarks.processes import child
from benchmarks.report import Measurement, compared, result

CYCLE_ROWS = 100_000
ROWS = 4_000_000
RUNS = 4
TUPLE_ROWS = 400_000
FORMAT_OF_TUPLES = "barrage_tuples"


def serve(pipe: Connection, rows: int) -> None:
    """A server with tables of ``rows`` rows, all of whose changes are kept: ``trades``, and
    ``few`` of a number tuples can be made of."""
    import barrage
    from barrage.server.config import ServerConfig

    config = ServerConfig(journal="memory", journal_memory_bytes=4 * 1024**3)
    with barrage.Server(config=config) as server:
        for name, count in (("trades", rows), ("few", min(rows, TUPLE_ROWS))):
            table = server.create_table(name, shapes.SCHEMA, kind="append_only")
            for first in range(0, count, CYCLE_ROWS):
                table.add(shapes.batch(first, CYCLE_ROWS))
        pipe.send(server.uri)
        pipe.recv()


def tuples_source() -> type:
    """The source with its rows as Python tuples, which is the other form Spark takes."""
    from pyspark_barrage import DefaultSource
    from spark_sink.reader import BarrageStreamReader

    class TupleReader(BarrageStreamReader):
        def read(self, partition: Any) -> Iterator[Any]:
            for batch in super().read(partition):
                yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    class TupleSource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT_OF_TUPLES

        def streamReader(self, schema: Any) -> Any:  # noqa: N802 (Spark's names)
            reader = super().streamReader(schema)
            return TupleReader(reader.options, schema)

    return TupleSource


def rows_per_second(stream: Callable[[], Any], rows: int, work: Path, runs: int) -> float:
    """The best rate of a query that reads ``rows`` rows and ends: rows by the seconds its
    micro-batch took, planning and both logs included."""
    best = 0.0
    for number in range(runs + 1):
        query = (
            stream()
            .writeStream.format("noop")
            .option("checkpointLocation", str(work / f"checkpoint-{id(stream)}-{number}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
        assert sum(batch["numInputRows"] for batch in batches) == rows, batches
        seconds = sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000
        if number:
            best = max(best, rows / seconds)
    return best


def measure(uri: str, rows: int, runs: int, work: Path) -> list[Measurement]:
    from tests.spark.session import start_session

    options = "-XX:+UseSerialGC -Duser.timezone=UTC"
    spark = start_session(work, spark__driver__extraJavaOptions=options, spark__driver__memory="2g")
    try:
        spark.dataSource.register(tuples_source())
        parquet = work / "parquet"
        parquet.mkdir()
        # As many files as there are task threads times four, as Spark itself would write them.
        part = rows // 8
        for number in range(8):
            pq.write_table(
                shapes.batch(number * part, part),
                parquet / f"{number}.parquet",
                coerce_timestamps="us",
                allow_truncated_timestamps=True,
            )
        schema = spark.read.parquet(str(parquet)).schema

        def files() -> Any:
            return spark.readStream.schema(schema).parquet(str(parquet))

        def source(table: str, name: str = "barrage", **given: str) -> Callable[[], Any]:
            reader = spark.readStream.format(name).option("uri", uri).option("table", table)
            return reader.option("startingOffsets", "earliest").options(**given).load

        plain = {"readChangeFeed": "false"}
        few = min(rows, TUPLE_ROWS)
        from_files = rows_per_second(files, rows, work, runs)
        ours = rows_per_second(source("trades", **plain), rows, work, runs)
        feed = rows_per_second(source("trades"), rows, work, runs)
        snapshot = rows_per_second(
            source("trades", **plain, startingOffsets="snapshot"), rows, work, runs
        )
        ours_few = rows_per_second(source("few", **plain), few, work, runs)
        tuples = rows_per_second(source("few", FORMAT_OF_TUPLES, **plain), few, work, 2)
    finally:
        spark.stop()
    size = f"{rows:,} rows of ten columns"
    against = dict(baseline="the same rows in Parquet, file stream", baseline_value=from_files)
    return [
        compared(f"Spark source, {size}, plain rows", ours, "rows/s", **against, at_least=0.8),
        compared(f"Spark source, {size}, change feed", feed, "rows/s", **against),
        compared(f"Spark source, {size}, snapshot", snapshot, "rows/s", **against),
        compared(
            f"Spark source, {size}, Arrow batches",
            ours,
            "rows/s",
            baseline=f"the source yielding tuples, {few:,} rows",
            baseline_value=tuples,
            at_least=8,
            detail={"batches of the few": ours_few},
        ),
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    if importlib.util.find_spec("pyspark") is None:
        return result("spark_source", [])
    rows = CYCLE_ROWS * 8 if quick else ROWS
    with tempfile.TemporaryDirectory() as work, child(serve, rows) as server:
        return result("spark_source", measure(server.ready, rows, 2 if quick else RUNS, Path(work)))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
