"""The Python API: a server in this process and the tables it publishes.

Example::

    with barrage.Server() as server:
        quotes = server.create_table("quotes", {"Sym": "string", "Price": "float64"}, key="Sym")
        quotes.upsert([{"Sym": "A", "Price": 1.5}])
        server.publish("cheap", quotes.where("Price < 2"))
        print(server.uri)

Every method may be called from any thread. Calls that change a table block until a cycle has
committed the change; with ``wait=False`` they return a future of the step that committed it. The
asynchronous form, :class:`barrage.server.AsyncServer`, has the same names.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Self

from barrage.errors import LocalProtocolError
from barrage.server.api.publish_tables import ServerTables
from barrage.server.runtime.watchdog import WatchedLoop
from barrage.server.serving.stop_signals import StopSignals
from barrage.supervision import Role, start_awaited, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future
    from typing import Any

    from barrage.errors import WorkerDiedError
    from barrage.server.alerting.alert import Alert
    from barrage.server.policy.rules import Policy

LOOP = Role("barrage-loop", "every connection, and serve_forever")

_STOPPED = "the server was stopped; make another one"


class Server(ServerTables):
    """A server in this process, on an event loop in a thread of its own.

    With a ``data`` directory its tables are back when the server has been made, ``on_progress`` is
    told how far that is, and writes are acknowledged when they are on disk; ``journal`` is what
    tables get for which nothing else is said: ``durable``, ``memory`` or ``none``.

    ``bodies``: other ways than the stream itself by which our own clients may get the bodies of
    large messages, ``shm`` (shared memory on the same host), ``ucx``, or ``shm,ucx``; none by
    default.

    Tables can be created before it listens. ``port=0`` lets the system choose one. On another than
    a loopback address a token is needed; one is made up and shown when none is given. With the host
    ``inproc://name`` there is no port: clients of this process connect to that.
    """

    _ENTERED_BY: ClassVar[str] = "with"

    def _prepare(self) -> None:
        self._opened = self._open()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._life_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started: Future[None] | None = None
        self._death: WorkerDiedError | None = None
        self._stop_signals: StopSignals | None = None
        self._asked: set[Future[None]] | None = set()
        """What callers wait for that runs on the loop; None when nothing runs on it any more."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Listen. Returns when clients can connect; ConfigError when the address cannot be had."""
        started: Future[None]
        with self._life_lock:
            if self._is_stopped:
                raise LocalProtocolError(_STOPPED)
            if self._thread is not None:
                raise LocalProtocolError("the server was started before")
            started = self._started = concurrent.futures.Future()
            self._thread = start_thread(
                LOOP, partial(self._serve, started), on_death=partial(self._died, started)
            )
        try:
            started.result()
        except BaseException:
            self.stop(0)
            raise
        return self

    def _died(self, started: Future[None], error: WorkerDiedError) -> None:
        """On the loop's thread, when nothing runs on it any more."""
        if not started.done():
            started.set_exception(error)
        self._death = error
        self._end_serving()

    def _end_serving(self) -> None:
        """Let :meth:`serve_forever` return, now or as soon as it is called; nobody starts it any
        more."""
        with self._life_lock:
            # In this order: who waits looks at them in the other one.
            self._is_stopped = True
            if self._stop_signals is not None:
                self._stop_signals.end()

    def stop(self, grace: float | None = None) -> None:
        """Stop serving: streams get what is queued for them and end with UNAVAILABLE; what is left
        after ``grace`` seconds is cut. Then the engine ends. Idempotent."""
        self._end_serving()
        thread, started = self._thread, self._started
        if thread is not None and started is not None:
            # Another thread may be starting it: only what has begun can be told to end.
            concurrent.futures.wait([started])
            loop, app = self._loop, self._app
            if loop is not None and app is not None and thread.is_alive():
                grace_ms = None if grace is None else int(grace * 1000)
                with contextlib.suppress(RuntimeError):  # The loop has ended in this very moment.
                    loop.call_soon_threadsafe(app.begin_stop, grace_ms)
            thread.join()
        self._parts.close()

    def set_policy(self, policy: Policy) -> None:
        """Let other rules hold from now on, also before any did. Callers for whom they are others
        than before lose what they have open, nobody else notices. ConfigError where the rules stand
        in a file."""
        self._on_loop(partial(self._running.replace_policy, policy))

    def add_alert(self, alert: Alert) -> None:
        """Have ``alert`` watched, from the start of the server or from now on. ConfigError."""
        if not self._is_early(partial(self._declare_alert, alert)):
            self._wait_on_loop(partial(self._running.operations.alerts.add, alert))

    def remove_alert(self, name: str) -> None:
        """Have an alert watched no more; what waits for its receiver is not told.
        AlertNotFoundError."""
        if not self._is_early(partial(self._forget_alert, name)):
            self._on_loop(partial(self._running.operations.alerts.remove, name))

    def _is_early(self, declare: Callable[[], None]) -> bool:
        """Whether the server has not begun to start, and something was declared for that; if it
        has, it has started."""
        with self._life_lock:
            if self._started is None:
                declare()
                return True
        self._started.result()
        return False

    def _on_loop(self, work: Callable[[], object]) -> None:
        """Do ``work`` on the loop, and wait for it."""

        async def do() -> None:
            work()

        self._wait_on_loop(do)

    def _wait_on_loop(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for what runs on the loop. LocalProtocolError when nothing does any more."""
        loop, done = self._loop, concurrent.futures.Future[None]()

        def begin() -> None:
            task = start_awaited(work())
            task.add_done_callback(partial(_settle, done))

        with self._life_lock:
            if self._asked is None or loop is None:
                raise LocalProtocolError(_STOPPED)
            self._asked.add(done)
            done.add_done_callback(self._asked.discard)
            loop.call_soon_threadsafe(begin)
        done.result()

    def serve_forever(self) -> None:
        """Serve until Ctrl+C, SIGTERM or :meth:`stop`, then drain. Call on the main thread; starts
        if need be. WorkerDiedError when the event loop has died."""
        if self._thread is None and not self._is_stopped:
            self.start()
        try:
            with StopSignals() as signals:
                self._stop_signals = signals
                if not self._is_stopped:
                    signals.wait()
        finally:
            self.stop()
        if self._death is not None:
            raise self._death

    def _serve(self, started: Future[None]) -> None:
        watch = self._parts.watchdog.loop
        try:
            with asyncio.Runner(loop_factory=lambda: WatchedLoop(watch)) as runner:
                try:
                    runner.run(self._serve_on_loop(started))
                except BaseException:
                    # What ended the loop has not closed it: the server is ended on it, and whoever
                    # is connected is told.
                    if self._app is not None:
                        runner.run(self._app.stop(0))
                    raise
        finally:
            with self._life_lock:
                asked, self._asked = tuple(self._asked or ()), None
            for future in asked:
                if not future.done():
                    future.set_exception(LocalProtocolError(_STOPPED))

    async def _serve_on_loop(self, started: Future[None]) -> None:
        try:
            app = self._parts.make_app()
            await app.start()
        except BaseException as error:
            started.set_exception(error)
            return
        self._app, self._loop = app, asyncio.get_running_loop()
        started.set_result(None)
        await app.wait_for_termination()


def _settle(future: Future[None], task: asyncio.Task[None]) -> None:
    """What a task of the loop has come to, for who waits on another thread."""
    if future.done():
        return
    if task.cancelled():
        future.set_exception(LocalProtocolError(_STOPPED))
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(None)
