"""``barrage user``: the file of users, and passwords that never show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from barrage.cli.main import app
from barrage.errors import ConfigError
from barrage.server.identity.password_hashing import fits
from barrage.server.identity.users_file import (
    FILE_BYTES_MAX,
    UserRecord,
    changing_users,
    read_users,
)
from tests.helpers.users import users_file

MAIN = "from barrage.cli.main import main; main()"
SECONDS_MAX = 60
PASSWORD = "hush hush"


@pytest.fixture
def users(tmp_path, monkeypatch):
    for name in ("BARRAGE_NEW_PASSWORD", "BARRAGE_USERS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "users.jsonl"


def run(*words: str, given: str | None = PASSWORD):
    return CliRunner().invoke(app, ["user", *words], input=None if given is None else f"{given}\n")


def test_a_user_is_added_listed_changed_and_removed(users):
    at = ("--users", str(users))
    assert run("add", "alice", *at, "--roles", "b, a").exit_code == 0
    record = read_users(users)[0]["alice"]
    assert fits(PASSWORD, record.password)
    assert not fits("other", record.password)
    assert users.stat().st_mode & 0o777 == 0o600
    shown = [{"name": "alice", "roles": ["a", "b"], "is_disabled": False}]
    assert json.loads(run("ls", *at, "--json").stdout) == shown
    assert "alice" in run("ls", *at).stdout
    assert run("passwd", "alice", *at, given="other").exit_code == 0
    assert fits("other", read_users(users)[0]["alice"].password)
    assert run("passwd", "alice", *at, "--keep", "--disable", "--roles", "c").exit_code == 0
    record = read_users(users)[0]["alice"]
    assert fits("other", record.password)
    assert (record.roles, record.is_disabled) == (("c",), True)
    assert run("rm", "alice", *at).exit_code == 0
    assert read_users(users)[0] == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("add", "alice"), "exists already"),
        (("rm", "nobody"), "no user 'nobody'"),
        (("passwd", "nobody", "--keep"), "no user 'nobody'"),
        (("add", "a:b"), "must not have ':'"),
        (("add", " a"), "printable"),
        (("add", "new", "--roles", "\n"), None),
    ],
)
def test_what_cannot_be(users, words, told):
    users_file(users)
    done = run(*words, "--users", str(users))
    if told is not None:
        assert done.exit_code != 0
        assert told in done.output
    assert "argon2" not in done.output


def test_no_password_is_no_user(users):
    assert run("add", "alice", "--users", str(users), given="").exit_code != 0
    assert not users.exists()


@pytest.mark.further
def test_of_two_who_add_users_at_once_neither_is_lost(users):
    def add(name: str) -> int:
        words = [sys.executable, "-c", MAIN, "user", "add", name, "--users", str(users)]
        environment = {**os.environ, "BARRAGE_NEW_PASSWORD": PASSWORD}
        done = subprocess.run(words, env=environment, capture_output=True, timeout=SECONDS_MAX)
        return done.returncode

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(add, "ab")) == [0] * 2
    assert sorted(read_users(users)[0]) == list("ab")


def test_nor_is_one_of_those_who_come_by_a_link_to_the_file(users, tmp_path):
    link = tmp_path / "elsewhere" / "link.jsonl"
    link.parent.mkdir()
    link.symlink_to(users_file(users))
    before = set(read_users(users)[0])

    def add(path: Path, name: str) -> None:
        with changing_users(path) as known:
            known[name] = UserRecord(name=name, password="$argon2id$")

    def add_ten(path: Path) -> None:
        for number in range(10):
            add(path, f"{path.name}-{number}")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add_ten, (users, link)))
    assert len(read_users(users)[0].keys() - before) == 20
    assert link.is_symlink()


def test_who_is_killed_while_writing_leaves_the_file_as_it_was(users, monkeypatch):
    users_file(users)
    before = users.read_bytes()

    def die(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", die)
    with pytest.raises(KeyboardInterrupt), changing_users(users) as known:
        known.clear()
    assert users.read_bytes() == before
    assert sorted(each.name for each in users.parent.iterdir()) == [
        f".{users.name}.lock",
        users.name,
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"name": "x", "password": "plain"}', "hash of argon2"),
        (b'{"name": "x", "password": "$argon2", "roles": "abc"}', "must be JSON"),
        (b'{"name": "", "password": "$argon2"}', "name must be"),
        (b'{"name": "a:b", "password": "$argon2"}', "must not have"),
        (b"x" * (FILE_BYTES_MAX + 1), "longer than"),
        (b'{"name": "x", "password": "$argon2"}\n' * 2, "line 2: the name is there twice"),
    ],
)
def test_a_file_that_is_wrong_is_told_by_its_line(users, line, told):
    users.write_bytes(line)
    with pytest.raises(ConfigError, match=told) as error:
        read_users(users)
    assert "plain" not in str(error.value)
