"""Making the format known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_sink.read_hook import install_read_hook
from spark_sink.update_hook import install_update_hook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make the format known to this session, let ``spark.read`` mean the table's rows without
    being told, and let ``outputMode("update")`` work. Idempotent."""
    from pyspark_barrage import DefaultSource

    spark.dataSource.register(DefaultSource)
    install_read_hook()
    install_update_hook()
