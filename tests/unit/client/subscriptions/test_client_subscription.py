"""A ticking table against a scripted server: states, updates, back-pressure, reconnects."""

from __future__ import annotations

import asyncio

import pytest

from barrage.client.connection.reconnect import Backoff
from barrage.client.subscriptions.state import State
from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    LocalProtocolError,
    RemoteProtocolError,
    SubscriptionClosedError,
    TableFailedError,
)
from barrage.model.viewport import Viewport
from barrage.rowset import RowSet
from tests.unit.client.scripted import run, scripted_session, until

AT_ONCE = Backoff(first_seconds=0.0)


def xs(table):
    return table.to_arrow()["x"].to_pylist()


def test_snapshot_then_deltas():
    async def test():
        async with scripted_session() as (session, server):
            states = []
            async with session.table("t").subscribe(interval_ms=25) as live:
                live.on_state(states.append)
                stream = await server.accept()
                request = await stream.request()
                assert request.ticket == b"s/t"
                assert request.viewport is None
                assert request.options.min_update_interval_ms == 25
                assert stream.request_headers["x-barrage-extensions"] == "source-time"
                with pytest.raises(BarrageError, match="no state yet"):
                    live.to_arrow()
                assert (len(live), live.table_size) == (0, 0)
                stream.schema()
                stream.snapshot([1, 2, 3])
                await live.wait_ready(60)
                assert xs(live) == [1, 2, 3]
                stream.full(
                    RowSet.parse("3"),
                    [4],
                    removed=RowSet.parse("0"),
                    modified=(RowSet.parse("1"), [22]),
                    source_time_ns=session.clock.wall_ns() - 5_000_000,
                )
                updates = live.updates()
                first, second = await anext(updates), await anext(updates)
                assert first.is_replacement
                assert first.added["x"].to_pylist() == [1, 2, 3]
                assert not second.is_replacement
                assert second.removed["x"].to_pylist() == [1]
                assert second.added["x"].to_pylist() == [4]
                assert second.modified["x"].to_pylist() == [22]
                assert second.modified_rows == {"x": RowSet.parse("1")}
                assert second.row_count == 2
                assert second.conflated == 1
                assert "x~1" in repr(second)
                assert xs(live) == [22, 3, 4]
                assert live.lag == pytest.approx(0.005)
                assert (live.stats.updates, live.stats.rows) == (2, 5)
                assert "3 of 3 rows" in repr(live)
            assert stream.is_cancelled
            assert states == [State.SNAPSHOT, State.LIVE, State.CLOSED]
            assert xs(live) == [22, 3, 4]

    run(test)


def test_a_growing_state_is_shown_when_it_is_whole():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe() as live:
                stream = await server.accept()
                stream.schema()
                part = RowSet.parse("0-1")
                stream.snapshot([1, 2], size=4, viewport=part, included=part)
                updates = live.updates()
                stream.snapshot([3, 4], size=4, included=RowSet.parse("2-3"))
                update = await anext(updates)
                assert update.is_replacement
                assert update.added["x"].to_pylist() == [1, 2, 3, 4]
                assert live.stats.updates == 1

    run(test)


def test_old_rows_stay_until_a_moved_viewport_is_complete():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe(viewport=(0, 3)) as live:
                stream = await server.accept()
                await stream.request()
                stream.schema()
                stream.view("0-2", [0, 1, 2], viewport=RowSet.parse("0-2"))
                await live.wait_ready(60)
                await live.set_viewport((10, 14))
                request = await stream.request()
                assert request.viewport == RowSet.parse("10-13")
                with pytest.raises(TimeoutError):
                    await live.wait_ready(0)
                # The server hands out the new rows in two parts.
                stream.view("0-1", [10, 11], removed="0-2", viewport=RowSet.parse("10-11"))
                updates = live.updates()
                assert (await anext(updates)).added["x"].to_pylist() == [0, 1, 2]
                await asyncio.sleep(0)
                assert xs(live) == [0, 1, 2]
                stream.view("2-3", [12, 13], viewport=RowSet.parse("10-13"))
                await live.wait_ready(60)
                assert xs(live) == [10, 11, 12, 13]
                update = await anext(updates)
                assert update.is_replacement
                assert update.is_view
                assert live.table_size == 100

    run(test)


def test_a_moved_viewport_in_one_answer_is_a_step():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe(viewport=(0, 3)) as live:
                stream = await server.accept()
                stream.schema()
                stream.view("0-2", [0, 1, 2], viewport=RowSet.parse("0-2"))
                await live.wait_ready(60)
                updates = live.updates()
                await live.set_viewport(Viewport.of(1, 4))
                stream.view("2", [3], removed="0", viewport=RowSet.parse("1-3"))
                await live.wait_ready(60)
                await anext(updates)
                update = await anext(updates)
                assert (update.is_snapshot, update.is_replacement) == (True, False)
                assert update.removed["x"].to_pylist() == [0]
                assert xs(live) == [1, 2, 3]

    run(test)


