"""A Spark driver to be killed: ``python -m tests.chaos.spark_driver WORK CHECKPOINT OUT OPTIONS``.

Runs one query over a table until it is killed. Each batch becomes ``OUT/<number>.arrow``, by way
of another name, so that a file is whole or not there, and a batch that comes again replaces it. A
pause before and after that makes both crash windows wide enough to be hit. A query that fails is
started again, as whatever supervises drivers would; ``OUT/failures`` counts how often and why.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tests.spark.session import start_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PAUSE_SECONDS = 0.25


def write_batch(out: Path, rows: pa.Table, number: int) -> None:
    """Put one batch into its place."""
    time.sleep(PAUSE_SECONDS)
    draft = out / f".{number}.{os.getpid()}"
    with pa.OSFile(str(draft), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)
    draft.replace(out / f"{number}.arrow")
    time.sleep(PAUSE_SECONDS)


def main(work: str, checkpoint: str, out: str, options: str) -> None:
    target = Path(out)
    target.mkdir(parents=True, exist_ok=True)
    spark = start_session(Path(work))
    (target / "started").touch()

    def sink(rows: DataFrame, number: int) -> None:
        write_batch(target, rows.toArrow(), number)

    while True:
        stream = spark.readStream.format("barrage").options(**json.loads(options)).load()
        query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        try:
            query.start().awaitTermination()
        except Exception as error:
            with (target / "failures").open("a") as file:
                file.write(json.dumps(str(error)[:2000]) + "\n")
            if "failOnDataLoss" in str(error):
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
