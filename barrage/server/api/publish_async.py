"""The asynchronous form of the Python API: the same names as :mod:`barrage.server.api.publish`,
awaited.

It is a class of its own because a method cannot both block and be awaited. The server runs on the
event loop that enters it::

    async with AsyncServer() as server:
        quotes = await server.create_table("quotes", {"Sym": "string"}, key="Sym")
        await quotes.upsert([{"Sym": "A"}])
        async with server.transaction() as changes:
            changes.upsert(quotes, [{"Sym": "B"}])
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, ClassVar, Self

from barrage.errors import LocalProtocolError
from barrage.server.api.publish_tables_async import AsyncServerTables
from barrage.server.runtime.watchdog import watch_iterations
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.server.alerting.alert import Alert
    from barrage.server.policy.rules import Policy
    from barrage.server.serving.app import ServerApp


class AsyncServer(AsyncServerTables):
    """A server on the running event loop; see :class:`barrage.server.Server`. A ``data`` directory
    is read by :meth:`start`, beside the loop."""

    _ENTERED_BY: ClassVar[str] = "async with"

    def _prepare(self) -> None:
        self._opened = self._open() if self._config.data is None else None
        self._life_lock = asyncio.Lock()
        self._is_started = False
        self._unwatch: Callable[[], None] = lambda: None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> Self:
        """Listen; ConfigError when the address cannot be had."""
        if self._is_stopped:
            raise LocalProtocolError("the server was stopped; make another one")
        if self._is_started:
            raise LocalProtocolError("the server was started before")
        self._is_started = True
        async with self._life_lock:
            if self._opened is None:
                self._opened = await in_thread(self._open)
            app = self._make_app()
            self._unwatch = watch_iterations(asyncio.get_running_loop(), self._parts.watchdog.loop)
            try:
                await app.start()
            except BaseException:
                self._unwatch()
                await in_thread(self._parts.close)
                raise
            self._app = app
        return self

    def _make_app(self) -> ServerApp:
        """What serves the parts, on the running loop."""
        return self._parts.make_app()

    async def stop(self, grace: float | None = None) -> None:
        """Drain and stop; idempotent."""
        self._is_stopped = True
        # What is being started by another task can be ended when it has been.
        async with self._life_lock:
            if self._app is not None:
                await self._app.stop(None if grace is None else int(grace * 1000))
            if self._opened is not None:
                self._unwatch()
                await in_thread(self._opened.close)

    async def set_policy(self, policy: Policy) -> None:
        """Let other rules hold from now on, also before any did. Callers for whom they are others
        than before lose what they have open, nobody else notices. ConfigError where the rules stand
        in a file."""
        self._running.replace_policy(policy)

    async def add_alert(self, alert: Alert) -> None:
        """Have ``alert`` watched, from the start of the server or from now on. ConfigError."""
        if not self._is_started:
            self._declare_alert(alert)
            return
        async with self._life_lock:
            await self._running.operations.alerts.add(alert)

    async def remove_alert(self, name: str) -> None:
        """Have an alert watched no more; what waits for its receiver is not told.
        AlertNotFoundError."""
        if not self._is_started:
            self._forget_alert(name)
            return
        async with self._life_lock:
            self._running.operations.alerts.remove(name)

    async def serve_forever(self) -> None:
        """Serve until Ctrl+C or SIGTERM (on the main thread) or :meth:`stop`, then drain."""
        if self._app is None:
            await self.start()
        app = self._running
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, app.begin_stop)
        try:
            await app.wait_for_termination()
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
            await self.stop()
