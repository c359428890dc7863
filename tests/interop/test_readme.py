"""The README's code for Deephaven's clients runs as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import barrage
from tests.interop.processes import free_port, java_home
from tests.unit.cli.test_examples import python_blocks

pytestmark = pytest.mark.interop

SECONDS_MAX = 120


@pytest.fixture(scope="module")
def server():
    with barrage.Server() as server:
        quotes = server.create_table(
            "quotes", {"symbol": "string", "price": "float64"}, key="symbol"
        )
        quotes.upsert({"symbol": ["AAPL", "MSFT"], "price": [187.2, 411.9]})
        yield server


def block_with(text: str, port: int) -> str:
    """The one block of the README that has ``text``, for another port."""
    [block] = [block for block in python_blocks("README.md") if text in block]
    assert "10000" in block
    return block.replace("10000", str(port))


def test_pydeephaven(server, deephaven_interpreter):
    out = run(deephaven_interpreter, block_with(".to_arrow())", server.port))
    assert "MSFT" in out
    assert "AAPL" not in out


def test_the_ticking_client(server, deephaven_interpreter):
    wait = "\nimport time\ntime.sleep(3)\nimport os\nos._exit(0)\n"
    out = run(deephaven_interpreter, block_with("table_listener", server.port) + wait)
    assert "AAPL" in out
    assert "411.9" in out


def test_java_and_our_client_on_deephaven(server, deephaven_interpreter, tmp_path):
    block = tmp_path / "block.py"
    block.write_text(block_with("barrage_session", server.port))
    port = free_port()
    script = os.path.join(os.path.dirname(__file__), "readme_java.py")
    process = subprocess.Popen(
        [deephaven_interpreter, script, str(port), str(block)],
        stdout=subprocess.PIPE,
        env=environment(),
        cwd=tmp_path,
        text=True,
    )
    try:
        answer = next(line for line in process.stdout if line.startswith("{"))
        assert json.loads(answer) == {"rows": [{"symbol": "MSFT", "price": 411.9}]}
        out = run(sys.executable, block_with("dh://", port))
        assert "AAPL" in out
        assert "MSFT" in out
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def environment() -> dict[str, str]:
    home = java_home()
    return dict(os.environ) if home is None else {**os.environ, "JAVA_HOME": home}


def run(python: str, code: str) -> str:
    done = subprocess.run(
        [python, "-c", code],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
