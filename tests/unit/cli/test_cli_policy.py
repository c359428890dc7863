"""``barrage policy``: a file is checked, and what it means is explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from barrage.cli.main import app
from tests.helpers.users import users_file

POLICY = """
[[rule]]
roles = ["writer"]
tables = ["*", "_*"]
allow = ["admin"]

[[rule]]
tables = ["trades*"]
allow = ["read"]
rows = "Desk = caller()"
hide = ["Account"]
mask = { Note = "***" }
hash = ["Trader"]

[[rule]]
tables = ["trades*", "_callers"]
allow = ["read"]

[[rule]]
tables = ["trades*"]
allow = ["write"]
"""


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("BARRAGE_POLICY", "BARRAGE_USERS"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    return path


def run(*words: str):
    return CliRunner().invoke(app, ["policy", *words])


def test_a_file_is_checked(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = run("check", "--policy", str(policy))
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        f"{policy}: 4 rules, all of them fit",
        "rule 4 never decides: those before it do",
    ]
    monkeypatch.setenv("BARRAGE_POLICY", str(policy))
    assert json.loads(run("check", "--json").stdout) == {"rules": 4, "shadowed": [4]}


def test_a_file_a_server_would_not_take(policy: Path) -> None:
    policy.write_text("[[rule]]\ntables = ['t']\nallow = ['read']\nrows = 'nothing(1)'\n")
    done = run("check", "--policy", str(policy))
    assert done.exit_code == 2
    assert "rule 1: rows: unknown function 'nothing'" in done.output
    assert run("check", "--policy", str(policy.with_name("none"))).exit_code == 2


def explained(policy: Path, *words: str):
    done = run("explain", *words, "--policy", str(policy), "--json")
    return done.exit_code, json.loads(done.stdout)


def test_what_a_user_sees_is_explained(policy: Path, tmp_path: Path) -> None:
    users = ("--users", str(users_file(tmp_path / "users")))
    assert explained(policy, "bob", "trades", *users) == (
        0,
        {
            "rule": 2,
            "allow": ["read"],
            "rows": "Desk = caller()",
            "hide": ["Account"],
            "mask": {"Note": "***"},
            "hash": ["Trader"],
        },
    )
    code, told = explained(policy, "alice", "trades", *users)
    assert (code, told["rule"], "admin" in told["allow"]) == (0, 1, True)
    code, told = explained(policy, "bob", "_callers", *users)
    assert told["concern"] == "rows whose user concerns the user"
    assert explained(policy, "bob", "other", *users) == (1, {"rule": None, "allow": []})
    assert explained(policy, "bob", "other", "--roles", "writer")[1]["rule"] == 1
    shown = run("explain", "bob", "trades", "--policy", str(policy)).stdout
    assert "mask     Note = '***'" in shown
    assert "does not exist" in run("explain", "bob", "other", "--policy", str(policy)).stdout


def test_a_user_there_is_not(policy: Path, tmp_path: Path) -> None:
    users = str(users_file(tmp_path / "users"))
    at = ("--policy", str(policy))
    done = run("explain", "nobody", "trades", *at, "--users", users)
    assert (done.exit_code, "no user 'nobody'" in done.output) == (2, True)
    assert run("explain", " ", "trades", *at).exit_code == 2
    assert run("explain", "bob", "trades", *at, "--users", "none").exit_code == 2
