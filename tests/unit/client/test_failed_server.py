"""A server that says that it must be restarted: calls that wait are told, and all goes on later."""

from __future__ import annotations

import asyncio

import pytest

from barrage.client.connection.reconnect import Backoff
from barrage.client.subscriptions.state import State
from barrage.errors import (
    MUST_RESTART,
    ConnectionLostError,
    EngineDiedError,
    ServerFailedError,
    StatusCode,
    WorkerDiedError,
)
from barrage.transport.status import error_from_status
from tests.unit.client.scripted import run, scripted_session, until
from tests.unit.client.writing.test_writer import accepted, opened, rows

AT_ONCE = Backoff(first_seconds=0.0)
FAILED = ServerFailedError(f"x has died; {MUST_RESTART}")


def test_what_a_dead_engine_says_is_known_to_the_client():
    told = EngineDiedError(WorkerDiedError("barrage-engine", "of something"))
    found = error_from_status(told.status_code, str(told))
    assert type(found) is ServerFailedError
    assert str(found) == f"barrage-engine has died: of something; {MUST_RESTART}"
    assert type(error_from_status(StatusCode.UNAVAILABLE, "gone")) is ConnectionLostError


def test_who_waits_for_a_table_is_told_and_may_wait_again_after_the_restart():
    async def test():
        async with scripted_session() as (session, server):
            slow = Backoff(first_seconds=3600)
            live = await session.table("t").subscribe(reconnect=slow)
            waiting = [asyncio.ensure_future(live.wait_ready()) for _ in range(2)]
            (await server.accept()).end(FAILED)
            for each in waiting:
                with pytest.raises(ServerFailedError):
                    await each
            with pytest.raises(ServerFailedError):
                await live.wait_ready()
            assert live.state is State.RECONNECTING
            assert live.error is FAILED
            await live.close()
            live = await session.table("t").subscribe(reconnect=AT_ONCE)
            (await server.accept()).end(FAILED)
            stream = await server.accept()
            stream.schema()
            waiting = asyncio.ensure_future(live.wait_ready())
            stream.snapshot([1])
            await waiting
            assert live.error is None

    run(test)


def test_a_writer_keeps_what_a_failed_server_did_not_take_and_sends_it_after_the_restart():
    async def test():
        async with scripted_session() as (session, server):
            writer, put, _ = await opened(session, server)
            await writer.write(rows(1))
            flushing = asyncio.ensure_future(writer.flush())
            assert await put.sequence() == 0
            put.stream.end(FAILED)
            with pytest.raises(ServerFailedError):
                await flushing
            assert writer.pending_count == 1
            put, _ = await accepted(server)
            await until(lambda: writer.resends == 1)
            flushing = asyncio.ensure_future(writer.flush())
            assert await put.sequence() == 0
            put.answer(rows=1, step=3, sequence=0)
            assert await flushing == 3
            await writer.close()

    run(test)


def test_who_waits_for_room_of_a_failed_server_is_told(monkeypatch):
    monkeypatch.setattr("barrage.client.writing.writer.PENDING_WRITES_MAX", 1)

    async def test():
        async with scripted_session() as (session, server):
            slow = Backoff(first_seconds=3600)
            writer, put, _ = await opened(session, server, reconnect=slow)
            await writer.write(rows(1))
            waiting = asyncio.ensure_future(writer.write(rows(2)))
            put.stream.end(FAILED)
            with pytest.raises(ServerFailedError):
                await waiting
            assert writer.pending_count == 1
            await writer.abandon()

    run(test)
