"""Watches a table: decides between the grid and plain lines, and ends each with its exit code."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from barrage.cli.query_options import QueryOptions
from barrage.cli.target import open_async_session
from barrage.cli.watch.plain import PlainWatch
from barrage.cli.watch.scroller import RowWindow
from barrage.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from barrage.cli.target import TableAddress
    from barrage.cli.watch.session_source import SessionSource
    from barrage.cli.watch.window_source import WindowSource
    from barrage.clock import Clock

PLAIN_ROWS = 20
PLAIN_INTERVAL_NS = 1_000_000_000
GRID_FIRST_ROWS = 100
FIRST_FRAME_SECONDS = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainOptions:
    """How plain lines are printed; anything but the defaults forbids the grid."""

    rows: int = PLAIN_ROWS
    seconds: float | None = None
    is_once: bool = False
    is_json: bool = False

    @property
    def is_forced(self) -> bool:
        return self.is_once or self.is_json or self.seconds is not None


def watch_table(
    address: TableAddress,
    *,
    token: str | None,
    query: QueryOptions | None = None,
    columns: list[str] | None = None,
    interval_ms: int,
    plain: PlainOptions,
) -> None:
    """Show the table until the user quits, the time is over or the subscription ends for good."""
    is_grid = not plain.is_forced and sys.stdin.isatty() and sys.stdout.isatty()
    window = RowWindow(start=0, stop=GRID_FIRST_ROWS if is_grid else plain.rows)

    async def run() -> int:
        async with open_source(
            address,
            token=token,
            query=query,
            columns=columns,
            interval_ms=interval_ms,
            window=window,
        ) as source:
            if is_grid:
                code = await _run_grid(source, address)
                raise_failure(source)
                return code
            clock = SystemClock()
            watch = PlainWatch(source, title=str(address), clock=clock, is_json=plain.is_json)
            await print_until_done(watch, plain, clock=clock, wait=asyncio.sleep)
            return 0

    if code := asyncio.run(run()):
        raise typer.Exit(code)


@asynccontextmanager
async def open_source(
    address: TableAddress,
    *,
    token: str | None,
    query: QueryOptions | None = None,
    columns: list[str] | None,
    interval_ms: int,
    window: RowWindow,
) -> AsyncIterator[SessionSource]:
    """A source with its first frame in; TableNotFoundError and SchemaError come before it."""
    # The client takes a while to load, which `barrage --help` must not wait for.
    from barrage.cli.watch.session_source import SessionSource

    async with open_async_session(address.server, token) as session:
        table = (query or QueryOptions()).apply(session.table, address.table)
        info = await table.info()
        subscription = table.subscribe(
            columns=columns, viewport=(window.start, window.stop), interval_ms=interval_ms
        )
        async with subscription as ticking:
            await ticking.wait_ready(FIRST_FRAME_SECONDS)
            source = SessionSource(ticking, key_columns=info.key, window=window)
            try:
                yield source
            finally:
                await source.close()


async def _run_grid(source: WindowSource, address: TableAddress) -> int:
    from barrage.cli.watch.grid import GridApp

    return await GridApp(source, title=str(address)).run_async() or 0


def raise_failure(source: WindowSource) -> None:
    """Raise why the subscription ended for good, if it did."""
    failure = source.status().failure
    if failure is not None:
        raise failure


async def print_until_done(
    watch: PlainWatch,
    options: PlainOptions,
    *,
    clock: Clock,
    wait: Callable[[float], Awaitable[None]],
) -> None:
    """Print a picture each second until ``--once`` or ``--seconds`` is fulfilled, or interrupted.

    Raises what the subscription failed with.
    """
    end_ns = None if options.seconds is None else clock.monotonic_ns() + int(options.seconds * 1e9)
    while True:
        watch.print_frame()
        raise_failure(watch.source)
        if options.is_once:
            return
        left_ns = PLAIN_INTERVAL_NS if end_ns is None else end_ns - clock.monotonic_ns()
        if left_ns <= 0:
            return
        await wait(min(PLAIN_INTERVAL_NS, left_ns) / 1e9)
