"""Workers of the client and of the command line."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import barrage
from barrage.cli.watch.scroller import RowWindow
from barrage.cli.watch.session_source import SessionSource
from barrage.client.bodies.body_releases import ReleasedBodies
from barrage.client.bodies.body_routes import BodyRoutes
from barrage.client.notebook.perspective_mirror import PerspectiveMirror
from barrage.client.subscriptions.state import State
from barrage.client.tables.snapshot import _Ending
from barrage.errors import WorkerDiedError
from barrage.wire.dissociated.lending import Window
from tests.end_to_end.deaths.killing import (
    HANG_SECONDS,
    ROW,
    SCHEMA,
    Killing,
    die,
    kills,
    leave,
    refusal,
    scene,
)
from tests.helpers.server_process import wait_until


@kills("barrage-subscription")
def subscription(killing: Killing) -> None:
    with scene() as s:
        updates = s.live.updates(HANG_SECONDS)
        assert next(updates).is_replacement
        killing.task()
        assert isinstance(refusal(lambda: next(updates)), WorkerDiedError)
        assert isinstance(refusal(s.live.wait_ready), WorkerDiedError)
        assert s.live.state is State.FAILED
        s.others_go_on()


@kills("barrage-writer")
def writer(killing: Killing) -> None:
    with scene() as s:
        writing = s.session.writer("t", producer="p")
        beside = s.session.writer("other", producer="p")
        killing.task(0)
        killing.check()
        for call in (lambda: writing.write(ROW), lambda: writing.flush(HANG_SECONDS)):
            assert isinstance(refusal(call), WorkerDiedError)
        writing.abandon()
        beside.write(ROW)
        beside.close(HANG_SECONDS)
        wait_until(lambda: len(s.other) == 1, HANG_SECONDS)


@kills("barrage-perspective")
def perspective(killing: Killing) -> None:
    """Its table stays as it is; the live table does not."""
    with scene() as s:
        mirrored = s.live.to_perspective()
        killing.thread(PerspectiveMirror, "apply")
        s.table.add(ROW)
        killing.check()
        wait_until(lambda: len(s.live) == 1, HANG_SECONDS)
        assert mirrored.size() == 0
        s.others_go_on()


@kills("barrage-session-loop")
def session_loop(killing: Killing) -> None:
    with barrage.Server(host="inproc://") as server:
        server.create_table("t", SCHEMA)
        beside = barrage.connect(server.uri)
        session = barrage.connect(server.uri)
        live = session.table("t").subscribe().wait_ready(HANG_SECONDS)
        updates = live.updates(HANG_SECONDS)
        next(updates)
        told: list[BaseException] = []

        def wait() -> None:
            told.append(refusal(lambda: session._thread.call(asyncio.Event().wait(), None)))

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: bool(session._thread._waiting), HANG_SECONDS)
        loop = session._thread._loop
        loop.call_soon_threadsafe(loop.call_soon, leave)
        waiting.join(HANG_SECONDS)
        assert [type(error) for error in told] == [WorkerDiedError]
        assert isinstance(refusal(lambda: next(updates)), WorkerDiedError)
        assert live.state is State.FAILED
        assert isinstance(refusal(session.tables), WorkerDiedError)
        live.close()
        session.close()
        assert beside.tables()
        beside.close()


@kills("barrage-session")
def session_work(killing: Killing) -> None:
    """What a Deephaven session keeps doing: staying alive."""
    with scene() as s:
        uploaded = s.session.upload(ROW)
        killing.task(0)
        killing.check()
        assert len(uploaded.snapshot()) == 1
        s.others_go_on()


@kills("barrage-release")
def release(killing: Killing) -> None:
    with scene() as s:
        uploaded = s.session.upload(ROW)
        killing.newborn()
        uploaded.close()
        killing.check()
        assert len(s.session.upload(ROW).snapshot()) == 1
        s.others_go_on()


@kills("barrage-callbacks")
def callbacks(killing: Killing) -> None:
    """A callback's thread can only die of what is ours around the call."""
    with scene() as s:
        states: list[State] = []

        def fail(state: State) -> None:
            states.append(state)
            if len(states) == 1:
                raise ValueError

        s.live.on_state(fail)
        caller = s.live._callbacks._callers[-1]
        raised = caller._on_raised

        def die_once(*_: object) -> None:
            caller._on_raised = raised
            die()

        caller._on_raised = die_once
        cut(s.live)
        wait_until(lambda: State.LIVE in states, HANG_SECONDS)
        assert states[0] is State.RECONNECTING
        assert s.live.stats.callback_errors == 1
        s.others_go_on()


