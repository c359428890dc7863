"""The command as a user runs it: processes, signals, pipes and a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.main import app
from tests.helpers import warm_python
from tests.helpers.server_process import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from click.testing import Result

SECONDS_MAX = 60
MAIN = ["-c", "from barrage.cli.main import main; main()"]
BARRAGE = [sys.executable, *MAIN]


def run(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own."""
    return warm_python.run([*MAIN, *words], timeout=SECONDS_MAX, **options)


def start(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A command from the start of its interpreter, as users start it."""
    return subprocess.run(
        [*BARRAGE, *words], capture_output=True, text=True, timeout=SECONDS_MAX, **options
    )


def ask(*words: str, **options: object) -> Result:
    """A command whose process does not matter, in this one."""
    return CliRunner().invoke(app, list(words), **options)


@contextmanager
def serving(
    *words: str, command: str = "serve"
) -> Iterator[tuple[subprocess.Popen[str] | warm_python.WarmProcess, str]]:
    """``barrage serve`` on a free port: the process and its address."""
    process = warm_python.popen([*MAIN, command, "--port", "0", "--json", *words])
    try:
        line = process.stdout.readline()
        assert line, process.communicate(timeout=SECONDS_MAX)[1]
        yield process, f"127.0.0.1:{json.loads(line)['port']}"
    finally:
        process.kill()
        process.communicate(timeout=SECONDS_MAX)


def test_the_host_tables_are_there_and_tick_and_processes_are_sorted_by_cpu() -> None:
    with serving("--demo", "host") as (_, address):
        check_that_the_host_tables_tick(address)
        check_that_processes_are_sorted(address)


def check_that_the_host_tables_tick(host_server: str) -> None:
    facts = {entry["name"]: entry for entry in json.loads(ask("ls", host_server, "--json").stdout)}
    names = {name for name in facts if not name.startswith("_")}
    assert names == {"processes", "processes_by_cpu", "cpu", "memory", "disk", "network"}
    assert facts["processes"]["key"] == ["pid"]
    with barrage.connect(host_server) as session, session.table("cpu").subscribe() as live:
        size = len(live.wait_ready(SECONDS_MAX))
        wait_until(lambda: len(live) > size)


def check_that_processes_are_sorted(host_server: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    rows: list[dict] = []
    while not rows and time.monotonic() < deadline:
        out = ask("snapshot", f"{host_server}/processes_by_cpu", "--json").stdout
        rows = [json.loads(line) for line in out.splitlines()]
    cpu = [row["cpu_percent"] for row in rows if row["cpu_percent"] is not None]
    assert cpu == sorted(cpu, reverse=True)
    assert os.getpid() in [row["pid"] for row in rows]


def test_an_interrupted_server_ends_with_130_and_a_terminated_one_with_0() -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
        with serving() as (process, _):
            process.send_signal(number)
            _, err = process.communicate(timeout=SECONDS_MAX)
            assert (process.returncode, err) == (code, "")


def test_a_relay_serves_the_tables_of_another_server_until_it_is_interrupted(
    tmp_path: Path,
) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), file)
    with serving("--table", f"t={file}") as (_, address):
        for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 0)):
            with serving(address, "--tables", "t", "--quiet", command="relay") as (relay, here):
                wait_until(lambda at=here: ask("snapshot", f"{at}/t").exit_code == 0)
                rows = ask("snapshot", f"{here}/t", "--json").stdout.splitlines()
                assert [json.loads(row) for row in rows] == [{"a": 1}, {"a": 2}]
                relay.send_signal(number)
                _, err = relay.communicate(timeout=SECONDS_MAX)
                assert (relay.returncode, err) == (code, "")


def is_connected(relay: str) -> bool:
    """Whether a relay follows one server or more."""
    rows = ask("snapshot", f"{relay}/_upstreams", "--json").stdout.splitlines()
    return any(json.loads(row)["is_followed"] for row in rows)


def test_a_relay_has_the_options_of_a_server_for_metrics_traces_and_logs(tmp_path: Path) -> None:
    words = ["--metrics-port", "0", "--trace", "--log-json", "--log-level", "error,relay=info"]
    with serving("--journal", "memory") as (_, address):
        words = [*MAIN, "relay", address, "--port", "0", "--json", *words]
        relay = warm_python.popen(words)
        try:
            told = json.loads(relay.stdout.readline())
            here = f"127.0.0.1:{told['port']}"
            # The table is there from the start on, and what is logged only once it has connected.
            wait_until(lambda: is_connected(here))
            with urlopen(f"http://127.0.0.1:{told['metrics_port']}/readyz", timeout=60) as answer:
                assert answer.status == 200
            # It traces always, so that the command need not ask for it.
            traced = json.loads(ask("trace", here, "_upstreams", "--json").stdout)
            assert traced["always"]
            relay.send_signal(signal.SIGTERM)
            _, err = relay.communicate(timeout=SECONDS_MAX)
        finally:
            relay.kill()
    lines = [json.loads(line) for line in err.splitlines()]
    assert {line["part"].partition(".")[0] for line in lines} == {"relay"}, err
    assert "info" in {line["level"] for line in lines}


def test_files_are_published(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [1, 2]}), file)
    with serving("--table", f"t={file}") as (_, address):
        assert ask("snapshot", f"{address}/t").stdout == '"a"\n1\n2\n'
        assert json.loads(ask("ls", address, "--json").stdout)[0]["kind"] == "static"


def test_a_token_is_asked_for_and_taken_from_the_environment() -> None:
    with serving("--token", "secret") as (_, address):
        refused = ask("ls", address)
        assert refused.exit_code == 1
        assert "pass --token or set BARRAGE_TOKEN" in refused.stderr
        assert ask("ls", address, "--token", "wrong").exit_code == 1
        assert ask("ls", address, "--token", "secret").exit_code == 0
        assert run("ls", address, env={**os.environ, "BARRAGE_TOKEN": "secret"}).returncode == 0


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for command in (["serve"], ["demo", "--once"]):
            failed = ask(*command, "--port", str(port))
            assert failed.exit_code == 1
            assert failed.stderr.count("\n") == 1
            assert "--port" in failed.stderr


def test_an_open_host_always_has_a_token() -> None:
    with serving("--host", "0.0.0.0") as (process, address):
        assert "not a loopback address" in process.stderr.readline()
        token = process.stderr.readline().strip()
        assert ask("ls", address).exit_code == 1
        assert ask("ls", address, "--token", token).exit_code == 0


@pytest.mark.further
def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": range(2_000_000)}), file)
    with serving("--table", f"t={file}") as (_, address):
        process = subprocess.Popen(
            [*BARRAGE, "snapshot", f"{address}/t"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout.readline() == '"a"\n'
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(timeout=SECONDS_MAX), err) == (0, "")
        process.stderr.close()


def test_the_demo_prints_lines_in_a_pipe() -> None:
    done = start("demo", "--port", "0", "--once", "--rows", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "processes_by_cpu  live" in lines[0]
    assert lines[1].split()[:2] == ["pid", "name"]


def test_help_is_quick_and_quiet() -> None:
    done = start("--help")
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_command_of_a_client_loads_no_server() -> None:
    code = (
        "import sys; from barrage.cli.main import app\n"
        "app(['ls', '--help'], standalone_mode=False)\n"
        "print([name for name in ('pandas', 'textual', 'barrage.server', 'barrage.journal')"
        " if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


ESCAPES = re.compile(r"\x1b\[[0-9;?<>=]*[a-zA-Z]|\x1b[()][A-Z0-9]|\x1b[=>]")


def read_until(master: int, words: str) -> str:
    """What a terminal shows until ``words`` were drawn."""
    deadline = time.monotonic() + SECONDS_MAX
    shown = ""
    while words not in shown:
        left = deadline - time.monotonic()
        assert left > 0, f"{words!r} never came; the screen has {shown[-2000:]!r}"
        if select.select([master], [], [], left)[0]:
            try:
                data = os.read(master, 65536)
            except OSError:
                data = b""
            assert data, f"the program ended before {words!r}: {shown[-2000:]!r}"
            shown += ESCAPES.sub("", data.decode("utf-8", "replace"))
    return shown


def test_the_demo_draws_the_grid_in_a_terminal_and_q_ends_it() -> None:
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"}
    process = subprocess.Popen(
        [*BARRAGE, "demo", "--port", "0"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        start_new_session=True,
    )
    os.close(slave)
    try:
        read_until(master, "cpu_percent")
        read_until(master, "updates/s")
        os.write(master, b"f")
        read_until(master, "following")
        os.write(master, b"q")
        deadline = time.monotonic() + SECONDS_MAX
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([master], [], [], 0.05)[0]:
                try:
                    os.read(master, 65536)
                except OSError:
                    break
        assert process.wait(timeout=SECONDS_MAX) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=SECONDS_MAX)
        os.close(master)


def names_of(address: str) -> list[str]:
    listed = json.loads(ask("ls", address, "--json").stdout)
    return [entry["name"] for entry in listed if not entry["name"].startswith("_")]


def test_tables_of_a_directory_are_back_after_a_kill(tmp_path: Path) -> None:
    data, file = str(tmp_path / "data"), tmp_path / "trades.parquet"
    pq.write_table(pa.table({"sym": ["A", "B"], "qty": [1, 2]}), file)
    table = f"quotes={file}"
    with serving("--data", data, "--table", table) as (process, address):
        assert ask("put", str(file), f"{address}/trades").exit_code == 0
        assert names_of(address) == ["quotes", "trades"]
        process.kill()
    with serving("--data", data, "--table", table) as (process, address):
        assert names_of(address) == ["quotes", "trades"]
        rows = json.loads(ask("snapshot", f"{address}/trades", "--json").stdout.splitlines()[0])
        assert rows == {"sym": "A", "qty": 1}
        busy = run("serve", "--port", "0", "--data", data)
        assert busy.returncode != 0
        assert "another process" in busy.stderr
        assert "Traceback" not in busy.stderr


def test_a_durable_journal_without_a_directory_is_one_clear_line() -> None:
    done = ask("serve", "--port", "0", "--journal", "durable")
    assert done.exit_code != 0
    assert "--data DIR" in done.stderr
    assert "Traceback" not in done.stderr
