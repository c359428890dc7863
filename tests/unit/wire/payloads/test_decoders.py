"""Payloads to rows: what each format takes, what it refuses, and that one bad payload is alone."""

from __future__ import annotations

import datetime
import io
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from barrage.errors import ConfigError
from barrage.wire.payloads.arrow_decoder import ArrowStreams
from barrage.wire.payloads.decoding import PayloadError, decode_payloads
from barrage.wire.payloads.record_decoders import (
    FunctionDecoder,
    RawPayloads,
    avro_columns,
    avro_decoder,
    protobuf_class,
    protobuf_columns,
    protobuf_decoder,
)
from barrage.wire.payloads.text_decoders import CsvRecords, JsonLines
from tests.helpers.payload_samples import (
    AVRO,
    AVRO_RECORDS,
    DESCRIPTORS,
    arrow_stream,
    avro_payload,
    protobuf_payload,
)

SCHEMA = pa.schema({"a": pa.int64(), "f": pa.float64(), "t": pa.string()})


def decoded(decoder, *payloads: bytes):
    return decode_payloads(decoder, pa.array(payloads, pa.binary()))


class TestJson:
    def test_one_object_each(self) -> None:
        done = decoded(JsonLines(SCHEMA), b'{"a":1,"f":2.5}', b'{"t":"x","other":[1]}\n')
        assert done.rows.to_pylist() == [
            {"a": 1, "f": 2.5, "t": None},
            {"a": None, "f": None, "t": "x"},
        ]
        assert done.origins.tolist() == [0, 1]
        assert not done.rejected

    def test_several_lines_in_a_payload(self) -> None:
        done = decoded(JsonLines(SCHEMA), b'{"a":1}\n{"a":2}\n', b'{"a":3}')
        assert done.rows["a"].to_pylist() == [1, 2, 3]
        assert done.origins.tolist() == [0, 0, 1]

    @pytest.mark.parametrize(
        "bad",
        [
            b'{"a":',
            b'{"a":1}{',
            b'{"a":"1"}',
            b'{"a":1,"a":2}',
            b'{"f":NaN}',
            b'{"f":-Infinity}',
            b'{"f":1e999}',
            b'{"t":"\xff"}',
            b"[1]",
            b"null",
            b" ",
            b'{"a":9223372036854775808}',
            b'{"a":{"b":1}}',
            b'{"t":"x\ny"}',
            b'{"a":' + b"[" * 100_000,
        ],
    )
    def test_a_bad_one_is_alone(self, bad) -> None:
        good = [b'{"a":%d}' % n for n in range(40)]
        done = decoded(JsonLines(SCHEMA), *good[:17], bad, *good[17:])
        assert [at for at, _ in done.rejected] == [17]
        assert done.rejected[0][1].startswith("the")
        assert len(done.rejected[0][1]) <= 500
        assert done.rows["a"].to_pylist() == list(range(40))
        assert done.origins.tolist() == [n for n in range(41) if n != 17]

    @pytest.mark.parametrize(
        "parts",
        [
            (b'{"a":', b"1}"),
            (b'{"a":', b'1}{"a":2}'),
            (b'{"t":"', b'"}'),
            (b'{"a":1}{"a":2}', b'{"a":\n3}'),
            (b'{"x":{}', b'{"a":1}}'),
        ],
    )
    def test_payloads_never_complete_each_other(self, parts) -> None:
        alone = [decoded(JsonLines(SCHEMA), each) for each in parts]
        together = decoded(JsonLines(SCHEMA), *parts)
        assert together.rows.to_pylist() == [r for each in alone for r in each.rows.to_pylist()]
        assert len(together.rejected) == sum(len(each.rejected) for each in alone)

    def test_unknown_fields_can_be_an_error(self) -> None:
        decoder = JsonLines(SCHEMA, ignores_unknown=False)
        done = decoded(decoder, b'{"a":1}', b'{"a":1,"b":2}')
        assert [at for at, _ in done.rejected] == [1]

    def test_times_and_exact_numbers(self) -> None:
        schema = pa.schema(
            {
                "ts": pa.timestamp("us", "UTC"),
                "d": pa.date32(),
                "n": pa.decimal128(9, 2),
                "b": pa.binary(),
                "l": pa.list_(pa.int64()),
            }
        )
        text = b'{"ts":"2026-01-02T03:04:05Z","d":"2026-01-02","n":"1.50","b":"x","l":[1,null]}'
        (row,) = decoded(JsonLines(schema), text).rows.to_pylist()
        assert row["ts"] == datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
        assert row["d"] == datetime.date(2026, 1, 2)
        assert (row["n"], row["b"], row["l"]) == (Decimal("1.50"), b"x", [1, None])


