"""Deephaven's table widget in Chromium, in an iframe, with the rows of our server."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

import pytest

import barrage
from barrage.server.settings.config import ServerConfig
from tests.helpers.certificates import authority
from tests.web.chromium import Chromium, chromium_path
from tests.web.one_origin import PLUGINS, OneOrigin
from tests.web.web_pages import WebPages

pytestmark = pytest.mark.web

SCHEMA = {"k": "int64", "v": "float64", "s": "string"}

HOSTED = """
document.body.innerHTML = '<iframe id="widget" style="width:1100px;height:700px" src="%s"></iframe>'
"""
IN_FRAME = "document.getElementById('widget').contentWindow"


ROWS = {
    "k": list(range(1000)),
    "v": [float(k) for k in range(1000)],
    "s": [f"row {k}" for k in range(1000)],
}


@pytest.fixture(scope="module")
def browser():
    path = chromium_path()
    if path is None:
        pytest.skip("needs Chromium (make test-web)")
    started = Chromium(path)
    yield started
    started.close()


@contextlib.contextmanager
def behind_a_proxy(files, _folder):
    """The widget's files and our server behind one origin, in the clear: it calls by a socket."""
    front = OneOrigin(files)
    config = ServerConfig(host="inproc://", web=True, web_origins=front.origin)
    with contextlib.closing(front), barrage.Server(config=config) as server:
        parts = urlsplit(server.web_uri)
        front.lead_to(parts.hostname, parts.port)
        yield front.origin, server


@contextlib.contextmanager
def behind_tls(files, folder):
    """The same with a certificate, where it calls by fetch."""
    found = {
        "/" + path.relative_to(files).as_posix(): path.read_bytes()
        for part in ("iframe", "jsapi")
        for path in (files / part).rglob("*")
        if path.is_file()
    }
    found["/iframe/widget/"] = found["/iframe/widget/index.html"]
    found["/js-plugins/manifest.json"] = PLUGINS
    certificate, key = authority().for_localhost().write(folder, "server")
    config = ServerConfig(host="localhost", web=True, tls_cert=certificate, tls_key=key)
    with pytest.MonkeyPatch.context() as patch:
        WebPages(found).serve_with(patch)
        with barrage.Server(config=config) as server:
            yield server.web_uri.rstrip("/"), server


@pytest.fixture(scope="module", params=[behind_a_proxy, behind_tls])
def scene(request, web_files, browser, tmp_path_factory):
    with request.param(web_files, tmp_path_factory.mktemp("tls")) as (origin, server):
        table = server.create_table("numbers", SCHEMA, key=["k"])
        table.upsert(ROWS)
        yield origin, server, table, browser
        browser.open("about:blank")


def test_the_widget_shows_rows_that_tick(scene):
    origin, server, table, browser = scene
    browser.ask("Page.setBypassCSP", enabled=True)
    browser.open(f"{origin}/jsapi/dh-core.js")
    browser.until("document.readyState === 'complete'")
    browser.evaluate(HOSTED % "/iframe/widget/?name=numbers")
    # The grid is a canvas: what is drawn is told by the text it was drawn from.
    drawn = f"""(() => {{
        const frame = {IN_FRAME};
        if (!frame.drawn && frame.CanvasRenderingContext2D) {{
            frame.drawn = [];
            const draw = frame.CanvasRenderingContext2D.prototype.fillText;
            frame.CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {{
                frame.drawn.push(String(text));
                return draw.call(this, text, ...place);
            }};
        }}
        return (frame.drawn ?? []).some(text => text === %s);
    }})()"""
    browser.until(drawn % "'row 3'")
    assert server.stream_count >= 1
    table.upsert({"k": [3], "v": [3.0], "s": ["changed"]})
    browser.until(drawn % "'changed'")
