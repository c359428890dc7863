"""Writers that resend what was not acknowledged, against a scripted server."""

from __future__ import annotations

import asyncio
import json

import pyarrow as pa
import pytest

from barrage.client.connection.reconnect import Backoff
from barrage.client.writing.writer import PENDING_WRITES_MAX
from barrage.errors import (
    ConfigError,
    ConnectionLostError,
    RemoteProtocolError,
    RowError,
    SequenceError,
    SubscriptionClosedError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.transport.flight_messages import Descriptor, encode_put_result
from barrage.wire.flight_data import decode_flight_data
from tests.unit.client.scripted import PATIENCE_SECONDS, SCHEMA, cells, run, scripted_session, until

AT_ONCE = Backoff(first_seconds=0.0)


def rows(*numbers):
    return pa.table(list(cells(numbers)), schema=SCHEMA)


class Put:
    """The server's end of one DoPut."""

    def __init__(self, stream):
        self.stream = stream

    async def frame(self):
        frame = await asyncio.wait_for(self.stream._to_server.get(), PATIENCE_SECONDS)
        return decode_flight_data(frame)

    async def opening(self):
        """The command of the first frame."""
        return json.loads(Descriptor.decode((await self.frame()).descriptor).command)

    async def sequence(self):
        """The number of the next batch."""
        return json.loads(bytes((await self.frame()).metadata))["sequence"]

    def answer(self, **facts):
        self.stream.send([encode_put_result(json.dumps(facts).encode())])

    def is_quiet(self):
        return self.stream._to_server.empty()


async def accepted(server, position=None):
    put = Put(await server.accept())
    command = await put.opening()
    put.answer(rows=0, sequence=position)
    return put, command


async def opened(session, server, position=None, **arguments):
    """An open writer, its first stream, and the command that opened it."""
    arguments = {"producer": "feed", "reconnect": AT_ONCE, **arguments}

    async def open_it():
        return await session.writer("t", **arguments)

    opening = asyncio.ensure_future(open_it())
    put, command = await accepted(server, position)
    return await opening, put, command


def test_batches_are_numbered_from_where_the_producer_was():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, command = await opened(session, server, position=41, key="x")
            async with writer:
                assert command == {"table": "t", "mode": "upsert", "key": ["x"], "producer": "feed"}
                assert writer.position == 41
                assert await writer.write(rows(1, 2)) == 42
                assert await writer.write(rows(3)) == 43
                assert [await put.sequence(), await put.sequence()] == [42, 43]
                put.answer(rows=2, step=7, sequence=42)
                put.answer(rows=3, step=8, sequence=43)
                assert await writer.flush(60) == 8
                assert writer.position == 43
                assert writer.pending_count == 0
                assert writer.resends == 0

    run(test)


def test_what_was_not_acknowledged_is_sent_again_and_nothing_else():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            for number in range(4):
                await writer.write(rows(number))
                assert await put.sequence() == number
            put.answer(rows=1, step=1, sequence=0)
            await until(lambda: writer.position == 0)
            server.failures = [ConnectionLostError("still down")]
            put.stream.end(ConnectionLostError("gone"))
            # Batch 1 had arrived, its acknowledgement was lost.
            again, command = await accepted(server, position=1)
            assert command["sequence"] == 1
            assert [await again.sequence(), await again.sequence()] == [2, 3]
            assert writer.position == 1
            again.answer(rows=2, step=3, sequence=3)
            assert await writer.flush(60) == 3
            assert writer.resends == 2
            await writer.close()
            assert put.stream.is_cancelled
            assert again.stream.is_cancelled

    run(test)


def test_numbers_of_the_caller_skip_what_is_committed():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server, position=10)
            assert await writer.write(rows(1), sequence=9) == 9
            assert await writer.write(rows(1), sequence=10) == 10
            assert put.is_quiet()
            assert await writer.write(rows(1), sequence=15) == 15
            assert await put.sequence() == 15
            with pytest.raises(SequenceError, match="must grow"):
                await writer.write(rows(1), sequence=14)
            with pytest.raises(SequenceError, match="whole number"):
                await writer.write(rows(1), sequence=-1)
            await writer.abandon()

    run(test)


def test_other_columns_wait_for_a_stream_of_their_own():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            await writer.write(rows(1))
            await writer.write({"x": [2]})
            assert await put.sequence() == 0
            await until(lambda: put.stream.is_half_closed)
            put.answer(rows=1, step=1, sequence=0)
            put.stream.end()
            second, command = await accepted(server, position=0)
            assert command["sequence"] == 1
            assert await second.sequence() == 1
            second.answer(rows=1, step=2, sequence=1)
            await writer.close(5)

    run(test)


