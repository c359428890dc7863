"""Upstream servers that go away, come back, come back as others, or are no upstream servers."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from barrage.client.subscriptions.state import State
from barrage.errors import AuthenticationError, ConfigError, RemoteProtocolError, UnsupportedError
from barrage.relay.listing import HOPS_MAX, Listing, RelayLoopError
from barrage.relay.patterns import PATTERNS_MAX, TablePatterns
from barrage.relay.relay_follower import FollowerState
from barrage.relay.upstream_link import UPSTREAMS_MAX, UpstreamSettings
from barrage.server.settings.config import ServerConfig
from barrage.server.tables.identity import ServerIdentity
from tests.unit.relay.scene import (
    HOST,
    SCHEMA,
    engine,
    follows,
    live,
    relay_of,
    rows_of,
    run,
    until,
)

PLACE = "inproc://" if HOST.startswith("inproc") else None


def row(name, price=1.0):
    return [{"Sym": name, "Price": price}]


def at(name, **settings):
    """A server at a place where another one may be again."""
    if PLACE is None:
        pytest.skip("a port is not kept for the next server")
    return engine(host=f"{PLACE}{name}", **settings)


def test_a_restart_of_the_upstream_server_is_a_pause(tmp_path):
    async def test():
        settings = {"data": str(tmp_path), "journal": None}
        async with at("comes-back", **settings) as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(row("A") + row("B"))
            uri = origin.uri
            relay = relay_of(uri)
            await relay.start()
            await follows(relay, "quotes", step)
        try:
            async with live(relay.uri, "quotes") as here:
                states = []
                here.on_state(states.append)
                await until(lambda: relay.followers["quotes"].state is FollowerState.PAUSED)
                await until(lambda: len(here) == 2)
                async with at("comes-back", **settings) as origin:
                    quotes = await origin.table("quotes")
                    await quotes.remove([{"Sym": "A"}])
                    for number in range(5):
                        step = await quotes.upsert(row(f"N{number}"))
                    follower = await follows(relay, "quotes", step)
                    async with live(origin.uri, "quotes") as there:
                        await until(lambda: here.cursor == there.cursor)
                        await until(lambda: rows_of(here) == rows_of(there))
                    assert states == []
                    assert follower.resumes >= 1
                    assert follower.snapshots == 1
        finally:
            await relay.stop()

    run(test)


def test_an_upstream_server_that_has_lost_the_history_means_a_new_state():
    async def test():
        async with at("forgets") as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await quotes.upsert(row("A"))
            relay = relay_of(origin.uri)
            await relay.start()
            await relay.wait_live("quotes")
        try:
            async with live(relay.uri, "quotes") as here:
                epoch = here.cursor.epoch
                states = []
                here.on_state(states.append)
                async with at("forgets") as origin:
                    quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
                    await quotes.upsert(row("B"))
                    await until(lambda: here.cursor.epoch != epoch and len(here) == 1)
                    await until(lambda: here.state is State.LIVE)
                    await until(lambda: rows_of(here) == row("B"))
                    assert State.RESNAPSHOTTED in states
                    assert relay.followers["quotes"].snapshots == 2
        finally:
            await relay.stop()

    run(test)


def test_the_next_upstream_server_takes_over_where_the_first_one_was_lost():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as second:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(row("A"))
            await follows(second, "quotes", step)
            first = relay_of(origin.uri)
            await first.start()
            await follows(first, "quotes", step)
            async with relay_of(first.uri, second.uri) as last:
                follower = await follows(last, "quotes", step)
                assert last.link.address == first.uri
                async with live(last.uri, "quotes") as here:
                    states = []
                    here.on_state(states.append)
                    await first.stop()
                    for number in range(10):
                        step = await quotes.upsert(row(f"N{number}"))
                    await until(lambda: last.link.address == second.uri)
                    await until(lambda: here.cursor.version == step)
                    async with live(origin.uri, "quotes") as there:
                        await until(lambda: rows_of(here) == rows_of(there))
                        await until(lambda: here.cursor == there.cursor)
                    assert states == []
                    assert follower.snapshots == 1

    run(test)


def test_a_chain_of_relays_tells_every_step():
    async def test():
        async with (
            engine() as origin,
            relay_of(origin.uri) as first,
            relay_of(first.uri) as second,
            relay_of(second.uri) as third,
        ):
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await third.wait_live("quotes")
            for number in range(20):
                step = await quotes.upsert(row(f"N{number}"))
            follower = await follows(third, "quotes", step)
            async with live(origin.uri, "quotes") as there, live(third.uri, "quotes") as here:
                await until(lambda: rows_of(here) == rows_of(there))
                await until(lambda: here.cursor == there.cursor)
            assert follower.merged_count == 0
            assert third.link.listing is not None
            assert len(third.link.listing.path) == 3

    run(test)


def test_a_relay_does_not_follow_itself(caplog):
    async def test():
        if PLACE is None:
            pytest.skip("its port is not known before it listens")
        name = f"{PLACE}itself"
        async with relay_of(name, config=ServerConfig(host=name)) as relay:
            await until(lambda: isinstance(relay.link.error, RelayLoopError))
            assert relay.followers == {}

    run(test)
    assert "this relay itself" in caplog.text


def test_relays_that_follow_each_other_are_told_so():
    async def test():
        if PLACE is None:
            pytest.skip("their ports are not known before they listen")
        names = [f"{PLACE}ring-{number}" for number in range(3)]
        async with (
            relay_of(names[1], config=ServerConfig(host=names[0])) as first,
            relay_of(names[2], config=ServerConfig(host=names[1])) as second,
            relay_of(names[0], config=ServerConfig(host=names[2])) as third,
        ):
            ring = (first, second, third)
            await until(lambda: any(isinstance(r.link.error, RelayLoopError) for r in ring))

    run(test)


def test_a_wrong_token_is_told_and_tried_again():
    async def test():
        async with (
            engine(token="right") as origin,
            relay_of(origin.uri, auth="wrong") as refused,
            relay_of(origin.uri, auth="right") as admitted,
        ):
            await origin.create_table("quotes", SCHEMA, key="Sym")
            await admitted.wait_live("quotes")
            await until(lambda: isinstance(refused.link.error, AuthenticationError))
            assert refused.followers == {}

    run(test)


def test_a_pattern_that_matches_nothing_is_told_once(caplog):
    async def test():
        async with engine() as origin, relay_of(origin.uri, tables="quotes,nothing*") as relay:
            await until(lambda: "'nothing*'" in caplog.text)
            await origin.create_table("quotes", SCHEMA, key="Sym")
            await relay.wait_live("quotes")
            await origin.drop_table("quotes")
            await until(lambda: caplog.text.count("'quotes'") == 2)

    with caplog.at_level(logging.WARNING):
        run(test)
    assert caplog.text.count("'nothing*'") == 1


def test_a_name_that_another_table_gets_stands_for_that_one_here_too():
    async def test():
        async with engine() as origin, relay_of(origin.uri, tables="shown") as relay:
            first = await origin.create_table("one", SCHEMA, data=row("A"))
            second = await origin.create_table("two", SCHEMA, data=row("B"))
            await origin.publish("shown", await first.where("Price > 0"))
            await relay.wait_live("shown")
            async with live(relay.uri, "shown") as here:
                await origin.drop_table("shown")
                await origin.publish("shown", await second.where("Price > 0"))
                await until(lambda: here.state is State.LIVE and rows_of(here) == row("B"))

    run(test)


def test_an_update_that_does_not_fit_begins_the_table_anew_and_no_other():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await origin.create_table("trades", SCHEMA)
            step = await quotes.upsert(row("A"))
            follower = await follows(relay, "quotes", step)
            trades = await relay.wait_live("trades")
            take = follower._take

            async def take_wrongly(table, message, **named):
                follower._take = take
                wrong = replace(message, added_keys_post=message.added_keys_post.offset(-1))
                await take(table, wrong, **named)

            follower._take = take_wrongly
            await quotes.upsert(row("B"))
            await until(lambda: follower.snapshots == 2)
            step = await quotes.upsert(row("C"))
            await follows(relay, "quotes", step)
            async with live(relay.uri, "quotes") as here:
                await until(lambda: len(here) == 3)
            assert trades.snapshots == 1

    run(test)


def test_what_nobody_foresaw_of_one_table_is_tried_again_and_stops_no_other(caplog):
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await origin.create_table("trades", SCHEMA)
            step = await quotes.upsert(row("A"))
            follower = await follows(relay, "quotes", step)
            trades = await relay.wait_live("trades")
            take = follower._take

            async def fail(*_arguments, **_named):
                follower._take = take
                raise ZeroDivisionError("nobody expects it")

            follower._take = fail
            step = await quotes.upsert(row("B"))
            await follows(relay, "quotes", step)
            assert (follower.resumes, follower.snapshots) == (1, 1)
            assert trades.resumes == 0
            async with live(relay.uri, "quotes") as here:
                await until(lambda: len(here) == 2)

    run(test)
    assert "ZeroDivisionError" in caplog.text


# --- what a server says ---------------------------------------------------------------------------


def listed(**changes):
    said = {"format": 1, "server": "0" * 16, "via": [], "tables": [], **changes}
    return json.dumps(said).encode()


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"", RemoteProtocolError),
        (b"{}", RemoteProtocolError),
        (listed(format=2), UnsupportedError),
        (listed(server="me"), RemoteProtocolError),
        (listed(via=["x"]), RemoteProtocolError),
        (listed(tables=[{"name": "t"}]), RemoteProtocolError),
        (listed(tables=[{"name": 1}]), RemoteProtocolError),
        (b"x" * (16 * 1024 * 1024 + 1), RemoteProtocolError),
    ],
)
def test_a_listing_is_checked(said, error):
    with pytest.raises(error):
        Listing.parse(said)


def test_a_chain_may_be_so_long_and_no_longer():
    ids = [f"{number:016x}" for number in range(HOPS_MAX + 1)]
    identity = ServerIdentity()
    Listing.parse(listed(server=ids[0], via=ids[1:HOPS_MAX])).check_path(identity)
    with pytest.raises(RelayLoopError, match="limit"):
        Listing.parse(listed(server=ids[0], via=ids[1:])).check_path(identity)
    with pytest.raises(RelayLoopError, match="loop"):
        Listing.parse(listed(via=[identity.id])).check_path(identity)


def test_addresses_and_patterns_are_checked():
    with pytest.raises(ConfigError, match="address"):
        UpstreamSettings(addresses=()).check()
    with pytest.raises(ConfigError, match="Deephaven"):
        UpstreamSettings(addresses=("dh://localhost:10000",)).check()
    UpstreamSettings(addresses=("localhost:1",) * UPSTREAMS_MAX).check()
    with pytest.raises(ConfigError, match="at most"):
        UpstreamSettings(addresses=("localhost:1",) * (UPSTREAMS_MAX + 1)).check()
    with pytest.raises(ConfigError, match="no table"):
        TablePatterns.parse(" , ")
    TablePatterns.of(f"t{number}" for number in range(PATTERNS_MAX))
    with pytest.raises(ConfigError, match="at most"):
        TablePatterns.of(f"t{number}" for number in range(PATTERNS_MAX + 1))


@pytest.mark.parametrize(
    ("patterns", "name", "is_matched"),
    [
        ("quotes,trades*", "quotes", True),
        ("quotes,trades*", "quotes_eu", False),
        ("quotes,trades*", "trades_eu", True),
        ("*", "_threads", False),
        ("_*", "_threads", True),
        ("_threads", "_threads", True),
        ("q[ab]", "qa", True),
        ("q[ab]", "q[ab]", True),
        ("Q*", "quotes", False),
    ],
)
def test_patterns(patterns, name, is_matched):
    assert TablePatterns.parse(patterns).matches(name) is is_matched
