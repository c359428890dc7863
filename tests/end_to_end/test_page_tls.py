"""Pages behind TLS, and pages whose time is up."""

from __future__ import annotations

import http.client
import ssl
from contextlib import closing
from urllib.parse import urlsplit

import pytest

import barrage
from barrage.model.viewport import Viewport
from barrage.server.settings.config import ServerConfig
from tests.helpers.certificates import authority
from tests.helpers.page_client import PageTable, on_a_loop, page_at

ROWS = {"k": [1, 2], "v": [1.0, 2.0]}
SHOWN = [{"k": 1, "v": 1.0}, {"k": 2, "v": 2.0}]


@pytest.fixture
def scene(tmp_path):
    """A server with a certificate and a key, and what a browser trusts."""
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    config = ServerConfig(
        host="localhost",
        web=True,
        tls_cert=certificate,
        tls_key=key,
        token="the-key",
        token_lifetime_ms=1000,
    )
    trusting = ssl.create_default_context(cafile=authority().write(tmp_path))
    with barrage.Server(config=config) as server:
        server.create_table("t", key="k", data=ROWS)
        yield server, trusting


def logged_in(server, trusting):
    """The cookie of who has the key."""
    parts = urlsplit(server.web_uri)
    made = http.client.HTTPSConnection(parts.hostname, parts.port, context=trusting, timeout=60)
    with closing(made):
        headers = {"authorization": "Bearer the-key", "origin": server.web_uri.rstrip("/")}
        made.request("POST", "/session", headers=headers)
        answer = made.getresponse()
        answer.read()
        assert answer.status == 204
        return answer.getheader("set-cookie")


@on_a_loop
async def test_the_page_has_the_certificate_of_the_server(scene):
    server, trusting = scene
    assert server.web_uri.startswith("https://")
    async with page_at(server.web_uri, tls=trusting) as page:
        page.acknowledges = True
        await page.hello("Bearer the-key")
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 2))
        await shown.shows(SHOWN)
    plain = "http://" + urlsplit(server.web_uri).netloc
    async with page_at(server.web_uri, origin=plain, tls=trusting) as page:
        assert await page.closed() == 4403


def test_who_does_not_know_the_authority_does_not_come_in(scene):
    server, _ = scene
    with pytest.raises(ssl.SSLCertVerificationError):
        logged_in(server, ssl.create_default_context())


@on_a_loop
async def test_a_session_that_has_run_out_ends_the_page(scene):
    server, trusting = scene
    cookie = logged_in(server, trusting)
    assert "; Secure" in cookie
    token = cookie.partition(";")[0]
    async with page_at(server.web_uri, headers={"Cookie": token}, tls=trusting) as page:
        page.acknowledges = True
        welcome = await page.hello()
        assert welcome["caller"]["expires_ns"] is not None
        shown = PageTable(page, 1)
        await shown.open(b"s/t", viewport=Viewport.of(0, 2))
        assert (await page.text("error", stream=1))["code"] == "UNAUTHENTICATED"
        assert await page.closed() == 4401
        assert "expired" in page.close_reason
    async with page_at(server.web_uri, headers={"Cookie": token}, tls=trusting) as page:
        await page.say(type="hello")
        assert await page.closed() == 4401
