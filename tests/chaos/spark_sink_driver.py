"""A Spark driver to be killed: ``python -m tests.chaos.spark_sink_driver SETTINGS.json``.

Writes the numbers 0, 1, 2, ... to the table ``out`` through the sink, ``rows`` of them a batch, and
with ``mirror`` keeps a ticking table of ``out`` there. Whatever fails is started again, as a
supervisor would. When the file ``rest`` is there, no further number is written.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.spark.session import start_session

LOOK_SECONDS = 0.2


def write_numbers(spark: Any, told: dict[str, Any], work: Path, **trigger: Any) -> Any:
    """Spark's own source of numbers: the same rows whenever it runs a batch again."""
    numbers = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", told["rows"])
        .option("numPartitions", 2)
        .load()
        .select("value")
    )
    return (
        numbers.writeStream.format("barrage")
        .option("uri", told["uri"])
        .option("table", "out")
        .option("checkpointLocation", str(work / "checkpoint"))
        .option("fetchNumRetries", 20)
        .option("fetchRetryIntervalMs", 100)
        .trigger(**trigger)
        .start()
    )


def keep_numbers(spark: Any, told: dict[str, Any], work: Path) -> None:
    """The sink's query, again and again."""
    while not (work / "rest").exists():
        query = write_numbers(spark, told, work, processingTime="300 milliseconds")
        while query.isActive and not (work / "rest").exists():
            time.sleep(LOOK_SECONDS)
        query.stop()
    # The batch that was stopped runs again, and one more; then the numbers end.
    write_numbers(spark, told, work, availableNow=True).awaitTermination()
    (work / "rested").touch()


def keep_mirror(spark: Any, told: dict[str, Any]) -> None:
    """The ticking table, again and again."""
    from barrage.spark import barrage_ticking_table

    while True:
        try:
            table = barrage_ticking_table(
                spark, told["uri"], "out", location=told["mirror"], compact_every=3
            )
            table.query.awaitTermination()
        except Exception:
            time.sleep(LOOK_SECONDS)


def main(settings: str) -> None:
    told = json.loads(Path(settings).read_text())
    work = Path(told["work"])
    spark = start_session(work)
    (work / "started").touch()
    if told["mirror"]:
        threading.Thread(target=keep_mirror, args=(spark, told), daemon=True).start()
    keep_numbers(spark, told, work)
    while True:
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
