"""What one connection may make of a worker: streams that are told to begin again, frames of a
turn; and batches that are cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from barrage.proto.connector.session_states import WorkerState
from barrage.proto.connector.stream_desk import StreamBatch, StreamDesk
from barrage.proto.connector.worker_session import WorkerSession
from barrage.wire.connector.codec import encode_frame
from barrage.wire.connector.frame_values import Nack
from tests.unit.proto.connector.test_worker_session import (
    DRAFT,
    EPHEMERAL,
    LIMITS,
    PUBLISHED,
    UNSTABLE,
    Peer,
    hello,
    message,
    notify,
)


def draft_peer(desk) -> Peer:
    return Peer(desk, DRAFT, limits=desk.limits)


def test_streams_that_are_to_begin_again_count_as_streams() -> None:
    limits = replace(LIMITS, connector_streams_max=3)
    desk = StreamDesk("p", {1: 5}, limits=limits)
    peer = draft_peer(desk)
    # One that is known takes no further place, however often it is told.
    for stream in (1, 1, 2, 2, 3):
        assert isinstance(peer.asked(notify(stream, point=9))[0], Nack)
    other = draft_peer(desk)
    assert "one too many" in other.refused(notify(4, point=9))
    assert "one too many" in peer.refused(notify(5, point=9))
    # Who has gone holds no place, nor does one that has begun again.
    last = draft_peer(desk)
    last.send(notify(6, point=9), notify(6), message(1, 6), notify(7, point=9))
    assert last.session.state is WorkerState.STREAMING
    assert desk.take_batch().positions == {6: (1, 1)}
    assert not desk.has_place
    last.session.close()
    assert desk.has_place


@pytest.mark.parametrize("dialect", [PUBLISHED, DRAFT])
def test_frames_of_a_turn_are_bounded(dialect) -> None:
    desk = StreamDesk("p", {}, limits=LIMITS)
    session = WorkerSession(limits=LIMITS, turn_frames=4)
    session.receive_data(encode_frame(hello(dialect), dialect))
    session.welcome(desk)
    raw = b"".join(encode_frame(notify(stream), dialect) for stream in range(10))
    session.receive_data(raw + b"\x00")
    counts = [session.stream_count]
    while session.has_unread:
        session.read_on()
        counts.append(session.stream_count)
    assert counts == [4, 8, 10]
    session.read_on()
    assert session.stream_count == 10


def test_a_batch_is_cut_where_positions_are_whole() -> None:
    desk = StreamDesk("p", {}, limits=LIMITS)
    peer = draft_peer(desk)
    peer.send(notify(1), notify(2), message(1), message(2, flags=UNSTABLE), message(3, 2))
    peer.send(message(5, flags=UNSTABLE), message(6), message(4, 2, flags=EPHEMERAL))
    peer.send(message(9, 2, payload=b""), message(7, 2, flags=EPHEMERAL))
    batch = desk.take_batch()
    messages = batch.messages()
    assert messages.ids.to_pylist() == [1, 3, 2, 5, 6, 4, 7]
    assert batch.stops().tolist() == [1, 2, 5, 6, 7]
    assert batch.positions_between(0, 2) == {1: (1, 1), 2: (3, 3)}
    assert batch.positions_between(2, 5) == {1: (6, 6)}
    assert batch.positions_between(5, 7) == {2: (9, 9)}
    assert batch.positions_between(0, 7) == {1: (1, 6), 2: (3, 9)}


@pytest.mark.parametrize("seed", range(4))
def test_positions_of_all_parts_are_those_of_the_batch(seed) -> None:
    chance = Random(seed)
    limits = replace(LIMITS, connector_credits_max=200)
    desk = StreamDesk("p", {}, limits=limits)
    peer = Peer(desk, limits=limits)
    peer.send(*(notify(stream) for stream in range(3)))
    for first in range(0, 90, 10):
        # Some come together as a run, others alone.
        sent = [message(first + at, chance.randrange(3), key=b"") for at in range(1, 10)]
        for each in [sent] if chance.random() < 0.5 else [[each] for each in sent]:
            peer.send(*each)
    batch = desk.take_batch()
    total = len(batch.messages())
    assert batch.stops().tolist() == list(range(1, total + 1))
    cuts = [0, *sorted(chance.sample(range(1, total), 5)), total]
    joined: dict[int, tuple[int, int]] = {}
    for start, stop in pairwise(cuts):
        names = batch.messages().slice(start, stop - start)
        part = batch.positions_between(start, stop)
        assert set(part) <= {0, 1, 2}
        assert max(last for _, last in part.values()) == names.ids[-1].as_py()
        for stream, (first, last) in part.items():
            before = joined.get(stream)
            assert before is None or before[1] < first
            joined[stream] = (first if before is None else before[0], last)
    assert joined == batch.positions


def three_batches() -> tuple[StreamDesk, list[StreamBatch]]:
    """A message of one stream in each."""
    desk = StreamDesk("p", {}, limits=LIMITS)
    peer = Peer(desk, limits=LIMITS)
    peer.send(notify(1))
    batches = []
    for number in (1, 2, 3):
        peer.send(message(number))
        batches.append(desk.take_batch())
    return desk, batches


def test_batches_are_acknowledged_in_the_order_in_which_they_were_taken() -> None:
    desk, batches = three_batches()
    desk.settle(batches[1])
    desk.settle(batches[2])
    assert desk.last_safe(1) is None
    assert desk.batches_under_way == 3
    desk.settle(batches[0])
    assert desk.last_safe(1) == 3
    assert (desk.batches_under_way, desk.unsafe_bytes) == (0, 0)


def test_what_is_safe_behind_a_batch_that_failed_is_not_acknowledged() -> None:
    desk, batches = three_batches()
    desk.settle(batches[1])
    desk.fail(batches[0])
    assert desk.last_safe(1) is None
    assert desk.batches_under_way == 1
    desk.let_go(batches[2])
    assert (desk.batches_under_way, desk.unsafe_bytes) == (0, 0)
