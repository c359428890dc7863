"""``barrage trace``: what the updates of a table went through."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from barrage.cli.command_errors import CommandError, usage_error
from barrage.cli.progress import row_progress
from barrage.cli.target import (
    JsonOption,
    QuietOption,
    TableAddress,
    TokenOption,
    UserOption,
    open_async_session,
    parse_server,
)
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options
from barrage.errors import BarrageError, UnsupportedError

if TYPE_CHECKING:
    from barrage.client import AsyncSession

ACTION = "barrage.trace"
SECONDS_MAX = 600
ROWS_PLAIN = 20

ServerArgument = Annotated[str, typer.Argument(metavar="HOST:PORT")]
TableArgument = Annotated[str, typer.Argument(metavar="TABLE")]
SecondsOption = Annotated[
    int,
    typer.Option(
        "--seconds",
        metavar="N",
        min=1,
        max=SECONDS_MAX,
        help="For how long to trace, where the server does not do so anyway (serve --trace).",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        help="Write a trace file for chrome://tracing or Perfetto.",
        show_default=False,
        dir_okay=False,
    ),
]
RowsOption = Annotated[int, typer.Option("--rows", metavar="N", min=1, help="Updates to show.")]


@with_tls_options
def trace(
    server: ServerArgument,
    table: TableArgument,
    *,
    tls: TlsChoice,
    seconds: SecondsOption = 10,
    out: OutOption = None,
    rows: RowsOption = ROWS_PLAIN,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say what the updates of a table went through: the cycle that committed them, working out what
    subscribers are told, encoding, writing to all streams, and when this client had applied them
    (the clocks of both machines must agree for that).

    A server that traces all the time answers with the last minute. Another one is asked to trace
    for --seconds, while this command subscribes to the first rows of the table.

    \b
    Examples:
      barrage trace localhost:10000 quotes
      barrage trace localhost:10000 quotes --seconds 30 --out trace.json
      barrage trace localhost:10000 quotes --json | jq '.updates[].encode'
    """
    address = TableAddress(server=parse_server(server, tls), table=table)
    if out is not None and not out.absolute().parent.is_dir():
        raise usage_error(f"--out {out}: no such directory: {out.absolute().parent}")
    told, applied = asyncio.run(_traced(address, token, seconds=seconds, is_quiet=quiet or as_json))
    from barrage.cli.trace.stages import chrome_trace, stage_lines, stages_of

    updates = stages_of(told, applied)
    if out is not None:
        out.write_text(json.dumps(chrome_trace(updates, table)), encoding="utf-8")
        if not quiet:
            typer.echo(f"{len(updates)} updates written to {out}", err=True)
    if as_json:
        applied_here = {str(wall_ns): here_ns for wall_ns, here_ns in applied.items()}
        typer.echo(json.dumps({**told, "applied": applied_here}))
    elif out is None:
        typer.echo("\n".join(stage_lines(updates, rows_max=rows)))


async def _traced(
    address: TableAddress, token: str | None, *, seconds: int, is_quiet: bool
) -> tuple[dict[str, Any], dict[int, int]]:
    """What the server remembers, and when updates were applied here."""
    applied: dict[int, int] = {}
    async with open_async_session(address.server, token) as session:
        told = await _ask(session, address.table, 0)
        if not told["always"]:
            # Somewhat longer, so that what comes in the last moment is still remembered.
            await _ask(session, address.table, min(seconds + 1, SECONDS_MAX))
            await _follow(session, address.table, applied, seconds=seconds, is_quiet=is_quiet)
            told = await _ask(session, address.table, 0)
    return told, applied


async def _ask(session: "AsyncSession", table: str, seconds: int) -> dict[str, Any]:
    body = json.dumps({"table": table, **({"seconds": seconds} if seconds else {})}).encode()
    try:
        (answer,) = await session.act(ACTION, body, table=table)
    except UnsupportedError as error:
        raise CommandError(
            f"{session.address} does not trace updates: it is older than this command, or of "
            "another kind"
        ) from error
    told: dict[str, Any] = json.loads(answer)
    return told


async def _follow(
    session: "AsyncSession", table: str, applied: dict[int, int], *, seconds: int, is_quiet: bool
) -> None:
    """Subscribe for so long, and note when updates are here. A table that cannot be subscribed to
    is traced all the same."""

    async def note() -> None:
        subscription = session.table(table).subscribe(viewport=(0, 100), interval_ms=10)
        async with subscription as ticking:
            async for update in ticking.updates():
                if update.source_time_ns is not None:
                    applied.setdefault(update.source_time_ns, time.time_ns())

    noting = asyncio.ensure_future(note())
    try:
        with row_progress(f"tracing {table}", total=seconds, is_quiet=is_quiet) as progress:
            for second in range(seconds):
                progress.advance_to(second)
                await asyncio.sleep(1)
    finally:
        noting.cancel()
        with suppress(asyncio.CancelledError, BarrageError):
            await noting
