"""What takes long is done beside the event loop, one at a time: it shares the processors with
everybody else's updates, and the threads of the loop with their snapshots.

What is small is done at once, which costs less than a thread does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakKeyDictionary

from barrage.supervision import in_thread, start_awaited

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

ON_LOOP_BYTES_MAX: Final = 256 * 1024
"""Bytes of a message, or of rows, that are looked at on the event loop: about a millisecond."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


async def aside(size: int, work: Callable[[], T]) -> T:
    """Do ``work``, which looks at so many bytes, here or beside the loop."""
    return work() if size <= ON_LOOP_BYTES_MAX else await in_turn(work)


async def in_turn(work: Callable[[], T]) -> T:
    """Do ``work`` beside the loop. The next one has its turn when it is over, also where nobody
    waits for it any more."""
    turn = _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    await turn.acquire()
    working = start_awaited(in_thread(work))
    working.add_done_callback(lambda _: turn.release())
    return await asyncio.shield(working)
