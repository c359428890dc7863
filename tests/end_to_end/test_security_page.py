"""The lines of docs/security.md about TLS run as they stand, but for the port."""

from __future__ import annotations

import os
import shlex
import subprocess

import barrage
from tests.end_to_end.test_transports_page import served
from tests.helpers import warm_python
from tests.unit.cli.test_examples import python_blocks, shell_blocks

PAGE = "docs/security.md"
MAIN = "from barrage.cli.main import main; main()"
SECONDS_MAX = 60


def ran(line, directory, **variables):
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


def test_a_server_is_exposed_in_ten_lines(tmp_path, monkeypatch):
    serve, call = (block.splitlines() for block in shell_blocks(PAGE)[:2])
    (connect,) = python_blocks(PAGE)
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
