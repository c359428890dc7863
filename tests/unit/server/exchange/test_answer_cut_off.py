"""A snapshot whose client has half-closed, and what happens before all of it is written."""

from __future__ import annotations

import asyncio
from collections import deque

import pytest

from barrage.errors import (
    AuthenticationError,
    CycleTooLongError,
    LimitExceededError,
    TransportUnavailableError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.proto.client_exchange import ClientExchange
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.exchange.exchange_messages import EncodedUpdate
from barrage.server.exchange.exchange_stream import ExchangeStream
from barrage.wire.messages import SnapshotOptions, SubscriptionOptions
from barrage.wire.revision import WireRevision
from tests.unit.client.scripted import run

SESSION_OVER = AuthenticationError("the session was closed")


class HalfClosedCall:
    """A call whose client has sent its request and no more, and takes messages when it may."""

    def __init__(self, *, is_subscription: bool = False) -> None:
        exchange = ClientExchange(revision=WireRevision.R1_0_0, limits=DEFAULT_LIMITS)
        request = (
            exchange.subscribe(b"s/t", columns=None, viewport=None, options=SubscriptionOptions())
            if is_subscription
            else exchange.take_snapshot(
                b"s/t", columns=None, viewport=None, options=SnapshotOptions()
            )
        )
        self.requests = deque([request] if is_subscription else [request, END_OF_STREAM])
        self.written: list[bytes] = []
        self.may_write = asyncio.Event()
        self.error: Exception | None = None

    async def send_initial_metadata(self, metadata) -> None:
        pass

    async def read(self):
        if not self.requests:
            await asyncio.Event().wait()
        return self.requests.popleft()

    async def write(self, message) -> None:
        await self.may_write.wait()
        if self.error is not None:
            raise self.error
        self.written.append(message)


class Session:
    """One that ends when it is told to."""

    types = None

    def on_close(self, callback):
        self.end = callback
        return lambda: None


class Encoder:
    def schema_frame(self) -> bytes:
        return b"schema"


class Hub:
    """Answers with a schema alone: not even that is written yet."""

    async def snapshot(self, ticket, session, options, **how):
        return Encoder(), ()

    async def plans(self, encoder, messages):
        return []

    async def subscribe(self, stream, event):
        """The answer is on its way, and what comes after it overtakes it."""
        stream.enqueue(EncodedUpdate.of((7,), (b"schema",)))
        stream.enqueue(EncodedUpdate.of((7,), (b"a delta",)))
        self.answer = asyncio.get_running_loop().create_future()
        return await self.answer

    def close(self, stream) -> None:
        pass

    def release_soon(self, stream) -> None:
        pass


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def half_closed(hub=None, *, is_subscription=False):
    """A stream that has read all there is, and writes."""
    call, session = HalfClosedCall(is_subscription=is_subscription), Session()
    stream = ExchangeStream(
        hub or Hub(),
        7,
        call,
        session=session,
        revision=WireRevision.R1_0_0,
        sends_source_time=False,
        resume=None,
        limits=DEFAULT_LIMITS,
    )
    running = asyncio.create_task(stream.run())
    await turns()
    assert not call.requests
    assert not running.done()
    return call, session, stream, running


def test_the_end_of_the_session_is_told() -> None:
    async def test() -> None:
        call, session, _, running = await half_closed()
        session.end(SESSION_OVER)
        with pytest.raises(AuthenticationError, match="the session was closed"):
            await running
        assert not call.written

    run(test)


def test_a_failure_in_writing_is_told() -> None:
    async def test() -> None:
        call, _, _, running = await half_closed()
        call.error = LimitExceededError("bytes", actual=2, maximum=1, unit="bytes")
        call.may_write.set()
        with pytest.raises(LimitExceededError):
            await running

    run(test)


def test_what_lets_the_answer_be_written_changes_nothing() -> None:
    async def test() -> None:
        call, session, _, running = await half_closed()
        session.end(TransportUnavailableError("the server stops"))
        call.may_write.set()
        await running
        assert call.written == [b"schema"]

    run(test)


def test_an_error_after_the_end_changes_nothing() -> None:
    async def test() -> None:
        call, _, stream, running = await half_closed()
        call.may_write.set()
        await stream._ended
        stream.finish(SESSION_OVER, is_flushed=False)
        await running

    run(test)


@pytest.mark.parametrize("is_answered", [False, True])
def test_an_end_that_overtakes_the_headers_lets_nothing_be_written(is_answered) -> None:
    """Without them a client that was resumed would take the first update for a mistake."""

    async def test() -> None:
        hub = Hub()
        call, _, stream, running = await half_closed(hub, is_subscription=True)
        call.may_write.set()
        if is_answered:
            hub.answer.set_result((("barrage-resumed", "yes"),))
            await turns()
        stream.finish(CycleTooLongError(), is_flushed=True)
        with pytest.raises(CycleTooLongError):
            await running
        assert call.written == ([b"schema", b"a delta"] if is_answered else [])

    run(test)
