"""Columns of Spark that no table can have are refused by name, before a row is sent."""

from __future__ import annotations

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types as spark

from barrage.errors import SchemaError
from spark_sink.sink_columns import sent_schema
from spark_sink.sink_options import WriteMode


def schema(**columns: spark.DataType) -> spark.StructType:
    return spark.StructType([spark.StructField(name, kind) for name, kind in columns.items()])


def test_a_type_without_an_arrow_type_is_named():
    given = schema(a=spark.LongType(), b=spark.YearMonthIntervalType())
    with pytest.raises(SchemaError, match=r"column 'b' is interval year to month.*cast it"):
        sent_schema(given, WriteMode.APPEND)


def test_a_name_that_is_there_twice_is_named():
    given = spark.StructType([*schema(a=spark.LongType()), *schema(a=spark.StringType())])
    with pytest.raises(SchemaError, match="column 'a' is there twice"):
        sent_schema(given, WriteMode.APPEND)
    cased = spark.StructType([*schema(a=spark.LongType()), *schema(A=spark.StringType())])
    assert sent_schema(cased, WriteMode.APPEND).names == ["a", "A"]


def test_all_columns_may_be_null():
    found = sent_schema(schema(a=spark.TimestampType(), b=spark.StringType()), WriteMode.APPEND)
    assert found == pa.schema([("a", pa.timestamp("us", "UTC")), ("b", pa.string())])
