"""What the synchronous classes do themselves: they hold an object of the asyncio client and the
thread it lives on.

All they pass on is written by ``scripts/sync_client.py`` from the asynchronous classes, in the
modules beside this one.
"""

from __future__ import annotations

import atexit
import weakref
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from barrage.client.notebook.perspective_mirror import MIRROR, PerspectiveMirror
from barrage.client.notebook.showing import HEIGHT
from barrage.client.notebook.shown_live import html_of
from barrage.client.synchronous.callbacks import CallbackThreads, close_all
from barrage.client.synchronous.sync_loop import (
    CLOSE_TIMEOUT_SECONDS,
    ClosedByWith,
    LoopThread,
    opened,
)
from barrage.client.tables.remote_table import TIMEOUT_SECONDS
from barrage.errors import SubscriptionClosedError, WorkerDiedError
from barrage.supervision import no_dependants, start_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    import pyarrow as pa

    from barrage.client.connection.opening import Opening
    from barrage.client.notebook.first_rows import FirstRows
    from barrage.client.notebook.widget import LiveTable
    from barrage.client.session import AsyncSession
    from barrage.client.subscriptions.state import State
    from barrage.client.subscriptions.subscription import AsyncTickingTable
    from barrage.client.tables.remote_table import AsyncRemoteTable
    from barrage.client.updates.update import Update
    from barrage.client.updates.update_queue import UpdateQueue
    from barrage.client.writing.writer import AsyncWriter


K = TypeVar("K", bound="TickingOnThread")


class SessionOnThread(ClosedByWith):
    """A session and its thread, which ends with it. Sessions left open are closed at exit."""

    def __init__(self, session: AsyncSession, thread: LoopThread) -> None:
        self._session = session
        self._thread = thread
        self._is_closed = False
        thread.on_death = session.fail
        _open_sessions.add(self)

    @classmethod
    def _opened(cls, uri: str | Sequence[str], opening: Opening[AsyncSession]) -> Self:
        name = uri if isinstance(uri, str) else ",".join(uri)
        thread = LoopThread(f"barrage client {name}")
        try:
            session = thread.call(opened(opening), None)
        except BaseException:
            thread.close()
            raise
        return cls(session, thread)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """End all subscriptions, the connection and the thread. Idempotent and quiet."""
        if self._is_closed:
            return
        self._is_closed = True
        _open_sessions.discard(self)
        try:
            self._thread.call(self._session.close(), CLOSE_TIMEOUT_SECONDS)
        except (TimeoutError, SubscriptionClosedError, WorkerDiedError):
            # The thread is ended anyway; closing never complains.
            pass
        finally:
            close_all(list(self._thread.callbacks))
            self._thread.close()

    def __repr__(self) -> str:
        state = ", closed" if self._is_closed else ""
        return f"<{type(self).__name__} {self._session.address.target}{state}>"


_open_sessions: weakref.WeakSet[SessionOnThread] = weakref.WeakSet()


def _close_all() -> None:
    for session in list(_open_sessions):
        session.close()


atexit.register(_close_all)


class TableOnThread(ClosedByWith):
    """A table on the server and the thread of its session."""

    def __init__(self, table: AsyncRemoteTable, thread: LoopThread) -> None:
        self._table = table
        self._thread = thread

    def close(self) -> None:
        """Give back what the server holds for this handle; subscriptions go on. Idempotent and
        quiet."""
        self._table.give_back()

    def _batches(
        self, batches: AsyncIterator[pa.RecordBatch], timeout: float | None
    ) -> Iterator[pa.RecordBatch]:
        async def next_batch() -> pa.RecordBatch | None:
            return await anext(batches, None)

        async def end() -> None:
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()

        try:
            while (batch := self._thread.call(next_batch(), timeout)) is not None:
                yield batch
        finally:
            with suppress(TimeoutError, SubscriptionClosedError):
                self._thread.call(end(), CLOSE_TIMEOUT_SECONDS)

    def __repr__(self) -> str:
        state = ", closed" if self._table.is_closed else ""
        return f"<{type(self).__name__} {self._table.name!r}{state}>"


