"""The page behind TLS: it comes by HTTP/2, its socket by HTTP/1.1."""

from __future__ import annotations

from tests.helpers.certificates import authority
from tests.web.page.conftest import web_server
from tests.web.page.screen import wait_until

LOADED = """() => performance.getEntries()
    .filter(each => each.nextHopProtocol).map(each => each.nextHopProtocol)"""


def test_the_page_comes_by_http2_and_lives(tmp_path, open_screen):
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    config = {"host": "localhost", "tls_cert": certificate, "tls_key": key}
    with web_server(**config) as server:
        table = server.create_table("t", {"id": "int64", "value": "string"}, key="id")
        table.upsert({"id": list(range(50)), "value": ["first"] * 50})
        screen = open_screen(server, "#table=t", ignore_https_errors=True)
        screen.wait_ready()
        protocols = screen.page.evaluate(LOADED)
        assert len(protocols) > 2
        assert set(protocols) == {"h2"}
        table.upsert({"id": [3], "value": ["later"]})
        wait_until(lambda: screen.cells().get(3, {}).get("value") == "later")
        assert screen.pill.startswith("live")


def test_who_has_the_key_gets_a_session_over_http2(tmp_path, open_screen):
    certificate, key = authority().for_localhost().write(tmp_path, "server")
    config = {"host": "localhost", "tls_cert": certificate, "tls_key": key, "token": "secret"}
    with web_server(**config) as server:
        server.create_table("t", {"id": "int64"}, key="id").upsert({"id": [1, 2]})
        screen = open_screen(server, "#table=t", ignore_https_errors=True)
        status = screen.page.evaluate(
            "() => fetch('/session', {method: 'POST', headers: {authorization: 'Bearer secret'}})"
            ".then(answer => answer.status)"
        )
        assert status == 204
        screen.page.reload()
        screen.wait_ready()
        assert screen.row_count == 2
