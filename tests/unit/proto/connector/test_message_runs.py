"""Many messages that come at once are what they are one by one."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from barrage.limits import Limits
from barrage.proto.connector.stream_desk import StreamDesk
from barrage.wire.connector.codec import encode_frame
from barrage.wire.connector.frame_values import Ack
from tests.unit.proto.connector.test_worker_session import (
    PUBLISHED,
    Peer,
    message,
    notify,
    rows,
    settled,
)


def test_a_run_is_what_its_messages_are_one_by_one() -> None:
    chance = random.Random(5)
    for _ in range(60):
        last = dict.fromkeys((1, 2, 3), 0)
        frames = [notify(stream, name=b"s%d" % stream) for stream in last]
        for _ in range(chance.randint(1, 60)):
            stream = chance.choice(list(last))
            last[stream] += chance.choice([1, 1, 1, 1, 5, 0])
            size = chance.choice([3, 3, 3, 3, 0, 9])
            key = b"k" * chance.choice([0, 0, 0, 2])
            frames.append(message(last[stream], stream=stream, payload=b"x" * size, key=key))
        data = b"".join(encode_frame(each, PUBLISHED) for each in frames)
        together, alone = Peer(), Peer()
        together.session.receive_data(data)
        for at in range(len(data)):
            alone.session.receive_data(data[at : at + 1])
        batches = [peer.desk.take_batch() for peer in (together, alone)]
        if None in batches:
            assert batches == [None, None]
            continue
        one, other = (batch.messages() for batch in batches)
        for name in ("ids", "streams", "event_times", "payloads"):
            found, wanted = getattr(one, name), getattr(other, name)
            is_row = [
                bool(payload or key)
                for payload, key in zip(one.payloads.to_pylist(), one.keys.to_pylist(), strict=True)
            ]
            assert found.filter(pa.array(is_row)).to_pylist() == wanted.to_pylist()
        assert batches[0].positions == batches[1].positions
        assert batches[0].byte_count == batches[1].byte_count
        for desk in (together.desk, alone.desk):
            assert desk.unsafe_bytes == batches[0].byte_count
        for peer, batch in zip((together, alone), batches, strict=True):
            peer.desk.settle(batch)
            assert peer.desk.unsafe_bytes == 0
        credits = [
            sum(frame.credits for frame in peer.told() if isinstance(frame, Ack))
            for peer in (together, alone)
        ]
        assert credits[0] == credits[1]


def test_a_run_past_the_debt_is_taken_up_to_it() -> None:
    limits = Limits(connector_credits_max=8)
    peer = Peer(StreamDesk("p", {}, limits=limits), limits=limits)
    peer.send(notify())
    peer.session.receive_data(b"".join(encode_frame(message(n), PUBLISHED) for n in range(1, 200)))
    assert peer.session.failure == "credits exceeded"
    assert rows(settled(peer.desk)) == list(range(1, 8 + 64 + 1))


@pytest.mark.parametrize("bad", [message(5, stream=2), message(2**64 - 1), message(3)])
def test_what_comes_before_the_bad_one_of_a_run_is_taken(bad) -> None:
    peer = Peer()
    peer.send(notify())
    good = [message(n) for n in range(1, 8)]
    peer.session.receive_data(b"".join(encode_frame(m, PUBLISHED) for m in [*good, bad, *good]))
    assert rows(settled(peer.desk)) == list(range(1, 8))


def test_a_run_ends_before_a_frame_that_is_wrong() -> None:
    good = [encode_frame(message(n), PUBLISHED) for n in range(1, 8)]
    for bad in (bytes.fromhex("0000000105"), good[0][:29] + b"\xff\xff" + good[0][31:]):
        peer = Peer()
        peer.send(notify())
        peer.session.receive_data(b"".join([*good, bad, *good]))
        assert peer.session.failure is not None
        assert rows(settled(peer.desk)) == list(range(1, 8))


@pytest.mark.parametrize("block", [1, 40], ids=["in turn", "in blocks"])
def test_each_message_of_a_run_has_the_name_of_its_stream(block: int) -> None:
    limits = Limits(connector_credits_max=200)
    peer = Peer(StreamDesk("p", {}, limits=limits), limits=limits)
    for stream in (3, 1, 2):
        peer.send(notify(stream, name=b"s%d" % stream))
    streams = [at // block % 3 + 1 for at in range(120)]
    sent = [message(at + 1, stream=stream) for at, stream in enumerate(streams)]
    peer.session.receive_data(b"".join(encode_frame(each, PUBLISHED) for each in sent))
    messages = peer.desk.take_batch().messages()
    assert messages.streams.to_pylist() == [f"s{stream}" for stream in streams]
    assert messages.ids.to_pylist() == list(range(1, 121))
