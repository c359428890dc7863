"""What Spark finds by itself: the data source ``barrage``.

Spark imports every module named ``pyspark_*`` when it first meets a format it does not know, and
one that raises takes all Python sources with it. So this module imports nothing but Spark's own
base class, and without that defines nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSource
except Exception:  # Whatever is wrong with Spark here, it must not show as an error of this module.
    pass
else:

    class DefaultSource(DataSource):
        """The format ``barrage``: each method loads what it needs, in the process that needs it."""

        @classmethod
        def name(cls) -> str:
            return "barrage"

        loaded_at: tuple[str, int] | None = None
        """Epoch and version of the table when ``load()`` asked for the schema."""

        def schema(self) -> StructType:
            from spark_sink.source import source_schema

            schema, self.loaded_at = source_schema(self.options)
            return schema

        def streamReader(self, schema: StructType) -> Any:  # noqa: N802 (Spark's names)
            from spark_sink.reader import stream_reader

            return stream_reader(self.options, schema)

        def reader(self, schema: StructType) -> Any:
            from spark_sink.batch_reader import batch_reader

            return batch_reader(self.options, schema, self.loaded_at)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            from spark_sink.sink import stream_writer

            return stream_writer(self.options, schema, overwrite)

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            from spark_sink.sink import batch_writer

            return batch_writer(self.options, schema, overwrite)