class TestCsv:
    DECODER = CsvRecords(SCHEMA, columns=("a", "f", "t"))

    def test_records(self) -> None:
        done = decoded(self.DECODER, b"1,2.5,x\r\n", b'2,,"a ""b"", c"', b'3,1,""', b"4,1,")
        assert done.rows.to_pylist() == [
            {"a": 1, "f": 2.5, "t": "x"},
            {"a": 2, "f": None, "t": 'a "b", c'},
            {"a": 3, "f": 1.0, "t": ""},
            {"a": 4, "f": 1.0, "t": None},
        ]

    def test_several_records_and_breaks_within_quotes(self) -> None:
        done = decoded(self.DECODER, b'1,1,"x\ny"\n2,2,z\n', b"3,3,w")
        assert done.rows["t"].to_pylist() == ["x\ny", "z", "w"]
        assert done.origins.tolist() == [0, 0, 1]

    @pytest.mark.parametrize(
        "bad", [b"1,2", b"1,2,3,4", b"x,1,y", b'1,1,"open', b"1,1,\xff", b"\n", b'1,"1,2']
    )
    def test_a_bad_one_is_alone(self, bad) -> None:
        good = [b"%d,1,x" % n for n in range(20)]
        done = decoded(self.DECODER, *good[:7], bad, *good[7:])
        assert [at for at, _ in done.rejected] == [7]
        assert done.rows["a"].to_pylist() == list(range(20))

    def test_payloads_never_complete_each_other(self) -> None:
        for parts in ([b'1,1,"x', b'y"'], [b'1,1,a"b"', b'2,"c"d","', b'3,4,x"'], [b'1,1,"', b'"']):
            alone = [decoded(self.DECODER, each) for each in parts]
            together = decoded(self.DECODER, *parts)
            assert together.rows.to_pylist() == [r for x in alone for r in x.rows.to_pylist()]

    def test_other_delimiters_and_columns_that_are_not_there(self) -> None:
        decoder = CsvRecords(SCHEMA, columns=("t", "a"), delimiter=";")
        assert decoded(decoder, b"x;1").rows.to_pylist() == [{"a": 1, "f": None, "t": "x"}]


class TestArrow:
    DECODER = ArrowStreams(SCHEMA, rows_max=4, bytes_max=1 << 20)

    def test_columns_are_found_by_name_and_widened(self) -> None:
        rows = pa.table({"t": ["x", "y"], "a": pa.array([1, 2], pa.int8()), "other": [1, 2]})
        done = decoded(self.DECODER, arrow_stream(rows), arrow_stream(rows.slice(0, 1)))
        assert done.rows["a"].to_pylist() == [1, 2, 1]
        assert done.rows["f"].to_pylist() == [None] * 3
        assert done.origins.tolist() == [0, 0, 1]

    def test_the_bound_of_rows(self) -> None:
        rows = pa.table({"a": [1, 2, 3, 4, 5]})
        assert not decoded(self.DECODER, arrow_stream(rows.slice(1))).rejected
        ((_, reason),) = decoded(self.DECODER, arrow_stream(rows)).rejected
        assert "more than 4 rows" in reason

    @pytest.mark.parametrize("compression", ["lz4", "zstd"])
    def test_compressed_bodies_are_not_taken(self, compression) -> None:
        raw = arrow_stream(pa.table({"a": [1] * 4}), compression=compression)
        ((_, reason),) = decoded(self.DECODER, raw).rejected
        assert "compressed" in reason

    def test_what_is_none(self) -> None:
        whole = arrow_stream(pa.table({"a": [1]}))
        too_large = arrow_stream(pa.table({"a": pa.array([2**63], pa.uint64())}))
        old = bytearray(whole)
        at = old.index(b"\x04\x00", 8)
        headers = [bytes(old[:n] + b"\x01" + old[n + 1 :]) for n in range(8, min(at + 8, len(old)))]
        for bad in headers:
            # Whatever it is taken for, nothing but a rejection may come of it.
            decoded(self.DECODER, bad)
        for bad in (b"x", whole[:-100], whole[8:], too_large, b"\xff" * 64):
            assert len(decoded(self.DECODER, bad).rejected) == 1


