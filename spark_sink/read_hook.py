"""Telling batch reads from streams before the schema is made.

The two have different columns by default: a stream has the change feed's, a batch read the table's.
But Spark asks a Python source for its schema without saying which of the two it is for. So
``barrage.spark.register`` lets ``spark.read`` say so with an option. Where nobody registered, a
batch read has the feed's columns too, unless ``readChangeFeed=false`` or a version is given.
"""

from __future__ import annotations

import functools
from typing import Any

FORMAT = "barrage"
_INSTALLED = "_barrage_read_hook"


def install_read_hook() -> None:
    """Let batch reads of this process say what they are, for classic sessions and for Connect.
    Does nothing the second time."""
    from pyspark.sql.readwriter import DataFrameReader

    _install(DataFrameReader)
    try:
        from pyspark.sql.connect.readwriter import DataFrameReader as ConnectReader
    except ImportError:
        return  # The packages of Spark Connect are not there, so nobody uses it.
    _install(ConnectReader)


def _install(reader_class: Any) -> None:
    if _INSTALLED in vars(reader_class):
        return
    original_format, original_load = reader_class.format, reader_class.load

    @functools.wraps(original_format)
    def named(self: Any, source: str) -> Any:
        self._barrage_format = source
        return original_format(self, source)

    @functools.wraps(original_load)
    def load(self: Any, path: Any = None, format: str | None = None, *args: Any, **kw: Any) -> Any:
        source = format or getattr(self, "_barrage_format", None)
        if isinstance(source, str) and source.lower() == FORMAT:
            self.option("_readKind", "batch")
        return original_load(self, path, format, *args, **kw)

    reader_class.format = named
    reader_class.load = load
    setattr(reader_class, _INSTALLED, True)
