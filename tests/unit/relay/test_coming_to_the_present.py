"""A table that begins in the past is served once it has come to the present, and not before."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from contextlib import asynccontextmanager

import pytest

from barrage.client.session import aconnect
from barrage.errors import TransportError
from barrage.relay import relay_follower
from barrage.relay.relay_follower import FollowerState, RelayFollower
from barrage.server.exchange.exchange_messages import PlanResume
from barrage.server.exchange.resume_jobs import ResumeJobs
from barrage.server.exchange.subscription_dispatcher import DispatcherPort
from tests.unit.relay.scene import (
    SCHEMA,
    engine,
    follows,
    live,
    pause,
    read,
    relay_of,
    rows_of,
    run,
    until,
)


@asynccontextmanager
async def filled_origin(steps):
    """A server with a table that has come to its present rows in so many steps."""
    async with engine() as origin:
        quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
        step = 0
        for number in range(steps):
            row = {"Sym": f"S{number}", "Price": 1.0}
            step = await quotes.upsert([row])
        yield origin, quotes, step


async def checkpoint(uri):
    """What a client of now would go on from."""
    async with live(uri, "quotes") as table:
        return table.checkpoint()


class Hold:
    """Lets relays take so many updates, and more when told to."""

    def __init__(self, monkeypatch, *, count):
        self.taken = 0
        self.left = count
        take = RelayFollower._take

        async def take_when_let(follower, *arguments, **named):
            while self.left == 0:
                await pause()
            self.left -= 1
            await take(follower, *arguments, **named)
            self.taken += 1

        monkeypatch.setattr(RelayFollower, "_take", take_when_let)

    def let_all(self):
        self.left = 1_000


def test_nobody_reads_rows_of_before_the_relay_was_started(monkeypatch):
    async def test():
        hold = Hold(monkeypatch, count=7)
        async with (
            filled_origin(20) as (origin, quotes, _),
            relay_of(origin.uri) as relay,
            aconnect(relay.uri) as session,
        ):
            await until(lambda: hold.taken == 7)
            with pytest.raises(TransportError, match="about to serve"):
                await read(session, "quotes")
            assert "quotes" not in {info.name for info in await session.tables()}
            with pytest.raises(TransportError, match="about to serve"):
                await session.table("quotes").history().facts()
            follower = relay.followers["quotes"]
            assert follower.table is None
            assert follower.state is FollowerState.WAITING
            hold.let_all()
            await relay.wait_live("quotes")
            # The first state that can be read has all there was.
            assert len(await read(session, "quotes")) == 20
            step = await quotes.upsert([{"Sym": "new", "Price": 2.0}])
            await follows(relay, "quotes", step)
            async with live(origin.uri, "quotes") as there, live(relay.uri, "quotes") as here:
                await until(lambda: here.cursor == there.cursor)
                assert rows_of(here) == rows_of(there)

    run(test)


def test_a_relay_whose_upstream_server_is_lost_on_the_way_begins_again(monkeypatch):
    async def test():
        hold = Hold(monkeypatch, count=7)
        async with filled_origin(20) as (origin, _, step), relay_of(origin.uri) as relay:
            await until(lambda: hold.taken == 7)
            follower = relay.followers["quotes"]
            follower._stream.cancel()
            hold.let_all()
            await follows(relay, "quotes", step)
            assert follower.snapshots == 2
            assert follower.resumes == 0
            # Of the table that came to nothing, nothing is left.
            assert relay._relayed._prepared == {}
            async with live(origin.uri, "quotes") as there, live(relay.uri, "quotes") as here:
                assert rows_of(here) == rows_of(there)
                assert here.cursor == there.cursor

    run(test)


def test_a_relay_that_stops_on_the_way_leaves_nothing(monkeypatch):
    async def test():
        hold = Hold(monkeypatch, count=7)
        async with filled_origin(20) as (origin, _, _):
            async with relay_of(origin.uri) as relay:
                await until(lambda: hold.taken == 7)
            # The upstream server has nobody to tell any more, and the relay no task that waits.
            await until(lambda: origin._app.stream_count == 0)
            assert relay.followers["quotes"].table is None
            names = {task.get_name() for task in asyncio.all_tasks()}
            assert not {name for name in names if name.startswith("barrage-relay")}

    run(test)


def test_a_table_begins_a_bounded_number_of_steps_back(monkeypatch):
    async def test():
        monkeypatch.setattr(relay_follower, "PAST_SECONDS", 3600.0)
        async with filled_origin(4) as (origin, quotes, _):
            kept = {}
            for number in range(10):
                step = await quotes.upsert([{"Sym": f"N{number}", "Price": 1.0}])
                kept[number] = await checkpoint(origin.uri)
            # Other tables of the server take steps, too.
            steps = step - kept[4][0].version
            monkeypatch.setattr(relay_follower, "PAST_STEPS_MAX", steps)
            async with relay_of(origin.uri) as relay:
                await follows(relay, "quotes", step)
                for number, outcome in ((4, "replayed 5 steps"), (3, "resnapshot")):
                    cursor, rows = kept[number]
                    async with live(relay.uri, "quotes", resume_from=cursor, rows=rows) as here:
                        assert here.resumption.startswith(outcome)
                        assert len(here) == 14

    run(test)


def test_one_who_is_ahead_of_a_relay_that_comes_nearer_is_waited_for(monkeypatch):
    async def test():
        hold = Hold(monkeypatch, count=7)
        async with filled_origin(20) as (origin, _, _), relay_of(origin.uri) as relay:
            cursor, rows = await checkpoint(origin.uri)
            await until(lambda: hold.taken == 7)
            # Refused while nothing is served, then resumed: never told the rows of before.
            asyncio.get_running_loop().call_later(0.05, hold.let_all)
            async with live(relay.uri, "quotes", resume_from=cursor, rows=rows) as here:
                assert here.resumption == "live"
                assert len(here) == 20

    run(test)


def test_a_table_that_comes_between_a_plan_and_its_subscription_is_resumed(monkeypatch):
    async def test():
        hold = Hold(monkeypatch, count=7)
        ask = DispatcherPort.ask
        planned = []

        def ask_and_see_it_come(port, request):
            answered = ask(port, request)
            if not isinstance(request, PlanResume):
                return answered
            late = Future()
            planned.append(asyncio.create_task(hand_over(answered, late)))
            return late

        async def hand_over(answered, late):
            answer = await asyncio.wrap_future(answered)
            hold.let_all()
            await relay.wait_live("quotes")
            late.set_result(answer)

        async with filled_origin(20) as (origin, _, _), relay_of(origin.uri) as relay:
            cursor, rows = await checkpoint(origin.uri)
            await until(lambda: hold.taken == 7)
            monkeypatch.setattr(DispatcherPort, "ask", ask_and_see_it_come)
            async with live(relay.uri, "quotes", resume_from=cursor, rows=rows) as here:
                assert here.resumption == "live"
                assert len(planned) == 2

    run(test)


def test_a_table_that_is_replaced_between_a_plan_and_its_subscription_is_resumed(monkeypatch):
    async def test():
        plan = ResumeJobs._plan
        planned = []

        async def plan_and_see_it_replaced(jobs, job):
            await plan(jobs, job)
            planned.append(job)
            if len(planned) == 1:
                follower = relay.followers["quotes"]
                await follower._withdraw(TransportError("begun anew"))
                follower._stream.cancel()
                await relay.wait_live("quotes")

        async with filled_origin(20) as (origin, quotes, _), relay_of(origin.uri) as relay:
            cursor, rows = await checkpoint(origin.uri)
            step = await quotes.upsert([{"Sym": "new", "Price": 2.0}])
            await follows(relay, "quotes", step)
            monkeypatch.setattr(ResumeJobs, "_plan", plan_and_see_it_replaced)
            async with live(relay.uri, "quotes", resume_from=cursor, rows=rows) as here:
                assert here.resumption == "replayed 1 step"
                assert len(planned) > 1
                assert len(here) == 21

    run(test)
