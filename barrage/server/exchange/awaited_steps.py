"""Jobs that wait for one table to come to their cursors: one of them asks the engine, for all.

Each asking for itself would cost the engine as much as there are cursors. The one with the earliest
cursor has the *turn*: it asks until the table is there or has stood still for too long, and the
next one after it. All of them know then what the table was seen to do.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STANDSTILL_SECONDS_MAX = 5.0
"""How long jobs wait for the next step of a relayed table that is to come to their cursors, which
another relay, or the server that owns the table, has told already."""


class AwaitedSteps:
    """Of one table. On the event loop."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._moved_at = asyncio.get_running_loop().time()
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap: the earliest cursor first, of equal ones who came first."""
        self._is_taken = False

    @property
    def is_idle(self) -> bool:
        """Whether nobody has the turn, and nobody waits for it."""
        return not self._is_taken

    def seen(self, step: int) -> None:
        """The table is at this step now."""
        if step != self._step:
            self._step = step
            self._moved_at = asyncio.get_running_loop().time()

    def stands_still(self) -> bool:
        """Whether it has not moved for too long, as far as anybody asked."""
        return asyncio.get_running_loop().time() - self._moved_at >= STANDSTILL_SECONDS_MAX

    @asynccontextmanager
    async def turn(self, version: int) -> AsyncIterator[AwaitedTurn]:
        """Wait for the turn of a cursor of this version, and have it."""
        turn = AwaitedTurn(self, version)
        try:
            await turn.take()
            yield turn
        finally:
            if turn.is_mine:
                self._pass_on()

    def _is_before(self, version: int) -> bool:
        """Whether an earlier cursor waits."""
        return bool(self._waiting) and self._waiting[0][0] < version

    async def _called(self, turn: AwaitedTurn) -> None:
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (turn.version, next(self._numbers), called))
        try:
            await called
        finally:
            # Who is cancelled may have been called in the same moment.
            turn.is_mine = called.done() and not called.cancelled()

    def _pass_on(self) -> None:
        """The turn goes from one to the next in the same step: nobody who comes now is faster."""
        while self._waiting:
            _, _, called = heapq.heappop(self._waiting)
            if not called.done():
                called.set_result(None)
                return
        self._is_taken = False


class AwaitedTurn:
    """Of one job."""

    def __init__(self, awaited: AwaitedSteps, version: int) -> None:
        self.version = version
        self.is_mine = False
        self._awaited = awaited

    async def take(self) -> None:
        if self._awaited._is_taken:
            await self._awaited._called(self)
        else:
            self.is_mine = self._awaited._is_taken = True

    async def give_way(self) -> None:
        """Let those whose cursors are earlier have it first."""
        if self._awaited._is_before(self.version):
            self.is_mine = False
            self._awaited._pass_on()
            await self.take()