@kills("barrage-updates")
def updates(killing: Killing) -> None:
    with scene() as s:
        errors: list[Exception] = []
        s.live.on_error(errors.append)
        with killing.patches.context() as patches:
            patches.setattr(barrage.client.synchronous.on_thread.BlockingUpdates, "__next__", die)
            s.live.on_update(print)
            wait_until(lambda: bool(errors), HANG_SECONDS)
        assert [type(error) for error in errors] == [WorkerDiedError]
        s.table.add(ROW)
        wait_until(lambda: len(s.live) == 1, HANG_SECONDS)
        s.others_go_on()


def cut(live: Any) -> None:
    """Cut the stream of a subscription, which then begins another one."""
    table = live._table
    live._thread._loop.call_soon_threadsafe(lambda: table._stream.cancel())


def played(play: Any) -> None:
    asyncio.run(asyncio.wait_for(play, HANG_SECONDS))


@kills("barrage-awaited-callback")
def awaited_callback(killing: Killing) -> None:
    async def play() -> None:
        with barrage.Server(host="inproc://") as server:
            table = server.create_table("t", SCHEMA)
            async with barrage.aconnect(server.uri) as session:
                live = await session.table("t").subscribe(interval_ms=1)
                errors: list[Exception] = []
                has_failed = asyncio.Event()

                def note(error: Exception) -> None:
                    errors.append(error)
                    has_failed.set()

                live.on_error(note)
                live.on_update(lambda _: None)
                await live.wait_ready()
                killing.task()
                await has_failed.wait()
                assert [type(error) for error in errors] == [WorkerDiedError]
                seen = asyncio.Event()
                live.on_update(lambda update: seen.set() if update.row_count else None)
                table.add(ROW)
                await seen.wait()

    played(play())


@kills("barrage-viewport")
def viewport(killing: Killing) -> None:
    async def play() -> None:
        with barrage.Server(host="inproc://") as server:
            server.create_table("t", data={"x": list(range(100))})
            async with barrage.aconnect(server.uri) as session:
                live = await session.table("t").subscribe(viewport=(0, 5))
                await live.wait_ready()
                window = RowWindow(start=0, stop=5, is_reverse=False)
                feed = SessionSource(live, key_columns=(), window=window)
                killing.newborn()
                feed.request(RowWindow(start=5, stop=9, is_reverse=False))
                while feed.status().failure is None:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                assert isinstance(feed.status().failure, WorkerDiedError)
                assert live.state is State.LIVE
                await feed.close()

    played(play())


class Stream:
    """What a worker of one stream has of it."""

    def __init__(self) -> None:
        self.has_ended = asyncio.Event()

    def cancel(self) -> None:
        self.has_ended.set()

    @property
    def status(self) -> Any:
        return self

    way = None


@kills("barrage-snapshot")
def snapshot(killing: Killing) -> None:
    async def play() -> None:
        stream = Stream()
        ending = _Ending(stream)
        killing.newborn()
        await ending.begin()
        await stream.has_ended.wait()

    played(play())


@kills("barrage-body-releases")
def body_releases(killing: Killing) -> None:
    async def play() -> None:
        async def write(_: bytes) -> None:
            await asyncio.Event().wait()

        window = Window(1, 1)
        released = ReleasedBodies(write, window=window, on_back=lambda loan: (loan, 1))
        killing.newborn()
        released.give_back(1)
        while not killing.deaths:  # noqa: ASYNC110
            await asyncio.sleep(0)
        released.give_back(2)
        await released.finish()

    played(play())


@kills("barrage-body-close")
def body_close(killing: Killing) -> None:
    class Connection:
        async def close(self) -> None:
            await asyncio.Event().wait()

    async def play() -> None:
        routes = BodyRoutes(
            barrage.client.bodies.bodies.BodyChoice.AUTO,
            lambda *_: None,
            limits=barrage.limits.DEFAULT_LIMITS,
            clock=None,
        )
        killing.newborn()
        routes.close_soon(Connection())
        await routes.close()

    played(play())
