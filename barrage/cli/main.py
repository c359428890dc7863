"""The ``barrage`` command line: every command, one place. ``main`` is the entry point.

A command is imported when it is asked for: most need the client alone, and loading all there is
takes three times as long.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

import barrage
from barrage.cli.command_errors import OneLineGroup

COMMANDS = (
    "demo",
    "serve",
    "relay",
    "ls",
    "schema",
    "snapshot",
    "watch",
    "top",
    "trace",
    "put",
    "replay",
    "connect",
    "doctor",
    "version",
    "journal",
    "user",
    "policy",
    "cert",
    "spark",
)
"""In the order of the help; each is a function, or an application of its own, in the module of that
name in ``barrage.cli.commands``, or of the one in ``_MODULES``."""

_MODULES = {
    "policy": "policy_command",
    "relay": "relay_command",
    "spark": "spark_command",
    "user": "user_command",
}
"""``relay.py`` would be read as ``replay.py``, ``user.py`` as a user, ``policy.py`` as a policy,
``spark.py`` as what Spark is used with."""


@cache
def _command(name: str) -> Any:
    found = getattr(import_module(f"barrage.cli.commands.{_MODULES.get(name, name)}"), name)
    if not isinstance(found, typer.Typer):
        application = typer.Typer(rich_markup_mode=None, add_completion=False)
        application.command(name)(found)
        return typer.main.get_command(application)
    return typer.main.get_group(found)


class CommandGroup(OneLineGroup):
    """The commands, each imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _command(cmd_name) if cmd_name in COMMANDS else None


app = typer.Typer(
    name="barrage",
    cls=CommandGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 100},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"barrage {barrage.__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Ticking tables over Arrow Flight: publish, watch and move tables that change.

    \b
    Examples:
      barrage demo                                           see it work
      barrage serve --demo host                              serve live tables of this machine
      barrage ls localhost:10000                             what is there
      barrage watch localhost:10000/processes_by_cpu         a table live
      barrage put trades.parquet localhost:10000/trades      a file becomes a table

    \b
    Exit codes: 0 success, 1 error of the server, the connection or a file, 2 wrong usage, 130
    interrupted.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line; ends the process."""
    # gRPC writes its own lines to stderr, before and beside our one; read when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app(prog_name="barrage")
