"""``barrage snapshot``: the rows of a table now, to the screen, to a pipe or to a file."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from pyarrow import csv

from barrage.cli.arguments import parse_rows, split_names
from barrage.cli.cells import json_line, json_rows
from barrage.cli.command_errors import usage_error
from barrage.cli.commands.schema import TableArgument
from barrage.cli.data_file import BATCH_ROWS, check_writable, csv_ready, write_data_file
from barrage.cli.progress import byte_progress, result_progress, row_progress
from barrage.cli.query_options import QueryOptions, with_query_options
from barrage.cli.target import (
    JsonOption,
    QuietOption,
    TableAddress,
    TokenOption,
    UserOption,
    open_session,
    parse_table,
)
from barrage.cli.text_table import format_table
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options

TERMINAL_ROWS = 50

ColumnsOption = Annotated[
    str | None,
    typer.Option("--columns", metavar="A,B,…", help="Only these columns.", show_default=False),
]
RowsOption = Annotated[
    str | None,
    typer.Option(
        "--rows",
        metavar="A-B",
        help="Only rows A to B, both included, the first is 0.",
        show_default=False,
    ),
]
ReverseOption = Annotated[bool, typer.Option("--reverse", help="Count rows from the end.")]
JobsOption = Annotated[
    int,
    typer.Option(
        "--jobs",
        metavar="N",
        help="Read N ranges of rows at a time; the server keeps them at one moment meanwhile.",
        min=1,
        max=32,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write to a .parquet, .arrow or .csv file.",
        show_default=False,
        dir_okay=False,
    ),
]


@with_tls_options
@with_query_options
def snapshot(
    table: TableArgument,
    query: QueryOptions,
    *,
    tls: TlsChoice,
    columns: ColumnsOption = None,
    rows: RowsOption = None,
    reverse: ReverseOption = False,
    jobs: JobsOption = 1,
    out: OutOption = None,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Read a table once. A terminal shows the first 50 rows; a pipe gets all rows as CSV, or JSON
    lines with --json.

    \b
    Examples:
      barrage snapshot localhost:10000/processes
      barrage snapshot localhost:10000/processes --columns pid,name --rows 0-9
      barrage snapshot localhost:10000/cpu --rows 0-99 --reverse --out last100.parquet
      barrage snapshot localhost:10000/processes --json | jq .name
      barrage snapshot localhost:10000/processes --by user --agg n='count()' --sort=-n
      barrage snapshot localhost:10000/processes --jobs 4 --out all.parquet
    """
    address = parse_table(table, tls)
    span = parse_rows(rows)
    if reverse and span is None:
        raise usage_error("--reverse counts --rows from the end; add --rows A-B")
    if out is not None:
        check_writable(out)
    is_screen = out is None and not as_json and sys.stdout.isatty()
    if is_screen and span is None:
        # One more than is shown tells whether there are more.
        span = (0, TERMINAL_ROWS + 1)
    data = _fetch(
        address,
        token,
        query=query,
        columns=split_names(columns),
        rows=span,
        is_reverse=reverse,
        jobs=jobs,
        is_quiet=quiet,
    )
    if out is not None:
        with row_progress(f"writing {out.name}", total=data.num_rows, is_quiet=quiet) as progress:
            write_data_file(out, data, on_progress=progress.advance_to)
        if not quiet:
            typer.echo(f"{data.num_rows:,} rows written to {out}", err=True)
    elif is_screen:
        _print_screen(data, address, is_cut=rows is None)
    elif as_json:
        _print_json(data)
    else:
        _print_csv(data)


def _fetch(
    address: TableAddress,
    token: str | None,
    *,
    query: QueryOptions,
    columns: list[str] | None,
    rows: tuple[int, int] | None,
    is_reverse: bool,
    jobs: int,
    is_quiet: bool,
) -> pa.Table:
    what = f"reading {address.table}"
    with open_session(address.server, token) as session:
        table = query.apply(session.table, address.table)
        if jobs > 1:
            with result_progress(what, is_quiet=is_quiet) as (on_query, on_progress):
                return table.snapshot(
                    columns=columns,
                    rows=rows,
                    reverse=is_reverse,
                    jobs=jobs,
                    on_query=on_query,
                    on_progress=on_progress,
                )
        with byte_progress(what, is_quiet=is_quiet) as on_progress:
            return table.snapshot(
                columns=columns, rows=rows, reverse=is_reverse, on_progress=on_progress
            )


def _print_screen(data: pa.Table, address: TableAddress, *, is_cut: bool) -> None:
    shown = data.slice(0, TERMINAL_ROWS) if is_cut else data
    for line in format_table(shown, width=shutil.get_terminal_size().columns):
        typer.echo(line)
    if shown.num_rows < data.num_rows:
        typer.echo(
            f"first {TERMINAL_ROWS} rows; --rows A-B shows others, --out FILE saves all, "
            f"`barrage watch {address}` scrolls",
            err=True,
        )


def _print_json(data: pa.Table) -> None:
    for batch_start in range(0, data.num_rows, BATCH_ROWS):
        for row in json_rows(data.slice(batch_start, BATCH_ROWS)):
            typer.echo(json_line(row))


def _print_csv(data: pa.Table) -> None:
    ready = csv_ready(data)
    with csv.CSVWriter(sys.stdout.buffer, ready.schema) as writer:
        for start in range(0, ready.num_rows, BATCH_ROWS):
            writer.write_table(ready.slice(start, BATCH_ROWS))
    sys.stdout.flush()
