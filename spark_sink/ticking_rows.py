"""The rows of a ticking table as Spark's DataFrames: writing a batch, reading a state.

A state's rows are its base's without those that changed since, and the last change of each row that
changed and is not deleted. Only the changes are grouped, so the cost of a query beyond reading the
base goes with what changed since the last compaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
import pyarrow.dataset as ds

from spark_sink.sink_columns import FEED_COLUMNS
from spark_sink.sink_options import CHANGE_TYPE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_sink.manifest import ManifestState

ROW_ID = "_row_id"
COMMIT_VERSION = "_commit_version"
TRUNCATE = "truncate"
DELETE = "delete"
PREIMAGE = "update_preimage"


class StateReader:
    """Makes DataFrames of states. ``feed``: the schema of the change feed."""

    def __init__(self, spark: SparkSession, root: Path, feed: StructType) -> None:
        from pyspark.sql.types import StructType

        self._spark = spark
        self._root = root
        self.columns = [name for name in feed.fieldNames() if name not in FEED_COLUMNS]
        kept = (ROW_ID, *self.columns)
        self.base_schema = StructType([field for field in feed if field.name in kept])
        used = (CHANGE_TYPE, COMMIT_VERSION, *kept)
        self.change_schema = StructType([field for field in feed if field.name in used])

    def rows(self, state: ManifestState | None) -> DataFrame:
        """The table's rows in ``state``, without their ids; none of them for None."""
        return self.rows_with_ids(state).select(*map(quoted, self.columns))

    def rows_with_ids(self, state: ManifestState | None) -> DataFrame:
        """The table's rows in ``state`` with their ids."""
        from pyspark.sql import functions as sql

        base = self._read(self.base_schema, state.bases if state else ())
        if state is None or not state.deltas:
            return base
        changes = self._read(self.change_schema, state.deltas).where(
            sql.col(CHANGE_TYPE) != TRUNCATE
        )
        newest = sql.max_by(sql.struct(CHANGE_TYPE, *map(quoted, self.columns)), COMMIT_VERSION)
        last = changes.groupBy(ROW_ID).agg(newest.alias("_last"))
        living = last.where(sql.col(f"_last.{CHANGE_TYPE}") != DELETE).select(
            ROW_ID, *(sql.col(f"_last.{quoted(name)}") for name in self.columns)
        )
        if not state.bases:
            return living
        untouched = base.join(last.select(ROW_ID), ROW_ID, "left_anti")
        return untouched.unionByName(living)

    def changes(self, path: str) -> DataFrame:
        """One delta's changes, without the word that voids what was before."""
        from pyspark.sql import functions as sql

        return self._read(self.change_schema, [path]).where(sql.col(CHANGE_TYPE) != TRUNCATE)

    def _read(self, schema: StructType, paths: Sequence[str]) -> DataFrame:
        if not paths:
            return self._spark.createDataFrame([], schema)
        # The schema is ours: Spark need not look into the files for it, which is a job of its own.
        return self._spark.read.schema(schema).parquet(*(str(self._root / path) for path in paths))


class BatchRows:
    """The rows of one batch, as :class:`~spark_sink.manifest_folder.RowWriter` wants them."""

    def __init__(self, batch: DataFrame, reader: StateReader) -> None:
        self._batch = batch
        self._reader = reader

    def write_changes(self, path: Path) -> None:
        from pyspark.sql import functions as sql

        names = self._reader.change_schema.fieldNames()
        changes = self._batch.where(sql.col(CHANGE_TYPE) != PREIMAGE)
        _write(changes.select(*map(quoted, names)), path)

    def write_snapshot(self, path: Path) -> None:
        from pyspark.sql import functions as sql

        names = self._reader.base_schema.fieldNames()
        inserts = self._batch.where(sql.col(CHANGE_TYPE) != TRUNCATE)
        _write(inserts.select(*map(quoted, names)), path)

    def truncates(self, path: Path) -> bool:
        """Read by Arrow, in this process: one column, and no job of Spark's for it."""
        rows = ds.dataset(str(path), format="parquet")
        if CHANGE_TYPE not in rows.schema.names:
            return False  # No file: a batch without partitions.
        return bool(rows.count_rows(filter=pc.field(CHANGE_TYPE) == TRUNCATE))

    def write_state(self, state: ManifestState, path: Path) -> None:
        _write(self._reader.rows_with_ids(state), path)


def quoted(name: str) -> str:
    """A column's name as an expression, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def _write(rows: DataFrame, path: Path) -> None:
    rows.write.mode("overwrite").parquet(str(path))
