"""Which types a Deephaven session sees, and that the values arrive in them."""

from __future__ import annotations

import base64
import datetime
import decimal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from barrage.engine import AppendOnlyTable, KeyedTable, StaticTable, UpdateGraph
from barrage.errors import RowError, TableFailedError
from barrage.rowset import RowSet
from barrage.server.deephaven.big_numbers import big_numbers
from barrage.server.presentation.deephaven_schema import deephaven_schema, deephaven_view
from barrage.server.presentation.deephaven_types import shown_type
from barrage.transport.deephaven_messages import MESSAGES
from tests.helpers.examples import examples
from tests.helpers.strategies_columns import VALUES, arrays

UTC_NANOS = pa.timestamp("ns", "UTC")
STRUCT = pa.struct([("x", pa.int8()), ("y", pa.string())])
LEAVES = [
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint16(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    UTC_NANOS,
    pa.date64(),
    pa.time64("ns"),
]
TICKING = {*LEAVES, *(pa.list_(leaf) for leaf in LEAVES)}
"""What the C++ core accepts (deephaven-clients.md section 3.6)."""


def shown(array, session_types):
    to = shown_type(array.type, session_types)
    result = array if to.apply is None else to.apply(array)
    result.validate(full=True)
    assert result.type == to.data_type
    assert len(result) == len(array)
    return result


@pytest.mark.parametrize(
    ("kind", "deephaven", "java", "ticking"),
    [
        (pa.int32(), pa.int32(), "int", pa.int32()),
        (pa.uint16(), pa.uint16(), "char", pa.uint16()),
        (pa.uint8(), pa.int16(), "short", pa.int16()),
        (pa.uint32(), pa.int64(), "long", pa.int64()),
        (pa.uint64(), pa.binary(), "java.math.BigInteger", pa.string()),
        (pa.decimal128(10, 2), pa.binary(), "java.math.BigDecimal", pa.string()),
        (pa.decimal256(50, 2), pa.binary(), "java.math.BigDecimal", pa.string()),
        (pa.float16(), pa.float32(), "float", pa.float32()),
        (pa.large_string(), pa.string(), "java.lang.String", pa.string()),
        (pa.string_view(), pa.string(), "java.lang.String", pa.string()),
        (pa.binary(4), pa.binary(), "byte[]", pa.string()),
        (pa.binary_view(), pa.binary(), "byte[]", pa.string()),
        (pa.date32(), pa.date64(), "java.time.LocalDate", pa.date64()),
        (pa.time32("s"), pa.time64("ns"), "java.time.LocalTime", pa.time64("ns")),
        (pa.timestamp("s", "Asia/Tokyo"), UTC_NANOS, "java.time.Instant", UTC_NANOS),
        (pa.timestamp("us"), UTC_NANOS, "java.time.Instant", UTC_NANOS),
        (pa.duration("s"), pa.duration("ns"), "java.time.Duration", pa.int64()),
        (pa.dictionary(pa.int8(), pa.date32()), pa.date64(), "java.time.LocalDate", pa.date64()),
        (pa.run_end_encoded(pa.int32(), pa.uint8()), pa.int16(), "short", pa.int16()),
        (pa.uuid(), pa.binary(), "byte[]", pa.string()),
        (pa.list_(pa.uint8()), pa.list_(pa.int16()), "short[]", pa.list_(pa.int16())),
        (
            pa.large_list(pa.int8()),
            pa.list_(pa.int8()),
            "io.deephaven.vector.ByteVector",
            pa.list_(pa.int8()),
        ),
        (pa.list_(pa.list_(pa.int64())), pa.list_(pa.list_(pa.int64())), "long[][]", pa.string()),
        (STRUCT, pa.string(), "java.lang.String", pa.string()),
        (pa.map_(pa.string(), pa.int64()), pa.string(), "java.lang.String", pa.string()),
        (pa.null(), pa.string(), "java.lang.String", pa.string()),
        (pa.month_day_nano_interval(), pa.string(), "java.lang.String", pa.string()),
    ],
)
def test_every_type_has_its_form(kind, deephaven, java, ticking):
    assert shown_type(kind, "deephaven").data_type == deephaven
    assert shown_type(kind, "deephaven").java_name == java
    assert shown_type(kind, "ticking").data_type == ticking


@pytest.mark.parametrize("session_types", ["deephaven", "ticking"])
@pytest.mark.parametrize("name", VALUES)
@examples(6, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_values_of_every_type_that_travels_arrive(name, session_types, data):
    array = data.draw(arrays(name))
    to = shown_type(array.type, session_types)
    if session_types == "ticking":
        assert to.data_type in TICKING
    try:
        result = shown(array, session_types)
    except pa.ArrowInvalid:
        assert to.may_fail
        return
    assert result.is_null().to_pylist() == array.is_null().to_pylist()
    if pa.types.is_list(array.type) and to.data_type == array.type:
        assert result.equals(array)


def test_text_of_nested_values():
    cases = [
        (pa.array([{"x": 1, "y": None}, None], STRUCT), ["{x=1, y=null}", None]),
        (
            pa.array([[("a", 1), ("b", None)], []], pa.map_("string", "int8")),
            ["{a=1, b=null}", "{}"],
        ),
        (pa.array([[[1], None], []], pa.list_(pa.list_(pa.int8()))), ["[[1], null]", "[]"]),
        (pa.array([(1, 2, 3)], pa.month_day_nano_interval()), ["1 months 2 days 3 ns"]),
        (pa.array([b"\x00\xff", b"", None]), ["00ff", "", None]),
        (pa.array([decimal.Decimal("-1.20")], pa.decimal128(10, 2)), ["-1.20"]),
        (pa.array([2**64 - 1], pa.uint64()), ["18446744073709551615"]),
        (
            pa.UnionArray.from_dense(
                pa.array([1, 0], pa.int8()),
                pa.array([0, 0], pa.int32()),
                [pa.array([7]), pa.array(["z"])],
            ),
            ["z", "7"],
        ),
        (
            pa.UnionArray.from_sparse(
                pa.array([1, 0], pa.int8()), [pa.array([6, 7]), pa.array(["y", "z"])]
            ),
            ["y", "7"],
        ),
    ]
    for array, texts in cases:
        assert shown(array, "ticking").to_pylist() == texts


@given(st.lists(st.none() | st.integers(0, 2**64 - 1)))
def test_big_integers_read_back(numbers):
    raw = pa.chunked_array([shown(pa.array(numbers, pa.uint64()), "deephaven")])
    assert big_numbers(raw, pa.field("n", pa.uint64())).to_pylist() == numbers


@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1)), st.integers(0, 38))
def test_big_decimals_read_back(unscaled, scale):
    kind = pa.decimal128(38, scale)
    with decimal.localcontext(prec=60):
        numbers = [None if n is None else decimal.Decimal(n).scaleb(-scale) for n in unscaled]
    raw = pa.chunked_array([shown(pa.array(numbers, kind), "deephaven")])
    assert big_numbers(raw, pa.field("n", kind)).to_pylist() == numbers


