"""Streams whose bodies leave them, against a scripted server: nobody can tell the rows apart, and
whatever fails goes on inline."""

from __future__ import annotations

import asyncio
import dataclasses
import gc

import pytest

from barrage.client import subscription
from barrage.client.bodies import BodyCount, BodyStatus
from barrage.client.reconnect import Backoff
from barrage.client.state import State
from barrage.errors import BodyChannelError, ConnectionLostError
from barrage.limits import DEFAULT_LIMITS
from barrage.rowset import RowSet
from barrage.wire.dissociated.negotiation import HEADER, Claim
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import with_inline_reason
from tests.unit.client.body_fakes import (
    CHANNEL_IDS,
    PROOF,
    detach,
    placing,
    released,
    scene,
    sending,
)
from tests.unit.client.scripted import run, until

NEVER = Backoff(first_seconds=1000.0, seconds_max=1000.0)
"""A test that reaches a delay runs into its limit."""
SHORT = dataclasses.replace(DEFAULT_LIMITS, body_deadline_ns=50_000_000)


def xs(live):
    return live.to_arrow()["x"].to_pylist()


async def ready(live):
    await live.wait_ready(5)
    return xs(live)


def quiet_until_freed(arena):
    gc.collect()
    return not arena.lent


# --- shared memory --------------------------------------------------------------------------------


def test_rows_from_shared_memory():
    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            await stream.request()
            assert (
                stream.request_headers[HEADER]
                == Claim(channel_id=CHANNEL_IDS[0], proof=PROOF).header()
            )
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([1, 2, 3])
            assert await ready(live) == [1, 2, 3]
            assert live.bodies == BodyStatus(BodyWay.SHM)
            stream.full(RowSet.parse("3"), [4], modified=(RowSet.parse("0"), [11]))
            await until(lambda: live.stats.updates == 2)
            # The second update has a batch of additions and one of modifications.
            stats = live.stats.bodies
            assert stats.shm.count == 3
            assert stats.shm.bytes < live.stats.bytes
            assert stats.inline == BodyCount(0, 0)
            numbers, messages = await released(stream, 3)
            assert len(set(numbers)) == 3
            assert messages < 3
            # The replica keeps nothing of the server's.
            assert quiet_until_freed(s.arena)
            s.arena.spoil()
            assert live.to_arrow().to_pydict() == {
                "x": [11, 2, 3, 4], "s": ["s1", "s2", "s3", "s4"],
            }  # fmt: skip

    run(test)


def test_what_a_consumer_holds_is_valid_after_everything_is_gone():
    async def test():
        async with scene() as s:
            async with s.session.table("t").subscribe() as live:
                stream = await s.server.accept()
                detach(stream, placing(s.arena))
                stream.schema()
                stream.snapshot(range(10))
                await live.wait_ready(5)
                updates = live.updates()
                await anext(updates)
                stream.full(RowSet.parse("10"), [10], modified=(RowSet.parse("1-2"), [-1, -2]))
                update = await anext(updates)
                shown = live.to_arrow()
                # Additions and new values are where the server put them; the rows shown are ours.
                assert len(s.arena.lent) == 2
        s.arena.spoil()
        assert update.modified["x"].to_pylist() == [-1, -2]
        assert update.added.to_pylist() == [{"x": 10, "s": "s10"}]
        assert shown["s"].to_pylist() == [f"s{n}" for n in range(11)]
        del update, shown, updates
        # The loop still runs, the stream does not: nobody is told, nothing is raised.
        await until(lambda: quiet_until_freed(s.arena))

    run(test)


def test_rows_nobody_looks_at_are_copied_after_a_while(monkeypatch):
    monkeypatch.setattr(subscription, "LENT_SECONDS", 0.05)

    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            await stream.request()
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([1, 2])
            await live.wait_ready(5)
            # The first state was made into an update, though nobody took it.
            assert len((await released(stream, 1))[0]) == 1
            for round in range(2):
                stream.full(RowSet.parse(str(round + 2)), [round])
                await until(lambda: live.stats.updates == round + 2)  # noqa: B023
                assert len(s.arena.lent) == 1
                assert len((await released(stream, 1))[0]) == 1
            s.arena.spoil()
            assert xs(live) == [1, 2, 0, 1]

    run(test)


def test_a_closed_table_keeps_nothing_of_the_server():
    async def test():
        async with scene() as s:
            async with s.session.table("t").subscribe() as live:
                stream = await s.server.accept()
                detach(stream, placing(s.arena))
                stream.schema()
                stream.snapshot([1, 2])
                stream.full(RowSet.parse("2"), [3])
                await until(lambda: live.stats.updates == 2)
                assert len(s.arena.lent) == 1
            assert quiet_until_freed(s.arena)
            s.arena.spoil()
            assert xs(live) == [1, 2, 3]

    run(test)


