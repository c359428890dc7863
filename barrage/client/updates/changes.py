"""Waiting for a state of something that belongs to one event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Changes:
    """A condition without a lock. Whoever changes the state says so with :meth:`tell`, which does
    not wait, so nothing can be cancelled between a change and its news. One loop only."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def tell(self) -> None:
        """The state may have changed; everybody who waits looks again."""
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def until(self, is_reached: Callable[[], object]) -> None:
        """Until ``is_reached``, which is asked at once and after every change. It holds when this
        returns if nobody else has been woken by the same change and acted upon it."""
        while not is_reached():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(future)
            try:
                await future
            finally:
                self._waiting.discard(future)
