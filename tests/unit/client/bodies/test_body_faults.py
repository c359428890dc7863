"""Bodies that get lost, and servers that do not keep their word: whatever fails goes on inline."""

from __future__ import annotations

import pytest

from barrage.client.bodies.bodies import BodyStatus
from barrage.client.connection.reconnect import Backoff
from barrage.client.subscriptions.state import State
from barrage.errors import BodyChannelError, ConnectionLostError
from barrage.rowset import RowSet
from barrage.wire.dissociated.negotiation import HEADER
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import encode_flight_data, with_inline_reason
from barrage.wire.frame import FlightFrame
from tests.unit.client.bodies.body_fakes import (
    CHANNEL_IDS,
    NEVER,
    detach,
    lost_channel,
    placing,
    quiet_until_freed,
    ready,
    released,
    scene,
    sending,
    xs,
)
from tests.unit.client.scripted import run, until


@pytest.mark.parametrize("fault", ["generation", "short", "length", "no header"])
def test_a_reference_that_does_not_check_goes_on_inline_at_once(fault):
    async def test():
        async with scene() as s, s.session.table("t").subscribe(reconnect=NEVER) as live:
            states, errors = [], []
            live.on_state(states.append)
            live.on_error(errors.append)
            stream = await s.server.accept()
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([1])
            assert await ready(live) == [1]

            def deliver(_, frame):
                place = BodyReference.decode(s.arena.place(frame))
                if fault == "short":
                    return frame.message(b"x")
                if fault == "no header":
                    return encode_flight_data(FlightFrame(body_reference=place.encode()))
                if fault == "length":
                    return frame.message(place._replace(length=place.length - 8).encode())
                return frame.message(place._replace(generation=8).encode())

            detach(stream, deliver)
            stream.full(RowSet.parse("1"), [2])
            await lost_channel(s, live, stream, states, errors)
            # Nobody tries again for some minutes.
            async with s.session.table("t").subscribe():
                assert HEADER not in (await s.server.accept()).request_headers
            s.clock.advance(301 * 10**9)
            async with s.session.table("t").subscribe():
                assert HEADER in (await s.server.accept()).request_headers

    run(test)


def test_a_stream_without_channel_refers_to_no_bodies_and_hammers_no_server():
    async def test():
        async with scene("inline") as s:
            backoff = Backoff(first_seconds=0.01)
            async with s.session.table("t").subscribe(reconnect=backoff) as live:
                stream = await s.server.accept()
                assert HEADER not in stream.request_headers
                detach(stream, placing(s.arena))
                stream.schema()
                stream.snapshot([1])
                await s.server.accept()
                assert "no channel" in str(live.error)
                assert live._settings.backoff.attempt == 1
                assert s.server.offers == []

    run(test)


def test_without_reconnecting_a_lost_body_goes_on_inline_and_a_lost_connection_is_the_end():
    async def test():
        async with scene() as s, s.session.table("t").subscribe(reconnect=False) as live:
            states, errors = [], []
            live.on_state(states.append)
            live.on_error(errors.append)
            stream = await s.server.accept()
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([1])
            assert await ready(live) == [1]
            detach(stream, lambda _, frame: frame.message(b"x"))
            stream.full(RowSet.parse("1"), [2])
            second = await lost_channel(s, live, stream, states, errors)
            second.end(ConnectionLostError("cut"))
            await until(lambda: live.state is State.FAILED)
            assert str(live.error) == "cut"

    run(test)


@pytest.mark.parametrize("reconnect", [False, NEVER])
def test_a_body_that_was_not_to_leave_is_a_lost_connection(reconnect):
    """Nothing was lost that the next stream would have."""

    async def test():
        async with scene("inline") as s:
            async with s.session.table("t").subscribe(reconnect=reconnect) as live:
                stream = await s.server.accept()
                detach(stream, placing(s.arena))
                stream.schema()
                stream.snapshot([1])
                state = State.RECONNECTING if reconnect else State.FAILED
                await until(lambda: live.state is state)
                assert isinstance(live.error, BodyChannelError)

    run(test)


