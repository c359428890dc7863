"""Bodies that come by themselves, over a connection of their own."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from barrage.client.bodies.bodies import BodyStatus
from barrage.client.subscriptions.state import State
from barrage.limits import DEFAULT_LIMITS
from barrage.rowset import RowSet
from barrage.wire.dissociated.negotiation import HEADER
from barrage.wire.dissociated.reassembly import Reassembly
from barrage.wire.dissociated.ways import BodyWay
from tests.unit.client.bodies.body_fakes import (
    CHANNEL_IDS,
    NEVER,
    detach,
    lost_channel,
    ready,
    released,
    scene,
    sending,
    xs,
)
from tests.unit.client.scripted import run, until

SHORT = dataclasses.replace(DEFAULT_LIMITS, body_deadline_ns=50_000_000)


def test_bodies_over_a_connection_in_any_order():
    async def test():
        async with scene("ucx") as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            await stream.request()
            (connection,) = s.ucx.connections
            assert s.ucx.asked == [("ucx://h:1?want_data=1", b"t")]
            assert stream.request_headers[HEADER] == f"{CHANNEL_IDS[0]} -"
            bodies = []

            def keep(sequence, frame):
                bodies.append((sequence, b"".join(frame.parts)))
                return frame.message(b"")

            detach(stream, keep, "ucx")
            stream.schema()
            stream.snapshot([1, 2])
            stream.full(RowSet.parse("2"), [3])
            stream.full(RowSet.parse("3"), [4])
            await until(lambda: stream.frames_read == 2)
            for sequence, body in reversed(bodies):
                connection.send(sequence, body)
            await until(lambda: live.stats.updates == 3)
            assert xs(live) == [1, 2, 3, 4]
            assert live.bodies == BodyStatus(BodyWay.UCX)
            assert live.stats.bodies.ucx.count == 3
            # Number 0 is the schema.
            assert (await released(stream, 3))[0] == [1, 2, 3]
        assert connection.is_closed
        assert s.ucx.closed == 1

    run(test)


def test_numbers_roll_over():
    async def test():
        async with scene("ucx") as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            connection = s.ucx.connections[0]
            last = 2**32 - 1
            live._stream._outside._sequence = last
            live._stream._outside._parts = Reassembly(DEFAULT_LIMITS, first=last)

            def deliver(sequence, frame):
                connection.send((last + sequence) % 2**32, b"".join(frame.parts))
                return frame.message(b"")

            detach(stream, deliver, "ucx")
            stream.schema()
            stream.snapshot([1])
            stream.full(RowSet.parse("1"), [2])
            await until(lambda: live.stats.updates == 2)
            assert xs(live) == [1, 2]

    run(test)


def test_a_body_that_does_not_come_goes_on_inline_at_once():
    async def test():
        async with scene("ucx", limits=SHORT) as s:
            async with s.session.table("t").subscribe(reconnect=NEVER) as live:
                states, errors = [], []
                live.on_state(states.append)
                live.on_error(errors.append)
                stream = await s.server.accept()
                detach(stream, sending(s.ucx.connections[0]), "ucx")
                stream.schema()
                stream.snapshot([1])
                assert await ready(live) == [1]
                detach(stream, lambda _, frame: frame.message(b""), "ucx")
                stream.full(RowSet.parse("1"), [2])
                await lost_channel(s, live, stream, states, errors)
                assert "did not come within 0.05 seconds" in live.bodies.reason

    run(test)


@pytest.mark.parametrize("fault", ["lost", "twice", "length"])
def test_a_lost_connection_for_bodies_goes_on_inline_at_once(fault):
    async def test():
        async with scene("ucx") as s, s.session.table("t").subscribe(reconnect=NEVER) as live:
            states, errors = [], []
            live.on_state(states.append)
            live.on_error(errors.append)
            stream = await s.server.accept()
            (connection,) = s.ucx.connections
            detach(stream, sending(connection), "ucx")
            stream.schema()
            stream.snapshot([1])
            assert await ready(live) == [1]
            if fault == "lost":
                connection.lose()
                # As long as no body is missing nothing is wrong.
                await asyncio.sleep(0.01)
                assert live.state is State.LIVE
            elif fault == "twice":
                connection.send(9, b"x")
                connection.send(9, b"y")
            else:
                connection.send(2, b"x")
            detach(stream, lambda _, frame: frame.message(b""), "ucx")
            stream.full(RowSet.parse("1"), [2])
            await lost_channel(s, live, stream, states, errors)

    run(test)


def test_a_table_is_closed_while_a_body_is_awaited():
    """Nothing was lost: the next stream has a connection, too."""

    async def test():
        async with scene("ucx") as s:
            live = await s.session.table("t").subscribe()
            stream = await s.server.accept()
            detach(stream, lambda _, frame: frame.message(b""), "ucx")
            stream.schema()
            stream.snapshot([1])
            await until(lambda: stream.frames_read == 2)
            await asyncio.sleep(0.01)
            await live.close()
            assert live.state is State.CLOSED
            assert live.error is None
            assert stream.is_cancelled
            async with s.session.table("t").subscribe():
                assert HEADER in (await s.server.accept()).request_headers

    run(test)


@pytest.mark.parametrize("when", ["told", "opening", "opened"])
def test_a_table_is_closed_while_it_goes_on_inline(when):
    async def test():
        async with scene("ucx") as s:
            live = await s.session.table("t").subscribe(reconnect=NEVER)
            stream = await s.server.accept()
            closing = []

            def close(_):
                closing.append(asyncio.get_running_loop().create_task(live.close()))

            if when == "told":
                live.on_error(close)
            detach(stream, sending(s.ucx.connections[0]), "ucx")
            stream.schema()
            stream.snapshot([1])
            assert await ready(live) == [1]
            s.ucx.connections[0].lose()
            detach(stream, lambda _, frame: frame.message(b""), "ucx")
            stream.full(RowSet.parse("1"), [2])
            await until(lambda: live.state is not State.LIVE)
            if when == "opened":
                (await s.server.accept()).schema()
                await asyncio.sleep(0.01)
            await live.close()
            await asyncio.gather(*closing)
            assert live.state is State.CLOSED
            assert xs(live) == [1]
        assert [each.closings for each in s.ucx.connections] == [1]

    run(test)


def test_a_server_may_send_ahead_more_than_the_limits_of_its_client():
    """Its window is its own; what is ahead of the reader waits where it came in."""

    async def test():
        limits = dataclasses.replace(DEFAULT_LIMITS, body_window_bytes=100, body_window_count=2)
        async with scene("ucx", limits=limits) as s:
            async with s.session.table("t").subscribe(reconnect=NEVER) as live:
                stream = await s.server.accept()
                detach(stream, sending(s.ucx.connections[0]), "ucx")
                queue, stream._to_client = stream._to_client, asyncio.Queue()
                stream.schema()
                stream.snapshot([0])
                for key in range(1, 20):
                    stream.full(RowSet.of_span(key, key + 1), [key])
                held, stream._to_client = stream._to_client, queue
                # Every body is there before any message is.
                await asyncio.sleep(0.01)
                while not held.empty():
                    queue.put_nowait(held.get_nowait())
                await until(lambda: live.stats.updates == 20)
                assert xs(live) == list(range(20))
                assert live.bodies == BodyStatus(BodyWay.UCX)

    run(test)


def test_each_stream_has_a_connection_of_its_own():
    async def test():
        async with scene("ucx") as s:
            async with (
                s.session.table("t").subscribe() as one,
                s.session.table("t").subscribe() as two,
            ):
                streams = [await s.server.accept(), await s.server.accept()]
                assert len(s.ucx.connections) == 2
                lives = {0: one, 1: two}
                for index, stream in enumerate(streams):
                    detach(stream, sending(s.ucx.connections[index]), "ucx")
                    stream.schema()
                    stream.snapshot([index])
                await one.wait_ready(60)
                await two.wait_ready(60)
                assert {xs(lives[0])[0], xs(lives[1])[0]} == {0, 1}
        assert all(connection.is_closed for connection in s.ucx.connections)

    run(test)


def test_a_refused_connection_for_bodies_is_closed():
    async def test():
        async with scene("ucx") as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            stream.answer = {HEADER: "inline the channel has no connection"}
            stream.schema()
            stream.snapshot([1])
            await live.wait_ready(60)
            await until(lambda: s.ucx.connections[0].is_closed)

    run(test)
