"""Schema messages no writer of good will sends, and one type pyarrow cannot write."""

from __future__ import annotations

import flatbuffers
import pyarrow as pa
import pytest

from barrage.errors import RemoteProtocolError
from barrage.wire import decode_schema
from barrage.wire.ipc_schema import encode_schema

V5 = 4


class _Schema:
    """Builds schema messages field by field; numbers as in the Arrow specification."""

    def __init__(self) -> None:
        self.builder = flatbuffers.Builder(0)

    def table(self, count, scalars=(), offsets=()):
        builder = self.builder
        builder.StartObject(count)
        for slot, value in offsets:
            builder.PrependUOffsetTRelativeSlot(slot, value, 0)
        for kind, slot, value in scalars:
            getattr(builder, f"Prepend{kind}Slot")(slot, value, 0)
        return builder.EndObject()

    def vector(self, items):
        self.builder.StartVector(4, len(items), 4)
        for item in reversed(items):
            self.builder.PrependUOffsetTRelative(item)
        return self.builder.EndVector()

    def field(self, type_id, parameters, children=()):
        name = self.builder.CreateString("c")
        offsets = [(0, name)]
        if parameters is not None:
            offsets.append((3, parameters))
        if children:
            offsets.append((5, self.vector(list(children))))
        return self.table(7, [("Uint8", 2, type_id), ("Bool", 1, True)], offsets)

    def message(self, fields, endianness=0, version=V5):
        vector = self.vector(fields)
        schema = self.table(4, [("Int16", 0, endianness)], [(1, vector)])
        root = self.table(5, [("Int16", 0, version), ("Uint8", 1, 1)], [(2, schema)])
        self.builder.Finish(root)
        return bytes(self.builder.Output())


def _int32(schema):
    return schema.field(2, schema.table(2, [("Int32", 0, 32), ("Bool", 1, True)]))


def _decoded(type_id, scalars=(), *, children=0, size=4):
    schema = _Schema()
    below = [_int32(schema) for _ in range(children)]
    return (
        decode_schema(schema.message([schema.field(type_id, schema.table(size, scalars), below)]))
        .field(0)
        .type
    )


def test_year_month_intervals_are_months():
    assert _decoded(11) == pa.int32()
    assert _decoded(11, [("Int16", 0, 2)]) == pa.month_day_nano_interval()


@pytest.mark.parametrize(
    ("type_id", "scalars", "children", "reason"),
    [
        (0, (), 0, "type number 0, unsupported"),
        (24, (), 0, "type number 24, unsupported"),
        (99, (), 0, "type number 99"),
        (2, [("Int32", 0, 17)], 0, "integers of 17 bits"),
        (3, [("Int16", 0, 3)], 0, "enum value 3"),
        (7, [("Int32", 0, 99)], 0, "malformed type"),
        (7, [("Int32", 0, 5), ("Int32", 2, 7)], 0, "malformed type"),
        (8, [("Int16", 0, -1)], 0, "enum value -1"),
        (9, [("Int16", 0, 3), ("Int32", 1, 32)], 0, "malformed type"),
        (11, [("Int16", 0, 1)], 0, "day-time intervals"),
        (12, (), 0, "0 children instead of 1"),
        (12, (), 2, "2 children instead of 1"),
        (14, [("Int16", 0, 2)], 1, "enum value 2"),
        (15, [("Int32", 0, -1)], 0, "-1 bytes wide"),
        (16, [("Int32", 0, -1)], 1, "lists of -1"),
        (17, (), 1, "map without a key and a value"),
        (22, (), 1, "1 children instead of 2"),
        (22, (), 3, "3 children instead of 2"),
    ],
)
def test_types_that_make_no_sense(type_id, scalars, children, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        _decoded(type_id, scalars, children=children)


def test_a_field_without_type():
    schema = _Schema()
    with pytest.raises(RemoteProtocolError, match="'c' has no type"):
        decode_schema(schema.message([schema.field(2, None)]))


def test_big_endian_columns_and_old_versions():
    schema = _Schema()
    with pytest.raises(RemoteProtocolError, match="big-endian"):
        decode_schema(schema.message([_int32(schema)], endianness=1))
    schema = _Schema()
    with pytest.raises(RemoteProtocolError, match="version 3 is too old"):
        decode_schema(schema.message([_int32(schema)], version=2))


def test_one_field_repeated_by_reference_is_counted_every_time():
    """A few hundred bytes may describe a tree of any size; it is cut off, not built."""
    schema = _Schema()
    layer = _int32(schema)
    for _ in range(12):
        layer = schema.field(13, schema.table(1), [layer] * 30)
    with pytest.raises(RemoteProtocolError, match="over 100000 fields"):
        decode_schema(schema.message([layer]))


def test_a_null_column_that_is_never_null_is_refused():
    """Arrow refuses to make such a field, so one bit in a schema is enough."""
    header = bytearray(encode_schema(pa.schema([pa.field("c", pa.null())])))
    refused = 0
    for at in range(len(header)):
        header[at] ^= 1
        try:
            decode_schema(bytes(header))
        except RemoteProtocolError as error:
            refused += "malformed type" in str(error)
        header[at] ^= 1
    assert refused > 0


NOTHING = (pa.sparse_union([]), pa.dense_union([]))


@pytest.mark.parametrize("nothing", NOTHING, ids=str)
def test_a_union_of_nothing_is_refused_wherever_it_stands(nothing):
    """Arrow ends the process when it is asked for no rows of it."""
    for kind in (
        nothing,
        pa.list_(nothing),
        pa.struct([("inner", nothing)]),
        pa.map_(pa.string(), nothing),
        pa.dictionary(pa.int8(), nothing),
    ):
        with pytest.raises(RemoteProtocolError, match="union of 0 members"):
            decode_schema(encode_schema(pa.schema([("c", kind)])))
