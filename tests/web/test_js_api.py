"""Deephaven's own JavaScript API, in Node, on our server: everything a dashboard does with it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import barrage
from barrage.server.settings.config import ServerConfig

pytestmark = pytest.mark.web

SESSION = Path(__file__).parent / "jsapi_session.mjs"
HANG_S = 240

NUMBERS = {
    "k": list(range(1000)),
    "v": [float(k) for k in range(1000)],
    "s": ["odd" if k % 2 else "even" for k in range(1000)],
}


def started(port=0, web_port=0):
    """A server with what the session asks for, and the table that is to tick."""
    config = ServerConfig(port=port, web=True, web_port=web_port)
    server = barrage.Server(config=config).start()
    schema = {"k": "int64", "v": "float64", "s": "string"}
    numbers = server.create_table("numbers", schema, key=["k"])
    numbers.upsert(NUMBERS)
    server.create_table("written", {"name": "string", "amount": "int64"}, key=["name"])
    return server, numbers


@pytest.fixture(scope="module")
def seen(node, js_api):
    """What each step of the session has seen."""
    told = {}
    server, numbers = started()
    web = server.web_uri.rstrip("/")
    command = [*node, str(SESSION), str(js_api), web]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    hanging = threading.Timer(HANG_S, process.kill)
    hanging.start()
    rest = []
    try:
        for line in process.stdout:
            try:
                step = json.loads(line)
            except ValueError:
                rest.append(line)
                continue
            told[step["step"]] = step["seen"]
            if step["step"] == "ready for a tick":
                numbers.upsert({"k": [500], "v": [-1.0], "s": ["even"]})
            elif step["step"] == "ready for a restart":
                ports = server.port, urlsplit(web).port
                server.stop()
                server, numbers = started(*ports)
        told["exit"] = process.wait()
    finally:
        hanging.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.stdout.close()
        server.stop()
    told["rest"] = "".join(rest)
    return told


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
