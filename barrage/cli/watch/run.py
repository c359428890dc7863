"""Watches a table: decides between the grid and plain lines, and ends each with its exit code."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from barrage.cli.target import open_session
from barrage.cli.watch.plain import PlainWatch
from barrage.cli.watch.scroller import Window
from barrage.cli.watch.session_feed import SessionFeed
from barrage.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.cli.target import TableAddress
    from barrage.cli.watch.feed import Feed
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
    columns: list[str] | None = None,
    interval_ms: int,
    plain: PlainOptions,
) -> None:
    """Show the table until the user quits, the time is over or the subscription ends for good."""
    is_grid = not plain.is_forced and sys.stdin.isatty() and sys.stdout.isatty()
    first = Window(start=0, stop=GRID_FIRST_ROWS if is_grid else plain.rows)
    with open_session(address.server, token) as session:
        feed = SessionFeed(
            session, address.table, columns=columns, window=first, interval_ms=interval_ms
        )
        try:
            feed.wait_ready(FIRST_FRAME_SECONDS)
            code = _run_grid(feed, address) if is_grid else 0
            if not is_grid:
                watch = PlainWatch(
                    feed, title=str(address), clock=SystemClock(), is_json=plain.is_json
                )
                print_until_done(watch, plain, clock=SystemClock(), wait=time.sleep)
        finally:
            feed.close()
    if code:
        raise typer.Exit(code)


def _run_grid(feed: Feed, address: TableAddress) -> int:
    from barrage.cli.watch.grid import GridApp

    return GridApp(feed, title=str(address)).run() or 0


def print_until_done(
    watch: PlainWatch, options: PlainOptions, *, clock: Clock, wait: Callable[[float], None]
) -> None:
    """Print a picture each second until ``--once`` or ``--seconds`` is fulfilled; else until interrupted."""
    end_ns = None if options.seconds is None else clock.monotonic_ns() + int(options.seconds * 1e9)
    while True:
        watch.print_frame()
        if options.is_once:
            return
        left_ns = PLAIN_INTERVAL_NS if end_ns is None else end_ns - clock.monotonic_ns()
        if left_ns <= 0:
            return
        wait(min(PLAIN_INTERVAL_NS, left_ns) / 1e9)
