"""Who asks for every step by itself gets no two of them in one update, as long as it takes them."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from barrage.client.session import aconnect
from barrage.limits import Limits
from barrage.server import AsyncServer, ServerConfig
from barrage.wire.messages import SubscriptionOptions
from tests.helpers.serving import HOST
from tests.unit.client.scripted import run

SLOW = SubscriptionOptions(min_update_interval_ms=60_000)


async def steps_of(stream, until: int) -> list[tuple[int, int]]:
    """First and last steps of the updates up to a step."""
    found: list[tuple[int, int]] = []
    while not found or found[-1][1] < until:
        message, _ = await stream.next()
        found.append((message.first_step, message.last_step))
    return found


def test_every_step_comes_by_itself_whatever_interval_is_asked_for() -> None:
    async def test() -> None:
        config = ServerConfig(host=HOST, journal="memory", cycle_rest_ms_max=0)
        async with AsyncServer(config=config) as server, aconnect(server.uri) as session:
            table = await server.create_table("t", {"n": "int64"})
            async with session.follow("t", SLOW) as stream:
                beginning = await stream.begin()
                assert beginning.outcome is None
                assert beginning.epoch is not None
                assert (await stream.next())[1]
                writes = [asyncio.create_task(table.add({"n": [n]})) for n in range(100)]
                steps = sorted(set(await asyncio.gather(*writes)))
                told = await steps_of(stream, steps[-1])
                assert told == [(step, step) for step in steps]

    run(test)


def test_who_does_not_take_them_gets_them_merged_and_loses_none() -> None:
    async def test() -> None:
        limits = Limits(each_step_outbox_updates_max=2, inproc_window_bytes=1)
        # A socket has a buffer, and takes more than is read.
        config = ServerConfig(host="inproc://", journal="memory", limits=limits)
        async with (
            AsyncServer(config=config) as server,
            aconnect(server.uri, limits=limits) as session,
        ):
            table = await server.create_table("t", {"n": "int64"})
            async with session.follow("t", SLOW) as stream:
                await stream.begin()
                await stream.next()
                steps = [await table.add({"n": [n]}) for n in range(60)]
                told = await steps_of(stream, steps[-1])
                assert len(told) < len(steps)
                assert told[0][0] == steps[0]
                for (_, last), (first, _) in pairwise(told):
                    assert first == last + 1

    run(test)


def test_a_stream_goes_on_from_a_cursor_step_by_step() -> None:
    async def test() -> None:
        async with (
            AsyncServer(config=ServerConfig(host=HOST, journal="memory")) as server,
            aconnect(server.uri) as session,
        ):
            table = await server.create_table("t", {"n": "int64"})
            await table.add({"n": [0]})
            async with session.table("t").subscribe(interval_ms=10) as live:
                await live.wait_ready(30)
                cursor = live.cursor
            steps = [await table.add({"n": [n]}) for n in range(1, 6)]
            async with session.follow("t", SLOW, cursor) as stream:
                beginning = await stream.begin()
                assert (beginning.is_resumed, beginning.missed) == (True, 5)
                assert await steps_of(stream, steps[-1]) == [(step, step) for step in steps]

    run(test)
