"""A source whose batches a test decides: one Parquet file is one micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY_SECONDS_MAX = 120


class FileStream:
    """Files in a folder, read in the order they were put there."""

    def __init__(self, folder: Path, schema: str) -> None:
        self.folder = folder
        self.schema = schema
        self.count = 0
        folder.mkdir()

    def put(self, rows: pa.Table | dict) -> None:
        """One more batch. Spark takes the oldest file first, so the times must differ."""
        table = rows if isinstance(rows, pa.Table) else pa.table(rows)
        path = self.folder / f"{self.count:05}.parquet"
        pending = self.folder / f".{path.name}"
        pq.write_table(table, pending)
        import os

        os.utime(pending, (1_700_000_000 + self.count,) * 2)
        pending.rename(path)
        self.count += 1

    def read(self, spark: SparkSession) -> DataFrame:
        return (
            spark.readStream.schema(self.schema)
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.folder))
        )


def run_to_end(writer) -> None:
    """Process everything that is there; raises what the query raised."""
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(QUERY_SECONDS_MAX), "the query did not end"
    finally:
        query.stop()