class TickingOnThread(ClosedByWith):
    """A live table, the thread of its session, and those of its callbacks."""

    def __init__(self, table: AsyncTickingTable, thread: LoopThread) -> None:
        self._table = table
        self._thread = thread
        self._callbacks = CallbackThreads(table)
        thread.callbacks.add(self._callbacks)

    @classmethod
    def _opened(
        cls: type[K],
        opening: Opening[AsyncTickingTable],
        thread: LoopThread,
        *,
        on_update: Callable[[Update], None] | None,
        on_state: Callable[[State], None] | None,
        on_error: Callable[[Exception], None] | None,
    ) -> K:
        async def open_it() -> K:
            # On the loop, before anything can arrive: no state and no error is missed.
            table = cls(await opening, thread)
            table.listen(on_state=on_state, on_error=on_error)
            return table

        table = thread.call(open_it(), TIMEOUT_SECONDS)
        if on_update is not None:
            table._callbacks.on_update(on_update, table._follow)
        return table

    def listen(
        self,
        *,
        on_state: Callable[[State], None] | None,
        on_error: Callable[[Exception], None] | None,
    ) -> None:
        if on_state is not None:
            self._callbacks.on_state(on_state)
        if on_error is not None:
            self._callbacks.on_error(on_error)

    def __iter__(self) -> BlockingUpdates:
        return self._follow()

    def _follow(self, timeout: float | None = None) -> BlockingUpdates:
        queue = self._thread.call(self._open_queue(), TIMEOUT_SECONDS)
        return BlockingUpdates(queue, timeout)

    async def _open_queue(self) -> UpdateQueue:
        return self._table.open_queue()

    def show(
        self, *, height: int = HEIGHT, timeout: float | None = TIMEOUT_SECONDS
    ) -> LiveTable | FirstRows:
        """What a notebook displays as a live grid: all rows of the table that this one follows, of
        the same columns. See :meth:`RemoteTable.show`."""
        return self._thread.call(self._table._showing(height=height), timeout).displayed()

    def to_perspective(self, client: Any = None, *, name: str | None = None) -> Any:
        """A table of Perspective's with these rows, kept in step for as long as this one lives.
        ``client``: of the Perspective to have it, otherwise one of this process. Its index is the
        column ``_row``. Needs the extra ``perspective``, a subscription without a viewport, and its
        first state."""
        updates = self._follow()
        mirror = PerspectiveMirror(client, self._table.to_arrow().schema, name=name)
        mirror.apply(next(updates))
        start_thread(MIRROR, partial(mirror.follow, updates, self._follow), on_death=no_dependants)
        return mirror.table

    def _repr_html_(self) -> str | None:
        return html_of(self._table)

    def close(self) -> None:
        """End the subscription. Idempotent and quiet; the rows stay readable."""
        try:
            self._thread.call(self._table.close(), CLOSE_TIMEOUT_SECONDS)
        except (TimeoutError, SubscriptionClosedError, WorkerDiedError):
            # The session went first.
            pass
        finally:
            close_all([self._callbacks])

    def __repr__(self) -> str:
        return repr(self._table).replace("AsyncTickingTable", "TickingTable", 1)


class BlockingUpdates(ClosedByWith):
    """Updates of one table, in order and without gaps. Ends when the subscription is closed, raises
    what it died of."""

    def __init__(self, queue: UpdateQueue, timeout: float | None) -> None:
        self._queue = queue
        self._timeout = timeout

    def __iter__(self) -> BlockingUpdates:
        return self

    def __next__(self) -> Update:
        update = self._queue.next_blocking(self._timeout)
        if update is None:
            raise StopIteration
        return update

    def close(self) -> None:
        """Stop following; the subscription goes on without it. Idempotent."""
        self._queue.abandon()

    def __del__(self) -> None:
        # A loop that was left with ``break`` must not hold the stream for ever.
        self._queue.abandon()


class WriterOnThread:
    """A writer and the thread of its session."""

    def __init__(self, writer: AsyncWriter, thread: LoopThread) -> None:
        self._writer = writer
        self._thread = thread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        timeout = None if error is None else CLOSE_TIMEOUT_SECONDS
        self._thread.call(self._writer.__aexit__(kind, error, trace), timeout)

    def __repr__(self) -> str:
        return repr(self._writer).replace("AsyncWriter", "Writer", 1)
