"""Every decoder of bytes that a peer sends or a disk has, with valid samples of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa

from barrage.connector.shipped.pgoutput import decode_pgoutput
from barrage.errors import BarrageError
from barrage.journal.disk.framing import FramingError
from barrage.journal.files.file_history import read_witness, witness
from barrage.journal.files.segment import read_header, scan
from barrage.journal.files.segment_index import decode_segment_index
from barrage.journal.records.identity import HistoryBegin, TableRecord, decode_facts
from barrage.limits import Limits
from barrage.model.query import Query
from barrage.proto.server_exchange import ServerExchange
from barrage.server import Server, ServerConfig
from barrage.server.deephaven.text.filter_text import parse_filters
from barrage.server.deephaven.text.selection_text import parse_selection
from barrage.server.flight.stage_calls import commit_request
from barrage.server.history.journal_tickets import parse_plan, parse_ticket
from barrage.server.tables.tickets import route_of, table_name_of_ticket
from barrage.transport.deephaven_messages import MESSAGES
from barrage.transport.flight_messages import Descriptor
from barrage.wire import (
    EncodeOptions,
    WireRevision,
    decode_bit_set,
    decode_flight_data,
    decode_row_set,
    decode_schema,
    decode_shifts,
    decode_wrapper,
    encode_flight_data,
)
from barrage.wire.connector.codec import decode_frame
from barrage.wire.connector.frame_reader import ConnectorFrames
from barrage.wire.connector.frame_values import Dialect
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.dissociated.negotiation import Answer, Claim, ClaimOutcome, Offer
from barrage.wire.dissociated.ranges import decode_addresses, decode_ranges
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.dissociated.untagged import decode_untagged
from barrage.wire.ipc import decode_batch_header
from barrage.wire.ipc_schema import encode_schema
from barrage.wire.payloads.payload_batch import PayloadBatch
from barrage.wire.payloads.source_mapping import SourceMapping
from tests.fuzz import test_body_fuzz, test_row_set_fuzz, test_wire_fuzz
from tests.fuzz.test_formula_fuzz import message_of
from tests.helpers.frame_factory import assembler_for, subscription_frame
from tests.helpers.payload_samples import (
    AVRO,
    AVRO_RECORDS,
    DESCRIPTORS,
    arrow_stream,
    avro_payload,
    protobuf_payload,
)
from tests.interop.expression_cases import CONDITIONS, DATA, FILTERS, FORMULAS

LIMITS = Limits(
    message_bytes_max=1 << 20,
    row_set_ranges_max=100_000,
    ingest_batch_rows_max=100_000,
    body_ranges_max=64,
)
CONNECTOR_VECTORS = Path(__file__).parents[1] / "vectors" / "connector"
R1, DRAFT = WireRevision.R1_0_0, WireRevision.DRAFT_2020


@dataclass(frozen=True)
class Decoder:
    """``decode`` is to return, or to raise a BarrageError or one of ``refusals``."""

    decode: Callable[[bytes], object]
    samples: Sequence[bytes]
    refusals: tuple[type[Exception], ...] = ()


def _text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda raw: parse(raw.decode("utf-8", "replace"))


def _update(kind: str) -> Decoder:
    """Frames of an update with one column type. The first byte of an input says which frame the
    rest is instead of."""
    options = EncodeOptions()
    frames = test_wire_fuzz._frames_of(kind, options)
    samples = [bytes([n]) + b for n, f in enumerate(frames) if (b := _encoded(f))]

    def decode(raw: bytes) -> None:
        number, frame = raw[:1], decode_flight_data(raw[1:], LIMITS)
        assembler = assembler_for(options)
        for at, each in enumerate(frames):
            received = assembler.receive_frame(frame if number == bytes([at]) else each)
            for name in ("added_columns", "modified_columns"):
                for column in getattr(received, name, ()):
                    column.validate(full=True)

    return Decoder(decode, samples)


def _encoded(frame: Any) -> bytes:
    return bytes(encode_flight_data(frame))


def _exchange(raw: bytes) -> None:
    ServerExchange(1, limits=LIMITS).receive_frame(raw)


@cache
def _journal_files() -> dict[str, bytes]:
    """The files of a table that was written by a real server."""
    with tempfile.TemporaryDirectory() as where:
        config = ServerConfig(data=where, journal_segment_bytes=65536, journal_reserve_bytes=0)
        with Server(config=config) as server:
            schema = pa.schema({"k": pa.int64(), "t": pa.string()})
            table = server.create_table("t", schema, key="k")
            for n in range(40):
                text = Random(n).randbytes(1500).hex()  # Which compression leaves as long.
                rows = pa.table({"k": [n % 5], "t": [text]})
                table.upsert(rows, producer="p", sequence=n + 1)
        return {
            str(path.relative_to(where)): path.read_bytes()
            for path in Path(where).rglob("*")
            if path.is_file()
        }


def _files(end: str) -> list[bytes]:
    return [content for path, content in _journal_files().items() if path.endswith(end)]


def _segment(raw: bytes) -> None:
    data = pa.py_buffer(raw)
    header, message = read_header(data)
    for _ in scan(data, header, message, name="t", is_last=True):
        pass


def _conditions() -> list[bytes]:
    return [bytes(message_of(each).SerializeToString()) for each in CONDITIONS]


def _bodies(decode: Any) -> Sequence[bytes]:
    samples: Sequence[bytes] = test_body_fuzz.SAMPLES[decode]
    return samples


def _texts(parse: Any) -> list[bytes]:
    return [text.encode() for text in test_body_fuzz.TEXTS[parse]]


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _connector_frames(dialect: Dialect) -> list[bytes]:
    """The recorded frames of one dialect of the connector protocol, with their lengths."""
    told = json.loads((CONNECTOR_VECTORS / f"{dialect.value}_frames.json").read_text())
    return [bytes.fromhex(each["hex"]) for each in told["frames"]]


def _connector_bodies(dialect: Dialect) -> Decoder:
    samples = [raw[4:] for raw in _connector_frames(dialect)]
    return Decoder(lambda raw: decode_frame(raw, dialect), samples)


def _connector_stream(raw: bytes) -> None:
    reader = ConnectorFrames(None, 1 << 16)
    reader.feed(raw)
    while reader.next_frame() is not None:
        pass


_PAYLOAD_COLUMNS = {
    "a": pa.int64(),
    "f": pa.float64(),
    "t": pa.string(),
    "ts": pa.timestamp("us", "UTC"),
    "d": pa.date32(),
    "n": pa.decimal128(9, 2),
    "l": pa.list_(pa.int64()),
}
_PAYLOADS = {
    "json": [b'{"a":1,"f":2.5,"t":"x","ts":"2026-01-02T03:04:05Z"}', b'{"d":"2026-01-02","l":[1]}'],
    "csv": [b'1,2.5,"x ""y""",2026-01-02T03:04:05Z,2026-01-02,1.50', b"1,,a,,,"],
    "arrow": [arrow_stream(pa.table({"a": [1, 2], "t": ["x", None], "l": [[1], None]}))],
    "avro": [avro_payload(each) for each in AVRO_RECORDS],
    "protobuf": [protobuf_payload(id=1, who="x", tags=["a"]), protobuf_payload(price=2.5)],
}


