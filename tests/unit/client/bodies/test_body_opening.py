"""Between the wish for a stream and its first message: what is chosen or closed meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from barrage.client.bodies.body_routes import CLOSED
from barrage.client.bodies.body_stream import BodyStream
from barrage.errors import TransportError
from barrage.rowset import RowSet
from barrage.wire.dissociated.negotiation import HEADER
from tests.unit.client.bodies.body_fakes import detach, placing, scene
from tests.unit.client.scripted import run, until


def test_changes_while_the_way_is_looked_for_are_not_lost():
    async def test():
        async with scene() as s:
            asked = asyncio.Event()
            answer = asyncio.Event()
            identity = s.memory.identity
            s.memory.identity = lambda: (asked.set(), identity())[1]
            results = s.server.results

            async def late(*arguments, **more):
                await answer.wait()
                async for result in results(*arguments, **more):
                    yield result

            s.server.results = late
            async with s.session.table("t").subscribe(viewport=(0, 1)) as live:
                await asked.wait()
                await live.set_viewport((5, 7))
                answer.set()
                stream = await s.server.accept()
                assert (await stream.request()).viewport == RowSet.parse("5-6")

    run(test)


def test_columns_chosen_while_the_way_is_looked_for_are_not_lost():
    async def test():
        async with scene() as s:
            answer = asyncio.Event()
            results = s.server.results

            async def late(*arguments, **more):
                await answer.wait()
                async for result in results(*arguments, **more):
                    yield result

            s.server.results = late
            async with s.session.table("t").subscribe(viewport=(0, 1)) as live:
                await asyncio.sleep(0)
                await live.set_columns(["s"])
                answer.set()
                stream = await s.server.accept()
                assert (await stream.request()).columns is None
                stream.schema()
                assert (await stream.request()).columns == (1,)

    run(test)


def test_a_stream_that_cannot_be_opened_gives_its_connection_back():
    async def test():
        async with scene("ucx") as s:
            connection = s.session._connection
            with await connection.body_channel() as channel:
                assert channel.is_there
            await until(lambda: s.ucx.connections[0].is_closed)
            with await connection.body_channel() as channel:
                stream = connection.open_bodies("t", channel)
            await asyncio.sleep(0)
            assert not s.ucx.connections[1].is_closed
            stream.cancel()

    run(test)


def test_a_session_that_is_closed_while_the_way_is_looked_for():
    async def test():
        async with scene() as s:
            answer = asyncio.Event()
            results = s.server.results

            async def late(*arguments, **more):
                await answer.wait()
                async for result in results(*arguments, **more):
                    yield result

            s.server.results = late
            routes = s.session._connection.bodies
            asking = asyncio.get_running_loop().create_task(routes.channel())
            await asyncio.sleep(0.01)
            await routes.close()
            answer.set()
            assert not (await asking).is_there
            assert s.arena.closed == 1
            assert not (await routes.channel()).is_there
            assert len(s.server.offers) == 1

    run(test)


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_that_is_closed_while_a_connection_is_made(fails):
    """The context of UCX is closed after everything that was made of it."""

    async def test():
        async with scene("ucx") as s:
            connected = asyncio.Event()
            connect = s.ucx.connect

            async def late(*arguments):
                await connected.wait()
                return await connect(*arguments)

            s.ucx.connect = late
            s.ucx.failure = TransportError("nobody there") if fails else None
            routes = s.session._connection.bodies
            asking = asyncio.get_running_loop().create_task(routes.channel())
            another = asyncio.get_running_loop().create_task(routes.channel())
            await until(lambda: len(s.server.offers) == 2)
            await asyncio.sleep(0.01)
            closing = asyncio.get_running_loop().create_task(routes.close())
            await asyncio.sleep(0.01)
            another.cancel()
            await asyncio.sleep(0.01)
            assert not closing.done()
            assert s.ucx.closed == 0
            connected.set()
            await closing
            offered = await asking
            assert not offered.is_there
            assert offered.reason == ("nobody there" if fails else CLOSED)
            assert [each.is_closed for each in s.ucx.connections] == ([] if fails else [True])
            assert s.ucx.closed == 1

    run(test)


def test_a_connection_that_nobody_waits_for_any_more():
    async def test():
        async with scene("ucx") as s:
            never = asyncio.Event()

            async def connect(*_):
                await never.wait()

            s.ucx.connect = connect
            routes = s.session._connection.bodies
            asking = asyncio.get_running_loop().create_task(routes.channel())
            await until(lambda: len(s.server.offers) == 1)
            await asyncio.sleep(0.01)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await routes.close()

    run(test)


def test_a_stream_tells_what_a_message_has_with_its_body():
    async def test():
        async with scene() as s:
            connection = s.session._connection
            channel = await connection.body_channel()
            stream = connection.open_bodies("t", channel)
            peer = await s.server.accept()
            detach(peer, placing(s.arena))
            peer.schema()
            peer.snapshot(range(1000))
            assert (await stream.read()).body is None
            frame = await stream.read()
            assert len(frame.body) > 8000
            assert stream.frame_bytes > len(frame.body)
            assert frame.body_reference is None
            assert stream.has_lent
            assert stream.lent_memory().holds_address(frame.body.address)
            assert (await stream.headers())[HEADER] == "shm"
            del frame
            assert not stream.has_lent
            stream.cancel()
            stream.cancel()

    run(test)


def test_the_end_of_a_stream_with_a_channel_is_an_end():
    async def test():
        async with scene() as s:
            connection = s.session._connection
            stream = connection.open_bodies("t", await connection.body_channel())
            assert isinstance(stream, BodyStream)
            peer = await s.server.accept()
            detach(peer, placing(s.arena))
            peer.schema()
            peer.end()
            await stream.read()
            assert await stream.read() is None
            stream.cancel()

    run(test)
