"""Where relayed tables stand, and tables that are too far behind."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from barrage.client.session import aconnect
from barrage.client.subscriptions.state import State
from barrage.errors import ConfigError
from barrage.relay.patterns import TablePatterns
from barrage.relay.relay_follower import FollowerState
from barrage.relay.relay_statistics import RELAYED_TABLE
from barrage.relay.settings import RelaySettings
from barrage.relay.upstream_link import UpstreamSettings
from barrage.server.settings.config import ServerConfig
from tests.unit.relay.scene import HOST, SCHEMA, engine, follows, live, relay_of, run, until


def row(name):
    return [{"Sym": name, "Price": 1.0}]


def test_the_statistics_tell_where_each_table_stands(monkeypatch):
    monkeypatch.setattr("barrage.relay.relay_statistics.INTERVAL_S", 0.02)

    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(row("A"))
            await follows(relay, "quotes", step)
            await until(lambda: relay._parts.catalog.find(RELAYED_TABLE) is not None)
            async with live(relay.uri, RELAYED_TABLE) as shown:
                # The step is known a moment before the table is served.
                there = [{"table": "quotes", "state": "live", "step": step}]
                await until(
                    lambda: shown.to_arrow().select(["table", "state", "step"]).to_pylist() == there
                )
                (told,) = shown.to_arrow().to_pylist()
                assert told["upstream"] == origin.uri
                assert (told["merged"], told["snapshots"], told["trouble"]) == (0, 1, None)
                await origin.stop()
                # The link finds out a moment after the stream, or before.
                lost = [{"state": "paused", "upstream": None}]
                await until(
                    lambda: shown.to_arrow().select(["state", "upstream"]).to_pylist() == lost
                )
                assert shown.to_arrow()["trouble"].to_pylist() != [None]
            async with aconnect(relay.uri) as session:
                assert {info.name for info in await session.tables()} >= {"quotes", RELAYED_TABLE}

    run(test)


def test_a_scrape_has_what_is_measured_of_relays():
    def scraped(port: int) -> dict[str, list[tuple[dict[str, str], float]]]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            return {
                each.name: [(sample.labels, sample.value) for sample in each.samples]
                for each in families
            }

    async def test():
        config = ServerConfig(host=HOST, metrics_port=0)
        async with engine() as origin, relay_of(origin.uri, config=config) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await follows(relay, "quotes", await quotes.upsert(row("A")))
            found = {}
            while {"state": "live"} not in [
                labels for labels, value in found.get("barrage_relayed_tables", ()) if value
            ]:
                found = await asyncio.to_thread(scraped, relay.metrics_port)
            states = {labels["state"]: value for labels, value in found["barrage_relayed_tables"]}
            assert states == {each.value: float(each.value == "live") for each in FollowerState}
            assert found["barrage_upstreams_followed"] == [({}, 1.0)]
            ((labels, lag),) = found["barrage_relay_lag_seconds_max"]
            assert labels == {}
            assert 0 <= lag < 3600

    run(test)


def test_a_table_that_stands_still_for_too_long_is_taken_back():
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(row("A"))
            async with relay_of(origin.uri, lag_ms_max=30) as relay:
                follower = await follows(relay, "quotes", step)
                async with live(relay.uri, "quotes") as here:
                    await origin.stop()
                    await until(lambda: follower.state is FollowerState.WAITING)
                    await until(lambda: here.state is not State.LIVE)

    run(test)


def test_an_update_that_is_too_late_takes_the_table_back_until_it_has_caught_up():
    async def test():
        async with engine() as origin, relay_of(origin.uri, lag_ms_max=60_000) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(row("A"))
            follower = await follows(relay, "quotes", step)
            async with live(relay.uri, "quotes") as here:
                epoch = here.cursor.epoch
                follower._lag_ns_max = -1
                await quotes.upsert(row("B"))
                await until(lambda: follower.snapshots > 1 or follower.state is not _LIVE)
                follower._lag_ns_max = None
                step = await quotes.upsert(row("C"))
                await until(lambda: here.state is State.LIVE and len(here) == 3)
                assert here.cursor.epoch == epoch
                assert here.cursor.version == step

    run(test)


def test_a_new_state_that_takes_longer_than_the_limit_is_not_taken_back():
    """While it is taken nothing is served that could be too old."""

    async def test():
        async with engine() as origin, relay_of(origin.uri, lag_ms_max=30) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(row("A"))
            follower = await follows(relay, "quotes", step)
            take_updates, looks = follower._take_updates, relay.link

            async def late(*given, **named):
                before = looks._looks_ended
                await asyncio.sleep(0.1)
                await until(lambda: looks._looks_ended > before + 3)
                await follower.check_pause()
                follower._take_updates = take_updates
                await take_updates(*given, **named)

            follower._take_updates = late
            follower._cursor = None
            follower._stream.cancel()
            await until(lambda: follower.snapshots == 2 and follower.state is _LIVE)
            assert follower.step >= step
            assert follower._cursor is not None

    run(test)


_LIVE = FollowerState.LIVE


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_is_positive(limit):
    settings = RelaySettings(
        upstream=UpstreamSettings(addresses=("localhost:1",)),
        patterns=TablePatterns.parse("*"),
        lag_ms_max=limit,
    )
    with pytest.raises(ConfigError, match="lag"):
        settings.check()
