"""One writer and many callers: numbers, order, cancelled calls, and calls that meet its end."""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest

import barrage
from barrage.client.writing import writer as writer_module
from barrage.errors import ConnectionLostError, ProducerFencedError, SubscriptionClosedError
from tests.unit.client.scripted import run, scripted_session, until
from tests.unit.client.writing.test_writer import AT_ONCE, Put, accepted, opened, rows


@pytest.fixture(autouse=True)
def room_for_one(monkeypatch):
    monkeypatch.setattr(writer_module, "PENDING_WRITES_MAX", 1)


async def serve(put: Put, count: int, position: int = -1) -> list[int]:
    """Acknowledge every batch that comes, one by one."""
    numbers = []
    for _ in range(count):
        numbers.append(await put.sequence())
        position = max(position, numbers[-1])
        put.answer(rows=1, step=1, sequence=position)
    return numbers


def test_calls_that_wait_for_room_get_numbers_of_their_own_in_their_order():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            calls = [asyncio.ensure_future(writer.write(rows(n))) for n in range(12)]
            assert await serve(put, 12) == list(range(12))
            assert await asyncio.gather(*calls) == list(range(12))
            await writer.close()

    run(test)


def test_a_large_write_stays_together_and_a_cancelled_one_is_not_sent():
    large = rows(*range(300_000))

    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            first = await writer.write(rows(1))
            waiting = [asyncio.ensure_future(writer.write(each)) for each in (large, rows(2))]
            given_up = asyncio.ensure_future(writer.write(large))
            last = asyncio.ensure_future(writer.write(rows(3)))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.wait([given_up])
            assert [await put.sequence(), writer.pending_count] == [first, 1]
            put.answer(rows=1, step=1, sequence=first)
            end = await waiting[0]
            assert writer.pending_count == end - first > 1
            numbers = await serve(put, end - first + 2)
            assert numbers == list(range(first + 1, end + 3))
            assert [await waiting[1], await last] == [end + 1, end + 2]
            await writer.close()

    run(test)


def test_a_flush_waits_for_what_was_written_before_it_and_no_longer():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            await writer.write(rows(0))
            flushing = asyncio.ensure_future(writer.flush())
            later = asyncio.ensure_future(writer.write(rows(1)))
            assert await serve(put, 1) == [0]
            await later
            assert await flushing == 1
            assert writer.pending_count == 1
            await writer.abandon()

    run(test)


@pytest.mark.parametrize("call", ["flush", "write"])
def test_who_waits_is_told_when_the_writer_ends(call):
    async def test():
        async with scripted_session() as (session, server):
            writer, _, _ = await opened(session, server)
            await writer.write(rows(0))
            work = writer.flush() if call == "flush" else writer.write(rows(1))
            waiting = asyncio.ensure_future(work)
            await asyncio.sleep(0)
            await writer.abandon()
            with pytest.raises(SubscriptionClosedError):
                await asyncio.wait_for(waiting, 60)

    run(test)


def test_a_session_that_closes_ends_a_writer_that_is_being_opened():
    async def test():
        async with scripted_session() as (session, server):

            async def open_it():
                return await session.writer("t", producer="feed")

            opening = asyncio.ensure_future(open_it())
            put = Put(await server.accept())
            await put.opening()
            await session.close()
            with pytest.raises(SubscriptionClosedError):
                await asyncio.wait_for(opening, 60)

    run(test)


def test_a_server_that_goes_away_while_a_writer_is_opened_is_told_at_once():
    async def test():
        async with scripted_session() as (session, server):
            # It still said what the table is, and takes no new call.
            server.failures = [ConnectionLostError("the server is shutting down")]
            with pytest.raises(ConnectionLostError, match="shutting down"):
                async with asyncio.timeout(60):
                    await session.writer("t", producer="feed")

    run(test)


def test_a_writer_names_its_epoch_when_it_comes_back_and_stays_away_once_it_is_fenced():
    async def test():
        async with scripted_session() as (session, server):

            async def open_it():
                return await session.writer("t", producer="feed", reconnect=AT_ONCE)

            opening = asyncio.ensure_future(open_it())
            put = Put(await server.accept())
            assert "epoch" not in await put.opening()
            put.answer(rows=0, sequence=None, epoch=17)
            writer = await opening
            await writer.write(rows(0))
            put.stream.end(ConnectionLostError("gone"))
            again, command = await accepted(server)
            assert command["epoch"] == 17
            again.stream.end(ProducerFencedError("feed"))
            with pytest.raises(ProducerFencedError, match="'feed' is fenced"):
                await writer.flush(60)
            with pytest.raises(ProducerFencedError):
                await writer.write(rows(1))
            await until(lambda: server._opened.empty())
            await writer.abandon()

    run(test)


def test_twelve_threads_write_two_mebibytes_at_a_time_and_all_of_it_arrives(monkeypatch):
    monkeypatch.setattr(writer_module, "PENDING_BYTES_MAX", 8 * 1024 * 1024)
    monkeypatch.setattr(writer_module, "PENDING_WRITES_MAX", 4096)
    values = pa.array(range(2 * 1024 * 1024 // 8), pa.int64())

    with barrage.Server() as server:
        table = server.create_table("t", {"x": "int64"})
        with barrage.connect(server.address) as session:
            with session.writer("t", producer="feed") as writer:

                def write():
                    for _ in range(5):
                        writer.write({"x": values})

                threads = [threading.Thread(target=write) for _ in range(12)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        assert len(table) == 12 * 5 * len(values)


def test_a_writer_whose_end_is_cancelled_half_way_is_waited_for_by_the_next_and_by_the_session():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            may_end, is_ending = asyncio.Event(), asyncio.Event()
            read = put.stream.read

            async def slow_to_end():
                try:
                    return await read()
                except asyncio.CancelledError:
                    is_ending.set()
                    await may_end.wait()
                    raise

            put.stream.read = slow_to_end
            put.answer(rows=0, sequence=None)
            await until(put.stream._to_client.empty)
            first = asyncio.ensure_future(writer.abandon())
            await is_ending.wait()
            first.cancel()
            await asyncio.wait([first])
            assert first.cancelled()
            later = [asyncio.ensure_future(end()) for end in (writer.abandon, session.close)]
            for _ in range(10):
                await asyncio.sleep(0)
            assert not any(each.done() for each in later)
            may_end.set()
            await asyncio.gather(*later)

    run(test)