def test_numbers_are_given_back_in_batches():
    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            await stream.request()
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([0])
            await live.wait_ready(5)
            for n in range(1, 64):
                stream.full(RowSet.parse(str(n)), [n])
            numbers, messages = await released(stream, 64)
            assert sorted(set(numbers)) == sorted(numbers)
            assert messages <= 5

    run(test)


def test_bodies_are_copied_once_half_of_the_window_is_lent():
    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            s.server.answers = [s.server.answer_shm(window_bytes=1 << 13)]
            stream = await s.server.accept()
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot(range(100))
            await live.wait_ready(5)
            updates = live.updates()
            held = [await anext(updates)]
            # 800 bytes of new values each: five fit into half of the window.
            for n in range(12):
                stream.full(modified=(RowSet.parse("0-99"), [n] * 100))
                held.append(await anext(updates))
            assert sum(s.arena.lent.values()) <= 1 << 12
            assert len(s.arena.lent) == 5
            assert s.arena.copies >= 7
            s.arena.spoil()
            for n, update in enumerate(held[1:]):
                assert update.modified["x"].to_pylist() == [n] * 100
            held.clear()
            del update
            gc.collect()
            stream.full(modified=(RowSet.parse("0-99"), [77] * 100))
            held.append(await anext(updates))
            assert len(s.arena.lent) == 1

    run(test)


def test_two_streams_share_one_mapping_and_one_budget():
    async def test():
        async with scene() as s:
            s.server.answers = [s.server.answer_shm(window_bytes=1 << 12)]
            async with (
                s.session.table("t").subscribe() as one,
                s.session.table("t").subscribe() as two,
            ):
                streams = [await s.server.accept(), await s.server.accept()]
                headers = {stream.request_headers[HEADER] for stream in streams}
                assert len(headers) == len(s.server.offers) == len(s.memory.opened) == 1
                held = []
                for stream, live in zip(streams, (one, two), strict=True):
                    detach(stream, placing(s.arena))
                    stream.schema()
                    stream.snapshot(range(100))
                    assert await ready(live) == list(range(100))
                    updates = live.updates()
                    await anext(updates)
                    for n in range(2):
                        stream.full(modified=(RowSet.parse("0-99"), [n] * 100))
                        held.append(await anext(updates))
                assert len(s.arena.lent) == 2
                assert [u.modified["x"][0].as_py() for u in held] == [0, 1, 0, 1]
            assert s.arena.closed == 0
        assert s.arena.closed == 1

    run(test)


def test_an_inline_body_on_a_stream_with_a_channel():
    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            inline = stream.encoder
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([1])
            outside, stream.encoder = stream.encoder, inline
            stream.full(RowSet.parse("1"), [2])
            stream.encoder = outside
            stream.full(RowSet.parse("2"), [3])
            await until(lambda: live.stats.updates == 3)
            assert xs(live) == [1, 2, 3]
            assert (live.stats.bodies.shm.count, live.stats.bodies.inline.count) == (2, 1)

    run(test)


# --- what goes wrong ------------------------------------------------------------------------------


async def lost_channel(s, live, stream, states, errors):
    """The stream has lost a body: the next one comes at once and inline."""
    second = await s.server.accept()
    assert HEADER not in second.request_headers
    assert stream.is_cancelled
    second.schema()
    second.snapshot([5, 6])
    await until(lambda: live.state is State.LIVE)
    assert xs(live) == [5, 6]
    assert states[-4:] == [
        State.RECONNECTING, State.SNAPSHOT, State.RESNAPSHOTTED, State.LIVE,
    ]  # fmt: skip
    assert isinstance(errors[-1], BodyChannelError)
    assert live.bodies.way is BodyWay.INLINE
    assert live.bodies.reason == str(errors[-1])
    assert live.stats.reconnects == 1
    return second


@pytest.mark.parametrize("fault", ["generation", "short", "length"])
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
                await until(lambda: s.ucx.connections[0].is_closed)
            # What was lent before is still found, copied and given back.
            live.to_arrow()
            await until(lambda: quiet_until_freed(s.arena))
            assert await released(stream, 1) == ([0 if way == "shm" else 1], 1)
            # A server that does not keep its word is not followed.
            detach(stream, deliver, way)
            stream.full(RowSet.parse("2"), [3])
            await until(lambda: live.state is State.RECONNECTING)
            assert isinstance(live.error, BodyChannelError)

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
                await live.wait_ready(5)
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


# --- bodies that come by themselves ---------------------------------------------------------------


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
                await one.wait_ready(5)
                await two.wait_ready(5)
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
            await live.wait_ready(5)
            await until(lambda: s.ucx.connections[0].is_closed)

    run(test)
