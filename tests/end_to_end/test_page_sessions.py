"""Sessions of pages: what a cookie opens, and that nothing does once it was ended."""

from __future__ import annotations

import base64
import contextlib
import http.client
from urllib.parse import urlsplit

import pytest

import barrage
from barrage.errors import AuthenticationError
from barrage.model.viewport import Viewport
from barrage.server.settings.config import ServerConfig
from tests.helpers.page_client import PageTable, on_a_loop, page_at
from tests.helpers.users import ALICE_PASSWORD, users_file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    users = users_file(tmp_path_factory.mktemp("users") / "users.jsonl")
    config = ServerConfig(host="inproc://", web=True, users=str(users), anonymous=False)
    with barrage.Server(config=config) as made:
        made.create_table("t", {"k": "int64"}, key=["k"]).upsert({"k": [1]})
        yield made


def asked(server, method, **headers):
    parts = urlsplit(server.web_uri)
    made = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    with contextlib.closing(made):
        own = server.web_uri.rstrip("/")
        made.request(method, "/session", headers={"origin": own, **headers})
        answer = made.getresponse()
        answer.read()
        return answer.status, answer.getheader("set-cookie", "")


def cookie_of(server, user="alice"):
    basic = base64.b64encode(f"{user}:{ALICE_PASSWORD}".encode()).decode()
    status, cookie = asked(server, "POST", authorization=f"Basic {basic}")
    assert status == 204
    return cookie.partition(";")[0]


def token_of(cookie):
    return cookie.partition("=")[2]


async def is_let_in(server, cookie):
    async with page_at(server.web_uri, headers={"Cookie": cookie}) as page:
        await page.say(type="hello")
        with contextlib.suppress(AssertionError):
            await page.text("welcome")
            return True
        assert await page.closed() == 4401
        return False


@on_a_loop
async def test_a_session_that_was_ended_is_over_for_every_copy_of_its_cookie(server):
    cookie, other, bob = cookie_of(server), cookie_of(server), cookie_of(server, "bob")
    async with (
        page_at(server.web_uri, headers={"Cookie": cookie}) as page,
        page_at(server.web_uri, headers={"Cookie": other}) as beside,
    ):
        await page.hello()
        await beside.hello()
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 1))
        await shown.shows([{"k": 1}])
        status, taken = asked(server, "DELETE", cookie=cookie)
        assert status == 204
        assert "Max-Age=0" in taken
        assert (await page.text("error", stream=1))["code"] == "UNAUTHENTICATED"
        assert await page.closed() == 4401
        assert "the session was ended" in page.close_reason
        assert not await is_let_in(server, cookie)
        # The same user, logged in elsewhere, and others are not touched.
        await beside.call(1, "barrage.tables")
        assert await is_let_in(server, other)
        assert await is_let_in(server, bob)


@on_a_loop
async def test_what_a_cookie_was_renewed_to_ends_with_it(server):
    cookie = cookie_of(server)
    tokens = server._app._authenticator.tokens
    async with barrage.aconnect(server.uri, auth=barrage.Bearer(token_of(cookie))) as session:
        assert "t" in [each.name for each in await session.tables()]
        renewed = tokens.renew(token_of(cookie))
        again = tokens.renew(renewed)
        asked(server, "DELETE", cookie=cookie)
        with pytest.raises(AuthenticationError):
            await session.tables()
    for token in (token_of(cookie), renewed, again):
        assert tokens.find(token) is None
        assert tokens.renew(token) is None


@on_a_loop
async def test_ending_a_session_from_elsewhere_or_without_one_does_nothing(server):
    cookie = cookie_of(server)
    assert asked(server, "DELETE", cookie=cookie, origin="http://evil.example")[0] == 403
    for shown in ({}, {"cookie": "barrage-session="}, {"cookie": "barrage-session=bt_x"}):
        assert asked(server, "DELETE", **shown)[0] == 204
    assert await is_let_in(server, cookie)
    assert asked(server, "DELETE", cookie=cookie)[0] == 204
    assert asked(server, "DELETE", cookie=cookie)[0] == 204


@on_a_loop
async def test_a_session_may_be_ended_by_what_it_was_renewed_to(server):
    cookie = cookie_of(server)
    renewed = server._app._authenticator.tokens.renew(token_of(cookie))
    asked(server, "DELETE", cookie=f"barrage-session={renewed}")
    assert not await is_let_in(server, cookie)
