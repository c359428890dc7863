"""A relay with a directory starts from the states kept there, and asks only for what came since."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from contextlib import asynccontextmanager

import pytest

from barrage.client.session import aconnect
from barrage.errors import ConfigError, ConnectionLostError, TableAwaitedError, TableNotFoundError
from barrage.journal.disk.storage import SystemCalls
from barrage.relay.relay_follower import FollowerState
from barrage.relay.relay_server import Relay
from tests.unit.relay.scene import (
    SCHEMA,
    engine,
    follows,
    live,
    read,
    relay_of,
    rows_of,
    run,
    until,
)


def sizes(*names: str) -> list[dict[str, object]]:
    return [{"Sym": name, "Price": float(len(name))} for name in names]


class FailingCalls(SystemCalls):
    """A disk on which one kind of call fails."""

    def __init__(self, call: str) -> None:
        setattr(self, call, self._fail)

    def _fail(self, *_: object) -> None:
        raise OSError(errno.EIO, "the disk of this test is broken")


async def shows(relay: Relay, name: str, *symbols: str) -> None:
    """Until the table has these rows: a step that was taken has its cycle a moment later."""
    async with live(relay.uri, name) as table:
        await until(lambda: [row["Sym"] for row in rows_of(table)] == list(symbols))


@asynccontextmanager
async def kept_relay(directory, *addresses, **settings):
    """A relay that keeps states all the time."""
    settings = {"keep_seconds": 0.01, "data": directory, **settings}
    async with relay_of(*addresses, **settings) as relay:
        yield relay


def test_a_relay_goes_on_from_what_it_kept(tmp_path):
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(sizes("A", "BB", "CCC"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                await follows(relay, "quotes", step)
                step = await quotes.remove([{"Sym": "BB"}])
                await follows(relay, "quotes", step)
            step = await quotes.upsert(sizes("DDDD"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                follower = await follows(relay, "quotes", step)
                assert (follower.snapshots, follower.resumes) == (0, 1)
                await shows(relay, "quotes", "A", "CCC", "DDDD")

    run(test)


def test_clients_resume_across_a_restart_of_the_relay(tmp_path):
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(sizes("A"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                await follows(relay, "quotes", step)
                async with live(relay.uri, "quotes") as table:
                    cursor, rows = table.cursor, table.to_arrow()
            step = await quotes.upsert(sizes("BB"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                await follows(relay, "quotes", step)
                async with live(relay.uri, "quotes", resume_from=cursor, rows=rows) as table:
                    assert "replayed" in table.resumption
                    assert table.cursor.version == step
                    assert {row["Sym"] for row in rows_of(table)} == {"A", "BB"}

    run(test)


def test_what_was_kept_is_served_while_the_upstream_server_is_away(tmp_path):
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(sizes("A", "BB"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                await follows(relay, "quotes", step)
                await shows(relay, "quotes", "A", "BB")
            uri = origin.uri
        async with kept_relay(tmp_path, uri) as relay:
            await shows(relay, "quotes", "A", "BB")
            assert relay.followers["quotes"].state is FollowerState.PAUSED

    run(test)


def test_with_a_limit_of_the_lag_nothing_old_is_served(tmp_path):
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(sizes("A"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                await follows(relay, "quotes", step)
            step = await quotes.upsert(sizes("BB"))
            async with (
                kept_relay(tmp_path, "inproc://nobody", lag_ms_max=60_000) as relay,
                aconnect(relay.uri) as session,
            ):
                with pytest.raises(ConnectionLostError, match="not here yet"):
                    await read(session, "quotes")
            async with kept_relay(tmp_path, origin.uri, lag_ms_max=60_000) as relay:
                follower = await follows(relay, "quotes", step)
                assert follower.snapshots == 1
                await shows(relay, "quotes", "A", "BB")

    run(test)


def test_a_table_made_anew_upstream_is_told_anew(tmp_path):
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(sizes("A", "BB"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                await follows(relay, "quotes", step)
            await origin.drop_table("quotes")
            await origin.create_table("quotes", {"Other": "int64"})
            async with kept_relay(tmp_path, origin.uri) as relay:
                follower = await relay.wait_live("quotes")
                assert follower.snapshots == 1
                async with aconnect(relay.uri) as session:
                    assert (await read(session, "quotes")).column_names == ["Other"]

    run(test)


def test_another_history_is_kept_though_it_is_at_the_same_step(tmp_path):
    place = "inproc://another-history"

    async def test():
        async with engine(host=place) as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(sizes("A"))
            relay = relay_of(place, data=tmp_path, keep_seconds=0.01)
            await relay.start()
            follower = await follows(relay, "quotes", step)
            await until(lambda: follower.kept_step == step)
        other = 0
        while other != step:
            # The relay asks the new server for something at once, which may be its first step.
            before = follower.snapshots
            async with engine(host=place) as origin:
                quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
                other = await quotes.upsert(sizes("BB"))
                await until(lambda before=before: follower.snapshots > before)
                await follows(relay, "quotes", other)
        await relay.stop()
        async with kept_relay(tmp_path, place) as relay:
            await shows(relay, "quotes", "BB")

    run(test)


def test_what_is_dropped_or_not_asked_for_is_not_kept(tmp_path):
    async def test():
        async with engine() as origin:
            for name in ("quotes", "trades"):
                table = await origin.create_table(name, SCHEMA, key="Sym")
                step = await table.upsert(sizes("A"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                for name in ("quotes", "trades"):
                    follower = await follows(relay, name, 1)
                    await until(lambda follower=follower: follower.kept_step == follower.step)
                await origin.drop_table("quotes")
                await until(lambda: not (tmp_path / "relayed" / "quotes").exists())
            assert os.listdir(tmp_path / "relayed") == ["trades"]
            async with kept_relay(tmp_path, origin.uri, tables="others*"):
                pass
            assert os.listdir(tmp_path / "relayed") == []
            del step

    run(test)


def test_damage_costs_a_state_and_nothing_else(tmp_path, caplog):
    async def test():
        async with engine() as origin:
            for name in ("quotes", "trades"):
                table = await origin.create_table(name, SCHEMA, key="Sym")
                await table.upsert(sizes("A", "BB"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                for name in ("quotes", "trades"):
                    await follows(relay, name, 1)
            (checkpoint,) = (tmp_path / "relayed" / "quotes").glob("*.arrow")
            content = bytearray(checkpoint.read_bytes())
            content[len(content) // 2] ^= 1
            checkpoint.write_bytes(content)
            (tmp_path / "relayed" / "strange").mkdir()
            with caplog.at_level(logging.WARNING):
                async with kept_relay(tmp_path, origin.uri) as relay:
                    fetched = await relay.wait_live("quotes")
                    kept = await relay.wait_live("trades")
                    assert (fetched.snapshots, kept.snapshots) == (1, 0)
                    await shows(relay, "quotes", "A", "BB")
            assert "quotes" in caplog.text
            assert "is left out" in caplog.text

    run(test)


@pytest.mark.parametrize("call", ["append", "sync", "rename", "sync_names"])
def test_a_disk_that_fails_costs_the_next_start_time_and_nobody_a_row(tmp_path, call, caplog):
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(sizes("A"))
            async with kept_relay(tmp_path, origin.uri) as relay:
                follower = await follows(relay, "quotes", step)
                await until(lambda: follower.kept_step == step)
                relay._states._storage._system = FailingCalls(call)
                with caplog.at_level(logging.WARNING):
                    step = await quotes.upsert(sizes("BB"))
                    await until(lambda: "could not be kept" in caplog.text)
                await follows(relay, "quotes", step)
                await shows(relay, "quotes", "A", "BB")
            async with kept_relay(tmp_path, origin.uri) as relay:
                await follows(relay, "quotes", step)
                await shows(relay, "quotes", "A", "BB")

    run(test)


def test_a_directory_that_vanishes_while_it_is_used(tmp_path, caplog):
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            step = await quotes.upsert(sizes("A"))
            async with kept_relay(tmp_path / "kept", origin.uri) as relay:
                await follows(relay, "quotes", step)
                # In one step: the relay may be making a file there.
                (tmp_path / "kept").rename(tmp_path / "gone")
                shutil.rmtree(tmp_path / "gone", ignore_errors=True)
                with caplog.at_level(logging.WARNING):
                    step = await quotes.upsert(sizes("BB"))
                    await until(lambda: "could not be kept" in caplog.text)
                await follows(relay, "quotes", step)
            assert not (tmp_path / "kept" / "relayed").exists()

    run(test)


def test_directories_that_cannot_be_had(tmp_path):
    async def test():
        async with engine() as origin, kept_relay(tmp_path / "one", origin.uri):
            with pytest.raises(ConfigError, match="in use by another process"):
                async with kept_relay(tmp_path / "one", origin.uri):
                    pass
        (tmp_path / "two" / "tables" / "quotes").mkdir(parents=True)
        with pytest.raises(ConfigError, match="data directory of a server"):
            async with kept_relay(tmp_path / "two", "inproc://nobody"):
                pass

    run(test)


# --- tables that are awaited ----------------------------------------------------------------------


def test_a_table_that_is_to_come_is_unavailable_and_an_unknown_one_is_not_found():
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await quotes.upsert(sizes("A"))
            async with (
                relay_of("inproc://nobody", tables="quotes*") as relay,
                aconnect(relay.uri) as session,
            ):
                with pytest.raises(ConnectionLostError, match="not reached its upstream"):
                    await read(session, "quotes")
                with pytest.raises(TableNotFoundError):
                    await read(session, "trades")
            async with relay_of(origin.uri) as relay:
                await relay.wait_live("quotes")
                await relay.followers["quotes"]._withdraw(TableAwaitedError("quotes", "test"))
                async with aconnect(relay.uri) as session:
                    with pytest.raises(ConnectionLostError, match="about to serve"):
                        await read(session, "quotes")
                    with pytest.raises(TableNotFoundError):
                        await read(session, "trades")

    run(test)


def test_a_subscription_waits_for_a_table_that_is_to_come():
    async def test():
        async with engine() as origin:
            quotes = await origin.create_table("quotes", SCHEMA, key="Sym")
            await quotes.upsert(sizes("A"))
            async with relay_of(origin.uri) as relay, live(relay.uri, "quotes") as table:
                await until(lambda: [row["Sym"] for row in rows_of(table)] == ["A"])

    run(test)
