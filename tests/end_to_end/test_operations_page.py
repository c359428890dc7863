"""The commands of docs/operations.md run as they stand, but for the ports; and draining by SIGTERM,
which the page promises."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import barrage
from barrage.limits import Limits
from barrage.relay.relay_statistics import RELAYED_TABLE
from barrage.server import ServerConfig
from barrage.server.alerting.alert_statistics import ALERTS_TABLE
from barrage.server.statistics.server_measures import MEASURES
from tests.end_to_end.test_transports_page import MAIN, SECONDS_MAX
from tests.helpers import warm_python
from tests.helpers.server_process import wait_until
from tests.unit.cli.test_examples import python_blocks, shell_blocks

PAGE = "docs/operations.md"


class Served:
    """The server of the page, on ports the system chose."""

    def __init__(self, line: str, directory: Path) -> None:
        words = [each for each in shlex.split(line)[1:] if not each.isdigit()]
        words = [word for each in words for word in ((each, "0") if "port" in each else (each,))]
        self.process = warm_python.popen(["-c", MAIN, *words, "--json"], cwd=directory)
        assert self.process.stdout is not None
        self.told = json.loads(self.process.stdout.readline())
        self.uri = f"grpc://{self.told['address']}"

    def as_said(self, text: str) -> str:
        """What the page says, with its ports."""
        text = text.replace("localhost:10000", self.told["address"])
        return text.replace(":9464", f":{self.told.get('metrics_port')}")

    def end(self) -> tuple[int, str]:
        """Stop it as systemd does; its exit code, and what it logged."""
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=SECONDS_MAX)
        assert self.process.returncode is not None
        return self.process.returncode, err


@pytest.fixture(scope="module")
def blocks() -> list[str]:
    return shell_blocks(PAGE)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operations")


@pytest.fixture(scope="module")
def server(blocks: list[str], directory: Path) -> Iterator[Served]:
    made = Served(blocks[0].splitlines()[0], directory)
    is_over = threading.Event()
    with barrage.connect(made.uri) as session:
        session.create_table("quotes", {"a": "int64"}, key="a")

        def write() -> None:
            number = 0
            while not is_over.wait(0.05):
                number += 1
                session.put("quotes", {"a": [number % 7]})

        writer = threading.Thread(target=write)
        writer.start()
        yield made
        is_over.set()
        writer.join()
    code, err = made.end()
    assert code == 0
    assert all(json.loads(line)["level"] != "error" for line in err.splitlines() if line[:1] == "{")


def ran(line: str, directory: Path) -> str:
    """What a command of the page prints."""
    if line.startswith("curl "):
        with urllib.request.urlopen(line.split()[-1], timeout=SECONDS_MAX) as answer:
            return str(answer.read().decode())
    words = shlex.split(line)
    assert words[0] == "barrage"
    done = warm_python.run(
        ["-c", MAIN, *words[1:]], cwd=directory, env={**os.environ}, timeout=SECONDS_MAX
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.further
def test_every_command_of_the_page_runs(blocks: list[str], server: Served, directory: Path) -> None:
    first, probes, tables, looks, backup = blocks
    said = {
        line: ran(server.as_said(line), directory)
        for block in (first.partition("\n")[2], probes, tables, looks)
        for line in block.splitlines()
    }
    for line, words in {
        "barrage top localhost:10000 --once": "connections",
        "barrage doctor localhost:10000": "ok",
        "curl -fsS http://127.0.0.1:9464/healthz": "ok",
        "curl -fsS http://127.0.0.1:9464/readyz": "ok",
        "curl -fsS http://127.0.0.1:9464/metrics": "barrage_ready 1.0",
        "barrage top localhost:10000 --once --json": '"measures"',
        "barrage trace localhost:10000 quotes --seconds 1": "median",
    }.items():
        assert words in said[line], line
    assert json.loads((directory / "trace.json").read_text())["traceEvents"]
    *copies, serve = backup.splitlines()
    for line in copies:
        ran(line, directory)
    restored = Served(serve, directory)
    try:
        with barrage.connect(restored.uri) as session:
            assert session.table("quotes").snapshot().num_rows > 0
    finally:
        assert restored.end()[0] == 0


ARGUMENTS = {
    "barrage journal ls DIR": "barrage journal ls data",
    "barrage journal verify DIR": "barrage journal verify data",
    "barrage top": "barrage top localhost:10000 --once",
    "barrage top --sort lag": "barrage top localhost:10000 --once --sort lag",
    "barrage trace": "barrage trace localhost:10000 quotes --seconds 1",
    "barrage doctor RELAY": "barrage doctor localhost:10000",
    "--salvage": "barrage journal export data quotes --salvage --out quotes.parquet",
}
"""What the page says to do, as it is typed."""

OF_THE_MACHINE = {"systemctl status barrage", "dmesg", "/readyz"}
"""The last one is asked for by another test."""


@pytest.mark.further
def test_what_alerts_say_to_do_can_be_done(server: Served, directory: Path) -> None:
    """Commands run, and settings, measures, tables and columns are there under these names."""
    alerts = Path(PAGE).read_text().partition("\n## Alerts")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in alerts.splitlines() if line.startswith("| `")]
    assert len(rows) > 10
    said = {word for row in rows for word in re.findall(r"`([^`]+)`", row[3])}
    settings = {each.name for each in (*fields(ServerConfig), *fields(Limits))}
    with barrage.connect(server.uri) as session:
        # It comes a moment after the first table that has a journal.
        wait_until(lambda: "_journal" in [each.name for each in session.tables()])
        journal = set(session.table("_journal").snapshot().column_names)
    known = settings | set(MEASURES) | journal | {"_journal", RELAYED_TABLE, ALERTS_TABLE}
    assert said - known == set(ARGUMENTS) | OF_THE_MACHINE
    for line in ARGUMENTS.values():
        ran(server.as_said(line), directory)


def test_the_level_of_the_log_is_changed(
    server: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = python_blocks(PAGE)
    exec(compile(server.as_said(block), PAGE, "exec"), {})
    assert '"journal": "debug"' in capsys.readouterr().out


def test_sigterm_drains(tmp_path: Path) -> None:
    """What was acknowledged is there again, a reader is told to come back, and the code is 0."""
    made = Served("barrage serve --data data --port 0 --metrics-port 0", tmp_path)
    with barrage.connect(made.uri) as session:
        session.create_table("t", {"a": "int64"}, key="a")
        with session.table("t").subscribe(resume="off") as live:
            live.wait_ready(60)
            for number in range(20):
                session.put("t", {"a": [number]})
            made.process.send_signal(signal.SIGTERM)
            assert made.process.wait(timeout=SECONDS_MAX) == 0
            wait_until(lambda: live.to_arrow().num_rows == 20)
            wait_until(lambda: live.state != "live")
    made.process.communicate()
    with barrage.Server(data=tmp_path / "data") as again:
        assert again.table("t").to_arrow().num_rows == 20