def test_columns_change_the_schema():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe(columns=["s", "x"], viewport=(0, 1)) as live:
                stream = await server.accept()
                assert (await stream.request()).columns == (0, 1)
                stream.schema()
                stream.view("0", [7], viewport=RowSet.parse("0"))
                await live.wait_ready(60)
                assert live.schema.names == ["s", "x"]
                await live.set_columns(["s"])
                assert (await stream.request()).columns == (1,)
                stream.view(viewport=RowSet.parse("0"), columns=(1,))
                await live.wait_ready(60)
                assert live.to_arrow().to_pylist() == [{"s": "s7"}]
                await live.set_columns(None)
                assert (await stream.request()).columns is None

    run(test)


def test_changes_before_the_schema_are_not_lost():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe(viewport=(0, 1)) as live:
                stream = await server.accept()
                assert (await stream.request()).viewport == RowSet.parse("0")
                await live.set_viewport((5, 7))
                stream.schema()
                assert (await stream.request()).viewport == RowSet.parse("5-6")

    run(test)


@pytest.mark.parametrize("viewport", [None, (0, 5)])
def test_a_subscription_keeps_its_kind(viewport):
    async def test():
        async with scripted_session() as (session, _):
            async with session.table("t").subscribe(viewport=viewport) as live:
                with pytest.raises(LocalProtocolError):
                    await live.set_viewport(None if viewport else (0, 1))
                if viewport is None:
                    with pytest.raises(LocalProtocolError):
                        await live.set_columns(["x"])

    run(test)


def test_rows_stay_readable_through_a_reconnect():
    async def test():
        async with scripted_session() as (session, server):
            states, errors = [], []
            async with session.table("t").subscribe(reconnect=AT_ONCE) as live:
                live.on_state(states.append)
                live.on_error(errors.append)
                stream = await server.accept()
                stream.schema()
                stream.snapshot([1, 2])
                await live.wait_ready(60)
                updates = live.updates()
                await anext(updates)
                server.failures = [ConnectionLostError("still down")]
                stream.end(ConnectionLostError("gone"))
                second = await server.accept()
                assert xs(live) == [1, 2]
                second.schema()
                part = RowSet.parse("0")
                second.snapshot([7], size=3, viewport=part, included=part)
                second.snapshot([8, 9], size=3, included=RowSet.parse("1-2"))
                update = await anext(updates)
                assert update.is_replacement
                assert xs(live) == [7, 8, 9]
                assert live.state is State.LIVE
                assert stream.is_cancelled
            assert [str(error) for error in errors] == ["gone", "still down"]
            assert states == [
                State.SNAPSHOT, State.LIVE, State.RECONNECTING, State.SNAPSHOT, State.RECONNECTING,
                State.SNAPSHOT, State.RESNAPSHOTTED, State.LIVE, State.CLOSED,
            ]  # fmt: skip
            assert live.stats.reconnects == 2

    run(test)


def test_a_server_that_completes_the_call_is_lost_too():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe(reconnect=AT_ONCE):
                stream = await server.accept()
                stream.end()
                await server.accept()

    run(test)


@pytest.mark.parametrize("reconnect", [True, False])
@pytest.mark.parametrize("error", [ConnectionLostError("gone"), TableFailedError("broken")])
def test_what_cannot_be_repaired_fails(reconnect, error):
    if reconnect and isinstance(error, ConnectionLostError):
        return

    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe(reconnect=reconnect) as live:
                errors = []
                live.on_error(errors.append)
                stream = await server.accept()
                stream.schema()
                stream.snapshot([1])
                await live.wait_ready(60)
                updates = live.updates()
                stream.end(error)
                assert (await anext(updates)).is_replacement
                with pytest.raises(type(error), match=str(error)):
                    await anext(updates)
                with pytest.raises(type(error)):
                    await live.wait_ready(60)
                assert live.state is State.FAILED
                assert errors == [error]
                assert xs(live) == [1]
                with pytest.raises(type(error)):
                    await live.wait_ready(1)
                late = live.updates()
                assert (await anext(late)).is_replacement
                with pytest.raises(type(error)):
                    await anext(late)

    run(test)


def test_garbage_from_the_server_fails_the_table():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe() as live:
                stream = await server.accept()
                stream.send([b"\xff\xff"])
                with pytest.raises(RemoteProtocolError):
                    await live.wait_ready(60)

    run(test)


