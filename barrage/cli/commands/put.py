"""``barrage put``: a file becomes a table, or more rows of one."""

import json
from pathlib import Path
from typing import Annotated

import typer

from barrage.cli.arguments import check_columns, split_names
from barrage.cli.commands.schema import TableArgument
from barrage.cli.data_file import open_data_file
from barrage.cli.progress import row_progress
from barrage.cli.table_writer import TableWriter
from barrage.cli.target import (
    JsonOption,
    QuietOption,
    TokenOption,
    UserOption,
    open_session,
    parse_table,
)
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", show_default=False, dir_okay=False, help="A .parquet, .csv or .arrow file."
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="COL,…",
        help="Key columns: a row with a known key changes that row.",
        show_default=False,
    ),
]
AppendOption = Annotated[bool, typer.Option("--append", help="Add to a table that exists.")]


@with_tls_options
def put(
    file: FileArgument,
    table: TableArgument,
    *,
    tls: TlsChoice,
    key: KeyOption = None,
    append: AppendOption = False,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Send a file to a table. Creates the table, keyed with --key; with --append it must exist.

    \b
    Examples:
      barrage put trades.parquet localhost:10000/trades
      barrage put more.csv localhost:10000/trades --append
      barrage put quotes.arrow localhost:10000/quotes --key symbol
    """
    address = parse_table(table, tls)
    key_columns = split_names(key)
    with open_data_file(file) as opened:
        check_columns(key_columns or [], opened.schema, what="--key")
        with (
            open_session(address.server, token) as session,
            row_progress(
                f"sending {file.name}", total=opened.row_count, is_quiet=quiet
            ) as progress,
        ):
            writer = TableWriter(session, address.table, key_columns=key_columns, is_append=append)
            for part in opened.parts():
                writer.write(part, on_progress=progress.advance_to)
    if as_json:
        typer.echo(json.dumps({"table": address.table, "rows": writer.row_count}))
    elif not quiet:
        typer.echo(f"{writer.row_count:,} rows sent to {address}", err=True)
