"""One-shot snapshots whose bodies leave their stream, against a scripted server."""

from __future__ import annotations

import asyncio
import gc

import pytest

from barrage.client.tables import snapshot
from barrage.rowset import RowSet
from barrage.transport.flight_messages import Descriptor, Endpoint, FlightInfo
from barrage.wire.dissociated.negotiation import HEADER
from tests.unit.client.bodies.body_fakes import detach, placing, released, scene, sending
from tests.unit.client.scripted import SCHEMA, run, until

ROWS = 1 << 20
WAYS = {"auto": "shm", "ucx": "ucx"}


def large(server):
    """Tables of this server have many rows, as far as it says."""

    async def unary(method, request, *, timeout, table=None):
        server.infos = getattr(server, "infos", 0) + 1
        return FlightInfo(
            schema_message=SCHEMA.serialize().to_pybytes(),
            descriptor=Descriptor(path=(table or "",)),
            endpoints=(Endpoint(ticket=b""),),
            total_records=ROWS,
            total_bytes=-1,
            metadata=b"",
        ).encode()

    server.unary = unary


def begin(s, **arguments):
    return asyncio.get_running_loop().create_task(s.session.table("t").snapshot(**arguments))


async def claimed(s):
    stream = await s.server.accept()
    assert HEADER in stream.request_headers
    await stream.request()
    return stream


def test_a_large_snapshot_goes_through_shared_memory():
    async def test():
        async with scene() as s:
            large(s.server)
            progress = []
            work = begin(s, on_progress=progress.append)
            stream = await claimed(s)
            detach(stream, placing(s.arena))
            stream.schema()
            await until(lambda: stream.frames_read == 1)
            assert not stream.is_half_closed
            stream.snapshot(range(100))
            await until(lambda: stream.is_half_closed)
            stream.end()
            table = await work
            assert progress[-1] > 1200
            assert len(progress) == 2
            # Read where it is: nothing was copied.
            assert s.arena.copies == 0
            assert len(s.arena.lent) == 1
        s.arena.spoil()
        assert table["x"].to_pylist() == list(range(100))
        assert table["s"][99].as_py() == "s99"
        del table, work
        # The loop itself still has the finished task at hand.
        await asyncio.sleep(0)
        gc.collect()
        assert not s.arena.lent

    run(test)


def test_bodies_of_a_long_answer_are_given_back_on_the_way():
    async def test():
        async with scene() as s:
            large(s.server)
            s.server.answers = [s.server.answer_shm(window_bytes=1 << 10)]
            work = begin(s)
            stream = await claimed(s)
            detach(stream, placing(s.arena), batch_rows=100)
            frames = []
            stream.schema()
            send, stream.send = stream.send, frames.extend
            stream.full(RowSet.parse("0-299"), range(300), is_snapshot=True)
            assert len(frames) == 3
            send(frames[:2])
            numbers, _ = await released(stream, 2)
            assert len(set(numbers)) == s.arena.copies == 2
            assert not stream.is_half_closed
            send(frames[2:])
            await until(lambda: stream.is_half_closed)
            stream.end()
            assert (await work).num_rows == 300

    run(test)


@pytest.mark.parametrize("choice", ["auto", "ucx"])
def test_a_lost_body_repeats_the_snapshot_inline(choice):
    async def test():
        async with scene(choice) as s:
            large(s.server)
            work = begin(s, columns=["x", "s"])
            stream = await claimed(s)
            detach(stream, lambda _, frame: frame.message(b"x"), WAYS[choice])
            if choice == "ucx":
                s.ucx.connections[0].lose()
            stream.schema()
            stream.snapshot([1])
            second = await s.server.accept()
            assert stream.is_cancelled
            assert HEADER not in second.request_headers
            await until(lambda: second.is_half_closed)
            second.schema()
            second.snapshot([1, 2])
            second.end()
            assert (await work)["x"].to_pylist() == [1, 2]
            # And the next one is inline at once.
            work = begin(s, columns=["x"])
            third = await s.server.accept()
            assert HEADER not in third.request_headers
            third.schema()
            third.snapshot([3], columns=(0, 1))
            third.end()
            assert (await work)["x"].to_pylist() == [3]

    run(test)


def test_a_refused_claim_is_answered_inline_and_half_closed_at_once():
    async def test():
        async with scene() as s:
            large(s.server)
            work = begin(s)
            stream = await claimed(s)
            stream.answer = {HEADER: "inline unknown"}
            stream.schema()
            await until(lambda: stream.is_half_closed)
            stream.snapshot([1])
            stream.end()
            assert (await work).num_rows == 1

    run(test)


def test_small_snapshots_ask_for_no_channel_but_take_one_that_is_ready():
    async def test():
        async with scene() as s:
            work = begin(s, rows=(0, 10))
            stream = await s.server.accept()
            assert HEADER not in stream.request_headers
            stream.schema()
            stream.snapshot([1])
            stream.end()
            await work
            assert s.server.offers == []
            (await s.session._connection.body_channel()).take().accepted()
            work = begin(s, rows=(0, 10))
            stream = await claimed(s)
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([1])
            await until(lambda: stream.is_half_closed)
            stream.end()
            assert (await work)["x"].to_pylist() == [1]
            assert len(s.server.offers) == 1

    run(test)


def test_an_answer_without_rows_is_not_waited_for_for_ever(monkeypatch):
    monkeypatch.setattr(snapshot, "IDLE_SECONDS", 0.02)

    async def test():
        async with scene() as s:
            large(s.server)
            work = begin(s)
            stream = await claimed(s)
            detach(stream, placing(s.arena))
            stream.schema()
            await until_half_closed(stream)
            stream.end()
            assert (await work).num_rows == 0

    run(test)


async def until_half_closed(stream):
    for _ in range(500):
        if stream.is_half_closed:
            return
        await asyncio.sleep(0.005)
    raise AssertionError


def test_no_channel_no_questions():
    async def test():
        async with scene("inline") as s:
            large(s.server)
            work = begin(s, columns=["x"])
            stream = await s.server.accept()
            stream.schema()
            stream.snapshot([1])
            stream.end()
            await work
            # The schema was asked for, nothing about the size.
            assert s.server.infos == 1
            assert s.server.offers == []

    run(test)


def test_a_snapshot_over_a_connection():
    async def test():
        async with scene("ucx") as s:
            large(s.server)
            work = begin(s)
            stream = await claimed(s)
            detach(stream, sending(s.ucx.connections[0]), "ucx")
            stream.schema()
            stream.snapshot(range(50))
            await until(lambda: stream.is_half_closed)
            stream.end()
            assert (await work)["x"].to_pylist() == list(range(50))
            await until(lambda: s.ucx.connections[0].is_closed)

    run(test)


def test_a_cancelled_snapshot_lets_go():
    async def test():
        async with scene() as s:
            large(s.server)
            work = begin(s)
            stream = await claimed(s)
            detach(stream, placing(s.arena))
            stream.schema()
            await until(lambda: stream.frames_read == 1)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert stream.is_cancelled
        assert s.arena.closed == 1

    run(test)