def _payloads(payload_format: Any) -> Decoder:
    """Messages of a format in one batch with a good one: every one becomes rows or is rejected."""
    own = {
        "avro": {"avro_schema": AVRO},
        "protobuf": {"protobuf_descriptors": DESCRIPTORS, "protobuf_message": "t.Order"},
    }
    columns = {k: v for k, v in _PAYLOAD_COLUMNS.items() if payload_format != "csv" or k != "l"}
    fields = own.get(payload_format, {"columns": columns})
    mapping = SourceMapping(program="p", format=payload_format, **fields)
    mapper = mapping.mapper(mapping.new_schema(), limits=LIMITS)
    samples = _PAYLOADS[payload_format]

    def decode(raw: bytes) -> None:
        batch = PayloadBatch.of(
            streams=["s"] * 3,
            ids=[1, 2, 3],
            event_times=[0] * 3,
            keys=[b""] * 3,
            payloads=[samples[0], raw, samples[0]],
        )
        try:
            done = mapper.map(batch)
        except BarrageError as error:
            # Nobody would expect it: the door for connectors would end.
            raise AssertionError from error
        done.rows.validate(full=True)
        assert not any("could not be" in each for each in done.rejected["reason"].to_pylist())
        ids = set(done.row_ids.to_pylist())
        assert {1, 3} <= ids
        assert not ids & set(done.rejected["message_id"].to_pylist())

    return Decoder(decode, samples)


PGOUTPUT = [
    bytes.fromhex(each)
    for each in (
        "42" + "00000000016b3740" + "0002d1a2b3c4d5e6" + "000002f1",
        "43" + "00" + "00000000016b3740" + "00000000016b3770" + "0002d1a2b3c4d5e6",
        "5200004002" + b"public\0orders\0".hex() + "64" + "0002"
        "01" + b"id\0".hex() + "00000014ffffffff" + "00" + b"who\0".hex() + "00000019ffffffff",
        "49000040024e0002" + "7400000001" + "31" + "6e",
        "55000040024b0002" + "7400000001316e" + "4e0002" + "740000000132" + "75",
        "44000040024b0002" + "740000000131" + "6e",
        "54000000010000004002",
        "59000040027075620061006262",
    )
]

QUERIES = [
    _json(table="t", ops=[["where", "a > 1"], ["sort", "-a"], ["head", 10]]),
    _json(table="t", ops=[["where", "a > 1"], ["natural_join", {"table": "u"}, ["k"], ["v"]]]),
    _json(table="t", ops=[["agg_by", ["k"], {"n": "count"}]]),
]
TICKETS = [b"s/quotes", b"a/app/f/field", b"e\x01\0\0\0", b"h/0a0b", b"q/" + QUERIES[1]]
PLANS = [
    b"j/" + _json(table="t", epoch="0" * 16, mode="changes", **{"from": 1, "to": 9}, splits=2),
    b"j/" + _json(table="t", epoch="0" * 16, mode="snapshot", version=7),
    b"j/" + _json(table="t", mode="watch", consumer="c", lease_ms=1000),
]
COMMITS = [
    _json(table="t", writer="w", batch=3, staged=[[0, 5], [1, 2**50]], mode="upsert", key=["a"])
]


