"""The code of docs/transports.md for shared memory runs as it stands: the table that is made, the
server's command, the client. What is about UCX runs in tests/ucx."""

from __future__ import annotations

import json
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import barrage
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers import warm_python
from tests.unit.cli.test_examples import python_blocks, shell_blocks

PAGE = "docs/transports.md"
MAIN = "from barrage.cli.main import main; main()"
SECONDS_MAX = 60


@contextmanager
def served(command: str, directory: Path) -> Iterator[int]:
    """The port of the server that ``command`` of a page starts, but for the port."""
    with started(command, directory) as told:
        yield told["port"]


@contextmanager
def started(command: str, directory: Path) -> Iterator[dict[str, Any]]:
    """What that server tells when it has started."""
    program, *arguments = shlex.split(command)
    assert program == "barrage"
    words = ["-c", MAIN, *arguments, "--port", "0", "--json"]
    running = warm_python.popen(words, cwd=directory)
    assert running.stdout is not None
    try:
        yield json.loads(running.stdout.readline())
    finally:
        running.send_signal(signal.SIGTERM)
        running.communicate(timeout=SECONDS_MAX)


def test_the_page_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, connect, subscribe, _ucx = python_blocks(PAGE)
    serve, *_ = shell_blocks(PAGE)
    monkeypatch.chdir(tmp_path)
    exec(make, {})
    with served(serve, tmp_path) as port:
        names: dict[str, object] = {}
        exec(connect.replace("10000", str(port)), names)
        with names["session"]:
            exec(subscribe, names)
            table = names["quotes"]
            assert table.bodies.way is BodyWay.SHM
            assert table.stats.bodies.shm.bytes >= 8 * 1_000_000
            assert table.to_arrow().num_rows == 1_000_000
    said = capsys.readouterr().out
    assert said.startswith("shm\n")
    assert "BodyStats(" in said


def test_what_the_readme_serves_leaves_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [command] = [each for each in shell_blocks("README.md") if "--bodies shm" in each]
    serve, watch = (line.partition("#")[0] for line in command.splitlines())
    name = watch.split()[-1].partition("/")[2]
    monkeypatch.chdir(tmp_path)
    exec(python_blocks(PAGE)[0], {})
    Path("quotes.parquet").rename(f"{name}.parquet")
    with (
        served(serve, tmp_path) as port,
        barrage.connect(f"localhost:{port}") as session,
        session.table(name).subscribe() as live,
    ):
        live.wait_ready(SECONDS_MAX)
        assert live.bodies.way is BodyWay.SHM
        assert live.stats.bodies.shm.count > 0
