"""One subscription's queue of updates between its loop and consumers on threads: some read, some
stop reading, some leave. Whoever follows to the end has the rows of the table."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import AbstractContextManager
from unittest import mock

import pyarrow as pa

from barrage.client.subscriptions.followers import Followers
from barrage.client.updates import update_queue
from barrage.client.updates.update import relative_update, replacing_update
from barrage.client.updates.update_queue import UpdateQueue
from barrage.model.update import FullUpdate
from barrage.rowset import RowSet, RowSetShiftData
from tests.interleaving.seeded_threads import Threads, run_threads

SCHEMA = pa.schema([("x", pa.int64())])
UPDATES = 14


class Table:
    """What the loop keeps: rows are added one by one."""

    def __init__(self):
        self.rows = [0]
        self.step = 0

    def whole(self):
        return replacing_update(
            pa.table({"x": self.rows}, schema=SCHEMA),
            row_keys=RowSet.of_span(0, len(self.rows)),
            table_size=len(self.rows),
            steps=(self.step, self.step),
            source_time_ns=None,
        )

    def append(self):
        row = len(self.rows)
        self.rows.append(row)
        self.step += 1
        message = FullUpdate(
            first_step=self.step,
            last_step=self.step,
            is_snapshot=False,
            effective_viewport=None,
            is_effective_reverse=False,
            effective_columns=None,
            table_size=len(self.rows),
            added_columns=(pa.array([row]),),
            modified_columns=(pa.array([], pa.int64()),),
            source_time_ns=None,
            removed_keys_pre=RowSet.empty(),
            shifts=RowSetShiftData.empty(),
            added_keys_post=RowSet([row]),
            included_keys_post=None,
            modified_keys_post=(RowSet.empty(),),
        )
        return relative_update(
            message, schema=SCHEMA, columns=(0,), table_size=len(self.rows), removed=None
        )


def explore(seed: int) -> None:
    modules = [update_queue, sys.modules[__name__]]
    with mock.patch.object(update_queue, "GATHERED_MAX", 3):
        run_threads(lambda world: Scene(world).run(), seed, modules=modules)


class Scene:
    """A loop on a thread that publishes, one consumer on it and two on threads of their own."""

    def __init__(self, world: Threads) -> None:
        self.random, self.table = world.random, Table()
        self.loop = asyncio.new_event_loop()
        self.followers = Followers("t", None, lambda work: self.loop.create_task(work))

    def run(self) -> None:
        thread = threading.Thread(target=self.loop.run_forever)
        thread.start()
        consumers = [
            threading.Thread(target=self.consume, args=(self.random.choice((2, 1000)),))
            for _ in range(2)
        ]
        published = asyncio.run_coroutine_threadsafe(self.publish(), self.loop)
        for consumer in consumers:
            consumer.start()
        published.result()
        for consumer in consumers:
            while consumer.is_alive():
                # Who comes late finds the end as well.
                asyncio.run_coroutine_threadsafe(self.end(), self.loop).result()
                consumer.join(0.01)
        self.loop.call_soon_threadsafe(self.loop.stop)
        thread.join()
        self.loop.close()

    async def open_queue(self) -> UpdateQueue:
        queue = UpdateQueue(
            self.random.choice((1, 2, 5)),
            bytes_max=self.random.choice((20, 10_000)),
            whole=self.table.whole,
        )
        queue.put(self.table.whole())
        self.followers.add_queue(queue)
        return queue

    async def publish(self) -> None:
        consumer = asyncio.ensure_future(self.consume_async())
        for _ in range(UPDATES):
            self.followers.publish(self.table.append())
            await asyncio.sleep(self.random.choice((0, 0.001, 0.01)))
        await self.end()
        await consumer

    async def end(self) -> None:
        self.followers.end(None)

    def consume(self, leaves_after: int) -> None:
        queue = asyncio.run_coroutine_threadsafe(self.open_queue(), self.loop).result()
        state = Follower()
        while state.count < leaves_after and (update := queue.next_blocking(None)) is not None:
            state.take(update)
        if state.count < leaves_after:
            self.check(state)
        queue.abandon()

    async def consume_async(self) -> None:
        queue, state = await self.open_queue(), Follower()
        while (update := await queue.next_async()) is not None:
            state.take(update)
            await asyncio.sleep(self.random.random() * 0.02)
        self.check(state)

    def check(self, state: Follower) -> None:
        assert state.rows == self.table.rows, f"{state.rows} of {self.table.rows}"


class Follower:
    """Applies what it is handed."""

    def __init__(self):
        self.rows: list[int] = []
        self.step = -1
        self.count = 0

    def take(self, update):
        self.count += 1
        assert self.count > 1 or update.is_replacement
        if update.is_replacement:
            assert update.last_step >= self.step
            self.rows = []
        else:
            assert update.first_step == self.step + 1, f"a gap or a repetition after {self.step}"
        self.step = update.last_step
        self.rows += update.added["x"].to_pylist()


# --- canaries -------------------------------------------------------------------------------------


def clear_the_news_after_looking() -> AbstractContextManager[object]:
    """The flag is cleared without the lock, between looking and waiting: a wakeup gets lost."""

    async def next_async(self):
        while True:
            with self._condition:
                taken = self._take()
                if not taken and self._is_ended:
                    return self._finish()
            if taken:
                return self._as_one(taken)
            await asyncio.sleep(0.005)
            self._arrived.clear()
            await self._arrived.wait()

    return mock.patch.object(UpdateQueue, "next_async", next_async)


def forget_one_of_those_that_wait() -> AbstractContextManager[object]:
    """The newest update is not in the merged one."""
    honest = update_queue.merged
    return mock.patch.object(update_queue, "merged", lambda updates: honest(updates[:-1]))


CANARIES = (clear_the_news_after_looking, forget_one_of_those_that_wait)
