"""The files of the page over HTTP: what is packed, what is asked for again, what is not there."""

from __future__ import annotations

import asyncio
import gzip
import json
from importlib.metadata import PackageNotFoundError, version

import pytest

from barrage.transport.over_websocket.http_messages import WebRequest
from barrage.web.page_site import PageSite
from barrage.web.perspective_files import perspective_files
from barrage.web.static_files import read_files


class NoSessions:
    async def token_for(self, request):
        return None


@pytest.fixture
def site(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>" + "x" * 2000)
    (tmp_path / "short.css").write_text("a{}")
    (tmp_path / "assets" / "page-0595abb09b.js").write_text("let x = 1;\n" * 200)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG" + bytes(1000))
    (tmp_path / ".hidden").write_text("secret")

    async def is_serving():
        return True

    return PageSite(lambda: read_files(tmp_path), sessions=NoSessions(), is_serving=is_serving)


def asked(site, target, *, method="GET", **headers):
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    answer = asyncio.run(site.answer(WebRequest(method=method, target=target, headers=named)))
    return answer.status, dict(answer.headers), answer.body


def test_the_page_is_at_the_root_and_is_asked_for_again(site):
    status, headers, body = asked(site, "/")
    assert status == 200
    assert body.startswith(b"<!doctype html>")
    assert headers["cache-control"] == "no-cache"
    assert headers["content-type"] == "text/html; charset=utf-8"
    status, _, body = asked(site, "/?table=t", if_none_match=headers["etag"])
    assert (status, body) == (304, b"")
    status, _, _ = asked(site, "/", if_none_match='"other"')
    assert status == 200


def test_what_never_changes_lasts(site):
    _, headers, _ = asked(site, "/assets/page-0595abb09b.js")
    assert "immutable" in headers["cache-control"]
    assert headers["content-type"] == "text/javascript; charset=utf-8"


def test_texts_are_packed_for_who_unpacks_them(site):
    _, headers, plain = asked(site, "/assets/page-0595abb09b.js")
    assert "content-encoding" not in headers
    _, headers, packed = asked(site, "/assets/page-0595abb09b.js", accept_encoding="br, gzip;q=0.5")
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == plain
    for path in ("/short.css", "/picture.png"):
        _, headers, _ = asked(site, path, accept_encoding="gzip")
        assert "content-encoding" not in headers


@pytest.mark.parametrize(
    "path", ["/.hidden", "/assets", "/assets/", "/../x", "//index.html", "/nO"]
)
def test_what_is_not_there(site, path):
    assert asked(site, path)[0] == 404


def test_a_build_without_a_page_says_so(tmp_path):
    async def is_serving():
        return False

    site = PageSite(lambda: read_files(tmp_path), sessions=NoSessions(), is_serving=is_serving)
    status, _, body = asked(site, "/")
    assert status == 404
    assert b"without a page" in body
    status, _, body = asked(site, "/healthz")
    assert status == 503
    assert body == b'{"status":"NOT_SERVING"}'


def test_who_is_anybody_gets_no_cookie(site):
    status, headers, _ = asked(site, "/session", method="POST", authorization="Anonymous")
    assert status == 204
    assert "Max-Age=0" in headers["set-cookie"]


@pytest.fixture
def frame_site(tmp_path):
    (tmp_path / "perspective.html").write_text("<!doctype html>")
    (tmp_path / "perspective_frame-0595abb09b.js").write_text("let x = 1;")
    (tmp_path / "page-0595abb09b.js").write_text("let x = 1;")

    async def is_serving():
        return True

    return PageSite(lambda: read_files(tmp_path), sessions=NoSessions(), is_serving=is_serving)


def test_what_the_frame_of_perspective_is_made_of_is_for_pages_of_no_origin(frame_site):
    paths = ("/perspective.html", "/perspective_frame-0595abb09b.js", "/perspective/viewer.js")
    for path in paths:
        _, headers, _ = asked(frame_site, path)
        assert "sandbox allow-scripts" in headers["content-security-policy"]
        assert headers["access-control-allow-origin"] == "*"
        assert frame_site.is_for_any_page(WebRequest(method="GET", target=path, headers=()))
        assert not frame_site.is_for_any_page(WebRequest(method="POST", target=path, headers=()))
    for path in ("/", "/page-0595abb09b.js", "/perspective/installed.json", "/session"):
        _, headers, _ = asked(frame_site, path)
        assert "access-control-allow-origin" not in headers
        assert "unsafe" not in headers["content-security-policy"]
        assert not frame_site.is_for_any_page(WebRequest(method="GET", target=path, headers=()))


def test_perspective_as_it_is_installed(frame_site):
    pytest.importorskip("perspective")
    _, headers, body = asked(frame_site, "/perspective/installed.json")
    assert json.loads(body)["version"] == version("perspective-python")
    assert headers["cache-control"] == "no-cache"
    status, _, script = asked(frame_site, "/perspective/viewer.js")
    assert status == 200
    assert b"perspective-viewer" in script
    assert asked(frame_site, "/perspective/other.js")[0] == 404


@pytest.mark.parametrize("is_there", [False, True], ids=["not there", "without files"])
def test_perspective_that_cannot_be_used(frame_site, monkeypatch, tmp_path, is_there):
    class Found:
        version = "3.0"

        def locate_file(self, path):
            return tmp_path / path

    def found(name):
        if not is_there:
            raise PackageNotFoundError(name)
        return Found()

    monkeypatch.setattr("barrage.web.perspective_files.distribution", found)
    perspective_files.cache_clear()
    try:
        assert asked(frame_site, "/perspective/installed.json")[2] == b'{"version": null}'
        assert asked(frame_site, "/perspective/viewer.js")[0] == 404
    finally:
        perspective_files.cache_clear()