def test_values_outside_of_a_slice_cannot_fail_it():
    far = 10**15
    lists = pa.array([[far], [1]], pa.list_(pa.timestamp("s")))
    assert shown(lists[1:], "deephaven").to_pylist() == [
        [datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.UTC)]
    ]
    with pytest.raises(pa.ArrowInvalid):
        shown(lists, "deephaven")


def test_a_table_that_needs_no_change_is_its_own_view():
    table = StaticTable(UpdateGraph(), pa.table({"a": [1], "b": ["x"]}))
    assert deephaven_view(table, "deephaven") is table
    assert deephaven_view(table, "ticking") is table


def test_a_view_follows_its_table_and_is_shared():
    graph = UpdateGraph()
    schema = pa.schema([("k", pa.int64()), ("d", pa.date32()), ("u", pa.uint8())])
    table = KeyedTable(graph, schema, key="k")
    view = deephaven_view(table, "deephaven")
    assert deephaven_view(table, "deephaven") is view
    day = datetime.date(2026, 1, 1)
    table.stage_add(pa.table({"k": [1, 2], "d": [day, None], "u": [1, 255]}, schema=schema))
    graph.run_cycle()
    assert view.schema.types == [pa.int64(), pa.date64(), pa.int16()]
    assert view.to_arrow().to_pylist() == table.to_arrow().to_pylist()
    table.stage_add(pa.table({"k": [2], "d": [day], "u": [0]}, schema=schema))
    update = graph.run_cycle().updates[view]
    assert update.modified_keys_post[1] == RowSet([1])
    assert view.to_arrow().to_pylist()[1] == {"k": 2, "d": day, "u": 0}


