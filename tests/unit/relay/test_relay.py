"""A relay serves the tables of another server as that one does: rows, kinds, epochs, steps."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from barrage.client.session import aconnect
from barrage.client.subscriptions.state import State
from barrage.errors import ConfigError, TableNotFoundError, UnsupportedError
from barrage.model.cursor import Cursor
from barrage.relay.relay_follower import FollowerState
from barrage.relay.settings import relay_config
from barrage.server.settings.config import ServerConfig
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


def test_rows_epoch_and_every_step_are_those_of_the_upstream_server():
    async def test():
        async with engine() as origin, relay_of(origin.uri, tables="quotes") as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert([{"Sym": "A", "Price": 1.0}])
            await follows(relay, "quotes", step)
            async with live(origin.uri, "quotes") as there, live(relay.uri, "quotes") as here:
                for turn in range(30):
                    step = await quotes.upsert(
                        [{"Sym": "A", "Price": float(turn)}, {"Sym": f"S{turn}", "Price": 0.0}]
                    )
                    if turn % 3 == 0:
                        step = await quotes.remove([{"Sym": f"S{turn}"}])
                follower = await follows(relay, "quotes", step)
                await until(lambda: here.cursor == there.cursor and here.cursor.version == step)
                await until(lambda: rows_of(here) == rows_of(there))
                assert follower.merged_count == 0
                assert follower.updates >= 40

    run(test)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("append_only", {}),
        ("keyed", {"key": "Sym"}),
        ("list", {}),
        ("ring", {"capacity": 3}),
        ("blink", {}),
        ("static", {}),
    ],
)
def test_every_kind_of_table_is_served_as_the_same_kind(kind, options):
    async def test():
        rows = [{"Sym": "A", "Price": 1.0}, {"Sym": "B", "Price": 2.0}]
        async with engine() as origin, relay_of(origin.uri) as relay:
            data = {"data": rows} if kind == "static" else {}
            table = await origin.create_table("t", SCHEMA, kind=kind, **options, **data)
            await relay.wait_live("t")
            async with aconnect(origin.uri) as there, aconnect(relay.uri) as here:
                ours, theirs = await here.info("t"), await there.info("t")
                assert (ours.kind, ours.key, ours.schema) == (kind, theirs.key, theirs.schema)
                assert ours.is_ticking == theirs.is_ticking
                if kind != "static":
                    for name in ("C", "D", "E"):
                        row = [{"Sym": name, "Price": 3.0}]
                        add = table.upsert if kind == "keyed" else table.add
                        step = await add(row)
                        await follows(relay, "t", step)
                if kind == "blink":
                    return
                expected = await there.table("t").snapshot()
                assert (await here.table("t").snapshot()).equals(expected)

    run(test)


def test_rows_of_a_blink_table_live_for_one_update_here_too():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            events = await origin.create_table("events", SCHEMA, kind="blink")
            follower = await relay.wait_live("events")
            async with live(relay.uri, "events") as here:
                seen = []
                here.on_update(lambda update: seen.extend(update.added["Sym"].to_pylist()))
                for number in range(12):
                    await events.add([{"Sym": f"E{number}", "Price": 1.0}])
                await until(lambda: len(seen) >= 12)
                assert seen == [f"E{number}" for number in range(12)]
                await until(lambda: len(here) == 0)
                assert follower.state is FollowerState.LIVE

    run(test)


def test_views_and_viewports_are_computed_by_the_relay():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            rows = [{"Sym": f"S{n:02}", "Price": float(n)} for n in range(50)]
            step = await quotes.upsert(rows)
            await follows(relay, "quotes", step)
            async with (
                aconnect(relay.uri) as session,
                session.table("quotes").where("Price >= 40").subscribe(interval_ms=10) as dear,
                session.table("quotes").subscribe(viewport=range(10, 15), interval_ms=10) as window,
            ):
                await dear.wait_ready(30)
                await window.wait_ready(30)
                assert [row["Sym"] for row in rows_of(window)] == [f"S{n}" for n in range(10, 15)]
                step = await quotes.upsert([{"Sym": "S12", "Price": 99.0}])
                await until(lambda: len(dear) == 11 and rows_of(window)[2]["Price"] == 99.0)
                assert dear.cursor.version == step

    run(test)


def test_a_published_view_is_followed_like_a_table():
    async def test():
        async with engine() as origin, relay_of(origin.uri, tables="dear") as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await origin.publish("dear", await quotes.where("Price > 10"))
            step = await quotes.upsert([{"Sym": "A", "Price": 11.0}, {"Sym": "B", "Price": 1.0}])
            await follows(relay, "dear", step)
            async with live(origin.uri, "dear") as there, live(relay.uri, "dear") as here:
                await until(lambda: here.cursor == there.cursor)
                await until(lambda: rows_of(here) == [{"Sym": "A", "Price": 11.0}])
            async with aconnect(relay.uri) as session:
                assert (await session.info("dear")).kind == "view"
                with pytest.raises(TableNotFoundError):
                    await session.info("quotes")

    run(test)


def test_a_client_of_the_upstream_server_resumes_at_the_relay_and_back():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await quotes.upsert([{"Sym": "A", "Price": 1.0}])
            await relay.wait_live("quotes")
            uris = [origin.uri, relay.uri]
            async with live(uris[0], "quotes") as first:
                cursor, rows = first.checkpoint()
            for turn in range(6):
                steps = 0
                for number in range(turn):
                    step = await quotes.upsert(
                        [{"Sym": f"{turn}-{number}", "Price": 1.0}, {"Sym": "A", "Price": turn}]
                    )
                    steps += 1
                    await follows(relay, "quotes", step)
                uri = uris[(turn + 1) % 2]
                async with live(uri, "quotes", resume_from=cursor, rows=rows) as table:
                    expected = "live" if not steps else f"replayed {steps} step"
                    assert table.resumption.startswith(expected)
                    cursor, rows = table.checkpoint()
            async with live(origin.uri, "quotes") as there:
                assert rows.to_pylist() == rows_of(there)
                assert cursor == there.cursor

    run(test)


def test_a_relay_that_begins_anew_has_the_history_of_a_moment_ago():
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await quotes.upsert([{"Sym": "A", "Price": 1.0}, {"Sym": "B", "Price": 1.0}])
            async with relay_of(origin.uri) as relay:
                await relay.wait_live("quotes")
                async with live(relay.uri, "quotes") as here:
                    cursor, rows = here.checkpoint()
            await quotes.remove([{"Sym": "A"}])
            for number in range(5):
                step = await quotes.upsert([{"Sym": f"N{number}", "Price": 1.0}])
            async with relay_of(origin.uri) as relay:
                follower = await follows(relay, "quotes", step)
                assert follower.lag_ns is None
                async with (
                    live(origin.uri, "quotes") as there,
                    live(relay.uri, "quotes", resume_from=cursor, rows=rows) as here,
                ):
                    assert here.resumption == "replayed 6 steps"
                    await until(lambda: rows_of(here) == rows_of(there))
                    await until(lambda: here.cursor == there.cursor)

    run(test)


def test_nobody_resumes_from_a_step_the_relay_was_not_told_of():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            other = await origin.create_table("other", SCHEMA)
            # What happens while it joins may come to it in one update.
            await relay.wait_live("quotes")
            first = await quotes.upsert([{"Sym": "A", "Price": 1.0}])
            async with live(origin.uri, "quotes") as there:
                cursor, rows = there.checkpoint()
            between = await other.add([{"Sym": "x", "Price": 1.0}])
            step = await quotes.upsert([{"Sym": "B", "Price": 1.0}])
            assert first < between < step
            await follows(relay, "quotes", step)
            for version, is_resumed in ((first, True), (between, False)):
                kept = Cursor(cursor.epoch, version)
                async with live(relay.uri, "quotes", resume_from=kept, rows=rows) as here:
                    # Between two steps there may have been one that the upstream server has lost.
                    assert here.resumption.startswith("replayed") is is_resumed
                    await until(lambda: len(here) == 2)

    run(test)


def test_a_cursor_the_relay_has_not_come_to_is_waited_for():
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await quotes.upsert([{"Sym": "A", "Price": 1.0}])
            follower = await relay.wait_live("quotes")
            take = follower._take
            held = asyncio.Event()

            async def take_later(*arguments, **named):
                await held.wait()
                await take(*arguments, **named)

            follower._take = take_later
            await quotes.upsert([{"Sym": "B", "Price": 1.0}])
            async with live(origin.uri, "quotes") as there:
                cursor, rows = there.checkpoint()
            assert follower.step < cursor.version
            asyncio.get_running_loop().call_later(0.05, held.set)
            async with live(relay.uri, "quotes", resume_from=cursor, rows=rows) as here:
                assert here.resumption == "live"
                await until(lambda: len(here) == 2)

    run(test)


def test_tables_that_come_later_are_followed_and_dropped_ones_end():
    async def test():
        async with engine() as origin, relay_of(origin.uri, tables="quotes*") as relay:
            await origin.create_table("trades", SCHEMA)
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await relay.wait_live("quotes")
            assert "trades" not in relay.followers
            await origin.create_table("quotes_eu", SCHEMA, key="Sym")
            eu = await relay.wait_live("quotes_eu")
            async with live(relay.uri, "quotes") as here, live(relay.uri, "quotes_eu") as other:
                epoch = here.cursor.epoch
                errors = []
                here.on_error(errors.append)
                await origin.drop_table("quotes")
                await until(lambda: any(isinstance(e, TableNotFoundError) for e in errors))
                again = await origin.create_table("quotes", SCHEMA, key="Sym")
                await again.upsert([{"Sym": "new", "Price": 1.0}])
                # The subscriber comes back as it does when a server restarts.
                await until(lambda: here.state is State.LIVE and len(here) == 1)
                assert here.cursor.epoch != epoch
                assert other.state is State.LIVE
                assert eu.state is FollowerState.LIVE
            del quotes

    run(test)


def test_a_read_only_relay_refuses_what_is_written():
    async def test():
        async with engine() as origin, relay_of(origin.uri, is_read_only=True) as relay:
            await origin.create_table("quotes", SCHEMA, key="Sym")
            await relay.wait_live("quotes")
            async with aconnect(relay.uri) as session:
                row = pa.table({"Sym": ["A"], "Price": [1.0]})
                with pytest.raises(UnsupportedError, match="relay is read only"):
                    await session.put("quotes", row, mode="upsert")
                with pytest.raises(UnsupportedError, match="relay is read only"):
                    await session.drop_table("quotes")
                for mode in ("replace", "delete"):
                    with pytest.raises(UnsupportedError, match="relay is read only"):
                        await session.put("quotes", row, mode=mode)
                with pytest.raises(UnsupportedError, match="relay is read only"):
                    await session.create_table("new", SCHEMA)

    run(test)


def test_a_relays_server_has_no_journals_on_disk(tmp_path):
    with pytest.raises(ConfigError, match="memory"):
        relay_config(ServerConfig(host=HOST, data=str(tmp_path)))
    with pytest.raises(ConfigError, match="history"):
        relay_config(ServerConfig(host=HOST, journal="none"))