def test_a_slow_iterator_is_told_everything_and_stops_nobody():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe() as live:
                stream = await server.accept()
                stream.schema()
                stream.snapshot([0])
                await live.wait_ready(60)
                updates = live.updates()
                for number in range(1, 20):
                    stream.full(RowSet.of_range(number, number), [number], step=number)
                await until(lambda: len(live) == 20)
                steps = [(await anext(updates)).last_step for _ in range(20)]
                assert steps == [1, *range(1, 20)]

    run(test)


def test_an_abandoned_iterator_holds_nobody():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe() as live:
                stream = await server.accept()
                stream.schema()
                stream.snapshot([0])
                await live.wait_ready(60)
                async for _ in live:
                    break
                async with live.updates() as updates:
                    await anext(updates)
                for number in range(1, 20):
                    stream.full(RowSet.of_range(number, number), [number])
                    while len(live) != number + 1:  # noqa: ASYNC110
                        await asyncio.sleep(0)

    run(test)


def test_callbacks_that_raise_do_not_end_the_subscription(caplog):
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe() as live:
                seen, errors = [], []

                async def fails(update):
                    seen.append(update)
                    raise ValueError("mine")

                def fails_too(error):
                    errors.append(error)
                    raise ValueError("again")

                undo = live.on_update(fails)
                live.on_error(fails_too)
                stream = await server.accept()
                stream.schema()
                stream.snapshot([0])
                await live.wait_ready(60)
                stream.full(RowSet.parse("1"), [1])
                while len(seen) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                undo()
                stream.full(RowSet.parse("2"), [2])
                while len(live) < 3:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                assert len(seen) == 2
                assert [str(error) for error in errors] == ["mine", "mine"]
                assert live.stats.callback_errors == 4
                assert live.state is State.LIVE
                late = []
                live.on_update(late.append)
                await until(lambda: late)
                assert late[0].is_replacement

    run(test)
    assert "a callback raised" in caplog.text


def test_closing_is_idempotent_and_ends_iterators():
    async def test():
        async with scripted_session() as (session, server):
            live = await session.table("t").subscribe()
            stream = await server.accept()
            stream.schema()
            updates = live.updates()
            await live.close()
            await live.close()
            assert [update async for update in updates] == []
            with pytest.raises(SubscriptionClosedError):
                await live.wait_ready(1)
            await session.close()
            with pytest.raises(SubscriptionClosedError):
                await session.table("t").subscribe()

    run(test)


def test_a_session_whose_close_is_cancelled_is_closed_all_the_same():
    async def test():
        async with scripted_session() as (session, server):
            going_on = asyncio.Event()
            live = await session.table("t").subscribe()

            async def linger(state):
                await going_on.wait()

            live.on_state(linger)
            await server.accept()
            closing = asyncio.ensure_future(session.close())
            await until(lambda: live.state is State.CLOSED)
            closing.cancel()
            await asyncio.wait([closing])
            assert closing.cancelled()
            going_on.set()
            await session.close()
            assert server.is_closed

    run(test)


async def close_in_a_task(session):
    await asyncio.gather(session.close())


@pytest.mark.parametrize("close", [lambda session: session.close(), close_in_a_task])
def test_a_callback_that_hears_of_the_end_may_close_the_session(close):
    async def test():
        async with scripted_session() as (session, server):
            live = await session.table("t").subscribe()
            live.on_state(lambda _: close(session))
            await server.accept()
            await session.close()
            assert server.is_closed

    run(test)


def test_closing_the_session_closes_its_tables():
    async def test():
        async with scripted_session() as (session, server):
            live = await session.table("t").subscribe()
            await server.accept()
            assert "1 subscriptions" in repr(session)
        assert live.state is State.CLOSED
        assert session.is_closed

    run(test)


def test_a_callback_may_close_its_table():
    async def test():
        async with scripted_session() as (session, server):
            live = await session.table("t").subscribe()

            async def stop(update):
                await live.close()

            live.on_update(stop)
            stream = await server.accept()
            stream.schema()
            stream.snapshot([1])
            while live.state is not State.CLOSED:  # noqa: ASYNC110
                await asyncio.sleep(0)

    run(test)


def test_waiting_tells_why_it_is_not_ready():
    async def test():
        async with scripted_session() as (session, server):
            slow = Backoff(first_seconds=60)
            async with session.table("t").subscribe(reconnect=slow) as live:
                stream = await server.accept()
                stream.end(ConnectionLostError("no route"))
                with pytest.raises(TimeoutError, match=r"reconnecting after .* no route"):
                    await live.wait_ready(0.01)

    run(test)
