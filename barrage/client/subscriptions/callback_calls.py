"""The calls of callbacks in the asyncio client, and the end of those that do not end by themselves.

A callback is called at once, where its table learns something. What it leaves to be awaited is
awaited by a task of the callback's own, and what it is told meanwhile waits its turn there: nobody
waits for a callback, not even another one of the same table. One that never returns is given
:data:`SECONDS_MAX` when its session is closed, and is cancelled then.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from barrage.client.updates.waiting import Changes
from barrage.supervision import Role, contained, contained_awaitable, start_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from barrage.errors import BarrageError

logger = logging.getLogger(__name__)

AWAITED: Final = Role("barrage-awaited-callback", "what its table has to tell one callback")

PENDING_MAX: Final = 1024
"""States or errors that wait for one callback; beyond it the oldest give way. They are few: a lost
connection makes three of them."""

SECONDS_MAX: Final = 5.0
"""How long callbacks under way hold up the end of their session, and again when cancelled."""

_calling: ContextVar[CallbackCalls | None] = ContextVar("calling", default=None)
"""The callback in which the present task is, or in which it was begun."""


class CallbackCalls:
    """The calls of one callback, one after the other. On its session's loop."""

    def __init__(
        self,
        callback: Callable[[Any], Awaitable[None] | None],
        callbacks: SessionCallbacks,
        on_raised: Callable[[CallbackCalls, Exception], object],
    ) -> None:
        """``on_raised`` is told what the callback raises."""
        self.callback = callback
        self._callbacks = callbacks
        self._on_raised = on_raised
        self._waiting: deque[Any] = deque(maxlen=PENDING_MAX)
        self._is_busy = False

    def call(self, value: Any) -> None:
        """Call it now, or when it has returned from the calls before. Never waits nor raises."""
        if self._is_busy:
            self._waiting.append(value)
            return
        awaitable = self._begun(value)
        if awaitable is not None:
            self._is_busy = True
            self._callbacks.start(self, self._go_on(awaitable))

    async def call_through(self, value: Any) -> None:
        """Call it and wait until it has returned: for a task that belongs to this callback."""
        awaitable = self._begun(value)
        if awaitable is not None:
            await self._ended(awaitable)

    def _begun(self, value: Any) -> Awaitable[None] | None:
        """What the callback leaves to be awaited."""
        token = _calling.set(self)
        try:
            result = contained(self.callback, value)
        except Exception as error:
            self._on_raised(self, error)
            return None
        finally:
            _calling.reset(token)
        return result if inspect.isawaitable(result) else None

    async def _go_on(self, awaitable: Awaitable[None] | None) -> None:
        try:
            while awaitable is not None:
                await self._ended(awaitable)
                awaitable = None
                while self._waiting and awaitable is None:
                    awaitable = self._begun(self._waiting.popleft())
        finally:
            self._is_busy = False
            if inspect.iscoroutine(awaitable):
                awaitable.close()

    def died(self, error: BarrageError) -> None:
        """The task that awaited it has."""
        self._on_raised(self, error)

    async def _ended(self, awaitable: Awaitable[None]) -> None:
        token = _calling.set(self)
        try:
            await contained_awaitable(awaitable)
        except Exception as error:
            self._on_raised(self, error)
        finally:
            _calling.reset(token)


class SessionCallbacks:
    """What callbacks of one session left to be awaited. On its loop."""

    def __init__(self) -> None:
        self._under_way: dict[asyncio.Task[None], CallbackCalls] = {}
        self._endless: set[asyncio.Task[None]] = set()
        self._closers: set[CallbackCalls] = set()
        self._changes = Changes()

    def start(
        self, calls: CallbackCalls, work: Coroutine[Any, Any, None], *, is_endless: bool = False
    ) -> None:
        """Run ``work``, which awaits ``calls``. ``is_endless``: it goes on for as long as the
        session does, and is not waited for at its end."""
        task = start_task(AWAITED, work, on_death=calls.died)
        self._under_way[task] = calls
        if is_endless:
            self._endless.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._under_way[task]
        self._endless.discard(task)
        self._changes.tell()

    def note_closer(self) -> bool:
        """The present task closes the session. Whether it is a callback's: the end does not wait
        for that one, which waits for the end."""
        calls = _calling.get()
        if calls is None:
            return False
        self._closers.add(calls)
        self._changes.tell()
        return True

    async def end(self) -> None:
        """Until all have returned that do, but for those that close the session, or their time is
        up."""
        for task in self._endless.intersection(self._left()):
            task.cancel()
        await self._end(self._left)

    async def closers_end(self) -> None:
        """After the session's end: until those that waited for it have returned, too."""
        await self._end(lambda: list(self._under_way))

    def _left(self) -> list[asyncio.Task[None]]:
        return [task for task, calls in self._under_way.items() if calls not in self._closers]

    async def _end(self, left: Callable[[], list[asyncio.Task[None]]]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS_MAX):
                await self._changes.until(lambda: not left())
        endless = left()
        for task in endless:
            logger.warning("%r has not returned and is cancelled", self._under_way[task].callback)
            task.cancel()
        if endless:
            await asyncio.wait(endless, timeout=SECONDS_MAX)
