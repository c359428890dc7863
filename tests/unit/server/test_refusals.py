"""What a peer may do wrong, the status it gets for it, and that nobody else notices."""

from __future__ import annotations

import json
import struct

import grpc
import numpy as np
import pyarrow as pa
import pytest

from barrage import wire
from barrage.rowset import RowSet
from barrage.transport.flight_messages import Descriptor
from barrage.wire.flight_data import encode_varint
from tests.helpers.server_process import (
    FLIGHT,
    REVISION,
    TIMEOUT_SECONDS,
    RawExchange,
    metadata_frame,
    raw_channel,
    snapshot_request,
    subscription_request,
    unary,
)

pytestmark = pytest.mark.usefixtures("on_a_port")

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
FAILED = grpc.StatusCode.FAILED_PRECONDITION


@pytest.fixture
def tables(server):
    server.create_table("full", key="k", data={"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]})
    server.create_table("blink", {"x": "int64"}, kind="blink")
    return server


def request_without_payload() -> bytes:
    """A Barrage wrapper of type 5 whose payload is missing."""
    good = wire.encode_wrapper(wire.SubscriptionRequest(ticket=b"s/full"), REVISION)
    opaque = wire.OpaqueMessage(message_type=5, payload=None)
    assert len(good) > 0
    return metadata_frame(wire.encode_wrapper(opaque, REVISION))


def typed(number: int) -> bytes:
    return metadata_frame(
        wire.encode_wrapper(wire.OpaqueMessage(message_type=number, payload=b""), REVISION)
    )


def with_ticket(ticket: bytes | None) -> bytes:
    return metadata_frame(wire.encode_wrapper(wire.SubscriptionRequest(ticket=ticket), REVISION))


BAD_FIRST_MESSAGES = {
    "unknown name": (with_ticket(b"s/nope"), NOT_FOUND, "nope"),
    "near miss": (with_ticket(b"s/ful"), NOT_FOUND, "did you mean 'full'"),
    "unknown route": (with_ticket(b"\xff123"), FAILED, "no resolver for route '255'"),
    "export ticket": (with_ticket(b"e\x01\x00\x00\x00"), FAILED, "no resolver for route '101'"),
    "empty name": (with_ticket(b"s/"), FAILED, "empty"),
    "name not UTF-8": (with_ticket(b"s/\xff\xfe"), FAILED, "not UTF-8"),
    "long ticket": (with_ticket(b"s/" + b"x" * 5000), INVALID, "4096"),
    "empty ticket": (with_ticket(b""), INVALID, "zero bytes"),
    "no ticket": (with_ticket(None), INVALID, "Ticket not specified"),
    "type 0": (typed(0), INVALID, "unhandled BarrageMessageType: 0"),
    "type 6": (typed(6), INVALID, ""),
    "type 8": (typed(8), INVALID, ""),
    "private type": (typed(-5), INVALID, "unhandled BarrageMessageType: -5"),
    "no payload": (request_without_payload(), INVALID, ""),
    "not protobuf": (b"\xff\xff\xff\xff", INVALID, ""),
    "cut protobuf": (b"\x1a\x50abc", INVALID, ""),
    "reverse on blink": (
        subscription_request("blink", viewport=RowSet.of_span(0, 5), is_reverse=True),
        INVALID,
        "Reverse viewport is not supported for blink tables",
    ),
    "negative interval": (
        subscription_request("full", viewport=RowSet.of_span(0, 5), interval_ms=-1),
        INVALID,
        "min_update_interval_ms",
    ),
    "snapshot of nothing known": (snapshot_request("nope"), NOT_FOUND, "nope"),
}


@pytest.mark.parametrize(
    ("message", "code", "text"), BAD_FIRST_MESSAGES.values(), ids=BAD_FIRST_MESSAGES.keys()
)
def test_bad_first_message(tables, channel, message, code, text):
    with (
        RawExchange(channel) as healthy,
        RawExchange(channel) as bad,
    ):
        healthy.send(subscription_request("full"))
        assert healthy.read_update().is_snapshot
        bad.send(message)
        status, details = bad.status()
        assert status is code
        assert text in details
        tables.table("full").upsert({"k": 9, "v": 9.0})
        assert not healthy.read_update().is_snapshot


def test_second_message_without_metadata(tables, channel):
    with RawExchange(channel) as exchange:
        greeting = wire.encode_flight_data(wire.FlightFrame(descriptor=b"\x08\x02\x12\x04dphn"))
        exchange.send(greeting)
        exchange.send(greeting)
        status, details = exchange.status()
    assert status is INVALID
    assert "failed to receive Barrage request metadata" in details


def test_a_wrong_magic_counts_as_no_metadata(tables, channel):
    good = bytearray(wire.encode_wrapper(wire.SubscriptionRequest(ticket=b"s/full"), REVISION))
    at = bytes(good).index(struct.pack("<I", 0x6E687064))
    good[at] ^= 0xFF
    with RawExchange(channel) as exchange:
        exchange.send(metadata_frame(bytes(good)))
        exchange.send(subscription_request("full"))
        assert exchange.read_update().is_snapshot


def test_bad_second_messages(tables, channel):
    cases = {
        "full to viewport": (
            subscription_request("full", viewport=RowSet.of_span(0, 2)),
            "cannot change",
        ),
        "full again": (subscription_request("full"), "cannot change"),
        "snapshot": (snapshot_request("full"), "Request type cannot be changed"),
    }
    for message, text in cases.values():
        with RawExchange(channel) as exchange:
            exchange.send(subscription_request("full"))
            exchange.read_update()
            exchange.send(message)
            status, details = exchange.status()
            assert status is INVALID
            assert text in details


def test_second_snapshot_request_on_one_stream(tables, channel):
    with RawExchange(channel) as exchange:
        exchange.send(snapshot_request("full"))
        exchange.read_update()
        exchange.send(snapshot_request("full"))
        assert exchange.status()[0] is INVALID


def test_too_large_a_viewport_is_refused_and_can_be_beyond_the_table(server, channel):
    server.create_table("full", data={"x": [1, 2, 3]})
    with RawExchange(channel, is_viewport=True) as exchange:
        exchange.send(subscription_request("full", viewport=RowSet.of_span(100, 10**9)))
        update = exchange.read_update()
        assert update.added_positions.is_empty
        assert update.effective_viewport == RowSet.of_span(100, 10**9)


@pytest.mark.parametrize(
    ("method", "request_bytes", "code"),
    [
        ("GetFlightInfo", Descriptor(path=("nope",)).encode(), NOT_FOUND),
        ("GetFlightInfo", Descriptor(path=()).encode(), FAILED),
        ("GetFlightInfo", Descriptor(path=("a", "b", "c")).encode(), FAILED),
        ("GetFlightInfo", Descriptor(command=b"?").encode(), FAILED),
        ("GetFlightInfo", b"", INVALID),
        ("GetFlightInfo", b"\xff\xff", INVALID),
        ("GetSchema", Descriptor(path=("nope",)).encode(), NOT_FOUND),
    ],
)
def test_bad_unary_requests(channel, method, request_bytes, code):
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, method, request_bytes)
    assert caught.value.code() is code


@pytest.mark.parametrize(
    ("action", "body", "code"),
    [
        ("nope", b"", NOT_FOUND),
        ("barrage.drop_table", b"", INVALID),
        ("barrage.drop_table", b"[]", INVALID),
        ("barrage.drop_table", b'{"table": 3}', INVALID),
        ("barrage.drop_table", b'{"table": "nope"}', NOT_FOUND),
        ("barrage.create_table", b'{"table": "x"}', INVALID),
        ("barrage.create_table", b'{"table": "x", "schema": "?"}', INVALID),
        ("barrage.create_table", b'{"table": "", "schema": "AAAA"}', INVALID),
        ("barrage.drop_table", b"[" * 100_000, INVALID),
    ],
)
def test_bad_actions(channel, action, body, code):
    request = _field(1, action.encode()) + _field(2, body)
    call = channel.unary_stream(FLIGHT + "DoAction")(request, timeout=TIMEOUT_SECONDS)
    with pytest.raises(grpc.RpcError):
        list(call)
    assert call.code() is code


def _field(number: int, value: bytes) -> bytes:
    return encode_varint(number << 3 | 2) + encode_varint(len(value)) + value


# --- DoPut ---


def put_frames(rows: pa.Table, descriptor: bytes | None) -> list[bytes]:
    """The frames of an upload; the first one carries the descriptor."""
    frames = []
    for message in (rows.schema, *rows.to_batches()):
        parsed = pa.ipc.read_message(message.serialize())
        frames.append(
            wire.encode_flight_data(
                wire.FlightFrame(
                    descriptor=None if frames else descriptor,
                    header=parsed.metadata.to_pybytes(),
                    body=None if parsed.body is None else parsed.body.to_pybytes(),
                )
            )
        )
    return frames


def put(channel: grpc.Channel, frames: list[bytes]) -> tuple[list[dict], grpc.StatusCode, str]:
    """Answers and status of an upload."""
    call = channel.stream_stream(FLIGHT + "DoPut")(iter(frames), timeout=TIMEOUT_SECONDS)
    answers = []
    try:
        for answer in call:
            answers.append(json.loads(answer[2:]))
    except grpc.RpcError:
        pass
    return answers, call.code(), call.details()


def command(**fields: object) -> bytes:
    return Descriptor(command=json.dumps(fields).encode()).encode()


ROWS = pa.table({"k": [1, 2], "v": [1.0, 2.0]})
PATH = Descriptor(path=("full",)).encode()

BAD_UPLOADS = {
    "no descriptor": (put_frames(ROWS, None), INVALID, "descriptor"),
    "no schema": (put_frames(ROWS, PATH)[1:], INVALID, "schema"),
    "schema twice": (put_frames(ROWS, PATH)[:1] * 2, INVALID, "one schema"),
    "unknown column": (
        put_frames(pa.table({"k": [1], "v": [1.0], "w": [1]}), PATH),
        INVALID,
        "'w'",
    ),
    "missing column": (put_frames(pa.table({"k": [1]}), PATH), INVALID, "'v'"),
    "wrong type": (put_frames(pa.table({"k": [1], "v": [[1.0]]}), PATH), INVALID, "'v'"),
    "value does not fit": (
        put_frames(pa.table({"k": [1.0, 2.5], "v": [1.0, 2.0]}), PATH),
        INVALID,
        "column 'k', row 1",
    ),
    "null key": (
        put_frames(pa.table({"k": [7, None], "v": [1.0, 2.0]}), PATH),
        INVALID,
        "column 'k', row 1",
    ),
    "bad mode": (put_frames(ROWS, command(table="full", mode="x")), INVALID, "mode"),
    "bad field": (put_frames(ROWS, command(table="full", extra=1)), INVALID, "extra"),
    "bad kind": (put_frames(ROWS, command(table="n", mode="create", kind="x")), INVALID, "kind"),
    "ring without capacity": (
        put_frames(ROWS, command(table="n", mode="create", kind="ring")),
        INVALID,
        "capacity",
    ),
    "key not in schema": (
        put_frames(ROWS, command(table="n", mode="create", key=["z"])),
        INVALID,
        "'z'",
    ),
    "other key": (put_frames(ROWS, command(table="full", key=["v"])), INVALID, "key k"),
    "exists": (
        put_frames(ROWS, command(table="full", mode="create")),
        grpc.StatusCode.ALREADY_EXISTS,
        "full",
    ),
    "replace nothing": (put_frames(ROWS, command(table="n", mode="replace")), NOT_FOUND, "'n'"),
    "upsert without key": (put_frames(ROWS, command(table="n", mode="upsert")), INVALID, "key"),
    "delete without key": (
        put_frames(ROWS, command(table="blink", mode="delete")),
        grpc.StatusCode.UNIMPLEMENTED,
        "blink",
    ),
    "view": (
        put_frames(ROWS, Descriptor(path=("view",)).encode()),
        grpc.StatusCode.UNIMPLEMENTED,
        "derived",
    ),
    "not JSON": (put_frames(ROWS, Descriptor(command=b"{").encode()), INVALID, "JSON"),
    "not Arrow": (
        [wire.encode_flight_data(wire.FlightFrame(descriptor=PATH, header=b"garbage"))],
        INVALID,
        "Arrow",
    ),
    "cut body": ([*put_frames(ROWS, PATH)[:1], put_frames(ROWS, PATH)[1][:-9]], INVALID, ""),
}


@pytest.mark.parametrize(("frames", "code", "text"), BAD_UPLOADS.values(), ids=BAD_UPLOADS.keys())
def test_bad_upload(tables, channel, frames, code, text):
    tables.publish("view", tables.table("full").head(2))
    before = tables.table("full").to_arrow()
    _, status, details = put(channel, frames)
    assert status is code
    assert text in details
    assert tables.table("full").to_arrow() == before
    assert put(channel, put_frames(ROWS, PATH))[1] is grpc.StatusCode.OK


def test_batches_before_a_bad_one_are_applied_and_answered(tables, channel):
    good = put_frames(pa.table({"k": [10], "v": [1.0]}), PATH)
    bad = put_frames(pa.table({"k": pa.array([11, None]), "v": [1.0, 2.0]}), None)[1:]
    answers, status, details = put(channel, good + bad)
    assert [answer["rows"] for answer in answers] == [0, 1]
    assert status is INVALID
    assert details.startswith("batch 2: ")
    assert tables.table("full").to_arrow()["k"].to_pylist() == [1, 2, 3, 10]


def test_offsets_from_a_peer_are_not_believed(server, channel):
    server.create_table("s", {"s": "string"})
    rows = pa.table({"s": ["aaaa", "bbbb"]})
    frames = put_frames(rows, Descriptor(path=("s",)).encode())
    offsets = struct.pack("<iii", 0, 4, 8)
    assert offsets in frames[1]
    frames[1] = frames[1].replace(offsets, struct.pack("<iii", 0, 2**30, 8))
    assert put(channel, frames)[1] is INVALID
    assert len(server.table("s")) == 0


def announcement(**options: bool) -> bytes:
    told = wire.SerializationOptions(options=wire.SubscriptionOptions(**options))
    return metadata_frame(wire.encode_wrapper(told, REVISION))


def test_lists_around_the_columns_of_an_upload_are_refused_not_misread(tables, channel):
    frames = [announcement(columns_as_list=True), *put_frames(ROWS, PATH)]
    assert put(channel, frames)[1] is grpc.StatusCode.UNIMPLEMENTED


def test_deephaven_nulls_in_an_upload_are_nulls(tables, channel):
    null = np.finfo(np.float64).min
    rows = pa.table({"k": [10, 11], "v": [null, 2.0]})
    frames = [announcement(use_deephaven_nulls=True), *put_frames(rows, PATH)]
    assert put(channel, frames)[1] is grpc.StatusCode.OK
    assert tables.table("full").to_arrow()["v"].to_pylist()[-2:] == [None, 2.0]


def test_unexpected_errors_tell_an_id_and_nothing_else(server, channel, monkeypatch, caplog):
    def explode(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("barrage.server.access.resolver.ticket_of_descriptor", explode)
    with pytest.raises(grpc.RpcError) as caught:
        unary(channel, "GetSchema", PATH)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    details = caught.value.details()
    assert "secret" not in details
    failure_id = details.rsplit(" ", 1)[1]
    assert failure_id in caplog.text
    assert "secret detail" in caplog.text


def test_status_texts_are_ascii_without_percent(server, channel):
    with RawExchange(channel) as exchange:
        exchange.send(with_ticket("s/100% naïve".encode()))
        details = exchange.status()[1]
    assert details.isascii()
    assert "%" not in details


def test_a_message_over_the_limit_is_refused(server):
    with raw_channel(server.address) as channel, RawExchange(channel) as exchange:
        exchange.send(bytes(server.config.limits.message_bytes_max + 2**20))
        assert exchange.status()[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
