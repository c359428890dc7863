"""Writes of peers: which depend on each other, and how many of them may wait for the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque


class WriteChain:
    """Writes that depend on each other: once one was refused, those after it are too. What it
    says belongs to the engine thread."""

    def __init__(self) -> None:
        self.is_broken = False


class WriteRoom:
    """Rows of peers that wait to be committed, of all together. First come, first served. Used on
    one event loop."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.rows_pending = 0

    async def take(self, row_count: int) -> None:
        """Wait until there is room for so many rows; more than there ever is go alone."""
        if not self._waiting and self._fits(row_count):
            self.rows_pending += row_count
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((row_count, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(row_count)
            else:
                with contextlib.suppress(ValueError):
                    self._waiting.remove((row_count, turn))
                self._admit()
            raise

    def give_back(self, row_count: int) -> None:
        """So many rows, taken before, are committed or refused."""
        self.rows_pending -= row_count
        self._admit()

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
