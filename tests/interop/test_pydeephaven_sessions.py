"""A real pydeephaven logs in here in every way it knows, and its sessions end.

Its scenarios are in ``pydeephaven_sessions.py``, which runs once per module in a process of its own
with an interpreter that has pydeephaven and pydeephaven-ticking.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
from decimal import Decimal

import pyarrow as pa
import pytest

import barrage
from barrage.server.settings.config import ServerConfig
from tests.helpers.server_process import wait_until
from tests.interop.processes import ROOT, deephaven_python

pytestmark = pytest.mark.interop

SCRIPT = pathlib.Path(__file__).with_name("pydeephaven_sessions.py")
SESSION_SECONDS = 2
TIMEOUT_SECONDS = 120
PLAIN = pa.table({"K": pa.array([1, 2], pa.int32()), "S": ["a", "b"]})
WIDE = PLAIN.append_column("D", pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)))


@pytest.fixture(scope="module")
def results() -> dict[str, dict]:
    """What every scenario told."""
    python = deephaven_python("pydeephaven_ticking")
    if python is None:
        pytest.skip("pydeephaven-ticking is not installed (extra: interop)")
    config = ServerConfig(session_lifetime_ms=SESSION_SECONDS * 1000)
    with barrage.Server(config=config) as server, barrage.Server(token="key") as guarded:
        for running in (server, guarded):
            running.create_table("plain", data=PLAIN)
            running.create_table("wide", data=WIDE)
        ended = subprocess.run(
            [python, str(SCRIPT), str(server.port), str(guarded.port)],
            cwd=ROOT,
            env={**os.environ, "BARRAGE_SESSION_SECONDS": str(SESSION_SECONDS)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        assert server._app is not None
        wait_until(lambda: len(server._app.sessions) == server._app.stream_count == 0)
    told = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    assert told, ended.stderr
    return {entry["scenario"]: entry for entry in told}


@pytest.fixture
def result(results, request) -> dict:
    """The result of the scenario a test is named after."""
    entry = results[request.node.name.removeprefix("test_")]
    assert "error" not in entry, entry["error"]
    return entry["result"]


def test_logging_in(result):
    assert result == {
        "anonymous": "in, 2 rows",
        "unknown token": "refused",
        "guarded, anonymous": "refused",
        "guarded, key": "in, 2 rows",
        "guarded, wrong key": "refused",
        "guarded, password": "in, 2 rows",
        "guarded, wrong password": "refused",
        "guarded, token": "in, 2 rows",
    }


def test_types_of_the_ticking_client(result):
    assert result["default"].startswith("failed")
    assert result["ticking"] == ["int32", "string", "string"]


def test_a_session_that_is_closed_ends_its_listeners(result):
    assert all("Authentication details invalid" in error for error in result["errors"])


def test_a_session_nobody_keeps_alive(result):
    assert "run out of time" in result["stream"]
    assert result["call"] != "worked"


def test_a_session_that_is_used(result):
    """For two and a half lifetimes of a token, which takes three; how many more depends on what
    else the machine does."""
    assert result["tokens"] >= 3
