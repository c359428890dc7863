"""Callbacks that never return, or that end what calls them: they hold up nobody else."""

from __future__ import annotations

import asyncio
import threading

import pytest

import barrage
from barrage.client.connection.reconnect import Backoff
from barrage.client.subscriptions import callback_calls
from barrage.client.subscriptions.state import State
from barrage.client.synchronous import callbacks
from barrage.errors import (
    ConnectionLostError,
    SubscriptionClosedError,
    TableFailedError,
    WorkerDiedError,
)
from barrage.rowset import RowSet
from tests.helpers.serving import HOST
from tests.unit.client.scripted import run, scripted_session, until

HANG_SECONDS = 180
AT_ONCE = Backoff(first_seconds=0.0)


@pytest.fixture
def impatient(monkeypatch):
    """Callbacks that do not return are not waited for."""
    monkeypatch.setattr(callback_calls, "SECONDS_MAX", 0.001)
    monkeypatch.setattr(callbacks, "JOIN_TIMEOUT_SECONDS", 0.001)


async def snapshot(server, numbers=(0,)):
    stream = await server.accept()
    stream.schema()
    stream.snapshot(list(numbers))
    return stream


@pytest.mark.parametrize("kind", ["state", "error"])
def test_a_callback_that_never_returns_holds_up_neither_its_table_nor_others(impatient, kind):
    async def test():
        async with scripted_session() as (session, server):
            never, states, errors = asyncio.Event(), [], []

            async def hang(_):
                await never.wait()

            live = await session.table("t").subscribe(reconnect=AT_ONCE)
            (live.on_state if kind == "state" else live.on_error)(hang)
            live.on_state(states.append)
            live.on_error(errors.append)
            stream = await snapshot(server)
            await live.wait_ready(HANG_SECONDS)
            stream.end(ConnectionLostError("cut"))
            stream = await snapshot(server, [5])
            await until(lambda: live.state is State.LIVE and live.stats.updates == 2)
            stream.full(RowSet.parse("1"), [6])
            await until(lambda: len(live) == 2)
            assert State.RECONNECTING in states
            assert [str(error) for error in errors] == ["cut"]
            other = await session.table("u").subscribe()
            await snapshot(server)
            await other.wait_ready(HANG_SECONDS)
            await live.close()
            assert states[-1] is State.CLOSED
        assert server.is_closed

    run(test)


def test_calls_of_one_callback_come_in_order_and_never_two_at_once():
    async def test():
        async with scripted_session() as (session, server):
            told, returned, may_return = [], [], asyncio.Event()

            async def slow(state):
                told.append(state)
                await may_return.wait()
                returned.append(state)

            live = await session.table("t").subscribe(reconnect=AT_ONCE)
            live.on_state(slow)
            await snapshot(server)
            await live.wait_ready(HANG_SECONDS)
            assert told == [State.SNAPSHOT]
            may_return.set()
            await live.close()
        assert told == returned == [State.SNAPSHOT, State.LIVE, State.CLOSED]

    run(test)


def test_a_callback_that_ignores_being_cancelled_does_not_keep_its_session_open(impatient):
    async def test():
        may_return = asyncio.Event()

        async def stubborn(_):
            while not may_return.is_set():
                try:
                    await may_return.wait()
                except asyncio.CancelledError:
                    continue

        async with scripted_session() as (session, server):
            live = await session.table("t").subscribe()
            live.on_state(stubborn)
            await server.accept()
            await until(lambda: live.state is State.SNAPSHOT)
        assert server.is_closed
        may_return.set()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    run(test)


def test_what_a_table_failed_of_is_told_although_a_callback_of_states_closes_the_session():
    async def test():
        async with scripted_session() as (session, server):
            errors, told = [], asyncio.Event()

            async def leave(state):
                if state is State.FAILED:
                    await session.close()
                    told.set()

            async def note(error):
                await asyncio.sleep(0)
                errors.append(error)

            live = await session.table("t").subscribe()
            live.on_state(leave)
            live.on_error(note)
            stream = await server.accept()
            stream.schema()
            stream.end(TableFailedError("gone"))
            await told.wait()
            assert [str(error) for error in errors] == ["gone"]
            assert server.is_closed

    run(test)