class TestAvro:
    def test_records_of_a_schema(self) -> None:
        schema = avro_columns(AVRO)
        decoder = avro_decoder(schema, AVRO, has_registry_head=False)
        done = decoded(decoder, *map(avro_payload, AVRO_RECORDS))
        assert done.rows.to_pylist() == AVRO_RECORDS

    def test_the_head_of_a_registry(self) -> None:
        decoder = avro_decoder(avro_columns(AVRO), AVRO, has_registry_head=True)
        good = avro_payload(AVRO_RECORDS[0])
        done = decoded(decoder, b"\0\0\0\0\x07" + good, b"\x01\0\0\0\x07" + good, b"\0", good)
        assert done.rows.to_pylist() == AVRO_RECORDS[:1]
        assert [at for at, _ in done.rejected] == [1, 2, 3]

    def test_what_is_none(self) -> None:
        decoder = avro_decoder(avro_columns(AVRO), AVRO, has_registry_head=False)
        good = avro_payload(AVRO_RECORDS[0])
        for bad in (good[:-1], good + b"x", b"\xff" * 20, b"\x02"):
            assert len(decoded(decoder, good, bad).rejected) == 1

    @pytest.mark.parametrize(
        "kind",
        ["null", {"type": "array", "items": "null"}, {"type": "map", "values": "int"}, "Row"],
    )
    def test_fields_that_are_no_columns(self, kind) -> None:
        schema = {"type": "record", "name": "Row", "fields": [{"name": "x", "type": kind}]}
        with pytest.raises(ConfigError, match="no column type"):
            avro_columns(schema)
        with pytest.raises(ConfigError, match="must be a record"):
            avro_columns({"type": "array", "items": "int"})

    def test_an_array_that_says_it_is_longer_than_its_payload(self) -> None:
        schema = {
            "type": "record",
            "name": "R",
            "fields": [{"name": "x", "type": {"type": "array", "items": "int"}}],
        }
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"x": [1]})
        decoder = avro_decoder(avro_columns(schema), schema, has_registry_head=False)
        done = decoded(decoder, out.getvalue(), b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x02")
        assert [at for at, _ in done.rejected] == [1]


class TestProtobuf:
    def test_messages(self) -> None:
        made = protobuf_class(DESCRIPTORS, "t.Order")
        decoder = protobuf_decoder(protobuf_columns(made), made)
        done = decoded(decoder, protobuf_payload(id=7, who="x", tags=["a", "b"], price=1.5, side=1))
        row = done.rows.to_pylist()[0]
        assert (row["id"], row["who"], row["tags"]) == (7, "x", ["a", "b"])
        assert (row["price"], row["side"]) == (1.5, "SELL")
        assert row["at"] is None
        at = timestamp_pb2.Timestamp(seconds=5, nanos=7)
        rows = decoded(decoder, protobuf_payload(at=at, side=9)).rows
        assert rows["at"].cast(pa.int64()).to_pylist() == [5_000_000_007]
        assert rows["side"].to_pylist() == ["9"]
        assert rows["who"].to_pylist() == [""]

    def test_what_is_none(self) -> None:
        made = protobuf_class(DESCRIPTORS, "t.Order")
        decoder = protobuf_decoder(protobuf_columns(made), made)
        good = protobuf_payload(id=7)
        done = decoded(decoder, good, b"\xff", b"\x12\x01\xff", good + b"\x0a")
        assert [at for at, _ in done.rejected] == [1, 2, 3]

    def test_descriptors_that_do_not_fit(self) -> None:
        for raw, name in ((b"\xff", "t.Order"), (DESCRIPTORS, "t.None"), (b"", "t.Order")):
            with pytest.raises(ConfigError, match="Protobuf descriptors"):
                protobuf_class(raw, name)
        files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS)
        field = files.file[0].message_type[0].field.add(name="m", number=99, label=1, type=11)
        field.type_name = ".t.Order"
        with pytest.raises(ConfigError, match="no column type"):
            protobuf_columns(protobuf_class(files.SerializeToString(), "t.Order"))


def test_a_function_makes_a_row_or_several() -> None:
    def function(payload: bytes):
        if payload == b"many":
            return ({"a": n} for n in range(3))
        if payload == b"none":
            return []
        if payload == b"not rows":
            return 7
        if payload == b"not a mapping":
            return [7]
        return {"a": int(payload), "t": "x"}

    decoder = FunctionDecoder(SCHEMA, function, what="a number")
    done = decoded(decoder, b"5", b"many", b"none", b"x", b"not rows", b"not a mapping", b"6")
    assert done.rows["a"].to_pylist() == [5, 0, 1, 2, 6]
    assert done.origins.tolist() == [0, 1, 1, 1, 6]
    assert [at for at, _ in done.rejected] == [3, 4, 5]
    assert "a number: ValueError" in done.rejected[0][1]
    assert decoded(FunctionDecoder(SCHEMA, lambda _: {"a": "x"}, what="it"), b"1").rejected


def test_raw_payloads_want_one_binary_column() -> None:
    decoder = RawPayloads(pa.schema({"p": pa.binary()}))
    assert decoded(decoder, b"\xff", b"x").rows.to_pylist() == [{"p": b"\xff"}, {"p": b"x"}]
    with pytest.raises(ConfigError, match="one binary column"):
        RawPayloads(SCHEMA)


def test_nothing_is_decoded_to_nothing() -> None:
    done = decoded(JsonLines(SCHEMA))
    assert (len(done.rows), done.rejected) == (0, ())
    assert issubclass(PayloadError, Exception)
