"""A ``Server`` that several threads start, use and stop: one of them starts it, whoever stops it
finds it stopped, and nothing of it goes on afterwards."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import sys
import tempfile
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

import barrage
from barrage.errors import BarrageError, LocalProtocolError
from barrage.server.api import publish
from barrage.server.api.publish import Server
from barrage.server.api.publish_async import AsyncServer
from barrage.supervision import in_thread, living, start_thread
from tests.interleaving.whole import Whole, run_whole


def explore(seed: int) -> None:
    scene = Scene if seed % 2 else AsyncScene
    run_whole(lambda whole: scene(whole).run(), seed, modules=[publish, sys.modules[__name__]])


class Scene:
    """Two who start, two who stop, one who writes and one who connects."""

    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        self.server = whole.server()
        self.table = self.server.create_table("t", {"x": "int64"})
        self.numbers = itertools.count()
        self.written: list[int] = []
        self.starts: list[bool] = []

    def run(self) -> None:
        before = {worker for _, worker in living()}
        works = [self.start, self.start, self.write, self.connect, *[self.stop] * 2]
        self.random.shuffle(works)
        works = works[: self.random.choice((2, 4, 6))]
        self.whole.together(*works)
        if self.stop not in works:
            self.server.stop()
        assert self.starts.count(True) <= 1, "it was started twice"
        left = {worker for _, worker in living()} - before
        assert not left, f"it goes on: {left}"
        assert self.table._table.to_arrow().column("x").to_pylist() == self.written

    def start(self) -> None:
        try:
            self.server.start()
        except LocalProtocolError:
            self.starts.append(False)
        else:
            self.starts.append(True)

    def stop(self) -> None:
        self.whole.pause()
        self.server.stop(self.random.choice((None, 0)))
        # Whoever has stopped it may rely on it.
        try:
            self.table.add({"x": [-1]})
        except BarrageError:
            return
        raise AssertionError("a write after the end was taken")

    def write(self) -> None:
        for _ in range(3):
            row = next(self.numbers)
            try:
                self.table.add({"x": [row]})
            except BarrageError as error:
                if "stop" not in str(error):
                    raise
                return
            self.written.append(row)

    def connect(self) -> None:
        try:
            with barrage.connect(self.server.uri) as session:
                rows = session.table("t").snapshot(timeout=60)
        except BarrageError:
            return
        assert len(rows) <= 3


class AsyncScene:
    """The same with the asynchronous server and a data directory, on one loop."""

    def __init__(self, whole: Whole) -> None:
        self.whole, self.random = whole, whole.random
        self.starts: list[bool] = []

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as self.directory:
            self.whole.run_async(self.run_async)

    async def run_async(self) -> None:
        before = {worker for _, worker in living()}
        self.server = AsyncServer("inproc://", data=self.directory)
        works = [self.start, self.start, *[self.stop] * 2]
        self.random.shuffle(works)
        works = works[: self.random.choice((2, 4))]
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work())
        if self.stop not in works:
            await self.server.stop()
        left = {worker for _, worker in living()} - before
        left -= {each for each in left if isinstance(each, asyncio.Task) and each.cancelling()}
        assert not left, f"it goes on: {left}"
        assert self.starts.count(True) <= 1, "it was started twice"

    async def start(self) -> None:
        await self.whole.pause_async()
        try:
            await self.server.start()
        except LocalProtocolError:
            self.starts.append(False)
        else:
            self.starts.append(True)

    async def stop(self) -> None:
        await self.whole.pause_async()
        await self.server.stop(self.random.choice((None, 0)))
        try:
            await self.server.create_table("t", {"x": "int64"})
        except BarrageError:
            return
        raise AssertionError("a table was made after the end")


# --- canaries -------------------------------------------------------------------------------------


def look_before_starting() -> AbstractContextManager[object]:
    """As it was: whether it has been started is looked at, and then it is started."""

    def start(self: Server) -> Server:
        if self._thread is not None:
            raise LocalProtocolError("the server was started before")
        started = self._started = concurrent.futures.Future()
        self._thread = start_thread(
            publish.LOOP, partial(self._serve, started), on_death=partial(self._died, started)
        )
        started.result()
        return self

    return mock.patch.object(Server, "start", start)


def stop_what_has_been_started() -> AbstractContextManager[object]:
    """As it was: a start that is under way is passed over."""

    async def stop(self: AsyncServer, grace: float | None = None) -> None:
        self._is_stopped = True
        if self._app is not None:
            await self._app.stop(None if grace is None else int(grace * 1000))
        if self._opened is not None:
            await in_thread(self._opened.close)

    return mock.patch.object(AsyncServer, "stop", stop)


CANARIES = (look_before_starting, stop_what_has_been_started)