def test_callbacks_of_updates_may_close_the_session_and_go_on_afterwards():
    async def test():
        async with scripted_session() as (session, server):
            left = []

            async def leave(_):
                await session.close()
                left.append(server.is_closed)

            live = await session.table("t").subscribe()
            live.on_update(leave)
            live.on_update(leave)
            await snapshot(server)
            await until(lambda: len(left) == 2)
            assert left == [True, True]

    run(test)


def test_a_table_whose_close_is_cancelled_is_closed_and_nobody_waits_for_it():
    async def test():
        async with scripted_session() as (session, server):
            live = await session.table("t").subscribe()
            await server.accept()
            waiting = asyncio.ensure_future(live.wait_ready())
            closing = asyncio.ensure_future(live.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing, waiting])
            assert live.state is State.CLOSED
            assert isinstance(waiting.exception(), SubscriptionClosedError)
            await live.close()

    run(test)


def test_a_callback_that_would_end_the_loop_is_an_error_like_others(caplog):
    async def test():
        async with scripted_session() as (session, server):
            errors = []

            async def leave_later(_):
                raise SystemExit

            def leave(_):
                raise SystemExit

            live = await session.table("t").subscribe()
            live.on_error(errors.append)
            live.on_state(leave)
            live.on_state(leave_later)
            live.on_update(leave_later)
            await snapshot(server)
            await live.wait_ready(HANG_SECONDS)
            await until(lambda: len(errors) == 5)
            assert {type(error) for error in errors} == {WorkerDiedError}
            assert live.state is State.LIVE

    run(test)


def test_threads_of_callbacks_that_never_return_hold_up_nobody(impatient, caplog):
    never = threading.Event()
    states, errors = [], []
    has_told = threading.Event()

    def hang(_):
        assert never.wait(HANG_SECONDS)

    def note(state):
        states.append(state)
        if state is State.LIVE:
            raise ValueError("mine")

    with barrage.Server(host=HOST) as server, barrage.connect(server.uri) as session:
        server.create_table("t", {"x": "int64"})
        live = session.table("t").subscribe(
            on_state=note,
            on_error=lambda error: (errors.append(error), has_told.set()),
            on_update=hang,
        )
        live.on_state(hang)
        live.on_error(hang)
        live.wait_ready(HANG_SECONDS)
        assert has_told.wait(HANG_SECONDS)
        other = session.table("t").subscribe()
        other.wait_ready(HANG_SECONDS)
    assert session.is_closed
    never.set()
    for thread in live._callbacks.begin_close() + live._callbacks.close_handlers():
        thread.join(HANG_SECONDS)
    assert states[-1] is State.CLOSED
    assert [str(error) for error in errors] == ["mine"]
    assert "have not returned" in caplog.text


def test_a_thread_of_callbacks_outlives_an_exit_in_one_of_them(caplog):
    told, errors = [], []
    has_both = threading.Event()

    def leave(state):
        told.append(state)
        if len(told) == 2:
            has_both.set()
        raise SystemExit

    with barrage.Server(host=HOST) as server, barrage.connect(server.uri) as session:
        server.create_table("t", {"x": "int64"})
        session.table("t").subscribe(on_state=leave, on_error=errors.append)
        assert has_both.wait(HANG_SECONDS)
    assert told[:2] == [State.SNAPSHOT, State.LIVE]
    assert {type(error) for error in errors} == {WorkerDiedError}


def test_what_the_last_call_raises_is_told_before_the_table_is_closed(caplog):
    errors = []

    def fail(state):
        if state is State.CLOSED:
            raise ValueError("the last")

    with barrage.Server(host=HOST) as server, barrage.connect(server.uri) as session:
        server.create_table("t", {"x": "int64"})
        live = session.table("t").subscribe(on_state=fail, on_error=errors.append)
        live.wait_ready(HANG_SECONDS)
    assert [str(error) for error in errors] == ["the last"]
