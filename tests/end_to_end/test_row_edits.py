"""Single rows changed by pages: exactly, by those who may, not over somebody else's change."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

import barrage
from barrage.limits import Limits
from barrage.server.policy.rules import Operation, Policy, Rule
from barrage.server.settings.config import ServerConfig
from tests.end_to_end.test_page_boards import shown
from tests.helpers.page_client import on_a_loop, page_at
from tests.helpers.users import users_file

LIMITS = Limits(edit_bytes_max=400)
SCHEMA = {
    "id": "int64",
    "part": "string",
    "n": "int64",
    "ts": pa.timestamp("ns", "UTC"),
    "ok": "bool",
}
KEY = {"id": "1", "part": "a"}
LARGE = str(2**63 - 1)


def serving(**config):
    return barrage.Server(config=ServerConfig(host="inproc://", web=True, limits=LIMITS, **config))


def filled(server):
    table = server.create_table("t", SCHEMA, key=["id", "part"])
    row = {"n": 2**53 + 1, "ts": 1, "ok": None}
    table.upsert([{"id": 1, "part": "a", **row}, {"id": 2, "part": "", **row}])
    return table


class Editing:
    """What one page asks."""

    def __init__(self, page):
        self._page = page
        self._calls = 0

    async def ask(self, action, table="t", **body):
        """The result, or the code and the words of a refusal."""
        self._calls += 1
        answer = await self._page.call(self._calls, f"barrage.{action}", {"table": table, **body})
        if answer["type"] == "result":
            return answer["body"]
        return answer["code"], answer["message"]

    async def refusal(self, action, **body):
        code, words = await self.ask(action, **body)
        return f"{code}: {words}"


@asynccontextmanager
async def editing(server, user=None):
    async with page_at(server.web_uri) as page:
        await page.hello(None if user is None else shown(user))
        yield Editing(page)


@on_a_loop
async def test_cells_rows_and_what_is_refused():
    with serving() as server:
        table = filled(server)
        async with editing(server) as page:
            told = await page.ask("describe")
            assert told["is_writable"] is True
            answer = await page.ask("set_cells", key=KEY, cells={"n": LARGE, "ok": "true"})
            row = table.to_arrow().to_pylist()[0]
            assert (row["n"], row["ok"]) == (2**63 - 1, True)
            assert answer["step"] > 0
            moment = "2026-01-31 12:30:00.123456789"
            await page.ask("set_cells", key=KEY, cells={"ts": moment, "ok": None})
            assert table.to_arrow()["ts"].cast(pa.int64())[0].as_py() == 1769862600123456789
            assert table.to_arrow()["ok"][0].as_py() is None
            await page.ask("add_row", cells={"id": "3", "part": "x", "n": "5"})
            assert table.to_arrow().to_pylist()[2]["n"] == 5
            await page.ask("remove_row", key={"id": "3", "part": "x"})
            assert len(table) == 2
            before = table.to_arrow()
            for wrong, words in [
                (page.refusal("set_cells", key=KEY, cells={"n": "x"}), "'x' is no int64"),
                (page.refusal("set_cells", key=KEY, cells={"m": "1"}), "unknown column 'm'"),
                (page.refusal("set_cells", key=KEY, cells={"id": "7"}), "is of the key"),
                (page.refusal("set_cells", key={"id": "1"}, cells={}), "the key is id, part"),
                (page.refusal("set_cells", key={**KEY, "id": "9"}, cells={}), "NOT_FOUND"),
                (page.refusal("set_cells", key=KEY, cells={"n": 1}), "'cells' in action body"),
                (page.refusal("set_cells", key=KEY, cells={}, more=1), "unknown field 'more'"),
                (page.refusal("add_row", cells=KEY), "ALREADY_EXISTS"),
                (page.refusal("add_row", cells={"id": "4"}), "null"),
                (page.refusal("add_row", cells={**KEY, "zz": "1"}), "unknown column 'zz'"),
                (page.refusal("remove_row", key={"id": "8", "part": ""}), "NOT_FOUND"),
            ]:
                assert words in await wrong
            assert table.to_arrow().equals(before)


@on_a_loop
async def test_a_change_does_not_go_over_another_one():
    with serving() as server:
        table = filled(server)
        async with editing(server) as one, editing(server) as other:
            seen = {"n": str(2**53 + 1)}
            answers = [
                await page.ask("set_cells", key=KEY, cells={"n": n}, expected=seen)
                for page, n in ((one, "10"), (other, "20"))
            ]
            assert answers[0]["step"] > 0
            assert answers[1][0] == "ABORTED"
            assert "it holds '10' now" in answers[1][1]
            # Of other cells of the row it knows nothing, and they are none of its business.
            await other.ask("set_cells", key=KEY, cells={"ok": "true"}, expected={"ok": None})
            assert table.to_arrow().to_pylist()[0]["n"] == 10


@pytest.mark.parametrize("count", [5])
@on_a_loop
async def test_changes_of_one_cycle_see_each_other(count):
    """None of them is lost, although the engine stages them one upon the other."""
    with serving() as server:
        schema = {"id": "int64", **{f"c{i}": "int64" for i in range(count)}}
        table = server.create_table("t", schema, key="id")
        table.upsert({name: [0] for name in schema})
        async with page_at(server.web_uri) as page:
            await page.hello()
            for i in range(count):
                body = {"table": "t", "key": {"id": "0"}, "cells": {f"c{i}": str(i + 1)}}
                await page.say(type="call", call=i + 1, action="barrage.set_cells", body=body)
            for i in range(count):
                await page.text("result", call=i + 1)
        assert [table.to_arrow()[f"c{i}"][0].as_py() for i in range(count)] == [1, 2, 3, 4, 5]


@on_a_loop
async def test_who_may_and_which_tables(tmp_path):
    rules = Policy(
        rules=(
            Rule(tables=("*",), users=("alice",), allow=frozenset(Operation)),
            Rule(tables=("t",), users=("bob",), allow=frozenset({Operation.READ})),
        )
    )
    config = ServerConfig(
        host="inproc://",
        web=True,
        users=str(users_file(tmp_path / "users.jsonl")),
        anonymous=False,
    )
    with barrage.Server(config=config, policy=rules) as server:
        table = filled(server)
        server.publish("v", table.where("n > 0"))
        server.create_table("log", {"id": "int64"}).add({"id": [1]})
        async with editing(server, "alice") as alice, editing(server, "bob") as bob:
            assert (await alice.ask("describe"))["is_writable"] is True
            assert (await bob.ask("describe"))["is_writable"] is False
            for table_name in ("v", "log"):
                assert (await alice.ask("describe", table=table_name))["is_writable"] is False
                refusal = await alice.refusal("set_cells", table=table_name, key=KEY, cells={})
                assert refusal.startswith("UNIMPLEMENTED")
            for action, body in [
                ("set_cells", {"key": KEY, "cells": {"n": "1"}}),
                ("add_row", {"cells": {"id": "9", "part": ""}}),
                ("remove_row", {"key": KEY}),
            ]:
                refusal = await bob.refusal(action, **body)
                assert refusal.startswith("PERMISSION_DENIED")
                refusal = await bob.refusal(action, table="log", **body)
                assert refusal.startswith("NOT_FOUND")
        assert table.to_arrow()["n"].to_pylist() == [2**53 + 1] * 2


@on_a_loop
async def test_who_may_write_and_not_read_learns_nothing_by_changing_rows(tmp_path):
    rules = Policy.of(Rule(tables=("t",), users=("bob",), allow=frozenset({Operation.WRITE})))
    users = users_file(tmp_path / "users.jsonl")
    config = ServerConfig(host="inproc://", web=True, users=str(users), anonymous=False)
    with barrage.Server(config=config, policy=rules) as server:
        table = filled(server)
        absent = {"id": "77", "part": ""}
        async with editing(server, "bob") as bob:
            refusals = {
                await bob.refusal(action, **body)
                for action, body in [
                    ("set_cells", {"key": KEY, "cells": {}, "expected": {"n": "5"}}),
                    ("set_cells", {"key": absent, "cells": {}}),
                    ("add_row", {"cells": KEY}),
                    ("remove_row", {"key": KEY}),
                    ("remove_row", {"key": absent}),
                ]
            }
        (refusal,) = refusals
        assert refusal.startswith("PERMISSION_DENIED: you may not read table 't'")
        assert table.to_arrow()["n"].to_pylist() == [2**53 + 1] * 2


@on_a_loop
async def test_a_request_has_a_longest_length():
    with serving() as server:
        filled(server)
        async with editing(server) as page:
            fixed = {"key": {"id": "2", "part": ""}, "cells": {"n": "", "ok": None}}
            size = len(json.dumps({"table": "t", **fixed}))
            fits = {**fixed, "cells": {"n": "1".rjust(400 - size), "ok": None}}
            assert (await page.ask("set_cells", **fits))["step"] > 0
            past = {**fixed, "cells": {"n": "1".rjust(401 - size), "ok": None}}
            assert (await page.ask("set_cells", **past))[0] == "RESOURCE_EXHAUSTED"
