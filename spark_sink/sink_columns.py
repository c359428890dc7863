"""Columns on their way from Spark to the server.

Executors send what :func:`sent_schema` says; a table the sink makes gets :func:`table_schema`. They
differ for change feeds only, whose leading columns speak about the change and are no part of the
table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_sink.sink_options import CHANGE_TYPE, WriteMode

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FEED_COLUMNS_USED = (CHANGE_TYPE, "_commit_version", "_row_id")
"""Columns of a change feed that say what to do: which change, in which order, to which row."""

FEED_COLUMNS = (*FEED_COLUMNS_USED, "_commit_timestamp", "_row_key", "_modified_columns")
"""Every column of a change feed that is no part of the table."""


def sent_schema(schema: StructType, mode: WriteMode) -> pa.Schema:
    """What travels: instants in UTC, everything nullable (the server knows its own rules)."""
    fields = list(_arrow_schema(schema))
    if mode is WriteMode.CHANGES:
        fields = [
            field
            for field in fields
            if field.name in FEED_COLUMNS_USED or field.name not in FEED_COLUMNS
        ]
    return pa.schema(fields)


def table_schema(schema: StructType, mode: WriteMode) -> pa.Schema:
    """The columns of the table these rows are for."""
    fields = list(_arrow_schema(schema))
    if mode is WriteMode.CHANGES:
        fields = [field for field in fields if field.name not in FEED_COLUMNS]
    return pa.schema(fields)


def _arrow_schema(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    plain = to_arrow_schema(schema, timezone="UTC", prefers_large_types=False)
    return pa.schema([field.with_nullable(True).remove_metadata() for field in plain])
