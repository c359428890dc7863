"""Saved boards: whose they are, who sees them, and that they outlive the server."""

from __future__ import annotations

import base64
from contextlib import contextmanager

import pytest

import barrage
from barrage.limits import Limits
from barrage.server.settings.config import ServerConfig
from tests.helpers.page_client import on_a_loop, page_at
from tests.helpers.users import ALICE_PASSWORD, users_file

LIMITS = Limits(board_bytes_max=1000, boards_max=5, boards_per_caller_max=3)
CONTENT = {"grids": [{"table": "t", "columns": ["k"]}], "text": "ä"}


def shown(user):
    return "Basic " + base64.b64encode(f"{user}:{ALICE_PASSWORD}".encode()).decode()


@contextmanager
def serving(directory):
    users = directory / "users.jsonl"
    if not users.exists():
        users_file(users)
    config = ServerConfig(
        host="inproc://",
        web=True,
        data=str(directory / "data"),
        users=str(users),
        anonymous=False,
        limits=LIMITS,
    )
    with barrage.Server(config=config) as server:
        yield server


class Boards:
    """What one caller does with boards."""

    def __init__(self, page):
        self.page = page
        self._calls = 0

    async def ask(self, action, **body):
        self._calls += 1
        answer = await self.page.call(self._calls, f"barrage.{action}", body)
        return answer["body"] if answer["type"] == "result" else answer["code"]

    async def save(self, name, content=None, version=0, **further):
        content = CONTENT if content is None else content
        return await self.ask("save_board", name=name, content=content, version=version, **further)


@on_a_loop
async def test_a_board_is_its_owner_s(tmp_path):
    with serving(tmp_path) as server:
        async with page_at(server.web_uri) as one, page_at(server.web_uri) as other:
            await one.hello(shown("alice"))
            await other.hello(shown("bob"))
            alice, bob = Boards(one), Boards(other)
            assert await alice.save("mine") == {"version": 1}
            assert await bob.ask("boards") == []
            assert await bob.ask("board", name="mine") == "NOT_FOUND"
            assert await bob.save("mine") == "PERMISSION_DENIED"
            assert await bob.ask("drop_board", name="mine") == "NOT_FOUND"
            assert await alice.save("mine", version=1, is_shared=True) == {"version": 2}
            assert await alice.save("mine", version=1) == "ABORTED"
            seen = await bob.ask("board", name="mine")
            assert seen["content"] == CONTENT
            assert (seen["owner"], seen["is_own"], seen["is_shared"]) == ("alice", False, True)
            assert await bob.save("mine", version=2) == "PERMISSION_DENIED"
            assert await bob.ask("drop_board", name="mine") == "PERMISSION_DENIED"
    with serving(tmp_path) as server:
        async with page_at(server.web_uri) as one:
            await one.hello(shown("alice"))
            alice = Boards(one)
            listed = await alice.ask("boards")
            assert [(each["name"], each["version"]) for each in listed] == [("mine", 2)]
            assert (await alice.ask("board", name="mine"))["content"] == CONTENT
            assert await alice.ask("drop_board", name="mine") == {}
            assert await alice.ask("boards") == []
    with serving(tmp_path) as server:
        async with page_at(server.web_uri) as one:
            await one.hello(shown("alice"))
            assert await Boards(one).ask("boards") == []


@on_a_loop
async def test_boards_are_bounded(tmp_path):
    with serving(tmp_path) as server:
        async with page_at(server.web_uri) as one, page_at(server.web_uri) as other:
            await one.hello(shown("alice"))
            await other.hello(shown("bob"))
            alice, bob = Boards(one), Boards(other)
            longest = {"x": "y" * (LIMITS.board_bytes_max - len('{"x":""}'))}
            assert await alice.save("long", longest) == {"version": 1}
            longest["x"] += "y"
            assert await alice.save("longer", longest) == "RESOURCE_EXHAUSTED"
            assert await alice.save("2") == {"version": 1}
            assert await alice.save("3") == {"version": 1}
            assert await alice.save("4") == "RESOURCE_EXHAUSTED"
            assert await alice.save("3", version=1) == {"version": 2}
            assert await bob.save("b1") == {"version": 1}
            assert await bob.save("b2") == {"version": 1}
            assert await bob.save("b3") == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "body",
    [
        {"content": {}},
        {"name": "", "content": {}},
        {"name": "x\ny", "content": {}},
        {"name": "x" * 201, "content": {}},
        {"name": "x", "content": []},
        {"name": "x", "content": {}, "version": "1"},
        {"name": "x", "content": {}, "colour": "red"},
    ],
)
@on_a_loop
async def test_what_is_no_board_is_refused(body):
    with barrage.Server(config=ServerConfig(host="inproc://", web=True)) as server:
        async with page_at(server.web_uri) as page:
            await page.hello()
            boards = Boards(page)
            assert await boards.ask("save_board", **body) == "INVALID_ARGUMENT"
            assert await boards.ask("boards") == []


@on_a_loop
async def test_a_damaged_file_is_left_alone(tmp_path):
    with serving(tmp_path) as server:
        async with page_at(server.web_uri) as page:
            await page.hello(shown("alice"))
            assert await Boards(page).save("kept") == {"version": 1}
    damaged = tmp_path / "data" / "boards" / "damaged.json"
    damaged.write_bytes(b"{")
    with serving(tmp_path) as server:
        async with page_at(server.web_uri) as page:
            await page.hello(shown("alice"))
            assert [each["name"] for each in await Boards(page).ask("boards")] == ["kept"]
    assert damaged.read_bytes() == b"{"
