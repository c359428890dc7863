"""``barrage replay HOST:PORT/TABLE``: the past of a table, played in the grid, as plain pictures or
as JSON lines."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import typer

from barrage.cli.replay.replay_past import PastTable
from barrage.cli.replay.replay_player import JsonPlay, Player
from barrage.cli.target import open_async_session
from barrage.cli.watch.plain import PlainWatch
from barrage.cli.watch.run import raise_failure
from barrage.cli.watch.scroller import RowWindow
from barrage.client.tables.history import ChangeOptions
from barrage.clock import SystemClock
from barrage.errors import HistoryLostError
from barrage.model.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from barrage.cli.target import TableAddress
    from barrage.client.tables.history import Moment

PICTURE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PastOptions:
    """What is played and how."""

    start: Moment | None
    """None: from the oldest step there is."""
    stop: Moment | None
    """None: to the newest."""
    speed: float
    columns: list[str] | None
    rows: int
    is_json: bool


def replay_past(address: TableAddress, *, token: str | None, options: PastOptions) -> None:
    """Play until the end, or until the user quits."""
    is_grid = not options.is_json and sys.stdin.isatty() and sys.stdout.isatty()

    async def run() -> int:
        async with open_player(address, token=token, options=options) as player:
            if is_grid:
                return await _in_grid(player, address)
            if options.is_json:
                printer = JsonPlay()
                printer.start(player.version, player.past.to_arrow())
                await player.play(printer.commit)
                return 0
            await _in_pictures(player, address, rows=options.rows)
            return 0

    if code := asyncio.run(run()):
        raise typer.Exit(code)


@asynccontextmanager
async def open_player(
    address: TableAddress, *, token: str | None, options: PastOptions
) -> AsyncIterator[Player]:
    """A player that stands at the start; HistoryLostError and NoJournalError come before it."""
    async with open_async_session(address.server, token) as session:
        history = session.table(address.table).history()
        facts = await history.facts()
        moment = facts.earliest if options.start is None else options.start
        try:
            cursor = await history.cursor_of(moment)
        except HistoryLostError:
            if not isinstance(moment, datetime):
                raise
            # Whoever asks for the last hour of a younger table means all of it.
            typer.echo(f"the journal of {address} begins later; playing from there", err=True)
            moment = cursor = Cursor(facts.epoch, facts.earliest)
        keys, rows = await history.state(cursor, facts, ChangeOptions(columns=options.columns))
        # In the order wanted, which the server need not follow.
        rows = rows if options.columns is None else rows.select(options.columns)
        wanted = ChangeOptions(columns=options.columns, row_key=True)
        async with history.changes(cursor, options.stop, wanted) as batches:
            yield Player(
                PastTable(pa.schema(list(rows.schema)), keys, rows, kind=facts.kind),
                batches.batches(),
                facts=facts,
                version=cursor.version,
                start_us=_micros(moment),
                speed=options.speed,
                clock=SystemClock(),
                wait=asyncio.sleep,
            )


def _micros(moment: Moment) -> int | None:
    """The recorded time a play begins at, if it was given as a time."""
    return int(moment.timestamp() * 1e6) if isinstance(moment, datetime) else None


async def _in_grid(player: Player, address: TableAddress) -> int:
    from barrage.cli.watch.grid import GridApp

    playing = asyncio.create_task(player.play())
    try:
        code = await GridApp(player, title=str(address)).run_async() or 0
    finally:
        playing.cancel()
        await asyncio.wait([playing])
        if not playing.cancelled():
            # It stands in ``failure``.
            playing.exception()
    raise_failure(player)
    return code


async def _in_pictures(player: Player, address: TableAddress, *, rows: int) -> None:
    """The first rows at the start, every second of the play, and at the end."""
    player.request(RowWindow(start=0, stop=rows))
    watch = PlainWatch(player, title=str(address), clock=SystemClock())
    watch.print_frame()
    playing = asyncio.create_task(player.play())
    try:
        while True:
            await asyncio.wait([playing], timeout=PICTURE_SECONDS)
            watch.print_frame()
            if playing.done():
                break
    finally:
        playing.cancel()
        await asyncio.wait([playing])
    await playing
