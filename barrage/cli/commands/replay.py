"""``barrage replay``: a file played back as a ticking table."""

import json
import time
from typing import Annotated

import typer

from barrage.cli.arguments import check_columns, split_names
from barrage.cli.commands.put import (
    AppendOption,
    FileArgument,
    KeyOption,
)
from barrage.cli.commands.schema import TableArgument
from barrage.cli.data_file import read_data_file
from barrage.cli.progress import row_progress
from barrage.cli.replay_clock import ReplaySchedule
from barrage.cli.table_writer import TableWriter, play
from barrage.cli.target import JsonOption, QuietOption, TokenOption, open_session, parse_table
from barrage.clock import SystemClock

TimeOption = Annotated[
    str,
    typer.Option(
        "--time", metavar="COL", help="Column with the time of each row.", show_default=False
    ),
]
SpeedOption = Annotated[
    float,
    typer.Option("--speed", metavar="X", help="2 plays twice as fast, inf as fast as possible."),
]


def replay(
    file: FileArgument,
    table: TableArgument,
    time_column: TimeOption,
    speed: SpeedOption = 1.0,
    key: KeyOption = None,
    append: AppendOption = False,
    token: TokenOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Play a file back as a ticking table. Rows arrive in the order and at the pace of their times.

    \b
    Examples:
      barrage replay trades.parquet localhost:10000/trades --time timestamp
      barrage replay trades.parquet localhost:10000/trades --time timestamp --speed 60
      barrage replay quotes.csv localhost:10000/quotes --time ts --speed inf --key symbol
    """
    address = parse_table(table)
    key_columns = split_names(key)
    rows = read_data_file(file)
    check_columns([time_column], rows.schema, what="--time")
    check_columns(key_columns or [], rows.schema, what="--key")
    schedule = ReplaySchedule(rows, time_column=time_column, speed=speed)
    with (
        open_session(address.server, token) as session,
        row_progress(
            f"replaying {file.name}", total=schedule.row_count, is_quiet=quiet
        ) as progress,
    ):
        writer = TableWriter(session, address.table, key_columns=key_columns, is_append=append)
        play(schedule, writer, progress, clock=SystemClock(), wait=time.sleep)
    if as_json:
        typer.echo(json.dumps({"table": address.table, "rows": writer.row_count}))
    elif not quiet:
        typer.echo(f"{writer.row_count:,} rows replayed to {address}", err=True)
