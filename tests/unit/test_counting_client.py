"""The load of benchmarks counts every message once, however its bytes come."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import barrage
from benchmarks.peers.counting_client import CountingClient, request_bytes
from benchmarks.peers.http2_counting import (
    CONNECTION_CREDIT_BYTES,
    DATA,
    FRAME_BYTES_MAX,
    HEADERS,
    MESSAGE_BYTES_MAX,
    PADDED,
    SAMPLE_EVERY,
    STREAM_WINDOW_BYTES,
    Arrivals,
    FrameCounter,
    LoadError,
    credit_frame,
    frame,
)
from tests.helpers.server_process import wait_until


def message(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big") + bytes(size)


def feed(counter: FrameCounter, data: bytes, sizes=(1 << 20,)) -> None:
    """Give it the bytes in portions of these sizes, in turn."""
    at, turn = 0, 0
    while at < len(data):
        size = min(sizes[turn % len(sizes)], len(counter.buffer) - counter.end)
        part = data[at : at + size]
        counter.buffer[counter.end : counter.end + len(part)] = part
        counter.end += len(part)
        counter.take(turn, turn)
        at += len(part)
        turn += 1


def counter_of(streams: int = 3) -> tuple[FrameCounter, Arrivals]:
    arrivals = Arrivals()
    counter = FrameCounter(arrivals)
    assert [counter.add_stream(100 + i) for i in range(streams)] == [
        2 * i + 1 for i in range(streams)
    ]
    return counter, arrivals


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 4, 50, 1100, 40_000])), max_size=30
    ),
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
)
def test_messages_are_counted_however_they_are_cut(messages, sizes, cuts: random.Random) -> None:
    streams = [b"", b"", b""]
    for stream, size in messages:
        streams[stream] += message(size)
    frames = b""
    while any(streams):
        stream = cuts.choice([i for i in range(3) if streams[i]])
        size = cuts.choice([1, 3, 5, 6, 1105, FRAME_BYTES_MAX])
        payload, streams[stream] = streams[stream][:size], streams[stream][size:]
        if cuts.random() < 0.2 and len(payload) < FRAME_BYTES_MAX - 9:
            frames += frame(DATA, PADDED, 2 * stream + 1, b"\x08" + payload + bytes(8))
        else:
            frames += frame(DATA, 0, 2 * stream + 1, payload)
    counter, arrivals = counter_of()
    feed(counter, frames, sizes)
    found = np.bincount(np.array(arrivals.views, int) - 100, minlength=3).tolist()
    assert found == [sum(each == stream for each, _ in messages) for stream in range(3)]
    assert counter.end == 0


def test_whole_messages_go_the_fast_way_and_some_are_kept() -> None:
    counter, arrivals = counter_of(1)
    feed(counter, frame(DATA, 0, 1, message(50)) * (2 * SAMPLE_EVERY))
    assert arrivals.views == [100] * 2 * SAMPLE_EVERY
    assert [sample for _, sample in arrivals.samples] == [bytes(50)] * 2
    assert arrivals.bytes == 2 * SAMPLE_EVERY * 55


def test_credit_is_given_back_in_portions() -> None:
    counter, _ = counter_of(2)
    full = frame(DATA, 0, 3, message(FRAME_BYTES_MAX - 5))
    half = STREAM_WINDOW_BYTES // 2
    feed(counter, full * (half // FRAME_BYTES_MAX - 1))
    assert not counter.credit
    feed(counter, full)
    assert bytes(counter.credit) == credit_frame(3, half)
    counter.credit.clear()
    feed(counter, full * ((CONNECTION_CREDIT_BYTES - half) // FRAME_BYTES_MAX), [1 << 15])
    assert bytes(counter.credit).endswith(credit_frame(0, CONNECTION_CREDIT_BYTES))


def test_other_frames_are_left_to_others() -> None:
    counter, arrivals = counter_of()
    feed(counter, frame(HEADERS, 4, 1, b"abc") + frame(99, 0, 0, b""), [4])
    assert counter.control == [(HEADERS, 4, 1, b"abc"), (99, 0, 0, b"")]
    assert not arrivals.views


@pytest.mark.parametrize(
    "wrong",
    [
        (FRAME_BYTES_MAX + 1).to_bytes(3, "big") + bytes(6),
        frame(DATA, 0, 7, message(1)),
        frame(DATA, PADDED, 1, b"\x01"),
        frame(DATA, PADDED, 1, b""),
        frame(DATA, 0, 1, b"\0" + (MESSAGE_BYTES_MAX + 1).to_bytes(4, "big")),
    ],
)
def test_what_no_server_sends(wrong: bytes) -> None:
    counter, _ = counter_of()
    with pytest.raises(LoadError):
        feed(counter, wrong)


def test_limits_are_allowed() -> None:
    counter, arrivals = counter_of()
    head = b"\0" + MESSAGE_BYTES_MAX.to_bytes(4, "big")
    feed(counter, frame(DATA, 0, 1, head))
    feed(counter, frame(DATA, 0, 3, message(FRAME_BYTES_MAX - 5)))
    assert arrivals.views == [101]
    with pytest.raises(LoadError, match="at most"):
        frame(DATA, 0, 1, bytes(FRAME_BYTES_MAX + 1))


def test_gaps_are_those_of_one_view() -> None:
    arrivals = Arrivals(views=[1, 2, 1, 1, 2], marks=[(2, 0), (3, 5_000_000), (5, 20_000_000)])
    assert sorted(arrivals.gaps_ms()) == [5, 15, 20]
    assert len(Arrivals().gaps_ms()) == 0


def test_it_counts_what_a_server_of_ours_sends() -> None:
    with barrage.Server(port=0) as server:
        table = server.create_table(
            "t", key="k", data={"k": list(range(1000)), "v": list(range(1000))}
        )
        requests = [request_bytes("t", i * 50, 50, interval_ms=10) for i in range(10)]
        with CountingClient(server.uri) as client:
            assert client.open(requests)["views"] == 10
            client.arrivals.clear()
            table.upsert({"k": list(range(0, 1000, 10)), "v": [-1] * 100})

            def all_are_told() -> bool:
                client.turn(0.05)
                return set(client.arrivals.views) == set(range(10))

            wait_until(all_are_told)
            assert len(client.arrivals.views) == 10
            answer = client.scroll([[requests[5]]], every_seconds=0.0)
            assert answer["requests"] == 1
            watched = client.watch(lambda: True)
            assert watched["messages"] == 0


def test_a_refused_call_ends_the_load() -> None:
    with (
        barrage.Server(port=0) as server,
        CountingClient(server.uri) as client,
        pytest.raises(LoadError, match="a call ended: status 5"),
    ):
        client.open([request_bytes("nothing", 0, 50, interval_ms=10)])
