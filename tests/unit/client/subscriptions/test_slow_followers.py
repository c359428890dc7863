"""Consumers that do not read: everybody else goes on, and they are told everything later."""

from __future__ import annotations

import asyncio
import threading

import pyarrow as pa
import pytest

import barrage
from barrage.client.subscriptions.state import State
from barrage.client.updates import update_queue
from barrage.client.updates.update_queue import GATHERED_MAX
from barrage.errors import SlowIteratorError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.rowset import RowSet
from tests.unit.client.scripted import run, scripted_session, until

PENDING = DEFAULT_LIMITS.client_updates_pending_max
PATIENCE = 180


def test_an_unread_iterator_stops_nobody_and_is_told_all_of_it_in_one_update():
    count = 3 * PENDING

    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe() as live:
                stream = await server.accept()
                stream.schema()
                stream.snapshot([0])
                await live.wait_ready(60)
                unread, read = live.updates(), live.updates()
                first = await anext(unread)
                assert first.is_replacement
                await anext(read)
                for number in range(1, count + 1):
                    stream.full(RowSet.of_range(number, number), [number], step=number)
                    assert (await anext(read)).added["x"].to_pylist() == [number]
                assert live.to_arrow()["x"].to_pylist() == list(range(count + 1))
                told, rows = await anext(unread), []
                assert (told.first_step, told.is_replacement) == (1, False)
                assert told.conflated > PENDING
                rows += told.added["x"].to_pylist()
                while told.last_step < count:
                    later = await anext(unread)
                    assert later.first_step == told.last_step + 1
                    told = later
                    rows += told.added["x"].to_pylist()
                assert rows == list(range(1, count + 1))
                stream.full(RowSet.of_range(999, 999), [999], step=999)
                assert (await anext(unread)).last_step == 999

    run(test)


def test_what_waits_for_an_iterator_is_bounded():
    """Row 0 is changed again and again; changes larger than the bound become the whole state."""
    limits = Limits(client_update_bytes_pending_max=400)

    async def test():
        async with scripted_session(limits=limits) as (session, server):
            async with session.table("t").subscribe() as live:
                stream = await server.accept()
                stream.schema()
                stream.snapshot([0])
                await live.wait_ready(60)
                unread = live.updates()
                await anext(unread)
                for step in range(1, 500):
                    stream.full(modified=(RowSet.of_range(0, 0), [step]), step=step)
                await until(lambda: live.to_arrow()["x"].to_pylist() == [499])
                assert len(unread._queue) <= PENDING + GATHERED_MAX
                told = await anext(unread)
                assert told.conflated > PENDING
                while told.last_step < 499:
                    told = await anext(unread)
                assert told.modified["x"].to_pylist() == [499]
                for number in range(1, 500):
                    stream.full(RowSet.of_range(number, number), [number], step=500 + number)
                await until(lambda: len(live) == 500)
                assert len(unread._queue) <= PENDING + GATHERED_MAX
                told = await anext(unread)
                assert told.is_replacement
                while told.last_step < 999:
                    later = await anext(unread)
                    assert later.first_step == told.last_step + 1
                    told = later
                assert len(told.added) <= 499

    run(test)


def test_a_callback_that_never_returns_stops_nobody():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe() as live:
                stuck, seen = asyncio.Event(), []

                async def never(_):
                    await stuck.wait()

                live.on_update(never)
                live.on_update(lambda update: seen.append(update.last_step))
                stream = await server.accept()
                stream.schema()
                stream.snapshot([0])
                for number in range(1, 20):
                    stream.full(RowSet.of_range(number, number), [number], step=number)
                await until(lambda: len(live) == 20 and seen and seen[-1] == 19)
                stuck.set()

    run(test)


def test_who_begins_to_follow_while_a_state_is_told_is_handed_no_update_twice():
    async def test():
        async with scripted_session() as (session, server):
            async with session.table("t").subscribe() as live:
                opened = []

                async def follow(_):
                    opened.append(live.updates())
                    await asyncio.sleep(0)

                live.on_state(follow)
                stream = await server.accept()
                stream.schema()
                stream.snapshot([0])
                await live.wait_ready(60)
                stream.full(RowSet.parse("1"), [1], step=2)
                for updates in opened:
                    rows = []
                    while rows != [0, 1]:
                        update = await anext(updates)
                        rows = [] if update.is_replacement else rows
                        rows += update.added["x"].to_pylist()
                        assert rows in ([0], [0, 1])
                    await updates.aclose()

    run(test)


def test_a_blocked_thread_does_not_make_the_table_stale():
    with barrage.Server() as server, barrage.connect(server.address) as session:
        table = server.create_table("t", {"k": "int64", "v": "int64"}, key="k")
        live = session.table("t").subscribe(interval_ms=1).wait_ready(PATIENCE)
        unread, go_on = live.updates(PATIENCE), threading.Event()
        live.on_update(lambda _: go_on.wait(PATIENCE))
        follower = live.updates(PATIENCE)
        next(unread)
        state = {}
        for step in range(3 * PENDING):
            table.upsert({"k": [step % 7], "v": [step]})
            while state.get(step % 7) != step:
                apply(state, next(follower))
        assert live.to_arrow().num_rows == 7
        late: dict[int, int] = {}
        told = [next(unread)]
        while late != state:
            apply(late, told[-1])
            told.append(next(unread)) if late != state else None
        assert max(update.conflated for update in told) > PENDING
        go_on.set()


def apply(state, update):
    """Changes of a table whose keys are its row numbers."""
    if update.is_replacement:
        state.clear()
    for row in update.added.to_pylist():
        state[row["k"]] = row["v"]
    for key, value in zip(
        update.modified_rows.get("v", RowSet.empty()), update.modified.get("v", ()), strict=True
    ):
        state[key] = value.as_py()


def test_rows_of_a_blink_table_are_laid_end_to_end_until_they_are_too_many(monkeypatch):
    monkeypatch.setattr(update_queue, "GATHERED_MAX", 8)
    limits = Limits(client_updates_pending_max=4, client_update_bytes_pending_max=10_000)
    with barrage.Server() as server, barrage.connect(server.address, limits=limits) as session:
        events = server.create_table("t", {"x": "int64"}, kind="blink")
        live = session.table("t").subscribe(interval_ms=1).wait_ready(PATIENCE)
        unread, follower = live.updates(PATIENCE), live.updates(PATIENCE)
        seen = []

        def send(first, last):
            for number in range(first, last):
                events.add({"x": [number]})
                while not seen or seen[-1] != number:
                    seen.extend(next(follower).added["x"].to_pylist())

        send(0, 50)
        told = []
        while len(told) < 50:
            told += next(unread).added["x"].to_pylist()
        assert told == seen == list(range(50))
        # 16 bytes a row at most: more than the bound in a few hundred.
        for number in range(50, 90):
            events.add({"x": pa.array([number] * 200)})
            while seen[-1] != number:
                seen.extend(next(follower).added["x"].to_pylist())
        with pytest.raises(SlowIteratorError, match="more than 10000 bytes"):
            for update in unread:
                told += update.added["x"].to_pylist()
        assert told == seen[: len(told)]
        assert live.state is State.LIVE
