"""Accepting a connection beside the event loop.

The library makes a worker and an endpoint for it in single calls, together 5 to 25 ms. That is done
on a thread of its own, for one connection at a time; the library lets a worker be used by one
thread after the other. What listens makes no progress meanwhile, so the thread has it to itself.
The loop gets what was made, and from then on it alone uses it.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from barrage.errors import TransportError
from barrage.supervision import WorkerPool
from barrage.transport.ucx.endpoints import accepted_endpoint
from barrage.transport.ucx.worker import UcxWorker

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Future

    from barrage.transport.ucx.context import UcxContext

THREAD = "barrage-ucx-accept"


class Accepted(NamedTuple):
    """What a request to connect has become. Without a worker the request is still to be rejected;
    without an endpoint it is used up, and the worker is to be destroyed."""

    worker: UcxWorker | None
    endpoint: Any
    error: TransportError | None


class Acceptance:
    """All methods on the loop's thread."""

    def __init__(self, context: UcxContext, listening: UcxWorker, *, is_guarded: bool) -> None:
        """``listening`` is lent to the thread while it works."""
        self._context = context
        self._listening = listening
        self._is_guarded = is_guarded
        self._pool = WorkerPool(max_workers=1, thread_name_prefix=THREAD)
        self._under_way: Future[Accepted] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a request is being accepted."""
        return self._under_way is not None

    def begin(self, request: Any, on_done: Callable[[Accepted], None]) -> None:
        """Accept ``request``; nothing else is to be under way. ``on_done`` is called on the loop,
        unless :meth:`close` was faster."""
        loop = self._listening.loop
        self._listening.lend()
        accepting = self._under_way = self._pool.submit(self._accept, request, loop)
        accepting.add_done_callback(partial(self._tell, loop, on_done))

    def _accept(self, request: Any, loop: asyncio.AbstractEventLoop) -> Accepted:
        """On the thread."""
        try:
            worker = UcxWorker(self._context, is_guarded=self._is_guarded, loop=loop)
        except TransportError as error:
            return Accepted(None, None, error)
        try:
            return Accepted(worker, accepted_endpoint(worker, request), None)
        except TransportError as error:
            return Accepted(worker, None, error)

    def _tell(
        self,
        loop: asyncio.AbstractEventLoop,
        on_done: Callable[[Accepted], None],
        accepting: Future[Accepted],
    ) -> None:
        """On the thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed, and its listener.
            loop.call_soon_threadsafe(self._take, on_done, accepting)

    def _take(self, on_done: Callable[[Accepted], None], accepting: Future[Accepted]) -> None:
        if self._under_way is accepting:
            on_done(self._end(accepting))

    def _end(self, accepting: Future[Accepted]) -> Accepted:
        self._under_way = None
        self._listening.take_back()
        try:
            return accepting.result()
        except Exception as error:
            return Accepted(None, None, TransportError(f"a connection was not accepted: {error}"))

    def close(self) -> Accepted | None:
        """Accept no more. What is under way is waited for, and the caller's to end."""
        accepting = self._under_way
        self._pool.shutdown()
        return None if accepting is None else self._end(accepting)
