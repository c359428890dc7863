"""Starting a server from the command line: settings and tables from files."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

import barrage
from barrage.cli.command_errors import CommandError, usage_error
from barrage.cli.data_file import read_data_file
from barrage.cli.host_tables import HostTables
from barrage.cli.progress import table_progress
from barrage.cli.target import (
    NEW_PASSWORD_VARIABLE,
    PASSWORD_VARIABLE,
    PORT_DEFAULT,
    USER_VARIABLE,
    password_variable,
)
from barrage.cli.tls.tls_options import UPSTREAM, VARIABLES
from barrage.errors import ConfigError
from barrage.transport.host_names import is_loopback
from barrage.transport.registry import SCHEME_DEFAULT, scheme_of
from barrage.transport.sockets.listening_sockets import ListeningSockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barrage import Server
    from barrage.server.journaling.journal_opening import Recovery
    from barrage.server.settings.config import ServerConfig


UPSTREAM_TOKEN_VARIABLE = "BARRAGE_UPSTREAM_TOKEN"
UPSTREAM_USER_VARIABLE = "BARRAGE_UPSTREAM_USER"
"""What `barrage relay` shows to others; no settings of a server."""

WEB_PORT_DEFAULT = 10080
"""Where browsers are served, if nothing else is said and nobody is there."""

_NO_SETTINGS = {
    UPSTREAM_TOKEN_VARIABLE,
    UPSTREAM_USER_VARIABLE,
    password_variable(UPSTREAM),
    USER_VARIABLE,
    PASSWORD_VARIABLE,
    NEW_PASSWORD_VARIABLE,
    *VARIABLES,
}
"""What clients among the commands are told."""


def settings(
    config_file: Path | None, *, is_for_people: bool = False, **flags: str | int | bool | None
) -> ServerConfig:
    """Defaults < file < environment < ``flags`` of the settings' names, of which None says
    nothing; the port is 10000 unless something says otherwise.

    ``is_for_people``: browsers are served, unless something says otherwise, where only this machine
    can reach the server; on port 10080 if it is free.
    """
    from barrage.server.settings.config import DEFAULT_ORIGIN, load_config

    environment = {name: value for name, value in os.environ.items() if name not in _NO_SETTINGS}
    config = load_config(config_file, environment=environment, flags=flags)
    chosen: dict[str, int | bool] = {}
    if config.origin("port") == DEFAULT_ORIGIN:
        chosen["port"] = PORT_DEFAULT
    if is_for_people and config.web is None:
        chosen["web"] = scheme_of(config.host) == SCHEME_DEFAULT and is_loopback(config.host)
    if config.web or chosen.get("web"):
        is_port_open = config.origin("web_port") == DEFAULT_ORIGIN
        is_any_port = config.origin("port") != DEFAULT_ORIGIN and config.port == 0
        if is_port_open and not is_any_port and _is_free(config.host, WEB_PORT_DEFAULT):
            chosen["web_port"] = WEB_PORT_DEFAULT
    if not chosen:
        return config
    return load_config(config_file, environment=environment, flags={**flags, **chosen})


def _is_free(host: str, port: int) -> bool:
    """Whether a port can be had at this moment."""
    sockets = ListeningSockets(host, port)
    try:
        sockets.bind()
    except ConfigError:
        return False
    finally:
        sockets.close()
    return True


def parse_table_option(text: str) -> tuple[str, Path]:
    """``name=file``; the file must exist. A wrong one is a usage error."""
    name, equals, file = text.partition("=")
    if not (equals and name and file):
        raise usage_error(f"--table {text!r}: write NAME=FILE, for example trades=trades.parquet")
    path = Path(file)
    if not path.is_file():
        raise usage_error(f"--table {text!r}: no such file: {path}")
    return name, path


def check_host(config: ServerConfig) -> None:
    """A usage error for an address nobody could reach."""
    if config.host.startswith("inproc://"):
        raise usage_error("--host inproc:// would serve nobody: this process has no other clients")


@contextmanager
def new_server(config: ServerConfig) -> Iterator[Server]:
    """A server that can get tables and does not listen yet; stopped when the block ends. With a
    data directory its tables are read first, with a line that says how far that is."""
    check_host(config)
    if config.data is None:
        server = barrage.Server(config=config)
    else:
        with _recovery_progress(config.data) as on_progress:
            server = barrage.Server(config=config, on_progress=on_progress)
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def _recovery_progress(directory: str) -> Iterator[Callable[[Recovery], None]]:
    """A counter of tables while a data directory is read."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with table_progress(f"reading {directory}") as advance_to:
        yield lambda recovery: advance_to(recovery.tables_done, recovery.tables, recovery.table)


def listen(server: Server) -> None:
    """Start serving; a port that is taken is one clear line."""
    try:
        server.start()
    except ConfigError as error:
        config = server.config
        if "://" in config.host or not str(error).startswith("cannot listen"):
            raise CommandError(str(error)) from error
        raise CommandError(
            f"cannot listen on {config.host}:{config.port}; another program may use the port: "
            "choose another with --port, or 0 for any"
        ) from error
    warn_of_plain_text(server.config)


def asks_who_calls(config: ServerConfig) -> bool:
    """Whether callers must show something other than the token."""
    return any((config.users, config.jwt_keys, config.tls_client_ca, config.unix_peers))


def warn_of_plain_text(config: ServerConfig) -> None:
    """One line where everything could be read on the way."""
    hosts = [config.host] if scheme_of(config.host) == SCHEME_DEFAULT else []
    if config.connector_address is not None:
        hosts.append(config.connector_address[0])
    reached = [host for host in hosts if not is_loopback(host)]
    if reached and config.tls_cert is None:
        typer.echo(
            f"barrage: {reached[0]} can be reached by others and there is no TLS: tokens and "
            "data travel in the clear; use --tls-cert and --tls-key, or a TLS proxy",
            err=True,
        )


@contextmanager
def log_to_stderr(config: ServerConfig) -> Iterator[None]:
    """Lines of the log on stderr, as the settings say, while the block runs."""
    from barrage.server.operations.log_lines import log_no_more, log_to

    handler = log_to(is_json=config.log_json, levels=config.log_level)
    try:
        yield
    finally:
        log_no_more(handler)


def publish_files(server: Server, tables: list[tuple[str, Path]]) -> None:
    """One static table for each file, without a journal: the file is what keeps it."""
    for name, path in tables:
        data = read_data_file(path)
        server.create_table(name, data.schema, kind="static", data=data, journal="none")


def host_tables(server: Server) -> HostTables:
    """The live tables of this machine; sampled while used as a context."""
    return HostTables(server)
