"""However a call ends, what its stream had out is given back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from barrage.limits import DEFAULT_LIMITS
from barrage.server.exchange.exchange_stream import ExchangeStream
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.revision import WireRevision


class StubbornContext:
    """A call whose read takes its time to be cancelled."""

    def __init__(self) -> None:
        self.is_reading = asyncio.Event()
        self.may_end = asyncio.Event()

    async def read(self) -> bytes:
        self.is_reading.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.may_end.wait()
        return b""

    async def write(self, message: bytes) -> None: ...

    async def send_initial_metadata(self, headers) -> None: ...


class FakeHub:
    def __init__(self) -> None:
        self.closed: list[ExchangeStream] = []

    def close(self, stream: ExchangeStream) -> None:
        self.closed.append(stream)


class FakeBodies:
    way = BodyWay.SHM

    def __init__(self) -> None:
        self.close_count = 0

    async def write(self, write, frame) -> None:
        await write(frame)

    def close(self) -> None:
        self.close_count += 1


def test_a_call_that_is_cancelled_twice_gives_its_bodies_back():
    async def work() -> int:
        context, hub, bodies = StubbornContext(), FakeHub(), FakeBodies()
        stream = ExchangeStream(
            hub,
            1,
            context,
            session=None,
            revision=WireRevision.R1_0_0,
            sends_source_time=False,
            resume=None,
            limits=DEFAULT_LIMITS,
            bodies=bodies,
        )
        assert stream.way is BodyWay.SHM
        call = asyncio.create_task(stream.run())
        await context.is_reading.wait()
        call.cancel()
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        context.may_end.set()
        with suppress(asyncio.CancelledError):
            await call
        assert hub.closed == [stream]
        return bodies.close_count

    assert asyncio.run(work()) == 1
