"""Which frames of a stream go whole and which without their body, step by step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from barrage.errors import BodyChannelError
from barrage.limits import DEFAULT_LIMITS
from barrage.proto.body_window import WindowState
from barrage.proto.outgoing_bodies import LOST, OutgoingBodies, OutgoingState
from barrage.wire.dissociated.detached import DetachedFrame
from barrage.wire.flight_data import decode_flight_data

LIMITS = replace(
    DEFAULT_LIMITS,
    body_inline_bytes_max=4,
    body_window_count=2,
    body_window_bytes=1000,
    body_wait_ns_max=20,
    body_lease_ns_max=1000,
)


class Outlet:
    def __init__(self):
        self.is_lost = False
        self.failure: BodyChannelError | None = None
        self.sent: list[int] = []
        self.released: list[int] = []
        self.closed = 0

    def send(self, sequence, frame):
        if self.failure is not None:
            raise self.failure
        self.sent.append(sequence)
        return sequence, frame.message(b"")

    def release(self, ids):
        self.released += ids

    def close(self):
        self.closed += 1


def frame(size=100):
    return DetachedFrame(b"\x12\x01h", (bytes(size),), size)


@pytest.fixture
def outlet():
    return Outlet()


@pytest.fixture
def bodies(outlet):
    made = OutgoingBodies(outlet, LIMITS)
    yield made
    made.validate()


def test_what_goes_out_says_what_became_of_the_body(bodies, outlet):
    assert bodies.message(b"\x12\x01s", 0) == (b"\x12\x01s", 0, False)
    assert bodies.message(frame(), 0) == (frame().message(b""), 100, True)
    assert bodies.message(frame(4), 0) == (frame(4).inline(), 4, False)
    assert bodies.message(frame(1001), 0) == (frame(1001).inline(), 1001, False)
    assert bodies.message(frame(), 0).is_outside
    assert outlet.sent == [1, 4]
    assert (bodies.window.pending_count, bodies.window.pending_bytes) == (2, 200)


def test_a_frame_that_waits_keeps_its_number(bodies, outlet):
    for _ in range(2):
        bodies.message(frame(), 0)
    assert bodies.message(frame(), 0) is None
    assert bodies.window.wait_until_ns == 20
    assert bodies.message(frame(), 19) is None
    bodies.released([0], 19)
    assert bodies.message(frame(), 19).is_outside
    assert bodies.message(frame(), 19) is None
    assert not bodies.message(frame(), 39).is_outside
    bodies.released([2], 40)
    assert bodies.message(frame(), 40).is_outside
    assert outlet.sent == [0, 1, 2, 4]
    assert outlet.released == [0, 2]
    assert bodies.state is OutgoingState.OUTSIDE


@pytest.mark.parametrize("fault", ["lost", "fails", "kept"])
def test_a_way_that_is_given_up_is_told_once(bodies, outlet, fault):
    bodies.message(frame(), 0)
    bodies.check(1000)
    assert bodies.state is OutgoingState.OUTSIDE
    now_ns = 1000
    if fault == "lost":
        outlet.is_lost = True
    elif fault == "fails":
        outlet.failure = BodyChannelError("gone \x00")
    else:
        now_ns = 1001
    reasons = {
        "lost": LOST,
        "fails": "gone ?",
        "kept": "a body was not given back within 1e-06 s",
    }
    first = bodies.message(frame(), now_ns)
    assert not first.is_outside
    told = decode_flight_data(first.message)
    assert bytes(told.body) == bytes(100)
    assert told.inline_reason.decode() == bodies.inline_reason == reasons[fault]
    outlet.is_lost, outlet.failure = False, None
    assert bodies.message(frame(), now_ns) == (frame().inline(), 100, False)
    assert bodies.state is OutgoingState.INLINE
    assert bodies.window.state is WindowState.ABANDONED
    assert outlet.closed == 1
    # The memory is not the outlet's any more, but what is out is counted.
    bodies.released([0], now_ns)
    assert outlet.released == []
    assert bodies.window.pending_count == 0


def test_a_body_kept_for_too_long_is_noticed_when_another_is_given_back(bodies, outlet):
    bodies.message(frame(), 0)
    bodies.message(frame(), 1)
    bodies.released([1], 1001)
    assert bodies.state is OutgoingState.INLINE
    assert outlet.released == [1]


@pytest.mark.parametrize("is_inline", [False, True])
def test_the_end(bodies, outlet, is_inline):
    if is_inline:
        outlet.is_lost = True
        bodies.check(0)
    bodies.close()
    bodies.close()
    bodies.check(0)
    assert bodies.state is OutgoingState.CLOSED
    assert outlet.closed == 1 + is_inline
    assert not bodies.message(frame(), 0).is_outside
