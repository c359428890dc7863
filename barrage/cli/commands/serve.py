"""``barrage serve``: a server for tables that clients put, files and live tables of the machine."""

import json
import signal
from contextlib import ExitStack, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from barrage.cli.command_errors import EXIT_INTERRUPTED
from barrage.cli.commands.setting_options import GivenSettings, with_setting_options
from barrage.cli.running_server import (
    host_tables,
    listen,
    new_server,
    parse_table_option,
    publish_files,
    settings,
)
from barrage.cli.target import JsonOption

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Settings in TOML.", show_default=False, dir_okay=False
    ),
]
TablesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--table",
        metavar="NAME=FILE",
        help="Publish a .parquet, .csv or .arrow file; may be repeated.",
        show_default=False,
    ),
]


class Demo(StrEnum):
    """Tables that tick by themselves."""

    HOST = "host"


DemoOption = Annotated[
    Demo | None,
    typer.Option("--demo", help="Publish live tables of this machine.", show_default=False),
]


@with_setting_options
def serve(
    *,
    given: GivenSettings,
    config: ConfigOption = None,
    demo: DemoOption = None,
    table: TablesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve tables until Ctrl+C. Settings: defaults, then --config, then BARRAGE_… variables, then
    flags.

    \b
    Examples:
      barrage serve
      barrage serve --data tables
      barrage serve --demo host --port 10001
      barrage serve --table trades=trades.parquet --table quotes=quotes.arrow
      barrage serve --host 0.0.0.0 --token secret
      barrage serve --users users.jsonl --audit audit.log
      barrage serve --users users.jsonl --policy policy.toml
      barrage serve --host 0.0.0.0 --anonymous
      barrage serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key
      barrage serve --bodies shm
      barrage serve --data tables --connector 127.0.0.1:10020
      barrage serve --config barrage.toml
      barrage serve --port 0 --json
    """
    files = [parse_table_option(text) for text in table or []]
    with ExitStack() as stack:
        server = stack.enter_context(new_server(settings(config, **given)))
        publish_files(server, files)
        live = host_tables(server) if demo is Demo.HOST else nullcontext()
        listen(server)
        stack.enter_context(live)
        # What a server is made of is loaded only once there is to be one.
        from barrage.server.serving.stop_signals import StopSignals

        signals = stack.enter_context(StopSignals())
        _announce(server.address, server.port, as_json=as_json, connector=server.connector_port)
        if signals.wait() == signal.SIGINT:
            raise typer.Exit(EXIT_INTERRUPTED)


def _announce(address: str, port: int, *, as_json: bool, connector: int | None) -> None:
    """Say where the server listens: a JSON line on stdout for scripts, words on stderr else."""
    if as_json:
        doors = {} if connector is None else {"connector_port": connector}
        typer.echo(json.dumps({"address": address, "port": port, **doors}))
        return
    typer.echo(
        f"serving on {address}; `barrage ls {address}` lists the tables; Ctrl+C stops", err=True
    )
