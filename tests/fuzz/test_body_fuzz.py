"""Decoders of bodies outside their stream against truncated, mutated and random bytes:
RemoteProtocolError or a valid result, whatever comes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import ProtocolError, RemoteProtocolError
from barrage.limits import Limits
from barrage.proto.events import BodiesReleased
from barrage.proto.server_exchange import ExchangeState, ServerExchange
from barrage.wire import FlightFrame, decode_flight_data, encode_flight_data
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.dissociated.negotiation import (
    Answer,
    Claim,
    ClaimOutcome,
    ConnectionTerms,
    HostIdentity,
    Offer,
)
from barrage.wire.dissociated.ranges import (
    BodyRange,
    decode_addresses,
    decode_ranges,
    encode_addresses,
    encode_ranges,
)
from barrage.wire.dissociated.reassembly import Reassembly
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.dissociated.tags import decode_tag
from barrage.wire.dissociated.untagged import (
    decode_untagged,
    encode_end_message,
    encode_header_message,
)
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.ipc import encode_dictionary_header, encode_record_header
from tests.fuzz.test_wire_fuzz import mutated
from tests.helpers.frame_factory import subscription_frame

LIMITS = Limits(message_bytes_max=1 << 20, body_ranges_max=64)
ID = "0123456789abcdef" * 2
SHM = HostIdentity(boot_id="b" * 36, user_id=1000)

SAMPLES = {
    decode_untagged: [encode_header_message(7, b"h" * 40), encode_end_message(9)],
    decode_ranges: [
        encode_ranges([BodyRange(64 * i, 64) for i in range(9)]),
        encode_ranges([BodyRange(2**63, 10)], 2**20),
    ],
    decode_addresses: [encode_addresses([1, 2, 2**64 - 1])],
    BodyReference.decode: [BodyReference(64, 100, 3).encode()],
    Offer.from_json: [
        Offer(
            shm=SHM,
            terms={BodyWay.UCX: ConnectionTerms(release="1.22", settings={"TLS": "tcp"})},
            order=tuple(BodyWay),
        ).to_json()
    ],
    Answer.from_json: [
        Answer(way=BodyWay.SHM, channel_id=ID, arena="barrage-" + ID).to_json(),
        Answer(way=BodyWay.UCX, channel_id=ID, location="ucx://h:1", ticket=b"t").to_json(),
    ],
}
TEXTS = {
    UcxLocation.parse: ["ucx://[::1]:99?want_data=12&free_data=13&remote_handle=%2B%2FAA"],
    Claim.parse: [Claim(channel_id=ID, proof=b"0123456789abcdef").header()],
    ClaimOutcome.parse: ["inline because of reasons", "shm"],
}


def name_of(decode):
    return decode.__qualname__


def only_protocol_errors(decode, raw):
    try:
        return decode(raw)
    except RemoteProtocolError:
        return None


@pytest.mark.parametrize("decode", list(SAMPLES), ids=name_of)
@given(data=st.data())
def test_bytes(decode, data):
    raw = data.draw(mutated(SAMPLES[decode]) | st.binary(max_size=120))
    limited = (decode_untagged, decode_ranges, decode_addresses)
    only_protocol_errors((lambda b: decode(b, LIMITS)) if decode in limited else decode, raw)


@pytest.mark.parametrize("decode", list(SAMPLES), ids=name_of)
def test_every_truncation(decode):
    for sample in SAMPLES[decode]:
        for length in range(len(sample)):
            only_protocol_errors(decode, sample[:length])


@pytest.mark.parametrize("decode", list(TEXTS), ids=name_of)
@given(data=st.data())
def test_texts(decode, data):
    text = data.draw(st.sampled_from(TEXTS[decode]))
    at = data.draw(st.integers(0, len(text)))
    junk = data.draw(st.text(max_size=6))
    length = data.draw(st.integers(0, 9))
    only_protocol_errors(decode, data.draw(st.just(text[:at] + junk + text[at + length :])))
    only_protocol_errors(decode, data.draw(st.text(max_size=80)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@given(st.data())
def test_json_with_one_value_replaced(data):
    for kind in (Offer, Answer):
        content = json.loads(SAMPLES[kind.from_json][0])
        key = data.draw(st.sampled_from([*content, "ticket", "location", "arena"]))
        inner = content.get(key)
        if isinstance(inner, dict) and data.draw(st.booleans()):
            inner[data.draw(st.sampled_from(list(inner)))] = data.draw(json_values)
        else:
            content[key] = data.draw(json_values)
        only_protocol_errors(kind.from_json, json.dumps(content).encode())


@given(st.integers(0, 2**64 - 1))
def test_tags(tag):
    only_protocol_errors(decode_tag, tag)


@st.composite
def releases(draw):
    """Messages in which our own fields are right, wrong, repeated or beside others."""
    frame = FlightFrame(
        header=draw(st.none() | st.none() | st.binary(max_size=9)),
        body=draw(st.none() | st.none() | st.binary(max_size=9)),
        body_reference=draw(st.none() | st.none() | st.binary(max_size=30)),
        released=draw(st.none() | st.binary(max_size=40) | st.just(bytes(8))),
    )
    raw = encode_flight_data(frame)
    return draw(st.just(raw) | st.just(raw + raw) | mutated([raw or b"\0"]))


@given(st.lists(releases(), max_size=6), st.booleans(), st.booleans())
def test_an_exchange_given_junk_says_so_or_goes_on(frames, is_claimed, is_subscribed):
    exchange = ServerExchange(1, limits=LIMITS)
    if is_claimed:
        exchange.claim_body_channel()
    if is_subscribed:
        exchange.receive_frame(subscription_frame())
    for raw in frames:
        try:
            events = exchange.receive_frame(raw)
        except ProtocolError:
            assert exchange.state is ExchangeState.CLOSED
            return
        if any(isinstance(event, BodiesReleased) for event in events):
            assert is_claimed
            assert decode_flight_data(raw).is_release_only


HEADERS = [
    encode_record_header(3, [3, 0, 3, 1], [0, 0, 0, 24, 24, 8], body_bytes=32),
    encode_dictionary_header(1, 2, nodes=[2, 0], buffers=[0, 0, 0, 16], body_bytes=16),
]


@given(mutated(HEADERS), st.binary(max_size=40))
def test_headers_of_bodies_elsewhere(header, body):
    """A body leaves with its header only if it is as long as that says."""
    made = Reassembly(LIMITS)
    frame = FlightFrame(header=header)

    def receive(_: bytes) -> None:
        made.receive_header(0, frame, expects_body=True, now_ns=0)
        made.receive_body(0, body, 0)

    only_protocol_errors(receive, b"")
    made.validate()
    for taken in made.take():
        assert taken.body == body
