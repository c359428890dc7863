"""Starting a server from the command line: settings, tables from files, and its end by signal."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from barrage.cli.data_file import read_data_file
from barrage.cli.failures import CommandError, usage_error
from barrage.cli.target import PORT_DEFAULT
from barrage.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage import Server
    from barrage.cli.host_tables import HostTables
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


def host_tables(server: Server) -> HostTables:
    """The live tables of this machine; sampled while used as a context."""
    # psutil takes a while to load, which servers without these tables need not wait for.
    from barrage.cli.host_tables import HostTables

    return HostTables(server)


class StopSignals:
    """SIGINT and SIGTERM as an event, while the block runs; on the main thread."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._is_over = threading.Event()
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def wait(self) -> int:
        """Block until one comes; its number."""
        self._is_over.wait()
        return self._received[0]

    def _note(self, number: int, _frame: object) -> None:
        self._received.append(number)
        self._is_over.set()
