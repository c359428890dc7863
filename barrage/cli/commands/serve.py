"""``barrage serve``: a server for tables that clients put, files and live tables of the machine."""

import json
import signal
from contextlib import ExitStack, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from barrage.cli.command_errors import EXIT_INTERRUPTED
from barrage.cli.commands.setting_options import GivenSettings, with_setting_options
from barrage.cli.running_server import (
    host_tables,
    listen,
    log_to_stderr,
    new_server,
    parse_table_option,
    publish_files,
    settings,
)
from barrage.cli.target import JsonOption

if TYPE_CHECKING:
    from barrage import Server

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
      barrage serve --data tables --alerts alerts.toml --alert-hosts hooks.example.org
      barrage serve --data tables --metrics-port 9464 --log-json
      barrage serve --config barrage.toml
      barrage serve --port 0 --json
      barrage serve --host 0.0.0.0 --token secret --web --web-port 8080
      barrage serve --no-web
    """
    files = [parse_table_option(text) for text in table or []]
    with ExitStack() as stack:
        chosen = settings(config, is_for_people=True, **given)
        stack.enter_context(log_to_stderr(chosen))
        server = stack.enter_context(new_server(chosen))
        publish_files(server, files)
        live = host_tables(server) if demo is Demo.HOST else nullcontext()
        listen(server)
        stack.enter_context(live)
        # What a server is made of is loaded only once there is to be one.
        from barrage.server.serving.stop_signals import StopSignals

        signals = stack.enter_context(StopSignals())
        _announce(server, as_json=as_json)
        if signals.wait() == signal.SIGINT:
            raise typer.Exit(EXIT_INTERRUPTED)


def _announce(server: "Server", *, as_json: bool) -> None:
    """Say where the server listens: a JSON line on stdout for scripts, words on stderr else."""
    address, web = server.address, server.web_uri
    if as_json:
        doors = {
            "connector_port": server.connector_port,
            "metrics_port": server.metrics_port,
            "web": web,
        }
        told = {name: value for name, value in doors.items() if value is not None}
        typer.echo(json.dumps({"address": address, "port": server.port, **told}))
        return
    page = "" if web is None else f"; {web} shows them in a browser"
    typer.echo(
        f"serving on {address}; `barrage ls {address}` lists the tables{page}; Ctrl+C stops",
        err=True,
    )
