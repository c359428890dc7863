"""Messages to what they do to a table: columns of the message, keys, deletions, rejections."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from barrage.errors import ConfigError, SchemaError
from barrage.limits import Limits
from barrage.wire.payloads.payload_batch import PayloadBatch
from barrage.wire.payloads.source_mapping import LANDING_SCHEMA, REJECTED_SCHEMA, SourceMapping
from tests.helpers.payload_samples import AVRO, DESCRIPTORS

LIMITS = Limits()


def batch(*messages: tuple[bytes, bytes], times: tuple[int | None, ...] | None = None):
    """Keys and payloads, numbered from 1, of stream ``s``."""
    count = len(messages)
    return PayloadBatch.of(
        streams=["s"] * count,
        ids=list(range(1, count + 1)),
        event_times=list(times or [0] * count),
        keys=[key for key, _ in messages],
        payloads=[payload for _, payload in messages],
    )


def mapped(mapping: SourceMapping, *messages, times=None):
    mapper = mapping.mapper(mapping.new_schema(), limits=LIMITS)
    return mapper.map(batch(*messages, times=times))


def test_columns_of_the_message() -> None:
    mapping = SourceMapping(
        program="p",
        columns={
            "ts": pa.timestamp("ms", "UTC"),
            "a": "int64",
            "who": "string",
            "k": "string",
            "n": "uint64",
        },
        stream_column="who",
        id_column="n",
        key_column="k",
        time_column="ts",
        time_unit="ms",
    )
    many = b'{"a":2}\n{"a":3}'
    done = mapped(mapping, (b"x", b'{"a":1}'), (b"\xff", many), times=(1500, 0))
    assert done.rows.column_names == ["ts", "a", "who", "k", "n"]
    assert done.rows["a"].to_pylist() == [1, 2, 3]
    assert done.rows["n"].to_pylist() == [1, 2, 2] == done.row_ids.to_pylist()
    assert done.rows["k"].to_pylist() == ["x", None, None]
    assert done.rows["who"].to_pylist() == ["s"] * 3
    assert done.rows["ts"].cast(pa.int64()).to_pylist() == [1500, None, None]
    assert done.deleted is None
    assert done.rejected.schema == REJECTED_SCHEMA


def test_what_cannot_be_decoded_is_told_with_its_bytes() -> None:
    mapping = SourceMapping(program="p", columns={"a": "int64"})
    done = mapped(mapping, (b"", b'{"a":1}'), (b"k", b"no"), (b"", b'{"a":2}'), times=(1, 7, 1))
    assert done.rows["a"].to_pylist() == [1, 2]
    (row,) = done.rejected.to_pylist()
    assert "JSON" in row.pop("reason")
    assert row == {
        "stream": "s",
        "message_id": 2,
        "event_time": 7,
        "key": b"k",
        "payload": b"no",
    }


def test_messages_without_payload_are_no_rows() -> None:
    mapping = SourceMapping(program="p", columns={"a": "int64"})
    done = mapped(mapping, (b"k", b""), (b"", b'{"a":1}'), (b"", b""))
    assert done.rows["a"].to_pylist() == [1]
    assert done.row_ids.to_pylist() == [2]
    assert mapped(mapping).rows.num_rows == 0


def test_of_each_key_the_last_row_counts() -> None:
    mapping = SourceMapping(program="p", columns={"k": "string", "v": "int64"}, key=("k",))
    done = mapped(
        mapping,
        (b"", b'{"k":"a","v":1}'),
        (b"", b'{"k":"b","v":2}\n{"k":"a","v":3}'),
        (b"", b'{"v":4}'),
        (b"", b'{"k":"c","v":5}\n{"v":6}'),
    )
    assert done.rows.to_pylist() == [{"k": "b", "v": 2}, {"k": "a", "v": 3}]
    assert done.rejected["message_id"].to_pylist() == [3, 4]
    assert "null" in done.rejected["reason"][0].as_py()


def test_deletion_by_a_field_that_is_no_column() -> None:
    mapping = SourceMapping(
        program="p",
        columns={"k": "int64", "v": "int64"},
        key=("k",),
        delete_column="op",
        delete_value="d",
    )
    done = mapped(
        mapping,
        (b"", b'{"k":1,"v":1}'),
        (b"", b'{"k":1,"op":"d"}'),
        (b"", b'{"k":2,"op":"d"}'),
        (b"", b'{"k":2,"v":2,"op":"u"}'),
        (b"", b'{"k":3,"op":"d"}'),
    )
    assert done.rows.to_pylist() == [{"k": 2, "v": 2}]
    assert done.row_ids.to_pylist() == [4]
    assert done.deleted is not None
    assert done.deleted.to_pylist() == [{"k": 1}, {"k": 3}]
    assert done.deleted_ids.to_pylist() == [2, 5]


def test_deletion_by_a_message_with_a_key_and_no_payload() -> None:
    mapping = SourceMapping(
        program="p", columns={"k": "string", "v": "int64"}, key=("k",), key_column="k"
    )
    done = mapped(
        mapping, (b"a", b'{"v":1}'), (b"a", b""), (b"b", b""), (b"b", b'{"v":2}'), (b"", b"")
    )
    assert done.rows.to_pylist() == [{"k": "b", "v": 2}]
    assert done.deleted.to_pylist() == [{"k": "a"}]


@pytest.mark.parametrize("seed", range(20))
def test_upserts_and_deletions_are_those_of_messages_one_by_one(seed) -> None:
    chance = random.Random(seed)
    mapping = SourceMapping(
        program="p",
        columns={"k": "string", "v": "int64"},
        key=("k",),
        key_column="k",
        delete_column="gone",
    )
    mapper = mapping.mapper(mapping.new_schema(), limits=LIMITS)
    messages = []
    wanted: dict[str, int | None] = {}
    for number in range(60):
        key = chance.choice("abcdefgh")
        kind = chance.choice(["put", "put", "delete", "flag", "bad"])
        if kind == "put":
            messages.append((key.encode(), b'{"v":%d}' % number))
            wanted[key] = number
        elif kind == "delete":
            messages.append((key.encode(), b""))
            wanted.pop(key, None)
        elif kind == "flag":
            messages.append((key.encode(), b'{"gone":true}'))
            wanted.pop(key, None)
        else:
            messages.append((key.encode(), b"{"))
    found: dict[str, int | None] = {}
    start = 0
    while start < len(messages):
        stop = start + chance.randint(1, 20)
        done = mapper.map(batch(*messages[start:stop]))
        found |= dict(zip(*(done.rows[name].to_pylist() for name in "kv"), strict=True))
        for row in [] if done.deleted is None else done.deleted.to_pylist():
            found.pop(row["k"], None)
        start = stop
    assert found == wanted


def test_raw_messages_land_as_they_are() -> None:
    done = mapped(SourceMapping.landing(), (b"k", b"\xff"), (b"", b"x"), times=(5, None))
    assert done.rows.schema == LANDING_SCHEMA
    assert done.rows.to_pylist()[0] == {
        "stream": "s",
        "message_id": 1,
        "event_time": 5,
        "key": b"k",
        "payload": b"\xff",
    }
    assert done.rows["event_time"].to_pylist() == [5, None]


def test_which_programs_and_streams_it_is_for() -> None:
    mapping = SourceMapping(
        program="trade-*", instance="a?", streams="t.*", table="{program}!", columns={"a": "int8"}
    )
    assert mapping.is_for("trade-feed", "a1")
    assert not mapping.is_for("trade", "a1")
    assert not mapping.is_for("trade-feed", "b1")
    assert mapping.takes_stream("t.x")
    assert not mapping.takes_stream("u.x")
    assert mapping.table_of("trade-feed") == "trade-feed!"


def test_schemas_that_formats_say() -> None:
    avro = SourceMapping(program="p", format="avro", avro_schema=AVRO, stream_column="s")
    assert avro.new_schema().names == ["id", "who", "tags", "side", "at", "ok", "s"]
    protobuf = SourceMapping(
        program="p",
        format="protobuf",
        protobuf_descriptors=DESCRIPTORS,
        protobuf_message="t.Order",
        delete_column="who",
        delete_value="x",
        key=("id",),
    )
    assert protobuf.new_schema().names == ["id", "tags", "price", "side", "at"]
    with pytest.raises(ConfigError, match="columns"):
        SourceMapping(program="p").new_schema()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"format": "avro"}, "avro_schema"),
        ({"format": "protobuf"}, "protobuf_descriptors"),
        ({"format": "protobuf", "protobuf_message": "x"}, "protobuf_descriptors"),
        ({"format": "python"}, "function"),
        ({"delete_column": "x"}, "needs a key"),
        ({"time_unit": "s"}, "time_column"),
        ({"delimiter": ",,"}, "delimiter"),
    ],
)
def test_mappings_that_do_not_go_together(fields, told) -> None:
    with pytest.raises(ConfigError, match=told):
        SourceMapping(program="p", **fields)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"stream_column": "x"}, "no column 'x'"),
        ({"key": ("x",)}, "no column 'x'"),
        ({"key_column": "a"}, "text or binary"),
    ],
)
def test_tables_that_do_not_fit(fields, told) -> None:
    mapping = SourceMapping(program="p", columns={"a": "int64"}, **fields)
    with pytest.raises(SchemaError, match=told):
        mapping.mapper(pa.schema({"a": pa.int64()}), limits=LIMITS)


def test_as_many_rows_as_messages_may_be_two_of_one_and_none_of_another():
    mapping = SourceMapping(
        program="p",
        columns={"v": "int64", "s": "string", "i": "uint64"},
        stream_column="s",
        id_column="i",
    )
    given = PayloadBatch.of(
        streams=["A", "B"],
        ids=[1, 7],
        event_times=[0, 0],
        keys=[None, None],
        payloads=[b"bad", b'{"v":1}\n{"v":2}'],
    )
    mapped = mapping.mapper(mapping.new_schema(), limits=Limits()).map(given)
    assert mapped.rows["s"].to_pylist() == ["B", "B"]
    assert mapped.rows["i"].to_pylist() == [7, 7]
    assert mapped.rejected["message_id"].to_pylist() == [1]
