"""The writer of a stream whose bodies may leave it, with outlets that do as they are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from barrage.errors import BodyChannelError
from barrage.limits import DEFAULT_LIMITS
from barrage.proto.outgoing_bodies import OutgoingBodies, OutgoingState
from barrage.server.bodies.body_frames import LooseFrame, loosener, placer
from barrage.server.bodies.body_writer import BodyCounts, BodyWriter
from barrage.wire.dissociated.detached import DetachedFrame
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import decode_flight_data
from tests.helpers.virtual_clock import VirtualClock

LIMITS = replace(
    DEFAULT_LIMITS,
    body_inline_bytes_max=4,
    body_window_count=2,
    body_window_bytes=1000,
    body_wait_ns_max=20_000_000,
    body_lease_ns_max=1_000_000_000,
)


class FakeOutlet:
    """Remembers what it was told."""

    way = BodyWay.UCX

    def __init__(self) -> None:
        self.is_lost = False
        self.fails = False
        self.sent: list[int] = []
        self.released: list[int] = []
        self.close_count = 0

    def send(self, sequence: int, frame: LooseFrame) -> tuple[int, bytes]:
        if self.fails:
            raise BodyChannelError("gone")
        self.sent.append(sequence)
        return sequence, frame.message()

    def release(self, ids) -> None:
        self.released += ids

    def close(self) -> None:
        self.close_count += 1


class Scene:
    def __init__(self) -> None:
        self.outlet = FakeOutlet()
        self.counts = BodyCounts()
        self.clock = VirtualClock()
        self.closed: list[BodyWriter] = []
        self.messages: list[bytes] = []
        self.writer = BodyWriter(
            7,
            self.outlet,
            self.counts,
            limits=LIMITS,
            clock=self.clock,
            on_close=self.closed.append,
        )

    async def take(self, message: bytes) -> None:
        self.messages.append(message)

    async def write(self, frame) -> None:
        await self.writer.write(self.take, frame)

    def was_outside(self) -> list[bool]:
        return [decode_flight_data(each).is_detached for each in self.messages]


def frame(size: int = 100) -> LooseFrame:
    return LooseFrame(DetachedFrame(b"\x12\x01h", (bytes(size - 1), b"x"), size))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_every_frame_is_counted_and_the_count_is_the_number_of_its_body(scene):
    async def work():
        for each in (b"\x12\x01s", frame(), b"\x12\x01s", frame()):
            await scene.write(each)

    asyncio.run(work())
    assert scene.outlet.sent == [1, 3]
    assert scene.was_outside() == [False, True, False, True]
    assert (scene.counts.bodies_out, scene.counts.bytes_out) == (2, 200)
    assert (scene.writer.pending_count, scene.writer.pending_bytes) == (2, 200)


def test_the_count_rolls_over(scene):
    scene.writer._bodies = OutgoingBodies(scene.outlet, LIMITS, first=2**32 - 1)

    async def work():
        await scene.write(frame())
        await scene.write(frame())

    asyncio.run(work())
    assert scene.outlet.sent == [2**32 - 1, 0]


def test_a_full_window_is_waited_for_once_and_opened_by_credit(scene):
    """The clock stands still, so only the timer ends the wait; credit in the wait ends it at
    once."""

    async def work():
        await scene.write(frame())
        await scene.write(frame())
        waiting = asyncio.create_task(scene.write(frame()))
        await asyncio.sleep(0)
        assert not waiting.done()
        scene.writer.released([0, 99])
        await waiting
        assert scene.outlet.sent == [0, 1, 2]
        assert scene.outlet.released == [0, 99]
        waiting = asyncio.create_task(scene.write(frame()))
        await asyncio.sleep(0)
        scene.clock.advance(LIMITS.body_wait_ns_max)
        await waiting
        await scene.write(frame())
        scene.writer.released([1, 2])
        await scene.write(frame())

    asyncio.run(work())
    assert scene.was_outside() == [True, True, True, False, False, True]
    assert scene.outlet.sent == [0, 1, 2, 5]
    assert (scene.counts.bodies_inline, scene.counts.bytes_inline) == (2, 200)
    assert scene.writer.state is OutgoingState.OUTSIDE


def test_a_body_larger_than_the_window_goes_inline_without_waiting(scene):
    asyncio.run(scene.write(frame(1001)))
    assert scene.was_outside() == [False]
    assert scene.messages == [frame(1001).inline()]


@pytest.mark.parametrize("is_noticed_by", ["frame", "check", "send"])
def test_a_lost_way_makes_the_stream_inline_for_good(scene, is_noticed_by):
    async def work():
        await scene.write(frame())
        if is_noticed_by == "send":
            scene.outlet.fails = True
        else:
            scene.outlet.is_lost = True
        if is_noticed_by == "check":
            scene.writer.check(0)
            assert scene.writer.state is OutgoingState.INLINE
        await scene.write(frame())
        scene.outlet.is_lost = scene.outlet.fails = False
        await scene.write(frame())
        scene.writer.released([0])

    asyncio.run(work())
    assert scene.was_outside() == [True, False, False]
    assert scene.writer.state is OutgoingState.INLINE
    assert (scene.outlet.close_count, scene.counts.fallbacks) == (1, 1)
    assert scene.outlet.released == []
    told = [decode_flight_data(each).inline_reason for each in scene.messages]
    why = b"gone" if is_noticed_by == "send" else b"its connection is lost"
    assert told == [None, why, None]


def test_a_message_of_any_kind_tells_that_bodies_go_inline(scene):
    async def work():
        await scene.write(frame())
        scene.outlet.is_lost = True
        scene.writer.check(0)
        await scene.write(b"\x12\x01s")

    asyncio.run(work())
    last = decode_flight_data(scene.messages[-1])
    assert (last.header, last.inline_reason) == (b"s", b"its connection is lost")


def test_a_body_that_is_kept_too_long_makes_the_stream_inline_for_good(scene):
    async def work():
        await scene.write(frame())
        scene.clock.advance(LIMITS.body_lease_ns_max)
        scene.writer.check(scene.clock.monotonic_ns())
        assert scene.writer.state is OutgoingState.OUTSIDE
        scene.clock.advance(1)
        scene.writer.check(scene.clock.monotonic_ns())
        scene.writer.check(scene.clock.monotonic_ns())
        await scene.write(frame())

    asyncio.run(work())
    assert scene.was_outside() == [True, False]
    assert scene.counts.fallbacks == 1


def test_a_release_that_leaves_one_too_old_is_noticed_as_it_comes(scene):
    """Else the window would refuse everything and the stream would not say why."""

    async def work():
        await scene.write(frame())
        await scene.write(frame())
        scene.clock.advance(LIMITS.body_lease_ns_max + 1)
        scene.writer.released([1])
        assert scene.writer.state is OutgoingState.INLINE
        scene.writer.released([0])
        await scene.write(frame())

    asyncio.run(work())
    assert scene.counts.fallbacks == 1
    assert scene.was_outside() == [True, True, False]


def test_what_comes_back_after_the_way_is_lost_is_not_pending_any_more(scene):
    async def work():
        await scene.write(frame())
        await scene.write(frame())
        scene.outlet.is_lost = True
        scene.writer.check(0)
        assert scene.writer.pending_count == 2
        scene.writer.released([0, 7])
        assert (scene.writer.pending_count, scene.writer.pending_bytes) == (1, 100)

    asyncio.run(work())
    assert scene.outlet.released == [], "the closed way has no use for it"


def test_a_wait_ends_when_the_way_is_lost_or_the_stream_ends(scene):
    async def work():
        await scene.write(frame())
        await scene.write(frame())
        waiting = asyncio.create_task(scene.write(frame()))
        await asyncio.sleep(0)
        scene.outlet.is_lost = True
        scene.writer.check(0)
        await waiting
        other = Scene()
        await other.write(frame())
        await other.write(frame())
        waiting = asyncio.create_task(other.write(frame()))
        await asyncio.sleep(0)
        other.writer.close()
        await waiting
        return other

    other = asyncio.run(work())
    assert scene.was_outside() == other.was_outside() == [True, True, False]


def test_closing_tells_its_owner_once(scene):
    assert scene.counts.streams == 1
    scene.writer.close()
    scene.writer.close()
    assert scene.closed == [scene.writer]
    assert (scene.counts.streams, scene.outlet.close_count) == (0, 1)
    assert scene.counts.fallbacks == 0
    scene.writer.check(10**18)
    scene.writer.released([0])
    assert scene.outlet.released == []


def test_detaching_keeps_small_bodies_and_those_without_room_inline():
    small, large = frame(4).detached, frame(5).detached
    assert placer(lambda parts, size: pytest.fail("asked"), 4)(small) == small.inline()
    assert placer(lambda parts, size: None, 4)(large) == large.inline()
    assert loosener(4)(small) == small.inline()
    loose = loosener(4)(large)
    assert isinstance(loose, LooseFrame)
    assert loose.inline() == large.inline()
    assert len(loose) == len(large.head) + 5
