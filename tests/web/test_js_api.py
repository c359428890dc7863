"""Deephaven's own JavaScript API on our server, by every transport it has: all that a dashboard
does with it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import barrage
from barrage.server.settings.config import ServerConfig
from tests.helpers.certificates import authority
from tests.web.web_pages import WebPages

pytestmark = pytest.mark.web

HERE = Path(__file__).parent
HANG_S = 240

NUMBERS = {
    "k": list(range(1000)),
    "v": [float(k) for k in range(1000)],
    "s": ["odd" if k % 2 else "even" for k in range(1000)],
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to call a server."""

    is_tls: bool = True
    door: str = "web"
    """Which port of the server."""
    has_transport: bool = False
    """Whether Deephaven's transport for Node is used, which streams both ways."""
    browser_at: str | None = None
    """Whose page it is, where it is a browser: the server's or another one."""


WAYS = {
    "sockets": Way(is_tls=False),
    "http1": Way(),
    "http2": Way(has_transport=True),
    "http2 on the other port": Way(has_transport=True, door="grpc"),
    "http2 in the clear": Way(has_transport=True, door="grpc", is_tls=False),
    "browser": Way(browser_at="own"),
    "page of another origin": Way(browser_at="other"),
}


@dataclass(kw_only=True)
class Scene:
    """A server with what the session asks for, which is stopped and started again."""

    way: Way
    tls: dict[str, str]
    origins: str = ""
    seen: dict[str, Any] = field(default_factory=dict)
    """What each step has seen."""
    server: Any = None
    numbers: Any = None

    def start(self, port: int = 0, web_port: int = 0) -> None:
        tls = self.tls if self.way.is_tls else {}
        config = ServerConfig(
            host="localhost",
            port=port,
            web=True,
            web_port=web_port,
            web_origins=self.origins,
            **tls,
        )
        self.server = barrage.Server(config=config).start()
        schema = {"k": "int64", "v": "float64", "s": "string"}
        self.numbers = self.server.create_table("numbers", schema, key=["k"])
        self.numbers.upsert(NUMBERS)
        self.server.create_table("written", {"name": "string", "amount": "int64"}, key=["name"])

    @property
    def url(self) -> str:
        """What the API is given."""
        if self.way.door == "web":
            return self.server.web_uri.rstrip("/")
        return f"{'https' if self.way.is_tls else 'http'}://localhost:{self.server.port}"

    def tell(self, step: str, seen: Any) -> None:
        """The session has come so far."""
        self.seen[step] = seen
        if step == "ready for a tick":
            self.numbers.upsert({"k": [500], "v": [-1.0], "s": ["even"]})
        elif step == "ready for a restart":
            ports = self.server.port, urlsplit(self.server.web_uri).port
            self.server.stop()
            self.start(*ports)


@pytest.fixture(scope="module", params=WAYS)
def seen(request, tmp_path_factory):
    """What each step of the session has seen."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = authority().for_localhost().write(folder, "server")
    scene = Scene(way=WAYS[request.param], tls={"tls_cert": certificate, "tls_key": key})
    run = run_in_browser if scene.way.browser_at else run_in_node
    try:
        run(scene, request, folder)
    finally:
        scene.server.stop()
    return scene.seen


def run_in_node(scene, request, folder):
    node, module = map(request.getfixturevalue, ("node", "js_api"))
    transport = ["node_transport"] if scene.way.has_transport else []
    scene.start()
    process = subprocess.Popen(
        [
            *node,
            str(HERE / "jsapi_node.mjs"),
            str(module),
            scene.url,
            *map(request.getfixturevalue, transport),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "NODE_EXTRA_CA_CERTS": authority().write(folder)},
    )
    hanging = threading.Timer(HANG_S, process.kill)
    hanging.start()
    rest = []
    try:
        for line in process.stdout:
            try:
                step = json.loads(line)
            except ValueError:
                rest.append(line)
            else:
                scene.tell(step["step"], step["seen"])
        scene.seen["exit"] = process.wait()
    finally:
        hanging.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.stdout.close()
    scene.seen["rest"] = "".join(rest)


PAGE = b"""<!doctype html><title>session</title><script type="module">
import dh from "/jsapi/dh-core.js";
import { run } from "/jsapi_session.mjs";
window.begin = url => run(dh, { url, options: () => ({}), tell: window.told });
</script>"""


def run_in_browser(scene, request, folder):
    """The session in Chromium, on a page of the server itself or of another one."""
    browser, files = map(request.getfixturevalue, ("browser", "web_files"))
    patch = request.getfixturevalue("module_patch")
    pages = WebPages(
        {
            "/session.html": PAGE,
            "/jsapi_session.mjs": (HERE / "jsapi_session.mjs").read_bytes(),
            "/jsapi/dh-core.js": (files / "jsapi" / "dh-core.js").read_bytes(),
        }
    )
    with contextlib.ExitStack() as ends:
        if scene.way.browser_at == "own":
            pages.serve_with(patch)
            scene.start()
            origin = scene.url
        else:
            origin = ends.enter_context(pages.served(scene.tls))
            scene.origins = origin
            scene.start()
        context = browser.new_context(ignore_https_errors=True, bypass_csp=True)
        ends.callback(context.close)
        page = context.new_page()
        rest = []
        page.on("console", lambda message: rest.append(message.text))
        page.on("pageerror", lambda error: rest.append(str(error)))
        page.expose_function("told", scene.tell)
        try:
            page.goto(f"{origin}/session.html")
            page.wait_for_function("() => window.begin !== undefined")
            protocols = page.evaluate(PROTOCOLS)
            page.evaluate("url => begin(url)", scene.url)
            scene.seen["exit"] = 0
        finally:
            scene.seen["rest"] = "\n".join(rest)
        if scene.way.browser_at == "own":
            assert set(protocols) == {"h2"}


PROTOCOLS = "performance.getEntriesByType('resource').map(entry => entry.nextHopProtocol)"


def row(k):
    return [k, k, "odd" if k % 2 else "even"]


EXPECTED = {
    "connect": True,
    "fetch": {
        "size": 1000,
        "columns": [["k", "long"], ["v", "double"], ["s", "java.lang.String"]],
    },
    "viewport": [row(0), row(1), row(2)],
    "scroll": [row(500), row(501), row(502)],
    "tick": [500, -1, "even"],
    "sort": [row(999), row(998)],
    "filter": [row(k) for k in range(0, 10, 2)],
    "totals": {"columns": ["k__Sum", "k__Max"], "rows": [[20, 8]]},
    "custom column": [0, 2],
    "distinct": [["even"], ["odd"]],
    "full subscription": 1000,
    "snapshot": [10, 11, 12],
    "seek": 42,
    "input": [["from a page", 7]],
    "alive after it": [row(0)],
    "disconnect": True,
    "after the restart": [row(0)],
}


@pytest.mark.parametrize("step", EXPECTED)
def test_the_api_sees_what_is_there(seen, step):
    assert seen.get(step) == EXPECTED[step], seen["rest"][-2000:]


def test_a_formula_that_is_none_is_told_and_ends_nothing(seen):
    assert "no_such_column" in seen["wrong formula"]


def test_a_restarted_server_asks_who_calls(seen):
    """The API keeps the token of a session that is no more, and has to log in."""
    assert "Authentication details invalid" in seen["back"] or seen["back"] == "reconnectauthfailed"


def test_the_session_ends_well(seen):
    assert seen["exit"] == 0, seen["rest"][-2000:]
