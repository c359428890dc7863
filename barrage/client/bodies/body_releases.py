"""Telling a server which bodies of one stream the client has done with.

Bodies are let go wherever their last Arrow array dies: in any thread, inside a garbage collection,
after the stream, the session or even the loop has ended. So a finalizer only notes the number and
wakes the loop once; everything else happens there. When they are told is for
:class:`~barrage.proto.release_batch.ReleaseBatch` to say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from typing import TYPE_CHECKING

from barrage.errors import BarrageError
from barrage.proto.release_batch import WAIT_NS, ReleaseBatch
from barrage.supervision import Role, start_task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barrage.wire.dissociated.lending import Window

TELLER = Role("barrage-body-releases", "nothing: the stream ends its loans")

logger = logging.getLogger(__name__)


class ReleasedBodies:
    """What one stream gives back. Made and used on its loop, but for :meth:`give_back`.

    ``write`` sends a frame on the stream; ``window`` is what may be out on it; ``on_back`` is
    called on the loop for every loan that came back by :meth:`give_back`, and returns the number to
    tell and the size of that body.
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        *,
        window: Window,
        on_back: Callable[[int], tuple[int, int]],
    ) -> None:
        self._write = write
        self._on_back = on_back
        self._loop = asyncio.get_running_loop()
        self._process_id = os.getpid()
        self._back: deque[int] = deque()
        self._is_called = False
        self._untold = ReleaseBatch(window)
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.Task[None] | None = None
        self._is_closed = False

    def give_back(self, loan: int) -> None:
        """A body that was lent is not used any more. From any thread, at any time; never fails."""
        if os.getpid() != self._process_id:
            # A child has copies of its parent's arrays, and of the descriptor that wakes the loop.
            return
        self._back.append(loan)
        # The loop clears the mark before it empties the queue, so no number is left behind.
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):
                # A closed loop has no server to tell.
                self._loop.call_soon_threadsafe(self.collect)

    def collect(self) -> None:
        """Take what was given back. On the loop."""
        self._is_called = False
        while self._back:
            self.release(*self._on_back(self._back.popleft()))

    def release(self, number: int, size: int) -> None:
        """The body of that number and size is done with. On the loop."""
        if self._is_closed:
            return
        self._untold.add(number, size)
        if self._untold.is_urgent:
            self._tell_now()
        elif self._timer is None:
            self._timer = self._loop.call_later(WAIT_NS / 1e9, self._tell_now)

    def _tell_now(self) -> None:
        self._stop_timer()
        if self._telling is None and self._untold:
            self._telling = start_task(TELLER, self._tell(), on_death=self._died)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _died(self, _: BarrageError) -> None:
        self._is_closed = True

    async def _tell(self) -> None:
        try:
            while self._untold:
                await self._write(self._untold.take())
        except BarrageError as error:
            # The stream is over; whoever reads it hears how.
            logger.debug("bodies given back could not be told: %s", error)
            self._is_closed = True
        finally:
            self._telling = None

    async def finish(self) -> None:
        """Nothing more can be written on the stream after what is being written now."""
        self._is_closed = True
        self._stop_timer()
        self._untold.clear()
        if self._telling is not None:
            await asyncio.wait([self._telling])

    def close(self) -> None:
        """The stream is over. What comes back later is only counted. Idempotent."""
        self._is_closed = True
        # A body somebody keeps must not keep the call.
        self._write = _nowhere
        self._stop_timer()
        self._untold.clear()
        if self._telling is not None:
            self._telling.cancel()


async def _nowhere(frame: bytes) -> None:
    """The stream is over."""
