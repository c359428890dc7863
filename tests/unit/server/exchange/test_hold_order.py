"""A stream is held after it was released, never the other way round: else its outbox has no end."""

from __future__ import annotations

import asyncio

from barrage.limits import Limits
from barrage.server.exchange.exchange_driver import ExchangeHub
from barrage.server.exchange.exchange_messages import EncodedUpdate, Hold, Release
from barrage.wire.revision import WireRevision

OUTBOX_UPDATES = 2


class Engine:
    """What the engine is told, and whether it takes the stream for held by it."""

    def __init__(self) -> None:
        self.told = []
        self.is_held = False

    def tell(self, notice) -> None:
        self.told.append(type(notice))
        if isinstance(notice, Hold | Release):
            self.is_held = isinstance(notice, Hold)

    def events_taken(self) -> None:
        pass

    def close(self) -> None:
        pass


class Call:
    """A client that takes a frame for each time its gate is opened."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.written = asyncio.Event()

    def invocation_metadata(self):
        return ()

    async def read(self):
        await asyncio.Event().wait()

    async def send_initial_metadata(self, _metadata) -> None:
        pass

    async def write(self, _frame) -> None:
        await self.gate.wait()
        self.gate.clear()
        self.written.set()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_hold_is_told_after_the_release_before_it() -> None:
    async def scene() -> tuple[list[type], int]:
        engine, call = Engine(), Call()
        limits = Limits(exchange_outbox_updates_max=OUTBOX_UPDATES)
        hub = ExchangeHub(engine, None, limits=limits)
        stream = hub.open(call, None, revision=WireRevision.DRAFT_2020, sends_source_time=False)
        running = asyncio.ensure_future(stream.run())
        stream._is_accepted.set()
        update = EncodedUpdate.of((stream.stream_id,), (b"x",))
        await turns(10)
        hub.hand_over([update])
        hub.hand_over([update])
        await turns(10)
        assert engine.told == [Hold]
        # A hand-over that the engine made before it saw the hold comes in the turn of the write.
        call.gate.set()
        hub.hand_over([update])
        await call.written.wait()
        await turns(10)
        for _ in range(100):
            if engine.is_held:
                break
            hub.hand_over([update])
            await turns(1)
        told, pending = list(engine.told), stream._updates_pending
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return told, pending

    told, pending = asyncio.run(scene())
    assert told[-1] is Hold
    assert pending <= OUTBOX_UPDATES + 2
