"""Tables that are replaced, dropped or come back while a relay takes them."""

from __future__ import annotations

import asyncio

import pytest

from barrage.client.session import AsyncSession, aconnect
from barrage.relay import relay_follower, relay_server
from barrage.relay.relay_follower import FollowerState
from tests.unit.relay.scene import HOST, SCHEMA, engine, follows, read, relay_of, run, until

COLUMNS = {"a": "int32", "b": "int32", "v": "int64"}
BEFORE = {"columns": COLUMNS, "key": "a"}
AFTER = {
    "another key": {"columns": COLUMNS, "key": "b"},
    "another kind": {"columns": COLUMNS},
    "wider columns": {"columns": {"a": "int64", "b": "int64", "v": "int64"}, "key": "a"},
}


async def make(origin, *, columns, **options):
    table = await origin.create_table("t", columns, **options)
    rows = [{"a": at, "b": at, "v": at} for at in range(3)]
    return await (table.upsert(rows) if options else table.add(rows))


def before(monkeypatch, moment, replace):
    """Have ``replace`` called once, between two questions of a follower about its table."""
    waiting = [replace]

    def disturbed(asked):
        async def ask(*given, **named):
            while waiting:
                await waiting.pop()()
            return await asked(*given, **named)

        return ask

    owner, name = {
        "the schema": (AsyncSession, "info"),
        "the past": (relay_follower, "past_state"),
        "the stream": (relay_follower.RelayFollower, "_check_is_the_same"),
    }[moment]
    monkeypatch.setattr(owner, name, disturbed(getattr(owner, name)))


@pytest.mark.parametrize("moment", ["the schema", "the past", "the stream"])
@pytest.mark.parametrize("after", list(AFTER))
def test_what_is_served_is_one_table(monkeypatch, moment, after):
    async def test():
        async with engine() as origin:
            await make(origin, **BEFORE)

            async def replace():
                await origin.drop_table("t")
                await make(origin, **AFTER[after])

            before(monkeypatch, moment, replace)
            async with relay_of(origin.uri) as relay:
                follower = await relay.wait_live("t")
                async with aconnect(origin.uri) as there, aconnect(relay.uri) as here:
                    is_right = False
                    # Whoever took the table of before at its end learns a moment later that it is.
                    async with asyncio.timeout(180):
                        while not is_right:
                            await relay.wait_live("t")
                            told, shown = await there.info("t"), await here.info("t")
                            is_right = (told.schema, told.kind, told.key) == (
                                shown.schema,
                                shown.kind,
                                shown.key,
                            )
                    rows = (await read(there, "t")).to_pylist()
                    await until(lambda: follower.state is FollowerState.LIVE)
                    assert (await read(here, "t")).to_pylist() == rows

    run(test)


def test_of_a_table_that_was_dropped_nothing_remains():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            for _ in range(3):
                quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
                step = await quotes.upsert([{"Sym": "A", "Price": 1.0}])
                follower = await follows(relay, "quotes", step)
                await origin.drop_table("quotes")
                await until(lambda: not relay.followers)
                assert follower.table is None
                assert not relay._following
            waiting = asyncio.create_task(relay.wait_live("quotes"))
            await origin.create_table("quotes", SCHEMA, key="Sym")
            assert (await waiting).state is FollowerState.LIVE

    run(test)


def test_those_who_wait_for_a_dropped_table_get_the_next_of_its_name():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            await origin.create_table("quotes", SCHEMA, key="Sym")
            await relay.wait_live("quotes")
            await origin.drop_table("quotes")
            await until(lambda: relay.followers["quotes"].state is FollowerState.WAITING)
            waiting = asyncio.create_task(relay.wait_live("quotes"))
            await until(lambda: not relay.followers)
            await origin.create_table("quotes", SCHEMA, key="Sym")
            assert (await waiting).name == "quotes"

    run(test)


def test_a_relay_that_is_full_has_room_when_tables_go(monkeypatch, caplog):
    monkeypatch.setattr(relay_server, "TABLES_MAX", 2)

    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            for name in ("one", "two"):
                await origin.create_table(name, SCHEMA, key="Sym")
                await relay.wait_live(name)
            await origin.create_table("three", SCHEMA, key="Sym")
            await until(lambda: "not followed" in caplog.text)
            looks = relay.link._looks_ended
            await until(lambda: relay.link._looks_ended > looks + 3)
            assert caplog.text.count("not followed") == 1
            await origin.drop_table("one")
            await relay.wait_live("three")

    run(test)


def test_a_look_that_was_under_way_is_no_answer():
    """Who asks what there is from now on is not told what there was a moment before."""

    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            await until(lambda: relay.link.listing is not None)
            for at in range(20):
                asked = asyncio.create_task(relay.link.listing_from_now())
                await asyncio.sleep(0.001 * (at % 4))
                name = f"t{at}"
                await origin.create_table(name, SCHEMA, key="Sym")
                listing = await relay.link.listing_from_now()
                assert name in listing.tables
                await asked

    run(test)


def test_the_server_has_gone_when_it_is_asked_once_more(monkeypatch):
    """The stream has begun, and the server is lost before it says whether all is as it was."""
    name = "inproc://goes-away" if HOST.startswith("inproc") else None
    if name is None:
        pytest.skip("a port is not kept for the next server")

    async def test():
        servers = [engine(host=name)]
        await servers[0].start()
        quotes = await servers[0].create_table("quotes", SCHEMA, key="Sym")
        await quotes.upsert([{"Sym": "A", "Price": 1.0}])

        async def replace():
            await servers.pop().stop()
            servers.append(engine(host=name))
            await servers[0].start()
            quotes = await servers[0].create_table("quotes", {"Other": "int64"})
            await quotes.add([{"Other": 1}])

        before(monkeypatch, "the stream", replace)
        async with relay_of(name) as relay:
            await relay.wait_live("quotes")
            async with aconnect(relay.uri) as session:
                assert (await read(session, "quotes")).to_pylist() == [{"Other": 1}]
        await servers[0].stop()

    run(test)
