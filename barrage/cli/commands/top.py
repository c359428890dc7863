"""``barrage top``: who is connected to a server, what costs, who is slow, what the engine does."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from barrage.cli.command_errors import usage_error
from barrage.cli.commands.ls import ServerArgument
from barrage.cli.target import (
    JsonOption,
    ServerAddress,
    TokenOption,
    UserOption,
    open_async_session,
    parse_server,
)
from barrage.cli.tls.tls_options import TlsChoice, with_tls_options

if TYPE_CHECKING:
    from barrage.cli.top.picture import ServerPicture

ROWS_PLAIN = 20


class TopOrder(StrEnum):
    """What subscriptions are sorted by."""

    LAG = "lag"
    BYTES = "bytes"
    OUTBOX = "outbox"
    UPDATES = "updates"


OnceOption = Annotated[bool, typer.Option("--once", help="One picture as plain lines, then end.")]
OrderOption = Annotated[
    TopOrder, typer.Option("--sort", help="Subscriptions with the largest of this come first.")
]
IntervalOption = Annotated[
    float, typer.Option("--interval", metavar="SECONDS", help="Time between two pictures.")
]
RowsOption = Annotated[
    int, typer.Option("--rows", metavar="N", min=1, help="Subscriptions in plain lines.")
]


@with_tls_options
def top(
    server: ServerArgument,
    *,
    tls: TlsChoice,
    once: OnceOption = False,
    sort: OrderOption = TopOrder.LAG,
    interval: IntervalOption = 1.0,
    rows: RowsOption = ROWS_PLAIN,
    token: TokenOption = None,
    user: UserOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch a server at work: subscriptions with what they cost and how far behind they are, and
    how long cycles, encoding, commits and the disk take; external sources and their streams,
    alerts.

    It reads the tables _server, _subscriptions and _callers, and _connectors and _streams where
    external sources push, _alerts where there are alerts; where rules are on, you see what concerns
    you. Without a terminal, or with --json, it prints a picture every --interval seconds.

    \b
    Examples:
      barrage top localhost:10000
      barrage top localhost:10000 --sort bytes
      barrage top localhost:10000 --once
      barrage top localhost:10000 --once --json | jq .measures.outbox_bytes
    """
    if not interval > 0:
        raise usage_error(f"--interval {interval:g}: must be greater than 0")
    address = parse_server(server, tls)
    is_plain = once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty())
    if is_plain:
        show = partial(_line, order=sort.value, rows=rows, as_json=as_json)
        asyncio.run(_print(address, token, show=show, seconds=None if once else interval))
        return
    if code := asyncio.run(_run_app(address, token, order=sort.value, seconds=interval)):
        raise typer.Exit(code)


def _line(picture: "ServerPicture", *, order: str, rows: int, as_json: bool) -> str:
    from barrage.cli.top.picture_text import picture_lines

    if as_json:
        return json.dumps(picture.facts(), default=str)
    lines = picture_lines(picture, order=order, rows_max=rows, width=None)
    return "\n".join(lines)


async def _print(
    address: ServerAddress,
    token: str | None,
    *,
    show: Callable[["ServerPicture"], str],
    seconds: float | None,
) -> None:
    from barrage.cli.top.picture import take_picture

    async with open_async_session(address, token) as session:
        while True:
            typer.echo(show(await take_picture(session)))
            if seconds is None:
                return
            await asyncio.sleep(seconds)


async def _run_app(address: ServerAddress, token: str | None, *, order: str, seconds: float) -> int:
    from barrage.cli.top.picture import take_picture
    from barrage.cli.top.top_app import TopApp

    async with open_async_session(address, token) as session:
        take: Callable[[], Awaitable[ServerPicture]] = partial(take_picture, session)
        # Before the screen is taken, so that a server without such tables is told in a line.
        await take()
        app = TopApp(take, title=str(address), order=order, seconds=seconds)
        return await app.run_async() or 0
