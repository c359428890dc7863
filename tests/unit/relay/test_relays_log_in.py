"""A relay between servers that know users: it is one of them above, and knows its own below."""

from __future__ import annotations

import json

import pytest

import barrage
from barrage.client.session import aconnect
from barrage.errors import AuthenticationError
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
