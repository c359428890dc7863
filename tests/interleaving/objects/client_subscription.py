"""One live table in the hands of several tasks: its viewport and columns change, it is read and
followed, its connection breaks, it is closed by two at once, and all the while the table changes.

Every state that can be seen is one the table had, of rows and columns somebody asked for, and never
an older one than before; what is shown at the end is what was asked for last; nothing hangs."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager
from unittest import mock

from barrage.client.bodies.body_stream import BodyStream
from barrage.client.connection.reconnect import Backoff
from barrage.client.session import aconnect
from barrage.client.subscriptions import subscription
from barrage.client.subscriptions.state import State
from barrage.client.subscriptions.subscription import AsyncTickingTable
from barrage.errors import BarrageError, ConnectionLostError, SubscriptionClosedError
from barrage.limits import Limits
from tests.interleaving.whole import Whole, run_whole

ROWS = 10
CHANGES = 6
VERSIONS = 8


def explore(seed: int) -> None:
    modules = [subscription, sys.modules[__name__]]
    run_whole(lambda whole: Scene(whole).run(), seed, modules=modules)


class Scene:
    """Rows 0 to 9, each of which has the number of the newest version beside it."""

    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        self.has_viewport = self.random.random() < 0.7
        self.may_break = self.random.random() < 0.5
        self.may_close = self.random.random() < 0.3
        self.version = 0
        self.shown = -1

    def run(self) -> None:
        with self.whole.server(journal=self.random.choice(("memory", "none"))) as server:
            self.table = server.create_table("t", {"k": "int64", "v": "int64"}, key="k")
            self.write()
            self.uri = server.uri
            self.whole.together(self.write_on, lambda: self.whole.run_async(self.use))

    def write(self) -> None:
        self.version += 1
        self.table.upsert({"k": list(range(ROWS)), "v": [self.version] * ROWS})

    def write_on(self) -> None:
        for _ in range(VERSIONS - 1):
            self.whole.pause()
            self.write()

    async def use(self) -> None:
        limits = Limits(client_updates_pending_max=self.random.choice((1, 3, 100)))
        async with aconnect(self.uri, limits=limits) as session:
            backoff = Backoff(first_seconds=0.01, seconds_max=0.05)
            self.wanted = (0, 4) if self.has_viewport else (0, ROWS)
            self.columns: list[str] | None = None
            self.live = await session.table("t").subscribe(
                viewport=slice(0, 4) if self.has_viewport else None,
                resume=self.random.choice(("coalesced", "steps", "off")),
                interval_ms=self.random.choice((0, 20)),
                reconnect=backoff,
            )
            self.live.on_state(lambda state: self.look())
            works = [self.follow, self.follow_slowly, self.read, self.wait]
            works += [self.change] * 2 if self.has_viewport else []
            works += [self.break_connections] if self.may_break else []
            works += [self.close] * 2 if self.may_close else []
            async with asyncio.TaskGroup() as group:
                for work in works:
                    group.create_task(self.quietly(work))
            await self.end()

    async def quietly(self, work) -> None:
        try:
            await work()
        except SubscriptionClosedError:
            if not self.may_close:
                raise

    async def end(self) -> None:
        """What was asked for last is shown, as it is last."""
        if not self.may_close:
            await self.live.wait_ready(30)
            async for _ in self.live.updates():
                if self.newest() == VERSIONS:
                    break
            first, last = self.wanted
            shown = self.live.to_arrow()
            assert shown.column("k").to_pylist() == list(range(first, last)), shown
            assert shown.column_names == (self.columns or ["k", "v"])
        await self.live.close()
        assert self.live.state is State.CLOSED, self.live.state

    # --- what tasks do ---

    async def change(self) -> None:
        for _ in range(CHANGES):
            await self.whole.pause_async()
            if self.random.random() < 0.7:
                first = self.random.randrange(ROWS - 2)
                last = self.random.randrange(first + 1, ROWS)
                self.wanted = (first, last)
                await self.live.set_viewport(slice(first, last))
            else:
                self.columns = self.random.choice((None, ["k"], ["k", "v"]))
                await self.live.set_columns(self.columns)
            self.look()

    async def read(self) -> None:
        for _ in range(CHANGES):
            await self.whole.pause_async()
            if self.live.state is State.LIVE:
                self.look()

    async def wait(self) -> None:
        for _ in range(3):
            await self.whole.pause_async()
            await self.live.wait_ready(30)
            self.look()

    async def follow(self) -> None:
        step, number = -1, 0
        async for update in self.live.updates():
            assert update.last_step >= step, f"{update.last_step} after {step}"
            step, number = update.last_step, number + 1
            if number == 4 or self.newest() == VERSIONS:
                return

    async def follow_slowly(self) -> None:
        """Nobody waits for who does not read."""
        updates = self.live.updates()
        await asyncio.sleep(0.3)
        async for _ in updates:
            break

    async def break_connections(self) -> None:
        for _ in range(4):
            await self.whole.pause_async()
            self.whole.cut()

    async def close(self) -> None:
        await asyncio.sleep(self.random.random() * 0.05)
        await self.live.close()
        assert self.live.state is State.CLOSED, self.live.state

    def newest(self) -> int:
        """The version that is shown."""
        try:
            rows = self.live.to_arrow()
        except BarrageError:
            return -1
        if "v" not in rows.column_names or not rows.num_rows:
            # It cannot be seen; the table has it.
            return self.version
        versions = set(rows.column("v").to_pylist())
        assert len(versions) == 1, f"a state the table never had: {rows.to_pylist()}"
        return versions.pop()

    def look(self) -> None:
        version = self.newest()
        try:
            keys = self.live.to_arrow().column("k").to_pylist()
        except (BarrageError, KeyError):
            return
        assert keys == list(range(keys[0], keys[0] + len(keys))), f"rows of two viewports: {keys}"
        if "v" in self.live.to_arrow().column_names:
            assert version >= self.shown, f"version {version} after {self.shown}"
            self.shown = version


# --- canaries -------------------------------------------------------------------------------------


def forget_a_change_that_has_to_wait() -> AbstractContextManager[object]:
    """A change that comes before the state does is not sent later."""
    honest = AsyncTickingTable._send_change

    async def send_change(self: AsyncTickingTable) -> None:
        await honest(self)
        self._has_unsent_change = False

    return mock.patch.object(AsyncTickingTable, "_send_change", send_change)


def raise_what_the_next_stream_mends() -> AbstractContextManager[object]:
    """As it was: a change that meets a broken connection fails, and is asked for all the same."""

    async def write(self: BodyStream, frame: bytes) -> None:
        try:
            await honest(self, frame)
        except ConnectionLostError as error:
            raise BarrageError(str(error)) from error

    honest = BodyStream.write
    return mock.patch.object(BodyStream, "write", write)


CANARIES = (forget_a_change_that_has_to_wait, raise_what_the_next_stream_mends)
