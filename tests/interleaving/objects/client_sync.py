"""The synchronous client between threads: one session, one live table and one writer are used by
all, the connection breaks now and then, and somebody closes the session meanwhile.

Every call returns or raises a typed error, in good time; what the writer acknowledged is there
once; who follows sees no gap; when the session has been closed, no thread of it is left."""

from __future__ import annotations

import asyncio
import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from unittest import mock

import pyarrow as pa

import barrage
from barrage.client.connection.reconnect import Backoff
from barrage.client.synchronous import callbacks, on_thread, sync, sync_loop
from barrage.client.synchronous.sync_loop import LoopThread
from barrage.errors import ConnectionLostError, SubscriptionClosedError
from barrage.supervision import living
from tests.interleaving.whole import Whole, run_whole

CALLERS = 3
CALLS = 4
SCHEMA = pa.schema([("x", pa.int64())])
GOOD_TIME_SECONDS = 4.0
"""What any call takes at most; closing gives up after five."""


def explore(seed: int) -> None:
    modules = [callbacks, on_thread, sync, sync_loop, sys.modules[__name__]]
    run_whole(lambda whole: Scene(whole).run(), seed, modules=modules)


def threads() -> list[threading.Thread]:
    return [worker for _, worker in living() if isinstance(worker, threading.Thread)]


class Scene:
    """One session, its live table and its writer in the hands of several threads."""

    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        self.values = itertools.count()
        self.acknowledged: list[int] = []
        self.may_break = self.random.random() < 0.5
        self.may_close = self.random.random() < 0.7
        self.states: list[object] = []

    def run(self) -> None:
        with self.whole.server(journal="memory") as server:
            table = server.create_table("t", SCHEMA)
            before = set(threads())
            session = barrage.connect(server.uri)
            self.use(session)
            session.close()
            left = set(threads()) - before
            assert not left, f"threads are left: {left}"
            there = Counter(table.to_arrow().column("x").to_pylist())
        lost = [row for row in self.acknowledged if row not in there]
        assert not lost, f"lost: {lost}"
        twice = [row for row, count in there.items() if count > 1]
        assert not twice, f"twice: {twice}"

    def use(self, session: barrage.Session) -> None:
        backoff = Backoff(first_seconds=0.01, seconds_max=0.05)
        self.session, self.table = session, session.table("t")
        self.live = self.table.subscribe(reconnect=backoff)
        if self.random.random() < 0.5:
            # Nothing is told before the end, perhaps.
            self.live.wait_ready().on_state(self.states.append)
        self.writer = session.writer("t", producer="p", reconnect=backoff)
        works = [self.call] * CALLERS
        if self.may_break:
            works.append(self.break_connections)
        if self.may_close:
            works += [self.close] * 2
        self.whole.together(*works)
        if not self.may_close:
            self.writer.flush()
            self.live.wait_ready()

    def break_connections(self) -> None:
        for _ in range(3):
            self.whole.pause()
            self.whole.cut()

    def close(self) -> None:
        self.whole.pause()
        self.timed(self.random.choice((self.session.close, self.live.close)))

    def call(self) -> None:
        works = (self.write, self.put, self.read, self.follow, self.listen, self.look)
        for _ in range(CALLS):
            try:
                self.timed(self.random.choice(works))
            except SubscriptionClosedError:
                if not self.may_close:
                    raise
            except ConnectionLostError:
                if not self.may_break:
                    raise

    def timed(self, work: Callable[[], object]) -> None:
        begun = self.whole.world.now
        try:
            work()
        finally:
            took = self.whole.world.now - begun
            assert took < GOOD_TIME_SECONDS, f"{work.__name__} took {took:.1f} s"

    def write(self) -> None:
        rows = [next(self.values) for _ in range(2)]
        self.writer.write(pa.table({"x": rows}))
        self.writer.flush()
        self.acknowledged += rows

    def put(self) -> None:
        rows = [next(self.values)]
        told = self.session.put("t", pa.table({"x": rows}))
        assert told.rows == 1
        self.acknowledged += rows

    def read(self) -> None:
        before = list(self.acknowledged)
        rows = self.table.where("x >= 0").snapshot().column("x").to_pylist()
        assert set(before) <= set(rows), f"not to be seen: {set(before) - set(rows)}"

    def follow(self) -> None:
        """Follow for a while; what comes joins on to what came before."""
        rows: list[int] = []
        step = -1
        with self.live.updates() as updates:
            for number, update in enumerate(updates):
                if update.is_replacement:
                    rows = []
                assert update.last_step >= step, f"{update.last_step} after {step}"
                step = update.last_step
                rows += update.added["x"].to_pylist()
                assert len(rows) == len(set(rows)), f"twice: {rows}"
                if number == 2:
                    break
                # Something has to come.
                self.write()

    def listen(self) -> None:
        """Callbacks come on threads of their own and are taken back."""
        undo = [self.live.on_state(self.states.append), self.live.on_error(self.states.append)]
        undo.append(self.live.on_update(lambda update: self.states.append(update.last_step)))
        self.whole.pause()
        for each in undo[: self.random.choice((0, 1, 3))]:
            each()

    def look(self) -> None:
        self.live.wait_ready()
        for told in (self.live.state, self.live.stats, self.live.bodies, self.writer.pending_count):
            assert told is not None
        rows = self.live.to_arrow().column("x").to_pylist()
        assert len(rows) == len(set(rows))


# --- canaries -------------------------------------------------------------------------------------


def pass_on_after_the_end() -> AbstractContextManager[object]:
    """Whether the loop goes on is looked at, and then work is passed to it: nobody does it."""

    def call(self, work, timeout):
        if self._is_ending:
            work.close()
            raise SubscriptionClosedError("the session is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(timeout)

    return mock.patch.object(LoopThread, "call", call)


CANARIES = (pass_on_after_the_end,)
