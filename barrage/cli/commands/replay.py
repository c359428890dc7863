"""``barrage replay``: the past of a table, or a file played back as a ticking table."""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from barrage.cli.arguments import check_columns, split_names
from barrage.cli.command_errors import usage_error
from barrage.cli.commands.put import AppendOption, KeyOption
from barrage.cli.commands.snapshot import ColumnsOption
from barrage.cli.commands.watch import RowCountOption
from barrage.cli.data_file import read_data_file
from barrage.cli.progress import row_progress
from barrage.cli.replay.replay_clock import ReplaySchedule
from barrage.cli.replay.replay_moment import parse_moment, parse_speed
from barrage.cli.table_writer import TableWriter, play
from barrage.cli.target import (
    JsonOption,
    QuietOption,
    TableAddress,
    TokenOption,
    UserOption,
    open_session,
    parse_table,
)
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options
from barrage.cli.watch.run import PLAIN_ROWS
from barrage.clock import SystemClock

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="HOST:PORT/TABLE, or a .parquet, .csv or .arrow file.",
        show_default=False,
    ),
]
TargetArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOST:PORT/TABLE]", help="Where a file is played to.", show_default=False
    ),
]
TimeOption = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="COL",
        help="A file's column with the time of each row.",
        show_default=False,
    ),
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="STEP|TIME",
        help="Where a table's past begins; its oldest step.",
        show_default=False,
    ),
]
ToOption = Annotated[
    str | None,
    typer.Option(
        "--to", metavar="STEP|TIME", help="Where it ends; the newest step.", show_default=False
    ),
]
SpeedOption = Annotated[
    str,
    typer.Option("--speed", metavar="X", help="2 plays twice as fast, max as fast as possible."),
]


@with_tls_options
def replay(
    source: SourceArgument,
    target: TargetArgument = None,
    *,
    tls: TlsChoice,
    time_column: TimeOption = None,
    start: FromOption = None,
    stop: ToOption = None,
    speed: SpeedOption = "1",
    columns: ColumnsOption = None,
    rows: RowCountOption = PLAIN_ROWS,
    key: KeyOption = None,
    append: AppendOption = False,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Play the past of a table, as its journal has it; or play a file back as a ticking table.

    The past is shown in the grid on a terminal, elsewhere as pictures every second, and with --json
    as one line per changed row. A step, a time or how long ago says where it begins and ends.

    Rows of a file arrive in the order and at the pace of their times. With --key a row takes the
    place of the one before it with the same key.

    \b
    Examples:
      barrage replay localhost:10000/trades --from '10 minutes ago'
      barrage replay localhost:10000/trades --from '2026-03-01 12:00' --to '2026-03-01 12:30'
      barrage replay localhost:10000/trades --from 1h --speed 60
      barrage replay localhost:10000/trades --from 1200 --to 1300 --speed max --json
      barrage replay trades.parquet localhost:10000/trades --time timestamp --speed 60
      barrage replay quotes.csv localhost:10000/quotes --time ts --speed max --key symbol
    """
    factor = parse_speed(speed)
    if target is not None:
        if start is not None or stop is not None or columns is not None:
            raise usage_error("--from, --to and --columns are for the past of a table, not a file")
        if time_column is None:
            raise usage_error("playing a file needs --time: the column with the time of each row")
        _replay_file(
            Path(source),
            parse_table(target, tls),
            time_column,
            speed=factor,
            options=FileOptions(
                key=split_names(key), is_append=append, token=token, is_json=as_json, is_quiet=quiet
            ),
        )
        return
    if time_column is not None or key is not None or append:
        raise usage_error(
            "--time, --key and --append are for playing a file: say where to, as "
            "`barrage replay FILE HOST:PORT/TABLE --time COL`"
        )
    # The client takes a while to load, which `barrage --help` must not wait for.
    from barrage.cli.replay.replay_run import PastOptions, replay_past

    now = datetime.now(UTC)
    options = PastOptions(
        start=None if start is None else parse_moment(start, option="--from", now=now),
        stop=None if stop is None else parse_moment(stop, option="--to", now=now),
        speed=factor,
        columns=split_names(columns),
        rows=rows,
        is_json=as_json,
    )
    replay_past(parse_table(source, tls), token=token, options=options)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """What else is said about playing a file."""

    key: list[str] | None
    is_append: bool
    token: str | None
    is_json: bool
    is_quiet: bool


def _replay_file(
    file: Path, address: TableAddress, time_column: str, *, speed: float, options: FileOptions
) -> None:
    rows = read_data_file(file)
    check_columns([time_column], rows.schema, what="--time")
    check_columns(options.key or [], rows.schema, what="--key")
    schedule = ReplaySchedule(rows, time_column=time_column, speed=speed, key_columns=options.key)
    with (
        open_session(address.server, options.token) as session,
        row_progress(
            f"replaying {file.name}", total=schedule.row_count, is_quiet=options.is_quiet
        ) as progress,
    ):
        writer = TableWriter(
            session, address.table, key_columns=options.key, is_append=options.is_append
        )
        play(schedule, writer, progress, clock=SystemClock(), wait=time.sleep)
    if options.is_json:
        typer.echo(json.dumps({"table": address.table, "rows": schedule.row_count}))
    elif not options.is_quiet:
        typer.echo(f"{schedule.row_count:,} rows replayed to {address}", err=True)
