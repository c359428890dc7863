"""Which schema travels (barrage-wire.md sections 12.1 to 12.3)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from barrage.errors import RemoteProtocolError, SchemaError
from barrage.limits import Limits
from barrage.wire import (
    decode_schema,
    encode_schema,
    ipc_schema,
    wire_schema,
    with_deephaven_metadata,
)
from barrage.wire.ipc_schema import encapsulate_schema, list_unwrapped, list_wrapped, read_schema
from barrage.wire.wire_schema import java_type, nesting_depth, wire_type
from tests.helpers.conversations import all_conversations
from tests.helpers.strategies_columns import VALUES


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary_view(), pa.binary()),
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.decimal32(5, 1), pa.decimal128(5, 1)),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_view(pa.int8()), pa.list_(pa.int8())),
        (pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.list_(pa.string())),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.dictionary(pa.int32(), pa.string())),
        (pa.run_end_encoded(pa.int16(), pa.int64()), pa.run_end_encoded(pa.int32(), pa.int64())),
        (pa.uuid(), pa.binary(16)),
        (pa.uint16(), pa.uint16()),
        (pa.timestamp("s", "Europe/Berlin"), pa.timestamp("s", "Europe/Berlin")),
    ],
)
def test_types_the_protocol_lacks_become_the_nearest_it_has(kind, sent):
    assert wire_type(kind) == sent


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.list_view(pa.int32())),
        pa.struct([("a", pa.list_view(pa.int32()))]),
    ],
)
def test_types_that_cannot_travel_are_refused_by_column(kind):
    with pytest.raises(SchemaError, match="column 'Odd' of type"):
        wire_schema(pa.schema([("Fine", pa.int32()), ("Odd", kind)]))


def test_width_and_depth_of_a_schema_are_limited():
    schema = pa.schema([("a", pa.list_(pa.int32())), ("b", pa.int32())])
    assert wire_schema(schema, Limits(columns_max=2, nesting_depth_max=2)) == schema
    with pytest.raises(SchemaError, match="2 columns, the limit is 1"):
        wire_schema(schema, Limits(columns_max=1))
    with pytest.raises(SchemaError, match="'a' nests deeper than 1"):
        wire_schema(schema, Limits(nesting_depth_max=1))
    header = encode_schema(schema)
    assert decode_schema(header, Limits(columns_max=2, nesting_depth_max=2)) == schema
    with pytest.raises(RemoteProtocolError, match="limit is 1"):
        decode_schema(header, Limits(columns_max=1))
    with pytest.raises(RemoteProtocolError, match="deeper than 1"):
        decode_schema(header, Limits(nesting_depth_max=1))
    assert nesting_depth(pa.map_(pa.string(), pa.list_(pa.int8()))) == 4


def test_names_nullability_and_metadata_are_kept():
    field = pa.field("Größe", pa.large_string(), nullable=False, metadata={"k": "v"})
    schema = pa.schema([field], metadata={"a": "b"})
    assert wire_schema(schema).equals(
        pa.schema([field.with_type(pa.string())], metadata={"a": "b"}), check_metadata=True
    )


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_type_survives_a_schema_message(name):
    kind = wire_type(VALUES[name][0])
    schema = pa.schema([pa.field("c", kind, metadata={"k": "v"}), pa.field("d", pa.int8())])
    assert decode_schema(encode_schema(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    "kind",
    [
        pa.dense_union([pa.field("i", pa.int64()), pa.field("s", pa.string())]),
        pa.sparse_union([pa.field("i", pa.int64()), pa.field("s", pa.string())], type_codes=[7, 3]),
        pa.run_end_encoded(pa.int16(), pa.dictionary(pa.int8(), pa.string())),
        pa.large_list_view(pa.large_binary()),
        pa.decimal256(50, 3),
        pa.time32("s"),
        pa.dictionary(pa.int64(), pa.string(), ordered=True),
        pa.struct([("a", pa.int32())]),
    ],
)
def test_types_of_other_writers_are_understood(kind):
    schema = pa.schema([("c", kind)])
    assert decode_schema(encode_schema(schema)) == schema


def test_dictionary_ids_are_read_depth_first():
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([("a", kind), ("b", pa.int8()), ("c", pa.run_end_encoded(pa.int16(), kind))])
    assert read_schema(encode_schema(schema)).dictionary_ids == ((0,), (), (1,))


def test_lists_around_columns_repeat_name_and_metadata_and_are_never_null():
    schema = pa.schema([pa.field("A", pa.int32(), metadata={"k": "v"})], metadata={"t": "u"})
    wrapped = decode_schema(encode_schema(schema, columns_as_list=True))
    field = wrapped.field(0)
    assert (field.name, field.nullable, field.metadata) == ("A", False, {b"k": b"v"})
    assert field.type.value_field.equals(schema.field(0), check_metadata=True)
    assert list_unwrapped(list_wrapped(schema)).equals(schema, check_metadata=True)
    with pytest.raises(RemoteProtocolError, match="lists around columns were asked for"):
        list_unwrapped(schema)


def test_the_stream_has_no_prefix_and_other_messages_do():
    schema = pa.schema([("a", pa.int32())])
    assert encapsulate_schema(schema)[:4] == b"\xff\xff\xff\xff"
    assert encapsulate_schema(schema)[8:] == encode_schema(schema)


def test_every_recorded_schema_is_read():
    names = set()
    for conversation in all_conversations():
        for message in conversation.answers:
            if message.decoded.get("ipc") == "Schema":
                schema = decode_schema(message.frame.header)
                assert len(schema)
                names.update(str(field.type) for field in schema)
    assert len(names) > 40


def test_a_schema_message_that_is_none_is_refused():
    batch = pa.record_batch({"a": [1]})
    header = batch.serialize().to_pybytes()[8:]
    with pytest.raises(RemoteProtocolError, match="not a schema"):
        decode_schema(header)


def test_attributes_tell_java_clients_how_to_keep_a_table():
    schema = pa.schema([("Id", pa.int64()), ("L", pa.list_(pa.int32())), ("M", pa.float16())])
    sent = with_deephaven_metadata(
        schema, is_blink=True, key_columns=("Id",), attributes={"SortedColumns": "Id=Ascending"}
    )
    assert sent.metadata == {
        b"deephaven:attribute.BlinkTable": b"true",
        b"deephaven:attribute_type.BlinkTable": b"java.lang.Boolean",
        b"deephaven:attribute.SortedColumns": b"Id=Ascending",
        b"deephaven:attribute_type.SortedColumns": b"java.lang.String",
    }
    assert sent.field("Id").metadata == {
        b"deephaven:type": b"long",
        b"deephaven:isSortable": b"true",
        b"deephaven:inputtable.isKey": b"true",
    }
    assert sent.field("L").metadata == {
        b"deephaven:type": b"int[]",
        b"deephaven:componentType": b"int",
    }
    assert sent.field("M").metadata in (None, {})
    assert with_deephaven_metadata(schema).metadata is None


def test_metadata_that_is_there_wins():
    field = pa.field("Id", pa.int64(), metadata={"deephaven:type": "java.lang.Object"})
    sent = with_deephaven_metadata(pa.schema([field]))
    assert sent.field(0).metadata[b"deephaven:type"] == b"java.lang.Object"


def test_java_types_follow_the_default_mapping():
    assert java_type(pa.timestamp("ns", "UTC")) == "java.time.Instant"
    assert java_type(pa.timestamp("ns", "Asia/Tokyo")) == "java.time.ZonedDateTime"
    assert java_type(pa.dictionary(pa.int32(), pa.string())) == "java.lang.String"
    assert java_type(pa.binary()) == "byte[]"
    assert java_type(pa.list_(pa.float16())) is None


class _Asked(dict):
    """Notes which type numbers are looked up."""

    def __init__(self, types):
        super().__init__(types)
        self.numbers = set()

    def get(self, number, default=None):
        self.numbers.add(number)
        return super().get(number, default)


def test_properties_are_drawn_of_every_type_that_is_read(monkeypatch):
    asked = _Asked(ipc_schema._TYPES)
    monkeypatch.setattr(ipc_schema, "_TYPES", asked)
    kinds = {name: kind for name, (kind, _) in VALUES.items() if name != "string_view"}
    decode_schema(encode_schema(pa.schema(kinds)))
    assert set(asked) - asked.numbers == {14, 22}, "unions and runs, which have no Python values"
