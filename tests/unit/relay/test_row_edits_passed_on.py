"""Row edits at a relay: allowed and refused as at the server that owns the table."""

from __future__ import annotations

import json

import pytest

from barrage.client.session import aconnect
from barrage.errors import BarrageError
from tests.unit.relay.scene import engine, follows, relay_of, run

SCHEMA = {"id": "int64", "part": "string", "n": "int64"}
KEY = {"id": "1", "part": "a"}

REFUSED = {
    "no number": ("set_cells", {"key": KEY, "cells": {"n": "x"}}),
    "an unknown column": ("set_cells", {"key": KEY, "cells": {"m": "1"}}),
    "a column of the key": ("set_cells", {"key": KEY, "cells": {"id": "7"}}),
    "a part of the key": ("set_cells", {"key": {"id": "1"}, "cells": {}}),
    "no such row": ("set_cells", {"key": {**KEY, "id": "9"}, "cells": {}}),
    "another value": ("set_cells", {"key": KEY, "cells": {"n": "1"}, "expected": {"n": "8"}}),
    "no text": ("set_cells", {"key": KEY, "cells": {"n": 1}}),
    "an unknown field": ("set_cells", {"key": KEY, "cells": {}, "more": 1}),
    "no cells": ("set_cells", {"key": KEY}),
    "a row that is there": ("add_row", {"cells": KEY}),
    "a key that is null": ("add_row", {"cells": {"id": "4"}}),
    "a new column": ("add_row", {"cells": {**KEY, "zz": "1"}}),
    "no row to remove": ("remove_row", {"key": {"id": "8", "part": ""}}),
    "a key of nothing": ("remove_row", {"key": {}}),
    "a table without a key": ("set_cells", {"table": "log", "key": {}, "cells": {}}),
    "an unknown table": ("remove_row", {"table": "none", "key": {}}),
    "no table": ("remove_row", {"table": None, "key": {}}),
    "a table that is a number": ("remove_row", {"table": 7, "key": {}}),
    "too long": ("set_cells", {"key": KEY, "cells": {"part": "x" * 300_000}}),
}


async def asked(session, action, body):
    """The answer, or how it was refused."""
    text = json.dumps({"table": "t", **body}).encode()
    try:
        (answer,) = await session.act(f"barrage.{action}", text)
    except BarrageError as error:
        return type(error).__name__, str(error), error.answered
    return json.loads(answer)


async def begun(origin):
    table = await origin.create_table("t", SCHEMA, key=["id", "part"])
    await table.upsert([{"id": 1, "part": "a", "n": 5}])
    log = await origin.create_table("log", {"n": "int64"})
    await log.add([{"n": 1}])


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_owner_refuses_a_relay_refuses_alike(what):
    async def test():
        async with engine() as origin, relay_of(origin.uri) as relay:
            await begun(origin)
            await follows(relay, "t", 1)
            await follows(relay, "log", 1)
            async with aconnect(origin.uri) as there, aconnect(relay.uri) as here:
                refused = await asked(there, *REFUSED[what])
                assert len(refused) == 3, "the owner refuses it"
                assert await asked(here, *REFUSED[what]) == refused

    run(test)


def test_a_table_is_writable_where_the_relay_passes_edits_on():
    async def test():
        async with (
            engine() as origin,
            relay_of(origin.uri) as relay,
            relay_of(origin.uri, is_read_only=True) as reading,
        ):
            await begun(origin)
            for each in (relay, reading):
                await follows(each, "t", 1)
                await follows(each, "log", 1)
            found = {}
            for name, uri in (("own", origin.uri), ("on", relay.uri), ("read", reading.uri)):
                async with aconnect(uri) as session:
                    for table in ("t", "log"):
                        told = await asked(session, "describe", {"table": table})
                        found[name, table] = told["is_writable"]
            assert {key for key, is_writable in found.items() if is_writable} == {
                ("own", "t"),
                ("on", "t"),
            }
            async with aconnect(relay.uri) as session:
                body = {"key": KEY, "cells": {"n": "6"}, "expected": {"n": "5"}}
                assert (await asked(session, "set_cells", body))["step"] > 0

    run(test)
