"""Workers of UCX streams, over connections without a library."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from barrage.errors import BarrageError, WorkerDiedError
from barrage.wire.dissociated.ranges import BodyRange, encode_ranges
from barrage.wire.dissociated.tags import BodyType, encode_tag
from tests.end_to_end.deaths.killing import HANG_SECONDS, Killing, kills
from tests.helpers.fake_ucx import FakeChannel
from tests.helpers.ucx_streams import (
    Peer,
    Service,
    messages_of,
    quiet,
    receive_from,
    sample,
    take,
    until,
)


def played(play: Any) -> None:
    asyncio.run(asyncio.wait_for(play, HANG_SECONDS))


async def arrives(service: Service) -> None:
    """Another client gets its table."""
    table = sample(100)
    offered = service.offer(table)
    taken = await take(offered, service.connect(), service.connect())
    assert (await taken.table()).equals(table)


@kills("barrage-ucx-send")
def send(killing: Killing) -> None:
    async def play() -> None:
        async with Service() as service:
            offered = service.offer(sample(20_000))
            metadata, bodies = service.connect(), service.connect()
            killing.newborn()
            taken = await take(offered, metadata, bodies)
            with pytest.raises(BarrageError):
                await taken.table()
            await until(lambda: not service.tables.running_count)
            await arrives(service)

    played(play())


@kills("barrage-ucx-read")
def read(killing: Killing) -> None:
    class Endless:
        async def read(self, *_: object) -> None:
            await asyncio.Event().wait()

    async def play() -> None:
        client, server = FakeChannel.pair()
        peer = Peer(server, messages_of(sample(500).drop_columns("word")))
        taken = receive_from(client, reader=Endless())
        killing.newborn()
        peer.header(0)
        peer.header(1)
        where = encode_ranges([BodyRange(1, 0)])
        quiet(server.send_tagged(encode_tag(BodyType.RANGES, 1), where))
        with pytest.raises(WorkerDiedError):
            await taken.table()
        await taken.close()

    played(play())


@kills("barrage-ucx-close")
def close(killing: Killing) -> None:
    async def play() -> None:
        async with Service() as service:
            closing = FakeChannel.close

            async def slowly(channel: FakeChannel) -> None:
                await asyncio.sleep(0)
                await closing(channel)

            killing.patches.setattr(FakeChannel, "close", slowly)
            killing.newborn()
            service.connect().cut()
            while not killing.deaths:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await arrives(service)

    played(play())
