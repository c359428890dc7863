"""How long a micro-batch of the Spark source takes, beside Spark's own floors.

Three queries into the ``noop`` sink, in turns so that each sees the same load of the machine: a
table that is written a hundred rows at a time, a Python source that does nothing but count, and
Spark's ``rate-micro-batch``, which has no Python at all. A batch's time is Spark's
``triggerExecution``: choosing and planning, both logs, and the tasks. Medians over all turns.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import shapes
from benchmarks.processes import child
from benchmarks.report import Measurement, compared, result

ROWS = 100
TURNS = 4
BATCHES = 25
SKIPPED = 3
"""Batches at the start of each turn that are not counted: workers start."""


def serve(pipe: Connection) -> None:
    """A server whose table ``ticks`` gets rows fifty times a second."""
    import barrage

    with barrage.Server(journal="memory") as server:
        table = server.create_table("ticks", shapes.SCHEMA, kind="append_only")
        pipe.send(server.uri)
        part = shapes.batch(0, ROWS)
        while not pipe.poll(0.02):
            table.add(part)


def trivial_source() -> type:
    """A Python source with the columns of the table and the same rows again and again."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

    from spark_sink.types import arrow_target, cast_batch, spark_schema

    class TrivialReader(DataSourceStreamReader):
        def __init__(self, schema: Any) -> None:
            self.schema = schema
            self.count = 0

        def initialOffset(self) -> dict[str, int]:  # noqa: N802 (Spark's names)
            return {"n": 0}

        def latestOffset(self) -> dict[str, int]:  # noqa: N802
            self.count += 1
            return {"n": self.count}

        def partitions(self, start: Any, end: Any) -> list[InputPartition]:
            return [InputPartition(0)] if start != end else []

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
            (batch,) = shapes.batch(0, ROWS).combine_chunks().to_batches()
            yield cast_batch(batch, arrow_target(self.schema))

    class TrivialSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "trivial"

        def schema(self) -> Any:
            return spark_schema(shapes.SCHEMA)

        def streamReader(self, schema: Any) -> Any:  # noqa: N802
            return TrivialReader(schema)

    return TrivialSource


def batch_times(stream: Callable[[], Any], checkpoint: Path, batches: int) -> list[float]:
    """Milliseconds of each of ``batches`` micro-batches that had rows."""
    query = (
        stream()
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime="0 seconds")
        .start()
    )
    times: dict[int, float] = {}
    try:
        deadline = time.monotonic() + 120
        pause = threading.Event()
        while len(times) < batches + SKIPPED and time.monotonic() < deadline:
            pause.wait(0.1)
            for progress in query.recentProgress:
                if progress["numInputRows"]:
                    times[progress["batchId"]] = progress["durationMs"]["triggerExecution"]
    finally:
        query.stop()
    return [times[batch] for batch in sorted(times)][SKIPPED:]


def measure(uri: str, turns: int, batches: int, work: Path) -> list[Measurement]:
    from tests.spark.session import start_session

    spark = start_session(work)
    try:
        spark.dataSource.register(trivial_source())
        streams: dict[str, Callable[[], Any]] = {
            "ours": spark.readStream.format("barrage")
            .option("uri", uri)
            .option("table", "ticks")
            .option("readChangeFeed", "false")
            .option("startingOffsets", "latest")
            .load,
            "trivial": spark.readStream.format("trivial").load,
            "rate": spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load,
        }
        times: dict[str, list[float]] = {name: [] for name in streams}
        for turn in range(turns):
            for name, stream in streams.items():
                times[name] += batch_times(stream, work / f"{name}-{turn}", batches)
    finally:
        spark.stop()
    medians = {name: statistics.median(found) for name, found in times.items()}
    detail = {
        name: {
            "batches": len(found),
            "best": min(found),
            "p90": sorted(found)[len(found) * 9 // 10],
        }
        for name, found in times.items()
    }
    line = "micro-batch of the Spark source, 100 rows"
    return [
        compared(
            line,
            medians["ours"],
            "ms",
            baseline="a Python source that only counts",
            baseline_value=medians["trivial"],
            at_most=1.2,
            detail=detail,
        ),
        compared(
            line,
            medians["ours"],
            "ms",
            baseline="rate-micro-batch, no Python",
            baseline_value=medians["rate"],
        ),
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    if importlib.util.find_spec("pyspark") is None:
        return result("spark_latency", [])
    turns, batches = (2, 10) if quick else (TURNS, BATCHES)
    with tempfile.TemporaryDirectory() as work, child(serve) as server:
        return result("spark_latency", measure(server.ready, turns, batches, Path(work)))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
