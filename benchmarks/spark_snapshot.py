"""The first micro-batch of a new query over a large table, which is all of its rows, beside a batch
read of the same rows in Parquet.

Both end in Spark's ``noop`` sink, in one session of two task threads, in turns; the best of several
runs counts, after one that warms up. The query's time is that of its micro-batch, planning and both
logs included; the read's is that of its one action.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result
from benchmarks.spark_source import CYCLE_ROWS, parquet_files, query_seconds, serve

ROWS = 10_000_000
RUNS = 3


def measure(server: Child, rows: int, runs: int, work: Path) -> list[Measurement]:
    from tests.spark.session import start_session

    options = "-XX:+UseSerialGC -Duser.timezone=UTC"
    spark = start_session(work, spark__driver__extraJavaOptions=options, spark__driver__memory="2g")
    try:
        parquet = str(parquet_files(work, rows))

        def source(bodies: str) -> Any:
            reader = spark.readStream.format("barrage").option("uri", server.ready)
            return reader.options(readChangeFeed="false", bodies=bodies).load("trades")

        best: dict[str, float] = {}
        for number in range(runs + 1):
            started = time.monotonic()
            spark.read.parquet(parquet).write.format("noop").mode("overwrite").save()
            took = {"files": time.monotonic() - started}
            for bodies in ("inline", "auto"):
                checkpoint = work / f"checkpoint-{bodies}-{number}"
                took[bodies] = query_seconds(partial(source, bodies), rows, checkpoint)
            if number:
                best = {name: min(best.get(name, took[name]), took[name]) for name in took}
    finally:
        spark.stop()
    return [
        compared(
            f"Spark source, first snapshot of {rows:,} rows{way}",
            best[bodies],
            "s",
            baseline="batch read of the same rows in Parquet",
            baseline_value=best["files"],
            at_most=1.3,
        )
        for bodies, way in (("inline", ""), ("auto", ", bodies in shared memory"))
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    if importlib.util.find_spec("pyspark") is None:
        return result("spark_snapshot", [])
    rows = CYCLE_ROWS * 8 if quick else ROWS
    with tempfile.TemporaryDirectory() as work, child(serve, rows) as server:
        return result("spark_snapshot", measure(server, rows, 2 if quick else RUNS, Path(work)))


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
