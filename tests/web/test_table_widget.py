"""Deephaven's table widget in Chromium, in an iframe, with the rows of our server."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

import barrage
from barrage.server.settings.config import ServerConfig
from tests.web.chromium import Chromium, chromium_path
from tests.web.one_origin import OneOrigin

pytestmark = pytest.mark.web

SCHEMA = {"k": "int64", "v": "float64", "s": "string"}

HOSTED = """
document.body.innerHTML = '<iframe id="widget" style="width:1100px;height:700px" src="%s"></iframe>'
"""
IN_FRAME = "document.getElementById('widget').contentWindow"


@pytest.fixture(scope="module")
def scene(web_files):
    path = chromium_path()
    if path is None:
        pytest.skip("needs Chromium (make test-web)")
    front = OneOrigin(web_files)
    config = ServerConfig(host="inproc://", web=True, web_origins=front.origin)
    with barrage.Server(config=config) as server:
        table = server.create_table("numbers", SCHEMA, key=["k"])
        table.upsert(
            {
                "k": list(range(1000)),
                "v": [float(k) for k in range(1000)],
                "s": [f"row {k}" for k in range(1000)],
            }
        )
        parts = urlsplit(server.web_uri)
        front.lead_to(parts.hostname, parts.port)
        browser = Chromium(path)
        try:
            yield front, server, table, browser
        finally:
            browser.close()
            front.close()


def test_the_widget_shows_rows_that_tick(scene):
    front, server, table, browser = scene
    browser.open(f"{front.origin}/jsapi/basic.css")
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
