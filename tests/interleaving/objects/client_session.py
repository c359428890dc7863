"""One asynchronous session in the hands of many tasks: calls of every kind, callers that give up, a
connection that breaks, and two who close it.

Every call ends, by a result that is right or a typed error; what was acknowledged is there once; a
name that several create or drop is made and taken back in turn; after the close nothing is left."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from contextlib import AbstractContextManager
from unittest import mock

import pyarrow as pa

from barrage.client import session as session_module
from barrage.client.connection.reconnect import Backoff
from barrage.client.session import AsyncSession, aconnect
from barrage.client.subscriptions.state import State
from barrage.client.subscriptions.subscription import AsyncTickingTable
from barrage.errors import (
    ConnectionLostError,
    SubscriptionClosedError,
    TableExistsError,
    TableNotFoundError,
)
from tests.interleaving.whole import Whole, run_whole

CALLERS = 4
CALLS = 4
SCHEMA = pa.schema([("x", pa.int64())])


def explore(seed: int) -> None:
    modules = [session_module, sys.modules[__name__]]
    run_whole(lambda whole: Scene(whole).run(), seed, modules=modules)


class Scene:
    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        self.values = itertools.count()
        self.may_break = self.random.random() < 0.4
        self.may_close = self.random.random() < 0.5
        self.sent: list[int] = []
        self.acknowledged: list[int] = []
        self.opened: list[AsyncTickingTable] = []
        self.names = 0
        self.is_unknown = False

    def run(self) -> None:
        with self.whole.server() as server:
            table = server.create_table("t", SCHEMA)
            self.uri = server.uri
            self.whole.run_async(self.use)
            there = Counter(table.to_arrow().column("x").to_pylist())
            if not self.is_unknown:
                assert ("new" in server.table_names()) == bool(self.names), self.names
        lost = set(self.acknowledged) - set(there)
        assert not lost, f"lost: {lost}"
        assert set(there) <= set(self.sent)
        assert not [row for row, count in there.items() if count > 1], "twice"

    async def use(self) -> None:
        mine = asyncio.current_task()
        self.session = session = await aconnect(self.uri)
        works = [self.call] * CALLERS
        works += [self.break_connections] if self.may_break else []
        works += [self.close] * 2 if self.may_close else []
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work())
        await session.close()
        # What a finalizer of ours has begun may still end.
        for _ in range(5):
            await asyncio.sleep(0.05)
        left = asyncio.all_tasks() - {mine}
        assert not left, f"tasks are left: {left}"
        assert len(session._connections) <= 2, "a session on the server that nobody has"
        assert all(live.state is State.CLOSED for live in self.opened)

    async def close(self) -> None:
        await asyncio.sleep(self.random.random() * 0.1)
        await self.session.close()

    async def break_connections(self) -> None:
        for _ in range(3):
            await self.whole.pause_async()
            self.whole.cut()

    async def call(self) -> None:
        works = (self.put, self.read, self.list, self.create, self.drop, self.tick, self.write)
        works += (self.upload, self.upload)
        for _ in range(CALLS):
            work = asyncio.ensure_future(self.random.choice(works)())
            if self.random.random() < 0.2:
                await asyncio.sleep(self.random.random() * 0.02)
                work.cancel()
            await asyncio.wait([work], timeout=60)
            assert work.done(), f"it hangs: {work}"
            error = None if work.cancelled() else work.exception()
            is_closed = isinstance(error, SubscriptionClosedError) and self.may_close
            is_broken = isinstance(error, ConnectionLostError)
            if error and not is_closed and not (is_broken and (self.may_break or self.may_close)):
                raise error

    async def put(self) -> None:
        rows = [next(self.values) for _ in range(3)]
        self.sent += rows
        told = await self.session.put("t", pa.table({"x": rows}))
        assert told.rows == told.total == 3
        self.acknowledged += rows

    async def read(self) -> None:
        before = set(self.acknowledged)
        rows = await self.session.table("t").sort("x").snapshot()
        values = rows.column("x").to_pylist()
        assert values == sorted(values)
        assert before <= set(values), f"not to be seen: {before - set(values)}"

    async def list(self) -> None:
        names = [info.name for info in await self.session.tables()]
        assert names == sorted(set(names))
        assert "t" in names

    async def create(self) -> None:
        try:
            await self.session.create_table("new", {"x": "int64"})
        except TableExistsError:
            return
        except BaseException:
            # It may have been done.
            self.is_unknown = True
            raise
        self.names += 1

    async def drop(self) -> None:
        try:
            await self.session.drop_table("new")
        except TableNotFoundError:
            return
        except BaseException:
            self.is_unknown = True
            raise
        self.names -= 1

    async def tick(self) -> None:
        before = set(self.acknowledged)
        backoff = Backoff(first_seconds=0.01, seconds_max=0.05)
        live = await self.session.table("t").subscribe(reconnect=backoff)
        self.opened.append(live)
        await live.wait_ready(60)
        rows = set(live.to_arrow().column("x").to_pylist())
        assert before <= rows, f"not to be seen: {before - rows}"
        if self.random.random() < 0.3:
            await live.close()

    async def upload(self) -> None:
        rows = [next(self.values)]
        table = await self.session.upload(pa.table({"x": rows}))
        assert (await table.snapshot()).column("x").to_pylist() == rows
        if self.random.random() < 0.5:
            await table.close()

    async def write(self) -> None:
        rows = [next(self.values) for _ in range(2)]
        self.sent += rows
        backoff = Backoff(first_seconds=0.01, seconds_max=0.05)
        producer = f"of {rows[0]}"
        async with self.session.writer("t", producer=producer, reconnect=backoff) as writer:
            await writer.write(pa.table({"x": rows}))
        self.acknowledged += rows


# --- canaries -------------------------------------------------------------------------------------


def close_what_is_there_at_first() -> AbstractContextManager[object]:
    """What begins while the session is being closed is kept."""

    async def close(self: AsyncSession) -> None:
        for subscription in list(self._subscriptions):
            await subscription.close()
        await asyncio.sleep(0.01)
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        for connection in self._connections:
            await connection.close()

    return mock.patch.object(AsyncSession, "close", close)


def open_what_another_is_opening() -> AbstractContextManager[object]:
    """Two calls that need a session on the server get one each, and one of them is nobody's."""

    class NoLock:
        async def __aenter__(self) -> None:
            await asyncio.sleep(0)

        async def __aexit__(self, *_: object) -> None:
            await asyncio.sleep(0)

    honest = AsyncSession.__init__

    def init(self: AsyncSession, *arguments: object, **named: object) -> None:
        honest(self, *arguments, **named)
        self._opening_session = NoLock()

    return mock.patch.object(AsyncSession, "__init__", init)


CANARIES = (close_what_is_there_at_first, open_what_another_is_opening)
