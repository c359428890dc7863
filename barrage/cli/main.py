"""The ``barrage`` command line: every command, one place. ``main`` is the entry point."""

from __future__ import annotations

import os
from typing import Annotated

import typer

import barrage
from barrage.cli.commands.demo import demo
from barrage.cli.commands.doctor import doctor
from barrage.cli.commands.journal import journal
from barrage.cli.commands.ls import ls
from barrage.cli.commands.put import put
from barrage.cli.commands.replay import replay
from barrage.cli.commands.schema import schema
from barrage.cli.commands.serve import serve
from barrage.cli.commands.snapshot import snapshot
from barrage.cli.commands.version import version
from barrage.cli.commands.watch import watch
from barrage.cli.failures import OneLineGroup

app = typer.Typer(
    name="barrage",
    cls=OneLineGroup,
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


for command in (demo, serve, ls, schema, snapshot, watch, put, replay, doctor, version):
    app.command()(command)
app.add_typer(journal)


def main() -> None:
    """Run the command line; ends the process."""
    # gRPC writes its own lines to stderr, before and beside our one; read when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    app(prog_name="barrage")
