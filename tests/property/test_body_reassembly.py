"""Streams whose headers and bodies come apart, in any order: what leaves is what was sent, in its
order, and nothing a peer sends makes the receiver hold more than its limits."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from barrage.errors import RemoteProtocolError
from barrage.limits import Limits
from barrage.wire import UpdateEncoder, decode_flight_data
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.dissociated.negotiation import Answer, Claim, ConnectionTerms, HostIdentity, Offer
from barrage.wire.dissociated.ranges import (
    BodyRange,
    decode_addresses,
    decode_ranges,
    encode_addresses,
    encode_ranges,
)
from barrage.wire.dissociated.reassembly import AHEAD_MAX, Reassembly
from barrage.wire.dissociated.tags import (
    BodyType,
    decode_tag,
    distance,
    encode_tag,
    next_sequence,
)
from barrage.wire.dissociated.untagged import (
    decode_untagged,
    encode_end_message,
    encode_header_message,
)
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from barrage.wire.ipc import encode_record_header
from tests.property.test_wire_round_trip import encode_options, updates

ROUND = 2**32
sequences = st.integers(0, ROUND - 1) | st.integers(ROUND - 8, ROUND - 1) | st.integers(0, 8)
u64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63, 2**64 - 1])
texts = st.text(st.characters(codec="utf-8"), max_size=20)
LIMITS = Limits(body_window_bytes=60, body_window_count=4, message_bytes_max=200)


@st.composite
def streams(draw):
    """What one side sends: for every message its header, and its body (None: it is inline)."""
    bodies = draw(st.lists(st.none() | st.binary(max_size=6), max_size=9))
    messages = []
    for number, body in enumerate(bodies):
        metadata = str(number).encode()
        if body is None:
            messages.append((FlightFrame(metadata=metadata, body=b"inline"), None))
        else:
            header = encode_record_header(0, [], [], body_bytes=len(body))
            frame = FlightFrame(header=header, metadata=metadata, body_reference=b"")
            messages.append((frame, body))
    return messages


@given(streams(), sequences, st.data())
def test_any_order_of_arrival_gives_the_messages_in_order(messages, first, data):
    stimuli = [("end", None)]
    for number, (_, body) in enumerate(messages):
        stimuli.append(("header", number))
        if body is not None:
            stimuli.append(("body", number))
    made = Reassembly(first=first)
    taken = []
    for now_ns, (kind, number) in enumerate(data.draw(st.permutations(stimuli))):
        if kind == "end":
            made.receive_end((first + len(messages)) % ROUND)
        elif kind == "header":
            frame, body = messages[number]
            sequence = (first + number) % ROUND
            made.receive_header(sequence, frame, expects_body=body is not None, now_ns=now_ns)
        else:
            made.receive_body((first + number) % ROUND, messages[number][1], now_ns)
        if data.draw(st.booleans()):
            taken += made.take()
        made.validate()
    taken += made.take()
    assert [frame.metadata for frame in taken] == [frame.metadata for frame, _ in messages]
    expected = [b"inline" if body is None else body for _, body in messages]
    assert [bytes(frame.body) for frame in taken] == expected
    assert made.is_complete
    assert made.pending_count == 0
    assert made.waiting_since_ns is None


@st.composite
def anything(draw):
    """What a hostile peer may send, close to what is expected."""
    number = draw(st.integers(-2, 6) | st.sampled_from([AHEAD_MAX - 1, AHEAD_MAX, ROUND // 2]))
    kind = draw(st.sampled_from(["header", "whole", "body", "end"]))
    size = draw(st.integers(0, 30) | st.sampled_from([60, 61, 200, 201]))
    return kind, number, size


@given(st.lists(anything(), max_size=40), sequences)
def test_whatever_comes_memory_stays_bounded_and_nothing_incomplete_leaves(stimuli, first):
    made = Reassembly(LIMITS, first=first)
    said: dict[int, int] = {}
    for kind, ahead, size in stimuli:
        number = (made.next_number + ahead) % ROUND
        try:
            if kind == "header":
                header = encode_record_header(0, [], [], body_bytes=size)
                frame = FlightFrame(header=header)
                made.receive_header(number, frame, expects_body=True, now_ns=0)
                said[number] = size
            elif kind == "whole":
                frame = FlightFrame(body=bytes(size))
                made.receive_header(number, frame, expects_body=False, now_ns=0)
                said[number] = size
            elif kind == "body":
                made.receive_body(number, bytes(size), 0)
            else:
                made.receive_end(number)
        except RemoteProtocolError:
            pass  # the stream would be given up here; go on to see that the state stays sound
        made.validate()
        held = made._body_bytes + made._header_bytes
        windows = 2 * LIMITS.body_window_bytes + 2 * LIMITS.message_bytes_max
        assert held <= windows
        before = made.next_number
        taken = made.take()
        for frame in taken:
            assert len(frame.body) == said[before]
            before = next_sequence(before)
        assert before == made.next_number


@given(encode_options(), st.data())
def test_detaching_bodies_changes_nothing_but_their_place(options, data):
    schema, update = data.draw(updates(options.revision))
    whole = list(UpdateEncoder(schema, options).encode(update))
    apart = list(UpdateEncoder(schema, options, detach=lambda frame: frame).encode(update))
    assert len(apart) == len(whole)
    reassembly = Reassembly()
    for number, frame in enumerate(apart):
        if isinstance(frame, bytes):
            bare = decode_flight_data(frame)
        else:
            assert frame.inline() == whole[number]
            bare = decode_flight_data(frame.message(b"somewhere"))
            assert bare.is_detached
            reassembly.receive_body(number, pa.py_buffer(b"".join(frame.parts)), 0)
        reassembly.receive_header(number, bare, expects_body=bare.is_detached, now_ns=0)
    taken = reassembly.take()
    expected = list(map(decode_flight_data, whole))
    for one, other in zip(taken, expected, strict=True):
        assert (one.header, one.metadata) == (other.header, other.metadata)
        assert bytes(one.body) == bytes(other.body)


@given(sequences, sequences)
def test_distance_agrees_with_counting_on(a, b):
    assert distance(a, next_sequence(a)) == 1
    assert (a + distance(a, b)) % ROUND == b


@given(st.sampled_from(BodyType), sequences)
def test_tags_survive(kind, sequence):
    assert decode_tag(encode_tag(kind, sequence)) == (kind, sequence)


@given(u64)
def test_a_tag_either_survives_or_is_refused(tag):
    try:
        kind, sequence = decode_tag(tag)
    except RemoteProtocolError:
        assert tag >> 32
        return
    assert encode_tag(kind, sequence) == tag or tag >> 55 == 1


@given(sequences, st.binary(min_size=1, max_size=30))
def test_untagged_messages_survive(sequence, header):
    assert decode_untagged(encode_header_message(sequence, header)) == (sequence, header)
    assert decode_untagged(encode_end_message(sequence)) == (sequence,)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=8), st.integers(0, 9))
def test_lists_of_ranges_survive(gaps_and_lengths, padding):
    ranges, address = [], 0
    for gap, length in gaps_and_lengths:
        ranges.append(BodyRange(address + gap, length))
        address += gap + length
    ranges = ranges[::2] + ranges[1::2]
    total = sum(length for _, length in gaps_and_lengths) + padding
    assert decode_ranges(encode_ranges(ranges, total)) == (total, tuple(ranges))


@given(st.lists(st.tuples(u64, u64 | st.integers(0, 60)), max_size=5), u64 | st.integers(0, 99))
def test_a_list_that_is_believed_says_true_things(pairs, total):
    """Against the definition, in numbers that do not overflow."""
    raw = encode_ranges([BodyRange(*pair) for pair in pairs], total)
    limits = Limits(message_bytes_max=100)
    taken: set[int] = set()
    is_sound = total <= 100 and sum(length for _, length in pairs) <= total
    if is_sound:
        for address, length in pairs:
            cells = set(range(address, address + length))
            is_sound &= address + length < 2**64 and not cells & taken
            taken |= cells
    try:
        believed = decode_ranges(raw, limits)
    except RemoteProtocolError:
        assert not is_sound
        return
    assert is_sound
    assert believed == (total, tuple(pairs))


@given(st.lists(u64, min_size=1, max_size=20))
def test_releases_survive_in_their_message(ids):
    raw = encode_flight_data(FlightFrame(released=encode_addresses(ids)))
    frame = decode_flight_data(raw)
    assert frame.is_release_only
    assert decode_addresses(frame.released) == tuple(ids)


@given(
    st.sampled_from(["h", "127.0.0.1", "::1", "a-b.c"]),
    st.integers(1, 65535),
    u64,
    st.none() | u64,
    st.none() | st.binary(max_size=40),
)
def test_locations_survive(host, port, want_data, free_data, handle):
    location = UcxLocation(
        host=host, port=port, want_data=want_data, free_data=free_data, remote_handle=handle
    )
    assert UcxLocation.parse(location.encode()) == location


ways = st.sampled_from(BodyWay)
ids = st.text("0123456789abcdef", min_size=32, max_size=32)


@given(
    st.none() | st.builds(HostIdentity, boot_id=texts, user_id=st.integers(0, 2**32)),
    st.none() | st.builds(ConnectionTerms, release=texts, settings=st.dictionaries(texts, texts)),
    st.lists(ways, unique=True),
)
def test_offers_survive(shm, ucx, order):
    offer = Offer(shm=shm, terms={} if ucx is None else {BodyWay.UCX: ucx}, order=tuple(order))
    assert Offer.from_json(offer.to_json()) == offer


@given(
    st.builds(
        Answer,
        way=ways,
        channel_id=ids,
        arena=texts.filter(bool),
        location=texts.filter(bool),
        ticket=st.binary(min_size=1, max_size=32),
        window_bytes=st.integers(0, 2**62),
        window_count=st.integers(0, 2**62),
    )
)
def test_answers_survive(answer):
    assert Answer.from_json(answer.to_json()) == answer


@given(ids, st.none() | st.binary(min_size=1, max_size=64))
def test_claims_survive(channel_id, proof):
    claim = Claim(channel_id=channel_id, proof=proof)
    assert Claim.parse(claim.header()) == claim
