"""The examples of docs/security.md run as they stand: users, the server's command, the client, and
the function that says who calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

import barrage
from barrage.errors import AuthenticationError
from tests.end_to_end.test_transports_page import MAIN, SECONDS_MAX, served
from tests.unit.cli.test_examples import python_blocks, shell_blocks

PAGE = "docs/security.md"


def test_the_page_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, hook = python_blocks(PAGE)
    export, add, ls, serve = "\n".join(shell_blocks(PAGE)).strip().splitlines()
    name, _, value = export.removeprefix("export ").partition("=")
    environment = {**os.environ, name: value.strip("'")}
    for command in (add, ls):
        words = [sys.executable, "-c", MAIN, *command.split()[1:]]
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=True,
        )
    assert b"alice" in done.stdout
    assert b"argon2" not in done.stdout
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
