"""Writes of peers: which depend on each other, and how many of them may wait for the engine."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque


class WriteChain:
    """Writes that depend on each other: once one was refused, those after it are too. What it
    says belongs to the engine thread."""

    def __init__(self) -> None:
        self.is_broken = False


class WriteRoom:
    """Rows of peers that wait to be applied, of all together, by their weight. First come, first
    served. Used on one event loop."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._applied: list[TakenRoom] = []
        self._lock = threading.Lock()
        self.rows_pending = 0

    async def take(self, row_count: int) -> TakenRoom:
        """Wait until there is room for so many rows; more than there ever is go alone."""
        if self._waiting or not self._fits(row_count):
            await self._turn(row_count)
        else:
            self.rows_pending += row_count
        return TakenRoom(self, row_count)

    async def _turn(self, row_count: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row_count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.rows_pending -= row_count
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove((row_count, turn))
            self._admit()
            raise

    def _fits(self, row_count: int) -> bool:
        return not self.rows_pending or self.rows_pending + row_count <= self._rows_max

    def _admit(self) -> None:
        while self._waiting:
            row_count, turn = self._waiting[0]
            if not turn.cancelled():
                if not self._fits(row_count):
                    return
                self.rows_pending += row_count
                turn.set_result(None)
            self._waiting.popleft()

    def _give_back(self, row_count: int) -> None:
        self.rows_pending -= row_count
        self._admit()

    def _note_applied(self, taken: TakenRoom, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._applied.append(taken)
            is_told = len(self._applied) > 1
        if not is_told:
            with contextlib.suppress(RuntimeError):  # The loop has been closed.
                loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        with self._lock:
            applied, self._applied = self._applied, []
        for taken in applied:
            taken.give_back()


class TakenRoom:
    """Room for some rows, until they are applied or refused."""

    __slots__ = ("_loop", "_room", "_row_count")

    def __init__(self, room: WriteRoom, row_count: int) -> None:
        self._room = room
        self._row_count = row_count
        self._loop = asyncio.get_running_loop()

    def applied(self) -> None:
        """A cycle has applied the rows, and nobody waits for them: being safe on disk is another
        thing. Any thread."""
        self._room._note_applied(self, self._loop)

    def give_back(self) -> None:
        """Let others in. Idempotent; on the event loop."""
        row_count, self._row_count = self._row_count, 0
        if row_count:
            self._room._give_back(row_count)
