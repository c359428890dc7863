"""Updates that were posted to the transport and wait there, when their stream ends."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from barrage.errors import SlowConsumerError, TableFailedError
from barrage.limits import DEFAULT_LIMITS
from barrage.server.exchange.exchange_stream import ExchangeStream
from barrage.wire.revision import WireRevision
from tests.unit.client.scripted import run


class FullCall:
    """A call whose client has no window: what is posted waits until it is taken."""

    def __init__(self) -> None:
        self.waiting: deque = deque()

    def post(self, message, on_taken) -> bool:
        self.waiting.append((message, on_taken))
        return False

    def take(self) -> None:
        _, on_taken = self.waiting.popleft()
        on_taken()

    async def send_initial_metadata(self, metadata) -> None:
        pass

    async def read(self):
        await asyncio.get_running_loop().create_future()

    async def write(self, message) -> None:
        raise AssertionError("nothing was left to be written")


class QuietHub:
    def __init__(self) -> None:
        self.released: list[int] = []

    def release_soon(self, stream) -> None:
        self.released.append(stream.stream_id)

    def close(self, stream) -> None:
        pass


async def posted(count: int):
    """A stream of which so many updates wait."""
    call, hub = FullCall(), QuietHub()
    stream = ExchangeStream(
        hub,
        7,
        call,
        session=None,
        revision=WireRevision.R1_0_0,
        sends_source_time=False,
        resume=None,
        limits=DEFAULT_LIMITS,
    )
    running = asyncio.create_task(stream.run())
    stream._is_accepted.set()
    await turns()
    assert stream._is_idle
    is_held = [stream.enqueue(b"frame") for _ in range(count)]
    assert is_held.index(True) + 1 == DEFAULT_LIMITS.exchange_outbox_updates_max
    assert is_held.count(True) == 1
    assert len(call.waiting) == count
    return call, hub, stream, running


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_what_was_posted_before_an_error_is_taken_before_the_call_ends() -> None:
    async def test() -> None:
        call, hub, stream, running = await posted(3)
        stream.finish(TableFailedError("the table failed"), is_flushed=True)
        for _ in range(3):
            await turns()
            assert not running.done()
            call.take()
        with pytest.raises(TableFailedError, match="the table failed"):
            await running
        assert hub.released == [7]
        assert (stream._updates_pending, stream._bytes_pending) == (0, 0)

    run(test)


def test_who_is_too_slow_is_not_waited_for() -> None:
    async def test() -> None:
        _, _, stream, running = await posted(2)
        stream.finish(TableFailedError("the table failed"), is_flushed=True)
        await turns()
        stream.finish(SlowConsumerError(stalled_ns=2, stall_ns_max=1), is_flushed=False)
        with pytest.raises(TableFailedError, match="the table failed"):
            await running

    run(test)
