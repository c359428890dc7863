"""The examples of docs/security.md run as they stand, but for the port: users, the command of the
server, the client, the function that says who calls, and TLS."""

from __future__ import annotations

import json
import os
import shlex
import ssl
import subprocess
import urllib.request
from contextlib import nullcontext
from pathlib import Path

import pytest

import barrage
from barrage.errors import AuthenticationError
from tests.end_to_end.test_transports_page import MAIN, SECONDS_MAX, served, started
from tests.helpers import warm_python
from tests.unit.cli.test_examples import python_blocks, shell_blocks

PAGE = "docs/security.md"


def ran(line: str, directory: Path, **variables: str) -> str:
    """What a command of the page says; expansions are the shell's."""
    if not line.startswith("barrage "):
        subprocess.run(line, shell=True, cwd=directory, check=True, timeout=SECONDS_MAX)
        return ""
    words = [each.replace("$(hostname)", os.uname().nodename) for each in shlex.split(line)]
    done = warm_python.run(
        ["-c", MAIN, *words[1:]],
        cwd=directory,
        env={**os.environ, **variables},
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.further
def test_callers_are_known(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    connect, hook, *_ = python_blocks(PAGE)
    export, add, ls, serve = shell_blocks(PAGE)[0].splitlines()
    name, _, value = export.removeprefix("export ").partition("=")
    environment = {name: value.strip("'")}
    ran(add, tmp_path, **environment)
    listed = ran(ls, tmp_path, **environment)
    assert "alice" in listed
    assert "argon2" not in listed
    assert (tmp_path / "users.jsonl").stat().st_mode & 0o777 == 0o600
    with served(serve, tmp_path) as port:
        exec(connect.replace("10000", str(port)), {"barrage": barrage})
        with (
            pytest.raises(AuthenticationError),
            barrage.connect(f"localhost:{port}") as session,
        ):
            session.tables()
    assert capsys.readouterr().out.startswith("[")
    lines = (tmp_path / "audit.log").read_text().splitlines()
    assert {json.loads(line).get("user") for line in lines} >= {"alice"}
    names: dict[str, object] = {"barrage": barrage}
    exec(hook, names)
    server = names["guarded"]
    assert isinstance(server, barrage.Server)
    with server:
        for secret, is_let_in in (("from the vault", True), ("from elsewhere", False)):
            refusal = nullcontext() if is_let_in else pytest.raises(AuthenticationError)
            with refusal, barrage.connect(server.uri, auth=barrage.Bearer(secret)) as session:
                session.tables()


@pytest.mark.further
def test_a_server_is_exposed_in_ten_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve, call = (block.splitlines() for block in shell_blocks(PAGE)[2:4])
    *_, connect = python_blocks(PAGE)
    assert len([*serve, *call, *connect.split("\n\n")[1].splitlines()]) <= 10
    _pip, make, draw, export, start = serve
    assert make.startswith("barrage cert dev")
    ran(make, tmp_path)
    ran(draw, tmp_path)
    token = (tmp_path / "token.txt").read_text().strip()
    assert export == 'export BARRAGE_TOKEN="$(cat token.txt)"'
    monkeypatch.setenv("BARRAGE_TOKEN", token)
    name, path = call[0].removeprefix("export ").split("=")
    monkeypatch.chdir(tmp_path)
    with served(start, tmp_path) as port:
        here = {name: path, "BARRAGE_TOKEN": token}
        assert ran(call[1].replace("10000", str(port)), tmp_path, **here) is not None
        names: dict[str, object] = {}
        exec(connect.replace("10000", str(port)), names)
        session = names["session"]
        assert isinstance(session, barrage.client.Session)
        with session:
            session.put("t", {"x": [1]})
            said = ran(call[1].replace("10000", str(port)), tmp_path, **here)
            assert said.splitlines()[-1].startswith("t ")


def test_a_page_is_exposed_in_ten_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shell_blocks(PAGE)[4].splitlines()
    assert len(lines) <= 10
    make, draw, export, serve = lines
    ran(make, tmp_path)
    ran(draw, tmp_path)
    assert export == 'export BARRAGE_TOKEN="$(cat token.txt)"'
    monkeypatch.setenv("BARRAGE_TOKEN", (tmp_path / "token.txt").read_text().strip())
    monkeypatch.chdir(tmp_path)
    trusting = ssl.create_default_context(cafile="tls/ca.pem")
    with started(f"{serve} --web-port 0", tmp_path) as told:
        address = told["web"].replace("127.0.0.1", "localhost")
        assert address.startswith("https://localhost:")
        opened = urllib.request.urlopen(address, context=trusting, timeout=SECONDS_MAX)
        with opened as page:
            assert page.read().startswith(b"<!doctype html>")
