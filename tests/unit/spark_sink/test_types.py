"""Every column type of the engine in the exact form Spark takes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from barrage.errors import SchemaError
from spark_sink.types import (
    TypeChoices,
    arrow_target,
    cast_batch,
    feed_schema,
    selected,
    spark_schema,
    truncate_batch,
)

UTC = dt.UTC
CASES = [
    (pa.array([True, None]), "boolean", True),
    (pa.array([255, None], pa.uint8()), "smallint", 255),
    (pa.array([65535, None], pa.uint16()), "int", 65535),
    (pa.array([2**32 - 1, None], pa.uint32()), "bigint", 2**32 - 1),
    (pa.array([2**64 - 1, None], pa.uint64()), "decimal(20,0)", Decimal(2**64 - 1)),
    (pa.array([1, None], pa.int8()), "tinyint", 1),
    (pa.array([1.5, None], pa.float32()).cast(pa.float16()), "float", 1.5),
    (pa.array([1.5, None], pa.float64()), "double", 1.5),
    (pa.array(["ä", None], pa.large_string()), "string", "ä"),
    (pa.array(["ä", None], pa.string_view()), "string", "ä"),
    (pa.array(["ä", None]).dictionary_encode(), "string", "ä"),
    (pa.array([b"ab", None], pa.binary(2)), "binary", b"ab"),
    (pa.array([b"ab", None], pa.binary_view()), "binary", b"ab"),
    (pa.array([b"ab", None], pa.large_binary()), "binary", b"ab"),
    (
        pa.array([-1, None], pa.timestamp("ns", "UTC")),
        "timestamp",
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ),
    (
        pa.array([1_999_999, None], pa.timestamp("ns", "UTC")),
        "timestamp",
        dt.datetime(1970, 1, 1, 0, 0, 0, 1999, tzinfo=UTC),
    ),
    (
        pa.array([1_234_567, None], pa.timestamp("ns")),
        "timestamp_ntz",
        dt.datetime(1970, 1, 1, 0, 0, 0, 1234),
    ),
    (
        pa.array([1, None], pa.timestamp("s", "Europe/Berlin")),
        "timestamp",
        dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    ),
    (pa.array([86_400_000, None], pa.date64()), "date", dt.date(1970, 1, 2)),
    (pa.array([3, None], pa.time32("s")), "bigint", 3_000_000_000),
    (pa.array([3, None], pa.time64("ns")), "bigint", 3),
    (
        pa.array([1500, None], pa.duration("ns")),
        "interval day to second",
        dt.timedelta(microseconds=1),
    ),
    (pa.array([Decimal("1.23"), None]), "decimal(3,2)", Decimal("1.23")),
    (pa.array([Decimal("1.23"), None], pa.decimal256(30, 2)), "decimal(30,2)", Decimal("1.23")),
    (pa.array([[1, 2], None], pa.list_(pa.uint8())), "array<smallint>", [1, 2]),
    (pa.array([["x"], None], pa.large_list(pa.large_string())), "array<string>", ["x"]),
    (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), "array<bigint>", [1, 2]),
    (
        pa.array([[["a"], []], None], pa.list_(pa.list_(pa.large_string()))),
        "array<array<string>>",
        [["a"], []],
    ),
    (
        pa.array(
            [{"a": 1, "b": "x"}, None], pa.struct([("a", pa.uint8()), ("b", pa.large_string())])
        ),
        "struct<a:smallint,b:string>",
        {"a": 1, "b": "x"},
    ),
    (
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        "map<string,bigint>",
        [("k", 1)],
    ),
    (pa.nulls(2), "void", None),
]


@pytest.mark.parametrize(("values", "name", "first"), CASES, ids=[str(c[0].type) for c in CASES])
def test_a_column_arrives_as_spark_wants_it(values, name, first):
    schema = pa.schema([pa.field("c", values.type)])
    wanted = spark_schema(schema)
    target = arrow_target(wanted)
    assert wanted[0].dataType.simpleString() == name
    for part, expected in (
        (values, [first, None]),
        (values.slice(1), [None]),
        (pa.concat_arrays([values, values]).slice(1, 2), [None, first]),
        (values.slice(0, 0), []),
    ):
        batch = cast_batch(pa.RecordBatch.from_arrays([part], schema=schema), target)
        batch.validate(full=True)
        assert batch.schema.equals(target)
        assert batch.column(0).to_pylist() == expected


def test_nanoseconds_can_be_numbers():
    schema = pa.schema([("t", pa.timestamp("ns", "UTC")), ("u", pa.timestamp("us", "UTC"))])
    wanted = spark_schema(schema, TypeChoices(nanos_as_long=True))
    assert [field.dataType.simpleString() for field in wanted] == ["bigint", "timestamp"]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([7], schema.types[0]), pa.array([7], schema.types[1])], schema=schema
    )
    assert cast_batch(batch, arrow_target(wanted)).column(0).to_pylist() == [7]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_of_day_can_be_sparks_own(unit):
    kind = pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    schema = pa.schema([("t", kind), ("l", pa.list_(kind))])
    wanted = spark_schema(schema, TypeChoices(has_time=True))
    assert [field.dataType.simpleString() for field in wanted] == ["time(6)", "array<time(6)>"]
    target = arrow_target(wanted)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1234, None], kind), pa.array([[1234], None], schema.types[1])], schema=schema
    )
    found = cast_batch(batch, target)
    assert found.schema.equals(target)
    nanos = {"s": 1234 * 10**9, "ms": 1234 * 10**6, "us": 1234 * 10**3, "ns": 1000}[unit]
    assert found.column(0).cast(pa.int64()).to_pylist() == [nanos, None]


def test_characters_become_texts():
    field = pa.field("c", pa.uint16(), metadata={b"deephaven:type": b"char"})
    schema = pa.schema([field])
    target = arrow_target(spark_schema(schema))
    codes = pa.array([65, 0xE4, 0xD800, 0xFFFF, None], pa.uint16())
    batch = cast_batch(pa.RecordBatch.from_arrays([codes], schema=schema), target)
    assert batch.column(0).to_pylist() == ["A", "ä", "\ufffd", None, None]


@pytest.mark.parametrize(
    "kind", [pa.decimal256(50, 2), pa.month_day_nano_interval(), pa.sparse_union([])]
)
def test_a_type_spark_does_not_have_names_the_column(kind):
    with pytest.raises(SchemaError, match=r"column 'odd'.*option columns"):
        spark_schema(pa.schema([pa.field("odd", kind)]))


def test_columns_are_found_by_name_and_others_dropped():
    target = pa.schema([("b", pa.int64()), ("a", pa.string())])
    batch = pa.record_batch({"a": ["x"], "extra": [1], "b": pa.array([2], pa.int32())})
    assert cast_batch(batch, target).to_pylist() == [{"b": 2, "a": "x"}]
    with pytest.raises(SchemaError, match="no column 'b'"):
        cast_batch(pa.record_batch({"a": ["x"]}), target)
    with pytest.raises(SchemaError, match="column 'b'"):
        cast_batch(pa.record_batch({"a": ["x"], "b": ["no number"]}), target)


def test_selected_columns_are_in_the_order_asked_for():
    table = pa.schema([("a", pa.int64()), ("b", pa.string())])
    assert selected(table, ("b", "a"), "t").names == ["b", "a"]
    assert selected(table, None, "t") is table
    with pytest.raises(SchemaError, match="no column 'c'"):
        selected(table, ("c",), "t")


def test_the_row_that_voids_all_others():
    feed = feed_schema(pa.schema([("a", pa.int64())]), has_row_key=True, has_modified_columns=True)
    target = arrow_target(spark_schema(feed))
    (row,) = truncate_batch(target, 7).to_pylist()
    assert {name for name, value in row.items() if value is not None} == {
        "_change_type",
        "_commit_version",
    }
    assert (row["_change_type"], row["_commit_version"]) == ("truncate", 7)
