"""Streams whose bodies leave them, against a scripted server: nobody can tell the rows apart."""

from __future__ import annotations

import asyncio
import gc

import pytest

from barrage.client.bodies import body_releases
from barrage.client.bodies.bodies import BodyCount, BodyStatus
from barrage.client.subscriptions import subscription
from barrage.client.subscriptions.state import State
from barrage.errors import SchemaError
from barrage.rowset import RowSet
from barrage.wire.dissociated.negotiation import HEADER, Claim
from barrage.wire.dissociated.ways import BodyWay
from tests.unit.client.bodies.body_fakes import (
    CHANNEL_IDS,
    PROOF,
    detach,
    placing,
    quiet_until_freed,
    ready,
    released,
    scene,
    sending,
    xs,
)
from tests.unit.client.scripted import run, until


@pytest.fixture
def lent_for_long(monkeypatch):
    """What is lent is not copied because a machine is slow."""
    monkeypatch.setattr(subscription, "LENT_SECONDS", 1000.0)


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
                await live.wait_ready(60)
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
    monkeypatch.setattr(subscription, "LENT_SECONDS", 0.5)

    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            await stream.request()
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([1, 2])
            await live.wait_ready(60)
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


@pytest.mark.usefixtures("lent_for_long")
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


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_table_that_ends_within_an_update_keeps_nothing_of_the_server(is_broken):
    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            detach(stream, placing(s.arena), batch_rows=10)
            stream.schema()
            queue, stream._to_client = stream._to_client, asyncio.Queue()
            stream.snapshot(range(20))
            first = stream._to_client.get_nowait()
            assert not stream._to_client.empty()
            stream._to_client = queue
            queue.put_nowait(first)
            await until(lambda: len(s.arena.lent) == 1)
            if is_broken:
                stream.end(SchemaError("gone"))
                await until(lambda: live.state is State.FAILED)
            else:
                await live.close()
            assert quiet_until_freed(s.arena)
            assert live.bodies == BodyStatus(BodyWay.SHM)
            assert isinstance(live.error, SchemaError) is is_broken

    run(test)


def test_numbers_are_given_back_in_batches(monkeypatch):
    """However long it takes until there are some."""
    monkeypatch.setattr(body_releases, "WAIT_NS", 500_000_000)

    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            stream = await s.server.accept()
            await stream.request()
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot([0])
            await live.wait_ready(60)
            for n in range(1, 64):
                stream.full(RowSet.parse(str(n)), [n])
            numbers, messages = await released(stream, 64)
            assert sorted(set(numbers)) == sorted(numbers)
            assert messages <= 8

    run(test)


@pytest.mark.usefixtures("lent_for_long")
def test_bodies_are_copied_once_half_of_the_window_is_lent():
    async def test():
        async with scene() as s, s.session.table("t").subscribe() as live:
            s.server.answers = [s.server.answer_shm(window_bytes=1 << 13)]
            stream = await s.server.accept()
            detach(stream, placing(s.arena))
            stream.schema()
            stream.snapshot(range(100))
            await live.wait_ready(60)
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


def test_a_claim_that_was_taken_is_good_for_later_streams():
    async def test():
        async with scene() as s:
            for _ in range(2):
                async with s.session.table("t").subscribe() as live:
                    stream = await s.server.accept()
                    assert stream.request_headers[HEADER].startswith(CHANNEL_IDS[0])
                    detach(stream, placing(s.arena))
                    stream.schema()
                    stream.snapshot([1])
                    assert await ready(live) == [1]
                s.clock.advance(3600 * 10**9)
            assert len(s.server.offers) == 1

    run(test)


def test_what_is_let_go_is_lent_again_at_once():
    """Before the loop has had time for anything else."""

    async def test():
        async with scene() as s:
            s.server.answers = [s.server.answer_shm(window_bytes=20_000)]
            connection = s.session._connection
            stream = connection.open_bodies("t", await connection.body_channel())
            peer = await s.server.accept()
            detach(peer, placing(s.arena))
            peer.schema()
            for key in range(3):
                peer.full(RowSet.of_span(key, key + 500), range(500), is_snapshot=True)
            await stream.read()
            for _ in range(3):
                frame = await stream.read()
                assert 5000 < len(frame.body) < 10_000
                del frame
            assert s.arena.copies == 0
            stream.cancel()
            await asyncio.sleep(0)

    run(test)


@pytest.mark.parametrize("end", ["half-closed", "cancelled"])
@pytest.mark.parametrize("way", ["shm", "ucx"])
def test_nothing_is_given_back_on_a_stream_that_is_not_written_any_more(way, end):
    async def test():
        async with scene(way) as s:
            connection = s.session._connection
            stream = connection.open_bodies("t", await connection.body_channel())
            peer = await s.server.accept()
            deliver = placing(s.arena) if way == "shm" else sending(s.ucx.connections[0])
            detach(peer, deliver, way)
            peer.schema()
            peer.snapshot([1])
            await stream.read()
            await stream.read()
            if end == "cancelled":
                stream.cancel()
            else:
                await stream.half_close()
                assert peer.is_half_closed
            await asyncio.sleep(0.05)
            assert peer._to_server.empty()
            stream.cancel()

    run(test)


@pytest.mark.usefixtures("lent_for_long")
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
