"""Whom commands log in as where a server knows users: a relay upstream, the demo at home."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import barrage
from barrage.cli.commands import relay_command
from barrage.cli.main import app
from barrage.cli.running_server import settings, warn_of_plain_text
from barrage.server import ServerConfig
from tests.helpers.users import ALICE_PASSWORD, users_file


@pytest.fixture
def users(tmp_path) -> str:
    return str(users_file(tmp_path / "users"))


def test_the_demo_watches_its_own_server_where_there_are_users(users):
    done = CliRunner().invoke(
        app, ["demo", "--port", "0", "--once", "--rows", "2"], env={"BARRAGE_USERS": users}
    )
    assert done.exit_code == 0, done.output
    assert "processes_by_cpu  live" in done.output


def test_whom_one_command_names_is_nobody_to_the_next(users):
    named = CliRunner().invoke(
        app, ["ls", "localhost:1", "--user", "alice"], env={"BARRAGE_PASSWORD": ALICE_PASSWORD}
    )
    assert "cannot connect to localhost:1" in named.output, named.output
    test_the_demo_watches_its_own_server_where_there_are_users(users)


def upstream_of(*words: str, monkeypatch, **variables: str):
    """What the relay that a command makes logs in with, and what the command says."""
    made = []

    class MadeError(Exception):
        pass

    async def serve(relay, *, as_json) -> int:
        made.append(relay._settings.upstream)
        raise MadeError

    monkeypatch.setattr(relay_command, "_serve", serve)
    done = CliRunner().invoke(app, ["relay", "localhost:1", *words], env=variables)
    return (made[0].auth if made else None), done.output


def test_a_relay_logs_in_as_a_user(monkeypatch):
    auth, _ = upstream_of(
        "--upstream-user", "alice", monkeypatch=monkeypatch, BARRAGE_UPSTREAM_PASSWORD="hush"
    )
    assert auth == barrage.Basic("alice", "hush")
    named = {"BARRAGE_UPSTREAM_USER": "bob", "BARRAGE_UPSTREAM_PASSWORD": "hush"}
    assert upstream_of(monkeypatch=monkeypatch, **named)[0] == barrage.Basic("bob", "hush")
    auth, _ = upstream_of("--upstream-token", "t", monkeypatch=monkeypatch)
    assert auth == "t"


def test_a_relay_that_cannot_log_in_says_what_is_missing(monkeypatch):
    _, told = upstream_of("--upstream-user", "alice", monkeypatch=monkeypatch)
    assert "BARRAGE_UPSTREAM_PASSWORD" in told
    _, told = upstream_of(
        *("--upstream-user", "alice", "--upstream-token", "t"),
        monkeypatch=monkeypatch,
        BARRAGE_UPSTREAM_PASSWORD="hush",
    )
    assert "--upstream-token and --upstream-user exclude each other" in told
    assert "hush" not in told


def test_what_a_relay_logs_in_with_is_no_setting_of_its_server(monkeypatch):
    monkeypatch.setenv("BARRAGE_UPSTREAM_USER", "alice")
    monkeypatch.setenv("BARRAGE_UPSTREAM_PASSWORD", "hush")
    assert isinstance(settings(None, host=None, port=None, token=None), ServerConfig)


@pytest.mark.parametrize(
    ("connector", "is_warned"),
    [(None, False), ("127.0.0.1:0", False), ("0.0.0.0:0", True)],
)
def test_a_door_of_connectors_in_the_clear_is_told(connector, is_warned, capsys):
    warn_of_plain_text(ServerConfig(connector=connector))
    assert ("0.0.0.0 can be reached by others and there is no TLS" in capsys.readouterr().err) is (
        is_warned
    )


def test_json_of_users_shows_no_hash(users):
    done = CliRunner().invoke(app, ["user", "ls", "--users", users, "--json"])
    assert ALICE_PASSWORD not in done.output
    assert "argon2" not in done.output
    assert {each["name"] for each in json.loads(done.output)} == {"alice", "bob", "carol"}
