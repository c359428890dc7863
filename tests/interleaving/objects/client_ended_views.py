"""Derived views of a table of which few rows change, or all: what a cycle would take too long for
is ended and made again, while streams begin, go on from a cursor, and break.

In the end every view shows the rows there are, and none has failed."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager
from unittest import mock

from barrage.client.connection.reconnect import Backoff
from barrage.client.session import aconnect
from barrage.client.subscriptions import subscription
from barrage.client.subscriptions.state import State
from barrage.client.subscriptions.subscription import AsyncTickingTable
from barrage.errors import (
    ASK_AGAIN,
    BarrageError,
    CycleTooLongError,
    TableFailedError,
)
from barrage.limits import Limits
from barrage.server.exchange import exchange_stream
from barrage.server.exchange.exchange_stream import ExchangeStream
from barrage.server.settings.config import ServerConfig
from tests.interleaving.whole import Whole, run_whole

ROWS = 400
WRITES = 25
BREAKS = 12
LIMITS = Limits(cycle_work_once_max=60_000)
"""A sort of so many rows takes a few that change, not all of them."""


def explore(seed: int) -> None:
    modules = [subscription, exchange_stream, sys.modules[__name__]]
    run_whole(lambda whole: Scene(whole).run(), seed, modules=modules)


class Scene:
    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        self.may_break = self.random.random() < 0.8
        self.rows: dict[int, int] = {}
        self.is_written = False

    def run(self) -> None:
        journal = self.random.choice(("memory", "memory", "none"))
        config = ServerConfig(limits=LIMITS, journal=journal)
        with self.whole.server(config=config) as server:
            self.table = server.create_table("t", {"k": "int64", "v": "int64"}, key="k")
            self.write(ROWS)
            self.uri = server.uri
            self.whole.together(self.write_on, lambda: self.whole.run_async(self.use))

    def write(self, count: int) -> None:
        rows = {k: self.random.randrange(1_000) for k in self.random.sample(range(ROWS), count)}
        self.table.upsert({"k": list(rows), "v": list(rows.values())})
        self.rows |= rows

    def write_on(self) -> None:
        for _ in range(WRITES):
            self.whole.pause()
            self.write(self.random.choice((1, 3, ROWS, ROWS)))
        self.is_written = True

    async def use(self) -> None:
        async with aconnect(self.uri) as session:
            table = session.table("t")
            views = {"v": table.sort("v", "k"), "-v": table.where("k >= 0").sort("-v", "k")}
            works = [self.follow(name, view) for name, view in views.items() for _ in range(2)]
            works += [self.break_connections()] if self.may_break else []
            async with asyncio.TaskGroup() as group:
                for work in works:
                    group.create_task(work)

    async def follow(self, name: str, view) -> None:
        await self.whole.pause_async()
        live = await view.subscribe(
            resume=self.random.choice(("coalesced", "steps", "off")),
            interval_ms=self.random.choice((0, 20)),
            reconnect=Backoff(first_seconds=0.01, seconds_max=0.05),
        )
        while not (self.is_written and self.shown(live) == self.expected(name)):
            assert live.state is not State.FAILED, live.error
            await asyncio.sleep(0.01)
        await live.close()

    def shown(self, live: AsyncTickingTable) -> list[tuple[int, int]]:
        try:
            rows = live.to_arrow()
        except BarrageError:
            return []
        return list(zip(*(rows[name].to_pylist() for name in ("v", "k")), strict=True))

    def expected(self, name: str) -> list[tuple[int, int]]:
        sign = -1 if name == "-v" else 1
        rows = [(v, k) for k, v in self.rows.items()]
        return sorted(rows, key=lambda row: (sign * row[0], row[1]))

    async def break_connections(self) -> None:
        for _ in range(BREAKS):
            await self.whole.pause_async()
            self.whole.cut()


# --- canaries -------------------------------------------------------------------------------------


def write_what_comes_before_the_headers() -> AbstractContextManager[object]:
    """As it was: a stream that is to end writes its first update without saying what from."""

    def finish(self: ExchangeStream, error: Exception | None, *, is_flushed: bool) -> None:
        kept = None if self._is_accepted.is_set() or not is_flushed else list(self._outbox)
        honest(self, error, is_flushed=is_flushed)
        if kept is not None:
            self._outbox.extend(kept)

    honest = ExchangeStream.finish
    return mock.patch.object(ExchangeStream, "finish", finish)


def tell_of_an_ended_table_as_of_a_failed_one() -> AbstractContextManager[object]:
    """Who comes when a table has just been ended is not told to ask again."""
    return mock.patch.object(CycleTooLongError, "anew", lambda self: TableFailedError(str(self)))


def follow_nothing_that_was_ended() -> AbstractContextManager[object]:
    """A client takes the end of a derived table for the end of all."""

    def is_retried(self: AsyncTickingTable, error: BarrageError) -> bool:
        return ASK_AGAIN not in str(error) and honest(self, error)

    honest = AsyncTickingTable._is_retried
    return mock.patch.object(AsyncTickingTable, "_is_retried", is_retried)


CANARIES = (
    write_what_comes_before_the_headers,
    tell_of_an_ended_table_as_of_a_failed_one,
    follow_nothing_that_was_ended,
)