@cache
def decoders() -> dict[str, Decoder]:
    """All of them, by name; made when they are first asked for."""
    frames = [_encoded(frame) for frame in test_wire_fuzz._FRAMES][::7]
    metadata = test_wire_fuzz._METADATA
    schemas = [
        encode_schema(pa.schema([(kind, of.type)])) for kind, of in test_wire_fuzz._KINDS.items()
    ]
    made = {
        "row set": Decoder(lambda b: decode_row_set(b, LIMITS), test_row_set_fuzz.SEEDS),
        "shifts": Decoder(lambda b: decode_shifts(b, LIMITS), test_row_set_fuzz.SHIFT_SEEDS),
        "bit set": Decoder(decode_bit_set, [b"\x05", b"\xff" * 9]),
        "metadata 1.0.0": Decoder(lambda b: decode_wrapper(b, R1), metadata),
        "metadata 2020": Decoder(lambda b: decode_wrapper(b, DRAFT), metadata),
        "flight data": Decoder(lambda b: decode_flight_data(b, LIMITS), frames),
        "schema": Decoder(decode_schema, schemas),
        "record batch header": Decoder(
            lambda b: decode_batch_header(b, 32), test_body_fuzz.HEADERS
        ),
        "exchange request": Decoder(_exchange, [subscription_frame(), *frames[:40]]),
        "untagged message": Decoder(lambda b: decode_untagged(b, LIMITS), _bodies(decode_untagged)),
        "body ranges": Decoder(lambda b: decode_ranges(b, LIMITS), _bodies(decode_ranges)),
        "body addresses": Decoder(lambda b: decode_addresses(b, LIMITS), _bodies(decode_addresses)),
        "body reference": Decoder(BodyReference.decode, [BodyReference(64, 100, 3).encode()]),
        "offer of bodies": Decoder(Offer.from_json, _bodies(Offer.from_json)),
        "answer of bodies": Decoder(Answer.from_json, _bodies(Answer.from_json)),
        "UCX location": Decoder(_text(UcxLocation.parse), _texts(UcxLocation.parse)),
        "claim of bodies": Decoder(_text(Claim.parse), _texts(Claim.parse)),
        "outcome of bodies": Decoder(_text(ClaimOutcome.parse), _texts(ClaimOutcome.parse)),
        "query": Decoder(lambda b: Query.parse(b, LIMITS), QUERIES),
        "ticket": Decoder(
            lambda b: (route_of(b, LIMITS), table_name_of_ticket(b, LIMITS)), TICKETS
        ),
        "descriptor": Decoder(Descriptor.decode, [b"\x08\x02\x12\x02hi", b"\x08\x01\x1a\x01t"]),
        "journal ticket": Decoder(lambda b: parse_ticket(b, LIMITS), PLANS),
        "journal plan": Decoder(lambda b: parse_plan(b, LIMITS), PLANS),
        "commit": Decoder(lambda b: commit_request(b, LIMITS), COMMITS),
        "filters": Decoder(
            _text(lambda t: parse_filters([t], DATA.schema, LIMITS)),
            [text.encode() for texts in FILTERS for text in texts],
        ),
        "formulas": Decoder(
            _text(lambda t: parse_selection([t], DATA.schema)),
            [text.encode() for text in FORMULAS],
        ),
        "Deephaven condition": Decoder(lambda b: MESSAGES.decode("Condition", b), _conditions()),
        "journal segment": Decoder(_segment, _files(".arrow"), (FramingError,)),
        "journal index": Decoder(decode_segment_index, _files(".index")),
        "journal record of a table": Decoder(
            lambda b: TableRecord.decode(b, path="table.json"), _files("table.json")
        ),
        "journal facts": Decoder(lambda b: decode_facts(b, path="f"), _files("steps.json")),
        "journal begin": Decoder(
            lambda b: HistoryBegin.decode(b, path="begin.json"),
            [HistoryBegin(version=7, segment=2).encode()],
        ),
        "connector frame": _connector_bodies(Dialect.PUBLISHED),
        "connector frame of the draft": _connector_bodies(Dialect.DRAFT),
        "connector stream": Decoder(
            _connector_stream, [b"".join(_connector_frames(dialect)) for dialect in Dialect]
        ),
        "pgoutput": Decoder(decode_pgoutput, PGOUTPUT),
        "journal witness": Decoder(lambda b: read_witness(b, "0" * 16), [witness("0" * 16, 42)]),
    }
    for payload_format in _PAYLOADS:
        made[f"payload of {payload_format}"] = _payloads(payload_format)
    for kind in sorted(test_wire_fuzz._KINDS):
        made[f"update of {kind}"] = _update(kind)
    return made
