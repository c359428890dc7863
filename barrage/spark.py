"""Barrage in Spark: one place for the names users need. Everything loads on first use, so this
module imports without PySpark.

``register(spark)`` makes ``format("barrage")`` known where Spark does not find it by itself, and
lets ``outputMode("update")`` work; see docs/spark.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_sink.metrics import BarrageLagListener
    from spark_sink.registration import register
    from spark_sink.sink_errors import java_causes, root_cause
    from spark_sink.ticking_table import barrage_ticking_table
    from spark_sink.update_hook import barrage_update_sink

_HOMES = {
    "BarrageLagListener": "spark_sink.metrics",
    "barrage_ticking_table": "spark_sink.ticking_table",
    "barrage_update_sink": "spark_sink.update_hook",
    "java_causes": "spark_sink.sink_errors",
    "register": "spark_sink.registration",
    "root_cause": "spark_sink.sink_errors",
}

__all__ = [
    "BarrageLagListener",
    "barrage_ticking_table",
    "barrage_update_sink",
    "java_causes",
    "register",
    "root_cause",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
