"""Who may connect for bodies now: a few clients at a time, the others in the order they came.

A UCX connection that becomes complete takes the event loop up to 20 ms inside a single call of the
library, and a thread as long before that, when it is accepted. Clients that come together are told
where to connect one after the other: other calls go in between, and the time that a client has for
connecting begins when it is its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

TURNS_MAX: Final = 2
"""Clients that connect at a time: one that is being accepted, and one on its way."""

TURN_SECONDS_MAX: Final = 2.0
"""After that the next one is let in: a client gives up after a second."""


class Turn:
    """Leave to connect, from :meth:`BodyTurns.wait` on until it is ended or its time is up."""

    def __init__(self, turns: BodyTurns) -> None:
        self._turns: BodyTurns | None = turns
        self._expiry = asyncio.get_running_loop().call_later(TURN_SECONDS_MAX, self.end)

    def end(self) -> None:
        """Let the next one in. Idempotent."""
        turns, self._turns = self._turns, None
        self._expiry.cancel()
        if turns is not None:
            turns.ended()


class BodyTurns:
    """On the event loop."""

    def __init__(self) -> None:
        self.running_count = 0
        """Clients whose turn it is."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting_count(self) -> int:
        """Clients that wait for theirs."""
        return len(self._waiting)

    async def wait(self, *, seconds_max: float) -> Turn:
        """Wait for a turn, at most ``seconds_max``: TimeoutError."""
        if self.running_count >= TURNS_MAX:
            called = asyncio.get_running_loop().create_future()
            self._waiting.append(called)
            try:
                async with asyncio.timeout(seconds_max):
                    await called
            except BaseException:
                if called.done() and not called.cancelled():
                    self.ended()  # It was called in the moment it gave up.
                elif called in self._waiting:
                    self._waiting.remove(called)
                raise
        else:
            self.running_count += 1
        return Turn(self)

    def ended(self) -> None:
        """A turn is over: it passes to who has waited longest."""
        while self._waiting:
            called = self._waiting.popleft()
            if not called.done():
                called.set_result(None)
                return
        self.running_count -= 1
