"""``barrage put``: a file becomes a table, or more rows of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer

from barrage.cli.commands.schema import TableArgument
from barrage.cli.commands.snapshot import split_names
from barrage.cli.data_file import open_data_file
from barrage.cli.failures import usage_error
from barrage.cli.progress import row_progress
from barrage.cli.target import JsonOption, QuietOption, TokenOption, open_session, parse_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from barrage.cli.data_file import OpenedFile
    from barrage.client import Session

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


def put(
    file: FileArgument,
    table: TableArgument,
    key: KeyOption = None,
    append: AppendOption = False,
    token: TokenOption = None,
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
    address = parse_table(table)
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
            for batch in _batches(opened):
                writer.write(batch)
                progress.advance_to(writer.row_count)
    if as_json:
        typer.echo(json.dumps({"table": address.table, "rows": writer.row_count}))
    elif not quiet:
        typer.echo(f"{writer.row_count:,} rows sent to {address}", err=True)


def check_columns(names: list[str], schema: pa.Schema, *, what: str) -> None:
    """Every name is a column of the file; else a usage error that lists the columns."""
    for name in names:
        if name not in schema.names:
            raise usage_error(
                f"{what}: the file has no column {name!r}; its columns are {', '.join(schema.names)}"
            )


def _batches(opened: OpenedFile) -> Iterator[pa.RecordBatch]:
    """The batches of a file; one empty batch for a file without rows, so that its table exists all the same."""
    is_empty = True
    for batch in opened.batches:
        is_empty = False
        yield batch
    if is_empty:
        yield pa.RecordBatch.from_pylist([], schema=opened.schema)


class TableWriter:
    """Sends batches to one table: the first creates it unless told to append, the others add to it."""

    def __init__(
        self, session: Session, name: str, *, key_columns: list[str] | None, is_append: bool
    ) -> None:
        self._session = session
        self._name = name
        self._key_columns = key_columns
        self._is_created = is_append
        self.row_count = 0
        """Rows the server has committed."""

    def write(self, data: pa.RecordBatch | pa.Table) -> None:
        """Send some rows and wait until they are committed."""
        if self._is_created:
            mode = "upsert" if self._key_columns else "append"
        else:
            mode = "create"
        table = pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
        self._session.put(self._name, table, key=self._key_columns, mode=mode)
        self._is_created = True
        self.row_count += data.num_rows