def test_a_time_past_64_bits_fails_the_view_and_not_the_table():
    graph = UpdateGraph()
    table = AppendOnlyTable(graph, pa.schema([("t", pa.timestamp("s"))]))
    view = deephaven_view(table, "ticking")
    table.stage_add(pa.table({"t": pa.array([10**12], pa.timestamp("s"))}))
    failed = graph.run_cycle().failed
    assert isinstance(failed[view], RowError)
    assert "column 't'" in str(failed[view])
    assert table.failure is None
    with pytest.raises(TableFailedError):
        view.to_arrow()
    with pytest.raises(RowError, match="column 't'"):
        deephaven_view(table, "deephaven")


def test_the_schema_says_what_clients_act_on():
    table = StaticTable(
        UpdateGraph(),
        pa.table({"n": pa.array([1], pa.uint64()), "l": pa.array([[1]], pa.list_(pa.int8()))}),
    )
    schema = deephaven_schema(deephaven_view(table, "deephaven"))
    assert schema.field("n").metadata == {
        b"deephaven:type": b"java.math.BigInteger",
        b"deephaven:isSortable": b"true",
    }
    assert schema.field("l").metadata == {
        b"deephaven:type": b"io.deephaven.vector.ByteVector",
        b"deephaven:componentType": b"byte",
    }
    assert schema.metadata is None


def test_promises_that_came_with_a_table_are_not_passed_on():
    metadata = {
        "deephaven:attribute.AppendOnly": "true",
        "deephaven:attribute_type.AppendOnly": "java.lang.Boolean",
        "deephaven:unsent.attribute.InputTable": "",
        "deephaven:tableMetadata": "AA==",
        "deephaven:attribute.PluginName": "mine",
        "own": "kept",
    }
    field = pa.field("a", pa.int64(), metadata={"deephaven:inputtable.isKey": "true"})
    table = StaticTable(UpdateGraph(), pa.table([[1]], schema=pa.schema([field], metadata)))
    schema = deephaven_schema(table)
    assert set(schema.metadata) == {b"deephaven:attribute.PluginName", b"own"}
    assert b"deephaven:inputtable.isKey" not in schema.field("a").metadata


def test_an_input_table_names_its_keys_and_values():
    graph = UpdateGraph()
    table = KeyedTable(graph, pa.schema([("k", pa.int64()), ("v", pa.string())]), key="k")
    schema = deephaven_schema(table, is_input=True)
    assert schema.field("k").metadata[b"deephaven:inputtable.isKey"] == b"true"
    assert schema.field("v").metadata[b"deephaven:inputtable.isValue"] == b"true"
    assert schema.metadata[b"deephaven:unsent.attribute.InputTable"] == b""
    raw = base64.b64decode(schema.metadata[b"deephaven:tableMetadata"])
    columns = MESSAGES.decode("DeephavenTableMetadata", raw).input_table_metadata.column_info
    assert {name: info.kind for name, info in columns.items()} == {"k": 1, "v": 2}
    assert b"deephaven:inputtable.isKey" not in deephaven_schema(table).field("k").metadata
