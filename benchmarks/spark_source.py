"""Rows a second of the Spark source: one query over a table of a server, over the same rows in
Parquet with Spark's file stream, and over the same source yielding tuples.

Each reads the same rows in one micro-batch into Spark's ``noop`` sink, in one session of two task
threads, in turns; the best of several runs counts, after one that warms up. The table is
append-only and has been written by 100,000 rows a cycle; its changes are read as plain rows, and as
the change feed, with bodies in the Flight stream and in shared memory. CPU seconds of a query are
those of its best run: of the server, and of everything together (JVM, Python workers, server).
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pyarrow.parquet as pq

from benchmarks import shapes
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result

CYCLE_ROWS = 100_000
ROWS = 4_000_000
RUNS = 4
TUPLE_ROWS = 400_000
FORMAT_OF_TUPLES = "barrage_tuples"

Stream: TypeAlias = Callable[[], Any]
"""Makes a streaming DataFrame."""


def serve(pipe: Connection, rows: int) -> None:
    """A server with tables of ``rows`` rows, all of whose changes are kept: ``trades``, and
    ``few`` of a number tuples can be made of."""
    import barrage
    from barrage.server.settings.config import ServerConfig

    config = ServerConfig(journal="memory", journal_memory_bytes=4 * 1024**3, bodies="shm")
    with barrage.Server(config=config) as server:
        for name, count in (("trades", rows), ("few", min(rows, TUPLE_ROWS))):
            table = server.create_table(name, shapes.SCHEMA, kind="append_only")
            for first in range(0, count, CYCLE_ROWS):
                table.add(shapes.batch(first, CYCLE_ROWS))
        pipe.send(server.uri)
        pipe.recv()


def parquet_files(work: Path, rows: int) -> Path:
    """The rows as files: as many as there are task threads times four, as Spark itself would write
    them."""
    parquet = work / "parquet"
    parquet.mkdir()
    part = rows // 8
    for number in range(8):
        pq.write_table(
            shapes.batch(number * part, part),
            parquet / f"{number}.parquet",
            coerce_timestamps="us",
            allow_truncated_timestamps=True,
        )
    return parquet


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


@dataclass(frozen=True, slots=True)
class Cost:
    """What one query took."""

    seconds: float
    """Of its micro-batch, planning and both logs included."""
    server_cpu: float
    cpu: float
    """CPU seconds of everything, the server's among them."""


@dataclass(frozen=True, slots=True)
class Load:
    """Queries that read ``rows`` rows each, beside the server they read from."""

    server: Child
    rows: int
    work: Path

    def costs(self, streams: dict[str, Stream], runs: int) -> dict[str, Cost]:
        """The best of several runs of each, by time; the first only warms up. The streams take
        turns, so that what else the machine does meets all of them."""
        best: dict[str, Cost] = {}
        for number in range(runs + 1):
            for name, stream in streams.items():
                checkpoint = self.work / f"checkpoint-{name}-{self.rows}-{number}"
                before = cpu_by_process()
                seconds = query_seconds(stream, self.rows, checkpoint)
                took = {pid: cpu - before.get(pid, 0.0) for pid, cpu in cpu_by_process().items()}
                server = took[self.server.process.pid]
                cost = Cost(seconds, server, sum(took.values()))
                if number and (name not in best or seconds < best[name].seconds):
                    best[name] = cost
        return best


def cpu_by_process() -> dict[int, float]:
    """CPU seconds so far of all that this process has started and that works for more than one
    query: the JVM, the Python workers, the server."""
    found: dict[int, float] = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            words = " ".join(process.cmdline())
            if "python_streaming_source_runner" not in words:
                times = process.cpu_times()
                found[process.pid] = times.user + times.system
    return found


def query_seconds(stream: Stream, rows: int, checkpoint: Path) -> float:
    """Seconds of one query's micro-batches."""
    query = (
        stream()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch["numInputRows"]]
    assert sum(batch["numInputRows"] for batch in batches) == rows, batches
    return float(sum(batch["durationMs"]["triggerExecution"] for batch in batches) / 1000)


def measure(load: Load, runs: int) -> list[Measurement]:
    from tests.spark.session import start_session

    uri, rows, work = load.server.ready, load.rows, load.work
    options = "-XX:+UseSerialGC -Duser.timezone=UTC"
    spark = start_session(work, spark__driver__extraJavaOptions=options, spark__driver__memory="2g")
    try:
        spark.dataSource.register(tuples_source())
        parquet = parquet_files(work, rows)
        schema = spark.read.parquet(str(parquet)).schema

        def files() -> Any:
            return spark.readStream.schema(schema).parquet(str(parquet))

        def source(table: str, name: str = "barrage", **given: str) -> Stream:
            reader = spark.readStream.format(name).option("uri", uri).option("table", table)
            return reader.option("startingOffsets", "earliest").options(**given).load

        plain, inline = {"readChangeFeed": "false"}, {"bodies": "inline"}
        few = min(rows, TUPLE_ROWS)
        streams = {
            "files": files,
            "plain": source("trades", **plain, **inline),
            "plain-shm": source("trades", **plain),
            "feed": source("trades", **inline),
            "feed-shm": source("trades"),
            "snapshot": source("trades", **plain, **inline, startingOffsets="snapshot"),
            "snapshot-shm": source("trades", **plain, startingOffsets="snapshot"),
        }
        found = load.costs(streams, runs)
        of_few = {
            "batches": source("few", **plain, **inline),
            "tuples": source("few", FORMAT_OF_TUPLES, **plain, **inline),
        }
        found_few = Load(load.server, few, work).costs(of_few, 2)
    finally:
        spark.stop()
    return lines(found, found_few, rows, few)


def lines(
    found: dict[str, Cost], found_few: dict[str, Cost], rows: int, few: int
) -> list[Measurement]:
    """The lines for ``rows`` rows, and for the ``few`` that go as tuples."""
    size = f"{rows:,} rows of ten columns"
    names = {"plain": "plain rows", "feed": "change feed", "snapshot": "snapshot"}
    goals = {"plain": 0.9, "plain-shm": 1.0}
    measured = []
    for name, text in names.items():
        for suffix, way in (("", ""), ("-shm", ", bodies in shared memory")):
            cost = found[name + suffix]
            measured += [
                compared(
                    f"Spark source, {size}, {text}{way}",
                    rows / cost.seconds,
                    "rows/s",
                    baseline="the same rows in Parquet, file stream",
                    baseline_value=rows / found["files"].seconds,
                    at_least=goals.get(name + suffix),
                ),
                compared(
                    f"Spark source, {size}, {text}{way}: CPU of all, {cost.server_cpu:.2f} s of "
                    "it the server's",
                    cost.cpu,
                    "s",
                    baseline="file stream",
                    baseline_value=found["files"].cpu,
                ),
            ]
    return [
        *measured,
        compared(
            f"Spark source, {size}, Arrow batches",
            rows / found["plain"].seconds,
            "rows/s",
            baseline=f"the source yielding tuples, {few:,} rows",
            baseline_value=few / found_few["tuples"].seconds,
            at_least=8,
            detail={"batches of the few": few / found_few["batches"].seconds},
        ),
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    if importlib.util.find_spec("pyspark") is None:
        return result("spark_source", [])
    rows = CYCLE_ROWS * 8 if quick else ROWS
    with tempfile.TemporaryDirectory() as work, child(serve, rows) as server:
        load = Load(server, rows, Path(work))
        return result("spark_source", measure(load, 2 if quick else RUNS))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
