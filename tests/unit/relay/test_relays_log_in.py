"""A relay between servers that know users: it is one of them above, and knows its own below."""

from __future__ import annotations

import json

import pytest

import barrage
from barrage.client.session import aconnect
from barrage.errors import AuthenticationError, PermissionDeniedError, TableNotFoundError
from barrage.server.settings.config import ServerConfig
from tests.helpers.users import ALICE_PASSWORD, users_file
from tests.unit.client.scripted import run
from tests.unit.relay.scene import HOST, SCHEMA, engine, relay_of

ROWS = {"Sym": ["A"], "Price": [1.0]}
ALICE = barrage.Basic("alice", ALICE_PASSWORD)
BOB = barrage.Basic("bob", ALICE_PASSWORD)


def who_wrote(path) -> set[tuple[str, str, str]]:
    """User, table and outcome of every upload."""
    lines = map(json.loads, path.read_text().splitlines())
    return {
        (each.get("user"), *each.get("tables", ()), each["outcome"])
        for each in lines
        if each["method"].endswith("/DoPut")
    }


@pytest.mark.parametrize("is_renewed", [False, True])
def test_writes_are_the_relays_above_and_its_callers_below(tmp_path, is_renewed):
    users = str(users_file(tmp_path / "users.jsonl"))
    given = []

    def key() -> str:
        given.append("the-key")
        return "the-key"

    above = {"users": users, "token": "the-key", "audit": str(tmp_path / "above.log")}
    below = ServerConfig(
        host=HOST, journal="memory", users=users, audit=str(tmp_path / "below.log")
    )
    auth = barrage.Bearer(key) if is_renewed else ALICE

    async def scene() -> None:
        async with engine(**above) as server:
            await server.create_table("t", SCHEMA)
            relay = relay_of(server.uri, config=below, auth=auth)
            await relay.start()
            try:
                await relay.wait_live("t")
                async with aconnect(relay.uri, auth=BOB) as session:
                    await session.put("t", ROWS)
                with pytest.raises(AuthenticationError):
                    async with aconnect(relay.uri) as session:
                        await session.tables()
            finally:
                await relay.stop()

    run(scene)
    name = "key" if is_renewed else "alice"
    assert who_wrote(tmp_path / "above.log") == {(name, "t", "OK")}
    assert who_wrote(tmp_path / "below.log") == {("bob", "t", "OK")}
    assert bool(given) is is_renewed


POLICY = """
[[rule]]
users = ["alice"]
tables = ["*"]
allow = ["admin"]

[[rule]]
users = ["bob"]
tables = ["t"]
allow = ["read", "write"]

[[rule]]
users = ["bob"]
tables = ["seen"]
allow = ["read"]

[[rule]]
users = ["bob"]
tables = ["blind"]
allow = ["write"]

[[rule]]
users = ["bob"]
tables = ["new*"]
allow = ["read", "create"]
"""


def below(directory) -> ServerConfig:
    """A relay with users and rules of its own."""
    (directory / "rules.toml").write_text(POLICY)
    users = users_file(directory / "users.jsonl")
    return ServerConfig(
        host=HOST, journal="memory", users=str(users), policy=str(directory / "rules.toml")
    )


async def refused(writing, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        await writing


def test_who_may_not_read_at_a_relay_changes_no_cells_there(tmp_path):
    """What the owner refuses would say what they hold."""

    async def scene() -> None:
        async with engine(token="the-key") as server:
            table = await server.create_table("blind", SCHEMA, key="Sym")
            await table.upsert(ROWS)
            relay = relay_of(server.uri, config=below(tmp_path), auth="the-key")
            await relay.start()
            try:
                await relay.wait_live("blind")
                async with aconnect(relay.uri, auth=BOB) as bob:
                    key = {"Sym": "A"}
                    for action, asked in (
                        ("set_cells", {"key": key, "cells": {}, "expected": {"Price": "7"}}),
                        ("add_row", {"cells": key}),
                        ("remove_row", {"key": key}),
                    ):
                        body = json.dumps({"table": "blind", **asked}).encode()
                        acted = bob.act(f"barrage.{action}", body, table="blind")
                        await refused(acted, PermissionDeniedError, "you may not read table")
            finally:
                await relay.stop()

    run(scene)


def test_a_relay_asks_its_own_rules_before_it_passes_a_write_on(tmp_path):
    async def scene() -> None:
        async with engine(token="the-key") as server:
            for name in ("t", "seen", "hidden", "newer"):
                await server.create_table(name, SCHEMA)
            relay = relay_of(server.uri, config=below(tmp_path), auth="the-key")
            await relay.start()
            try:
                for name in ("t", "seen", "hidden", "newer"):
                    await relay.wait_live(name)
                async with aconnect(relay.uri, auth=BOB) as bob:
                    await bob.put("t", ROWS)
                    await bob.put("new_one", ROWS)
                    await bob.create_table("new_two", SCHEMA)
                    unknown = [TableNotFoundError, "^table '{}' not found$"]
                    for name, error, text in (
                        ("seen", PermissionDeniedError, "you may not write table 'seen'"),
                        ("newer", PermissionDeniedError, "you may not write table 'newer'"),
                        # Whether there is such a table or not.
                        ("hidden", unknown[0], unknown[1].format("hidden")),
                    ):
                        await refused(bob.put(name, ROWS), error, text)
                    for name in ("hidden", "nothing", "seen", "t"):
                        text = f"you may not create table '{name}'"
                        made = bob.create_table(name, SCHEMA)
                        await refused(made, PermissionDeniedError, text)
                    for name in ("hidden", "nothing"):
                        text = unknown[1].format(name)
                        await refused(bob.drop_table(name), TableNotFoundError, text)
                    for name in ("seen", "t", "new_two"):
                        text = f"you may not drop table '{name}'"
                        await refused(bob.drop_table(name), PermissionDeniedError, text)
                    commit = {"table": "t", "writer": "w", "batch": 0, "staged": [], "create": True}
                    body = json.dumps(commit).encode()
                    acted = bob.act("stage.commit", body, table="t")
                    await refused(acted, PermissionDeniedError, "you may not create table 't'")
                assert {each.name for each in await tables_of(server)} == {
                    *("t", "seen", "hidden", "newer", "new_one", "new_two")
                }
            finally:
                await relay.stop()

    run(scene)


async def tables_of(server):
    async with aconnect(server.uri, auth="the-key") as session:
        listed = await session.tables()
        for name in ("seen", "hidden", "newer"):
            assert (await session.table(name).snapshot()).num_rows == 0
        return [each for each in listed if not each.name.startswith("_")]