@pytest.mark.parametrize("way", ["shm", "ucx"])
def test_a_stream_that_its_server_makes_inline_says_so(way):
    async def test():
        async with scene(way) as s, s.session.table("t").subscribe(reconnect=NEVER) as live:
            stream = await s.server.accept()
            await stream.request()
            deliver = placing(s.arena) if way == "shm" else sending(s.ucx.connections[0])
            detach(stream, deliver, way)
            stream.schema()
            stream.snapshot([1])
            assert await ready(live) == [1]
            assert live.bodies == BodyStatus(BodyWay(way))
            send = stream.send

            def send_last(frames):
                send([with_inline_reason(each.inline(), "kept \x1b too long") for each in frames])

            stream.send = send_last
            stream.full(RowSet.parse("1"), [2])
            stream.send = send
            await until(lambda: live.stats.updates == 2)
            assert live.bodies == BodyStatus(BodyWay.INLINE, "kept ? too long")
            assert xs(live) == [1, 2]
            if way == "ucx":
                await until(lambda: s.ucx.connections[0].closings == 1)
            # What was lent before is still found, copied and given back.
            live.to_arrow()
            await until(lambda: quiet_until_freed(s.arena))
            assert await released(stream, 1) == ([0 if way == "shm" else 1], 1)
            # A server that does not keep its word is not followed.
            detach(stream, deliver, way)
            stream.full(RowSet.parse("2"), [3])
            await until(lambda: live.state is State.RECONNECTING)
            assert isinstance(live.error, BodyChannelError)
        assert [each.closings for each in s.ucx.connections] == [1] * (way == "ucx")

    run(test)


def test_a_refused_claim_is_inline_with_its_reason_and_asked_anew():
    async def test():
        async with scene() as s:
            async with s.session.table("t").subscribe() as live:
                stream = await s.server.accept()
                stream.answer = {HEADER: "inline the proof is wrong"}
                stream.schema()
                stream.snapshot([1])
                assert await ready(live) == [1]
                assert live.bodies == BodyStatus(BodyWay.INLINE, "the proof is wrong")
                assert live.stats.bodies.inline.count == 1
                assert str(live.bodies) == "inline (the proof is wrong)"
                # Once inline, always inline.
                detach(stream, placing(s.arena))
                stream.full(RowSet.parse("1"), [2])
                await until(lambda: live.state is State.RECONNECTING)
            async with s.session.table("t").subscribe():
                second = await s.server.accept()
                assert second.request_headers[HEADER].startswith(CHANNEL_IDS[1])
        assert s.arena.closed == 2

    run(test)


def test_a_server_that_says_nothing_is_inline():
    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            stream.schema()
            stream.snapshot([1])
            assert await ready(live) == [1]
            assert live.bodies == BodyStatus(BodyWay.INLINE, "the server did not answer the claim")

    run(test)


def test_after_a_lost_connection_the_memory_is_looked_for_anew():
    async def test():
        async with scene() as s:
            live_table = s.session.table("t").subscribe(reconnect=Backoff(first_seconds=0.0))
            async with live_table as live:
                stream = await s.server.accept()
                detach(stream, placing(s.arena))
                stream.schema()
                stream.snapshot([1])
                await live.wait_ready(60)
                assert s.arena.closed == 0
                stream.end(ConnectionLostError("gone"))
                second = await s.server.accept()
                assert second.request_headers[HEADER].startswith(CHANNEL_IDS[1])
                assert s.arena.closed == 1
                detach(second, placing(s.arena))
                second.schema()
                second.snapshot([2])
                await until(lambda: live.state is State.LIVE and xs(live) == [2])
                assert live.bodies.way is BodyWay.SHM

    run(test)
