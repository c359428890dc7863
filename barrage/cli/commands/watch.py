"""``barrage watch``: a table live, as a grid in a terminal and as plain lines elsewhere."""

from typing import Annotated

import typer

from barrage.cli.arguments import split_names
from barrage.cli.command_errors import usage_error
from barrage.cli.commands.schema import TableArgument
from barrage.cli.commands.snapshot import ColumnsOption
from barrage.cli.query_options import QueryOptions, with_query_options
from barrage.cli.target import JsonOption, TokenOption, UserOption, parse_table
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options
from barrage.cli.watch.run import PLAIN_ROWS, PlainOptions, watch_table

SecondsOption = Annotated[
    float | None,
    typer.Option(
        "--seconds", metavar="N", help="Plain lines for so long, then end.", show_default=False
    ),
]
OnceOption = Annotated[bool, typer.Option("--once", help="One picture as plain lines, then end.")]
RowCountOption = Annotated[
    int, typer.Option("--rows", metavar="N", min=1, help="Rows of a picture in plain lines.")
]
IntervalOption = Annotated[
    int,
    typer.Option("--interval-ms", metavar="N", min=10, help="Shortest time between two updates."),
]


@with_tls_options
@with_query_options
def watch(
    table: TableArgument,
    query: QueryOptions,
    *,
    tls: TlsChoice,
    columns: ColumnsOption = None,
    rows: RowCountOption = PLAIN_ROWS,
    seconds: SecondsOption = None,
    once: OnceOption = False,
    interval_ms: IntervalOption = 100,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch a table live. Only the rows on screen are subscribed to, whatever the size of the
    table.

    Keys: arrows, PgUp, PgDn, Home, End move; g goes to a row; f follows the end; space pauses; q
    quits. Without a terminal, or with --json, --once or --seconds, it prints the first rows every
    second.

    \b
    Examples:
      barrage watch localhost:10000/processes_by_cpu
      barrage watch localhost:10000/cpu --columns time,percent
      barrage watch localhost:10000/processes_by_cpu --once --rows 5
      barrage watch localhost:10000/cpu --json --seconds 10
      barrage watch localhost:10000/processes --where 'cpu_percent > 1' --sort=-cpu_percent
    """
    watch_table(
        parse_table(table, tls),
        token=token,
        query=query,
        columns=split_names(columns),
        interval_ms=interval_ms,
        plain=plain_options(rows=rows, seconds=seconds, is_once=once, is_json=as_json),
    )


def plain_options(
    *, rows: int, seconds: float | None, is_once: bool, is_json: bool
) -> PlainOptions:
    """Checked options of the plain output."""
    if seconds is not None and not seconds > 0:
        raise usage_error(f"--seconds {seconds:g}: must be greater than 0")
    return PlainOptions(rows=rows, seconds=seconds, is_once=is_once, is_json=is_json)
