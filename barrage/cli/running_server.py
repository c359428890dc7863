"""Starting a server from the command line: settings, tables from files, and its end by signal."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from barrage.cli.data_file import read_data_file
from barrage.cli.failures import CommandError, usage_error
from barrage.cli.target import PORT_DEFAULT
from barrage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage import Server
    from barrage.server.config import ServerConfig


def settings(
    config_file: Path | None, *, host: str | None, port: int | None, token: str | None
) -> ServerConfig:
    """Defaults < file < environment < flags; the port is 10000 unless something says otherwise."""
    from barrage.server.config import DEFAULT_ORIGIN, load_config

    flags = {"host": host, "port": port, "token": token}
    config = load_config(config_file, environment=os.environ, flags=flags)
    if config.origin("port") != DEFAULT_ORIGIN:
        return config
    return load_config(config_file, environment=os.environ, flags={**flags, "port": PORT_DEFAULT})


def parse_table_option(text: str) -> tuple[str, Path]:
    """``name=file``; the file must exist. A wrong one is a usage error."""
    name, equals, file = text.partition("=")
    if not (equals and name and file):
        raise usage_error(f"--table {text!r}: write NAME=FILE, for example trades=trades.parquet")
    path = Path(file)
    if not path.is_file():
        raise usage_error(f"--table {text!r}: no such file: {path}")
    return name, path


@contextmanager
def new_server(config: ServerConfig) -> Iterator[Server]:
    """A server that can get tables and does not listen yet; stopped when the block ends."""
    import barrage

    server = barrage.Server(config=config)
    try:
        yield server
    finally:
        server.stop()


def listen(server: Server) -> None:
    """Start serving; a port that is taken is one clear line."""
    try:
        server.start()
    except ConfigError as error:
        config = server.config
        raise CommandError(
            f"cannot listen on {config.host}:{config.port}; another program may use the port: "
            "choose another with --port, or 0 for any"
        ) from error


def publish_files(server: Server, tables: list[tuple[str, Path]]) -> None:
    """One static table for each file."""
    for name, path in tables:
        data = read_data_file(path)
        server.create_table(name, data.schema, kind="static", data=data)


def wait_for_signal() -> int:
    """Block until SIGINT or SIGTERM; the number of the signal."""
    received: list[int] = []
    is_over = threading.Event()

    def note(number: int, _frame: object) -> None:
        received.append(number)
        is_over.set()

    previous = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        is_over.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return received[0]
