"""FlightData and descriptors as protobuf (barrage-wire.md section 3.1)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.wire.flight_data import (
    decode_flight_data,
    encode_flight_data,
    encode_varint,
    with_inline_reason,
)
from barrage.wire.frame import FlightFrame
from tests.helpers.conversations import all_conversations


def test_an_empty_body_is_written_with_its_tag_and_last():
    raw = encode_flight_data(FlightFrame(header=b"h", metadata=b"m", body=b""))
    assert raw == b"\x12\x01h\x1a\x01m\xc2\x3e\x00"


def test_absent_and_empty_fields_stay_apart():
    frame = decode_flight_data(b"\x1a\x00")
    assert frame.metadata == b""
    assert (frame.descriptor, frame.header, frame.body) == (None, None, None)
    assert decode_flight_data(b"") == FlightFrame()


def test_every_recorded_message_survives_a_round_trip_byte_for_byte():
    checked = 0
    for conversation in all_conversations():
        for message in conversation.messages:
            if message.frame is None:
                continue
            frame = decode_flight_data(message.raw)
            assert frame == message.frame
            assert encode_flight_data(frame) == message.raw
            checked += 1
    assert checked > 1200


def test_the_body_is_a_view_of_the_message():
    raw = b"\xc2\x3e\x03abc"
    body = decode_flight_data(raw).body
    assert isinstance(body, memoryview)
    assert body.obj is raw


def test_unknown_fields_are_skipped_and_the_last_of_a_repeated_field_counts():
    raw = b"\x20\x05" + b"\x2d1234" + b"\x3112345678" + b"\x42\x01x" + b"\x12\x01a\x12\x01b"
    assert decode_flight_data(raw) == FlightFrame(header=b"b")


def test_our_own_three_fields_come_behind_the_body():
    frame = FlightFrame(header=b"h", body=b"", body_reference=b"ref", released=b"12345678")
    raw = encode_flight_data(frame)
    assert raw == b"\x12\x01h\xc2\x3e\x00\xca\x3e\x03ref\xd2\x3e\x0812345678"
    assert decode_flight_data(raw) == frame
    told = with_inline_reason(raw, "kept")
    assert told == raw + b"\xda\x3e\x04kept"
    assert decode_flight_data(told) == replace(frame, inline_reason=b"kept")
    assert encode_flight_data(decode_flight_data(told)) == told


def test_our_own_fields_are_kept_apart_from_absent_ones_and_outlive_the_message():
    raw = bytearray(b"\xca\x3e\x00\xd2\x3e\x01x\xda\x3e\x01y")
    frame = decode_flight_data(raw)
    raw[:] = bytes(len(raw))
    assert frame == FlightFrame(body_reference=b"", released=b"x", inline_reason=b"y")


@pytest.mark.parametrize(
    ("frame", "is_detached"),
    [
        (FlightFrame(header=b"h"), False),
        (FlightFrame(header=b"h", body=b"b"), False),
        (FlightFrame(header=b"h", body_reference=b""), True),
        (FlightFrame(header=b"h", body=b"", body_reference=b""), True),
        (FlightFrame(header=b"h", body=b"b", body_reference=b"r"), False),
    ],
)
def test_a_body_that_is_there_wins_over_a_reference(frame, is_detached):
    assert frame.is_detached is is_detached


@pytest.mark.parametrize(
    "more",
    [
        {"descriptor": b""},
        {"header": b""},
        {"metadata": b""},
        {"body": b""},
        {"body_reference": b""},
        {"released": None},
    ],
)
def test_releases_alone_are_releases_only(more):
    assert FlightFrame(released=b"").is_release_only
    assert not FlightFrame(**{"released": b"", **more}).is_release_only


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x12", "inside a varint"),
        (b"\x12\x05ab", "5 bytes, 2 are left"),
        (b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "longer than 10"),
        (b"\x13\x00", "wire type 3"),
        (b"\x02\x00", "field number 0"),
        (b"\x2d12", "cut off"),
    ],
)
def test_malformed_messages_are_refused(raw, reason):
    with pytest.raises(RemoteProtocolError, match=reason):
        decode_flight_data(raw)


def test_the_message_limit_holds_at_its_edge():
    limits = Limits(message_bytes_max=8)
    raw = b"\x12\x06abcdef"
    assert decode_flight_data(raw, limits).header == b"abcdef"
    with pytest.raises(RemoteProtocolError, match="limit is 8"):
        decode_flight_data(raw + b"\x20\x00", limits)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 2**21, 2**35 - 1])
def test_varints_match_the_recorded_form(value):
    raw = b"\x20" + encode_varint(value) + b"\x12\x00"
    assert decode_flight_data(raw).header == b""
