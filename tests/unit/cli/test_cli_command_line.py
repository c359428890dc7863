"""The command line without a server: help, usage, addresses, one-line errors and exit codes."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
import typer
from typer.testing import CliRunner

import barrage
from barrage.cli.arguments import parse_rows, split_names
from barrage.cli.command_errors import CommandError, OneLineGroup, describe
from barrage.cli.main import app
from barrage.cli.running_server import parse_table_option, settings
from barrage.cli.target import parse_server, parse_table
from barrage.errors import (
    AuthenticationError,
    BarrageError,
    ConfigError,
    ConnectionLostError,
    TableNotFoundError,
)

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = [
    "demo",
    "serve",
    "relay",
    "ls",
    "schema",
    "snapshot",
    "watch",
    "put",
    "replay",
    "doctor",
    "version",
]


def run(*words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words), env=env)
    return result.exit_code, result.stdout, result.stderr


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert f"  barrage {command}" in out
    assert "Examples:" in out


def test_no_command_shows_all_of_them() -> None:
    code, out, _ = run()
    assert code == 0
    assert all(f"  {command} " in out for command in COMMANDS)
    assert "Exit codes" in out


def test_version_both_ways() -> None:
    assert run("--version")[:2] == (0, f"barrage {barrage.__version__}\n")
    assert run("version")[1].startswith(f"barrage {barrage.__version__}\npython ")
    assert json.loads(run("version", "--json")[1])["barrage"] == barrage.__version__


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["bogus"], "No such command 'bogus'; see `barrage --help`"),
        (["serve", "--host", "inproc://a"], "--host inproc:// would serve nobody"),
        (["relay"], "see `barrage relay --help`"),
        (["relay", "h:1/t"], "names a table"),
        (["relay", "h:1", "--tables", ","], "no table is named"),
        (["relay", "dh://h:1"], "tables of a Deephaven server cannot be relayed"),
        (["relay", "h:1", "--lag-ms-max", "0"], "see `barrage relay --help`"),
        (["relay", "h:1", "--host", "inproc://a"], "--host inproc:// would serve nobody"),
        (["ls"], "see `barrage ls --help`"),
        (["ls", "h:1", "--frob"], "No such option: --frob; see `barrage ls --help`"),
        (["ls", "h:1/t"], "names a table"),
        (["schema", "h:1"], "`barrage ls h:1` lists them"),
        (["serve", "--port", "high"], "see `barrage serve --help`"),
        (["serve", "--port", "70000"], "see `barrage serve --help`"),
        (["serve", "--table", "t"], "write NAME=FILE"),
        (["serve", "--table", "t=missing.csv"], "no such file: missing.csv"),
        (["serve", "--demo", "moon"], "see `barrage serve --help`"),
        (["serve", "--config", "missing.toml"], "missing.toml"),
        (["snapshot", "h:1/t", "--rows", "5-1"], "the first row is after the last"),
        (["snapshot", "h:1/t", "--rows", "x"], "write A-B"),
        (["snapshot", "h:1/t", "--columns", ","], "names separated by commas"),
        (["snapshot", "h:1/t", "--reverse"], "add --rows A-B"),
        (["snapshot", "h:1/t", "--out", "t.xls"], "use .parquet, .arrow or .csv"),
        (["watch", "h:1/t", "--seconds", "0"], "greater than 0"),
        (["watch", "h:1/t", "--rows", "0"], "see `barrage watch --help`"),
        (["replay", "f.csv", "h:1/t"], "--time"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(words: list[str], hint: str) -> None:
    code, out, err = run(*words)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert hint in err


def test_a_wrong_column_of_a_file_is_wrong_usage(tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_text("a,b\n1,2\n")
    for words in (["put", "--key", "z"], ["replay", "--time", "z"]):
        code, _, err = run(words[0], str(file), "h:1/t", *words[1:])
        assert code == 2
        assert "the file has no column 'z'; its columns are a, b" in err


@pytest.mark.parametrize("command", ["ls", "schema", "snapshot", "watch", "put", "replay"])
def test_no_server_is_one_line_and_exit_code_1(command: str, tmp_path: Path) -> None:
    file = tmp_path / "f.csv"
    file.write_text("t\n1\n")
    port = unused_port()
    target = f"127.0.0.1:{port}" + ("" if command == "ls" else "/t")
    before = [str(file)] if command in ("put", "replay") else []
    after = ["--time", "t"] if command == "replay" else []
    code, out, err = run(command, *before, target, *after)
    assert (code, out) == (1, "")
    assert err.startswith(f"error: cannot connect to 127.0.0.1:{port} (Connection refused);")
    assert f"`barrage serve --port {port}`" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "uri"),
    [
        ("localhost:9", "grpc://localhost:9"),
        ("localhost", "grpc://localhost:10000"),
        ("[::1]:9", "grpc://[::1]:9"),
        ("[::1]", "grpc://[::1]:10000"),
        ("grpc://h:9/", "grpc://h:9"),
        ("unix:///run/barrage.sock", "unix:///run/barrage.sock"),
    ],
)
def test_server_addresses(text: str, uri: str) -> None:
    assert parse_server(text).uri == uri


@pytest.mark.parametrize(
    "text", ["", ":9", "h:", "h:x", "h:0", "h:65536", "http://h:1", "inproc://a", "h:²"]
)
def test_wrong_server_addresses(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse_server(text)
    assert caught.value.exit_code == 2


def test_table_addresses() -> None:
    address = parse_table("grpc://h:9/my/table")
    assert (str(address.server), address.table) == ("h:9", "my/table")
    assert str(parse_table("h/t")) == "h:10000/t"
    address = parse_table("unix:///run/barrage.sock/t")
    assert (address.server.uri, address.table) == ("unix:///run/barrage.sock", "t")
    assert str(address) == "unix:///run/barrage.sock/t"


def test_small_arguments() -> None:
    assert parse_rows("0-9") == (0, 10)
    assert parse_rows("7") == (7, 8)
    assert split_names(" a, b ,") == ["a", "b"]
    with pytest.raises(CommandError):
        parse_table_option("=x")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TableNotFoundError("order", known=["orders"]), "did you mean 'orders'?; `barrage ls"),
        (AuthenticationError("no token"), "pass --token or set BARRAGE_TOKEN"),
        (ConnectionLostError("gone"), "`barrage serve`"),
        (BarrageError("two\nlines"), "two lines"),
        (BarrageError(), "BarrageError"),
        (BarrageError("use `that`"), "use `that`"),
    ],
)
def test_errors_say_what_to_do_next(error: Exception, words: str) -> None:
    assert words in describe(error)
    assert "\n" not in describe(error)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), 130),
        (BarrageError("x"), 1),
        (ConfigError("x"), 2),
        (PermissionError("x"), 1),
        (typer.Exit(7), 7),
        (BrokenPipeError(), 0),
    ],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    failing = typer.Typer(cls=OneLineGroup)

    @failing.callback()
    def root() -> None:
        """A group."""

    @failing.command()
    def fail() -> None:
        raise error

    assert CliRunner().invoke(failing, ["fail"]).exit_code == code


def test_settings_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "b.toml"
    file.write_text('host = "127.0.0.9"\nport = 5\n')
    monkeypatch.delenv("BARRAGE_PORT", raising=False)
    assert settings(None, host=None, port=None, token=None).port == 10000
    assert settings(file, host=None, port=None, token=None).port == 5
    monkeypatch.setenv("BARRAGE_PORT", "6")
    assert settings(file, host=None, port=None, token=None).port == 6
    merged = settings(file, host=None, port=7, token="t")
    assert (merged.host, merged.port, merged.token) == ("127.0.0.9", 7, "t")
