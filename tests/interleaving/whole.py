"""A whole server and its clients in a world of seeded threads: ``inproc://``, so no sockets; its
loops, its engine thread, the clients' threads and everybody's waiting are of the world.

What anybody logs as an error fails the run: an exception that is not typed, a worker that has died,
a callback that raised.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, ClassVar, TypeVar
from unittest import mock

import barrage
from barrage.client.synchronous import sync_loop
from barrage.errors import StatusCode
from barrage.server.api import publish
from barrage.server.runtime.watchdog import NoWatch
from barrage.server.serving import app, serving
from barrage.transport.inproc import inproc_channel
from barrage.transport.inproc.inproc_call import InprocCall
from tests.interleaving.failures import InterleavingError
from tests.interleaving.seeded_threads import Threads, run_threads

T = TypeVar("T")


class _NoWatchdog:
    """Measures nothing: time is virtual."""

    engine = loop = NoWatch()
    watches: ClassVar[dict[str, object]] = {}

    def close(self) -> None:
        """There is nothing to end."""


class Whole:
    """A world in which servers serve. Made by :func:`run_whole`."""

    def __init__(self, world: Threads) -> None:
        self.world = world
        self.random = world.random
        self.complaints: list[str] = []
        self._calls: weakref.WeakSet[InprocCall] = weakref.WeakSet()
        self._order: list[weakref.ref[InprocCall]] = []

    def server(self, **arguments: Any) -> barrage.Server:
        return barrage.Server("inproc://", **arguments)

    def together(self, *works: Callable[[], object]) -> None:
        """Run each on a thread of its own, until all have ended. What one raises fails the run."""
        threads = [
            threading.Thread(target=work, name=f"caller {number}")
            for number, work in enumerate(works)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def run_async(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """``asyncio.run(main())`` on a loop of this world."""
        with asyncio.Runner(loop_factory=self.world.new_event_loop) as runner:
            return runner.run(main())

    def pause(self) -> None:
        """For a while that is drawn; often none at all."""
        self.world.sleep(self.random.choice((0.0, 0.0, 0.001, 0.02)))

    async def pause_async(self) -> None:
        await asyncio.sleep(self.random.choice((0.0, 0.0, 0.001, 0.02)))

    def cut(self) -> None:
        """Break the connection under one of the calls that go on; from any thread."""
        calls = [call for each in self._order if (call := each()) is not None]
        calls = [call for call in calls if call.status is None]
        self._order = [weakref.ref(call) for call in calls]
        if calls:
            self.random.choice(calls).cancel(StatusCode.UNAVAILABLE, "the connection broke")

    def note_call(self, call: InprocCall) -> None:
        self._order.append(weakref.ref(call))

    def complain(self, *facts: object) -> None:
        if not self.world.is_ended:
            self.complaints.append(" ".join(map(str, facts)))

    @contextmanager
    def patched(self) -> Iterator[None]:
        """What a server has of the real world is of this one."""
        whole = self

        class Call(InprocCall):
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                whole.note_call(self)

        patches: list[tuple[object, str, object]] = [
            (sync_loop, "EventLoop", self.world.new_event_loop),
            (publish, "WatchedLoop", lambda watch: self.world.new_event_loop()),
            (serving, "Watchdog", _NoWatchdog),
            (app, "allocator_here", lambda: None),
            (inproc_channel, "InprocCall", Call),
            (logging.Logger, "error", _recorder(self.complain)),
            (logging.Logger, "exception", _recorder(self.complain, with_error=True)),
        ]
        with ExitStack() as stack:
            for place, name, ours in patches:
                stack.enter_context(mock.patch.object(place, name, ours))
            yield


def _recorder(complain: Callable[..., None], *, with_error: bool = False) -> Callable[..., None]:
    import traceback

    def record(
        _: logging.Logger, message: object, *facts: object, exc_info: Any = None, **named: object
    ) -> None:
        told = traceback.format_exc() if with_error else ""
        if isinstance(exc_info, BaseException):
            told = "".join(traceback.format_exception(exc_info))
        elif isinstance(exc_info, tuple):
            told = "".join(traceback.format_exception(*exc_info))
        complain(str(message) % facts if facts else message, told)

    return record


def run_whole(
    main: Callable[[Whole], T],
    seed: int,
    *,
    modules: Sequence[ModuleType] = (),
    seams_max: int = 1_000_000,
) -> T:
    """Call ``main`` in a world of this seed; everything it has begun ends with it."""

    def run(world: Threads) -> T:
        whole = Whole(world)
        with whole.patched():
            result = main(whole)
            world.finish_others()
        if whole.complaints:
            raise InterleavingError("something was logged as an error:\n" + whole.complaints[0])
        return result

    return run_threads(run, seed, modules=modules, seams_max=seams_max)