def test_refused_rows_end_the_writer():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            await writer.write(rows(1))
            put.stream.end(RowError("null key", column="x", row=0))
            with pytest.raises(RowError, match="null key"):
                await writer.flush(60)
            with pytest.raises(RowError):
                await writer.write(rows(2))
            with pytest.raises(RowError):
                await writer.close()

    run(test)


def test_a_server_without_producers_is_refused():
    async def test():
        async with scripted_session() as (session, server):

            async def open_it():
                return await session.writer("t", producer="feed")

            opening = asyncio.ensure_future(open_it())
            put = Put(await server.accept())
            put.answer(rows=0)
            with pytest.raises(RemoteProtocolError, match="producers"):
                await opening

    run(test)


@pytest.mark.parametrize("answer", [b"{", b"[]", b'{"sequence": "x"}', b'{"sequence": true}'])
def test_acknowledgements_that_cannot_be_read(answer):
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            put.stream.send([encode_put_result(answer)])
            await writer.write(rows(1))
            with pytest.raises(RemoteProtocolError):
                await writer.flush(60)
            await writer.abandon()

    run(test)


def test_a_table_that_is_not_there_is_made_by_the_first_rows():
    async def test():
        async with scripted_session() as (session, server):

            async def unary(*arguments, **more):
                raise TableNotFoundError("t")

            server.unary = unary
            async with session.writer("t", producer="feed", mode="append") as writer:
                assert writer.position is None
                await writer.write(rows(1))
                put, command = await accepted(server)
                assert command["sequence"] == 0
                assert await put.sequence() == 0
                put.answer(rows=1, step=1, sequence=0)

    run(test)


def test_numbers_that_somebody_else_used_are_not_taken_for_ours():
    async def test():
        async with scripted_session() as (session, server):

            async def unary(*arguments, **more):
                raise TableNotFoundError("t")

            server.unary = unary
            writer = await session.writer("t", producer="p")
            await writer.write(rows(1))
            put = Put(await server.accept())
            await put.opening()
            put.answer(rows=0, sequence=7)
            with pytest.raises(SequenceError, match="was not there when the writer was opened"):
                await writer.flush()
            assert put.is_quiet()
            await writer.abandon()

    run(test)


def test_a_writer_waits_while_too_much_is_pending():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            one = rows(1)
            for _ in range(PENDING_WRITES_MAX):
                await writer.write(one)
            waiting = asyncio.ensure_future(writer.write(one))
            for _ in range(100):
                await asyncio.sleep(0)
            assert not waiting.done()
            put.answer(rows=1, step=1, sequence=0)
            assert await waiting == PENDING_WRITES_MAX
            await writer.abandon()
            with pytest.raises(SubscriptionClosedError):
                await writer.write(one)

    run(test)


def test_a_large_write_is_cut_but_a_replacement_is_not():
    async def test():
        async with scripted_session() as (session, server):
            many = pa.table({"x": range(600_000), "s": ["some text"] * 600_000})
            writer, put, _ = await opened(session, server)
            last = await writer.write(many)
            assert last > 0
            assert [await put.sequence() for _ in range(last + 1)] == list(range(last + 1))
            await writer.abandon()
            writer, put, _ = await opened(session, server, mode="replace")
            assert await writer.write(many) == 0
            await writer.abandon()
            writer, put, _ = await opened(session, server)
            assert await writer.write(many, sequence=5) == 5
            assert await writer.write(many.slice(0, 0)) == 5
            await writer.abandon()

    run(test)


@pytest.mark.parametrize("arguments", [{"mode": "create"}, {"mode": "x"}, {"producer": ""}])
def test_wrong_wishes_are_refused(arguments):
    async def test():
        async with scripted_session() as (session, _):
            with pytest.raises(ConfigError):
                session.writer("t", **{"producer": "feed", **arguments})

    run(test)


def test_deephaven_servers_remember_no_producers():
    async def test():
        async with scripted_session() as (session, _):
            object.__setattr__(session.address, "is_deephaven", True)
            with pytest.raises(UnsupportedError):
                session.writer("t", producer="feed")

    run(test)


def test_a_session_that_closes_ends_its_writers():
    async def test():
        async with scripted_session() as (session, server):
            writer, _, _ = await opened(session, server)
            await writer.write(rows(1))
            await session.close()
            with pytest.raises(SubscriptionClosedError):
                await writer.write(rows(2))
            assert "feed" in repr(writer)

    run(test)
