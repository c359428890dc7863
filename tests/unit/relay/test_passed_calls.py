"""One DoPut call that is passed on: its flow, its ends, and what its first message says."""

from __future__ import annotations

import asyncio
import dataclasses

import grpc.aio
import pytest

from barrage.errors import (
    ConnectionLostError,
    LimitExceededError,
    RowError,
    TransportError,
    UnsupportedError,
)
from barrage.limits import Limits
from barrage.relay.passed_on import PassedOnWrites
from barrage.relay.patterns import TablePatterns
from barrage.server.flight.writes_elsewhere import WrittenTable, acted_on, written_table
from barrage.transport.flight_messages import Descriptor
from tests.unit.relay.scene import run, until


class FakeStream:
    """The owner's end, which takes a message when it is told to."""

    def __init__(self):
        self.written = []
        self.room = asyncio.Semaphore(0)
        self.answers: asyncio.Queue = asyncio.Queue()
        self.is_half_closed = self.is_cancelled = False

    async def write(self, message):
        await self.room.acquire()
        self.written.append(message)

    async def read(self):
        answer = await self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def half_close(self):
        self.is_half_closed = True
        self.answers.put_nowait(None)

    def cancel(self):
        self.is_cancelled = True


class FakeContext:
    """The client's end."""

    def __init__(self):
        self.messages: asyncio.Queue = asyncio.Queue()
        self.reads = 0
        self.answers = []

    async def read(self):
        message = await self.messages.get()
        self.reads += 1
        return message

    async def write(self, message):
        self.answers.append(message)


class FakeLink:
    def __init__(self, stream):
        self.stream = stream
        self.listing = None

    def writing(self, _name):
        return self

    def open_put(self, _name):
        return self.stream

    def look_now(self):
        pass

    def lost(self, name):
        return TransportError(f"{name} lost")


def passing(stream):
    async def never_own(_name):
        return False

    async def live_at_once(_name):
        return None

    return PassedOnWrites(
        FakeLink(stream),
        TablePatterns.parse("*"),
        limits=Limits(),
        is_read_only=False,
        is_own=never_own,
        until_live=live_at_once,
    )


def begun(stream, context, *, has_producer=False):
    table = WrittenTable(name="t", has_producer=has_producer)
    return asyncio.create_task(passing(stream).put(table, b"first", context))


async def idle():
    for _ in range(50):
        await asyncio.sleep(0)


END = grpc.aio.EOF


def test_nothing_is_read_from_a_client_that_the_owner_has_not_taken():
    async def test():
        stream, context = FakeStream(), FakeContext()
        for number in range(10):
            context.messages.put_nowait(b"%d" % number)
        context.messages.put_nowait(END)
        call = begun(stream, context)
        for taken in range(10):
            await idle()
            # The message that waits for room, and none behind it.
            assert (len(stream.written), context.reads) == (taken, taken)
            stream.room.release()
        stream.room.release()
        await call
        assert stream.written == [b"first", *(b"%d" % number for number in range(10))]
        assert stream.is_half_closed

    run(test)


def test_answers_come_while_the_client_still_sends():
    async def test():
        stream, context = FakeStream(), FakeContext()
        call = begun(stream, context)
        for number in range(3):
            stream.answers.put_nowait(b"%d" % number)
        await until(lambda: len(context.answers) == 3)
        stream.answers.put_nowait(RowError("batch 3: no"))
        with pytest.raises(RowError, match="batch 3"):
            await call
        assert stream.is_cancelled
        assert not stream.is_half_closed

    run(test)


def test_half_an_upload_of_a_client_that_is_gone_does_not_look_like_a_whole_one():
    async def test():
        stream, context = FakeStream(), FakeContext()
        stream.room.release()
        call = begun(stream, context)
        await until(lambda: stream.written == [b"first"])
        # As a transport does it: reads end, and in the same moment the call is cancelled.
        context.messages.put_nowait(END)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert stream.is_cancelled
        assert not stream.is_half_closed

    run(test)


@pytest.mark.parametrize("is_early", [False, True])
def test_a_stopping_relay_answers_what_it_has_passed_on_of_a_producer(is_early):
    async def test():
        stream, context = FakeStream(), FakeContext()
        writes = passing(stream)
        reason = TransportError("the server is shutting down; connect again")
        if is_early:
            writes.begin_stop(reason)
        else:
            stream.room.release()
        table = WrittenTable(name="t", has_producer=True)
        call = asyncio.create_task(writes.put(table, b"first", context))
        if not is_early:
            await until(lambda: stream.written == [b"first"])
            stream.answers.put_nowait(b"answer")
            writes.begin_stop(reason)
        with pytest.raises(TransportError, match="shutting down"):
            await call
        assert context.answers == ([] if is_early else [b"answer"])
        assert stream.is_half_closed

    run(test)


def test_who_is_lost_beneath_a_call_is_lost_for_the_caller():
    async def test():
        for error in (
            UnsupportedError("no"),
            ConnectionLostError("gone"),
        ):
            stream, context = FakeStream(), FakeContext()
            stream.answers.put_nowait(error)
            with pytest.raises(type(error)):
                await begun(stream, context)
        full = dataclasses.replace(Limits(), relayed_writes_max=0)
        writes = passing(FakeStream())
        writes._limits = full
        with pytest.raises(LimitExceededError):
            await writes.put(WrittenTable(name="t"), b"", FakeContext())

    run(test)


@pytest.mark.parametrize(
    ("descriptor", "table"),
    [
        (Descriptor(path=("t",)), WrittenTable(name="t")),
        (Descriptor(path=("scope", "t")), WrittenTable(name="t")),
        (Descriptor(command=b"s/t"), WrittenTable(name="t")),
        (Descriptor(command=b'{"table": "t"}'), WrittenTable(name="t")),
        (
            Descriptor(command=b'{"table": "t", "producer": "p"}'),
            WrittenTable(name="t", has_producer=True),
        ),
        (
            Descriptor(command=b'{"table": "t", "mode": "create"}'),
            WrittenTable(name="t", is_made=True),
        ),
        (
            Descriptor(command=b'{"stage": {"table": "t"}}'),
            WrittenTable(name="t", is_staged=True),
        ),
        (Descriptor(command=b'{"stage": {"table": 7}}'), None),
        (Descriptor(command=b'{"table": 7}'), None),
        (Descriptor(command=b"{"), None),
        (Descriptor(command=b"[" * 100_000), None),
        (Descriptor(path=("export", "3")), None),
    ],
)
def test_the_table_of_an_upload(descriptor, table):
    assert written_table(descriptor.encode(), Limits()) == table


@pytest.mark.parametrize(
    ("body", "table"),
    [
        (b'{"table": "t", "more": 1}', WrittenTable(name="t")),
        (b'{"table": "t", "create": true}', WrittenTable(name="t", is_made=True)),
        (b'{"table": 1}', None),
        (b"[]", None),
        (b"", None),
        (b"\xff", None),
    ],
)
def test_the_table_of_an_action(body, table):
    assert acted_on(body) == table
