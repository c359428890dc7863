"""Reads of a gRPC call that are never cut short.

``grpc.aio`` gives an operation memory and takes it back when its outcome is fetched. A reader that
is cancelled before that, because its client has reset the stream or because we end it, leaves 80
bytes behind for as long as the process lives (grpc/grpc#43360), and gRPC writes the message that it
was promised into an object that Python may have given to somebody else by then.

So a read is a task of its own, which ends when gRPC says so: with the next message, or with the end
of the call. The reader waits beside it. Writes are not touched: one that is cut short leaves its
bytes behind whether it is waited for or not, but there is at most one of those a stream, and only
where a client resets it while it does not read.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from barrage.supervision import start_awaited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class WholeReads(Generic[T]):
    """Calls ``read`` for one reader at a time. A message that came for a reader which was cancelled
    is the next one's."""

    __slots__ = ("_read", "_reading")

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._reading: asyncio.Task[T] | None = None

    async def read(self) -> T:
        """The next message."""
        reading = self._reading
        if reading is None:
            reading = self._reading = start_awaited(self._read())
        # What ``asyncio.wait`` does, which leaves the task alone when its caller is cancelled, at
        # half the cost of a message.
        is_done = asyncio.get_running_loop().create_future()
        reading.add_done_callback(partial(_tell, is_done))
        await is_done
        self._reading = None
        return reading.result()


def _tell(is_done: asyncio.Future[None], _: asyncio.Task[object]) -> None:
    if not is_done.done():
        is_done.set_result(None)
