"""Reads that gRPC has under way are not cut short."""

from __future__ import annotations

import asyncio

import pytest

from barrage.server.access.call_guard import CallGuard, SessionUse
from barrage.server.access.method_table import MethodEntry, service_handler
from barrage.transport.over_grpc.grpc_channel import GrpcStream
from barrage.transport.whole_reads import WholeReads
from tests.helpers.logging_in import Chain


class SlowCall:
    """The context of a call whose next message comes when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[bytes]] = []
        self.outcomes: list[object] = []
        self.write = self.send_initial_metadata = self.abort = self.peer = None
        self.invocation_metadata = tuple
        self.add_done_callback = lambda callback: None
        self.cancel = lambda: None

    def answer(self, number: int, message: bytes) -> None:
        """The message that a read waits for, if it still does."""
        if not self.waiting[number].done():
            self.waiting[number].set_result(message)

    async def read(self) -> bytes:
        waiting = asyncio.get_running_loop().create_future()
        self.waiting.append(waiting)
        try:
            message = await waiting
        except asyncio.CancelledError:
            self.outcomes.append("cut short")
            raise
        self.outcomes.append(message)
        return message


async def let_run() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class _Channel:
    authorization = _authorization = None

    def _raise_if_closed(self, call) -> None:
        """It is open."""


class _Details:
    method = "/service/Talk"


def test_a_call_that_is_cancelled_leaves_its_read_alone():
    """gRPC keeps 80 bytes for each that is cut short, and writes the message to where Python has
    put something else."""

    async def talk(_requests, context, _session):
        await context.read()

    async def scene() -> list[object]:
        guard = CallGuard(Chain().authenticator, None)
        methods = {"Talk": MethodEntry("bidi", talk, SessionUse.NONE)}
        handlers = service_handler("service", methods, guard)
        context = SlowCall()
        call = asyncio.ensure_future(handlers.service(_Details()).stream_stream(iter(()), context))
        await let_run()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        context.answer(0, b"the end")
        await let_run()
        return context.outcomes

    assert asyncio.run(scene()) == [b"the end"]


def test_a_client_that_stops_reading_leaves_its_read_alone():
    """The same for streams of clients."""

    async def scene() -> list[object]:
        call = SlowCall()
        stream = GrpcStream(_Channel(), call, None)
        reading = asyncio.ensure_future(stream.read())
        await let_run()
        stream.cancel()
        reading.cancel()
        await asyncio.wait([reading])
        assert reading.cancelled()
        call.answer(0, b"the end")
        await let_run()
        return call.outcomes

    assert asyncio.run(scene()) == [b"the end"]


def test_a_message_for_a_reader_that_is_gone_is_the_next_ones():
    async def scene() -> None:
        context = SlowCall()
        reads = WholeReads(context.read)
        first = asyncio.ensure_future(reads.read())
        await let_run()
        # Both in one turn of the loop: the message is there when the reader hears that it is to go.
        context.answer(0, b"one")
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        assert await reads.read() == b"one"
        assert len(context.waiting) == 1
        second = asyncio.ensure_future(reads.read())
        await let_run()
        context.answer(1, b"two")
        assert await second == b"two"

    asyncio.run(scene())


def test_a_read_that_fails_fails_once():
    async def scene() -> None:
        context = SlowCall()
        reads = WholeReads(context.read)
        failing = asyncio.ensure_future(reads.read())
        await let_run()
        context.waiting[0].set_exception(ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await failing
        after = asyncio.ensure_future(reads.read())
        await let_run()
        context.answer(1, b"more")
        assert await after == b"more"

    asyncio.run(scene())
