"""The synchronous client: the same names as the asyncio one, over a private loop on a thread of its
own.

Every blocking call takes a timeout and can be interrupted (Ctrl+C). A session owns one thread and
ends it when it is closed; sessions left open are closed at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, TypeVar

from barrage.client.callbacks import CallbackThread
from barrage.client.session import CONNECT_TIMEOUT_SECONDS, TIMEOUT_SECONDS, AsyncSession, aconnect
from barrage.errors import LocalProtocolError, SubscriptionClosedError
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from types import TracebackType

    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from barrage.client.address import Auth
    from barrage.client.arrow_input import TableLike
    from barrage.client.put import PutProgress
    from barrage.client.reconnect import Backoff
    from barrage.client.rows_argument import RowsArgument
    from barrage.client.session import AsyncRemoteTable, TableInfo
    from barrage.client.state import State, Stats
    from barrage.client.subscription import AsyncTickingTable
    from barrage.client.update import Update
    from barrage.client.update_queue import UpdateQueue
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.transport.grpc_channel import TLS

T = TypeVar("T")

CLOSE_TIMEOUT_SECONDS = 5.0


class LoopThread:
    """An event loop on a daemon thread."""

    def __init__(self, name: str) -> None:
        self.callbacks: weakref.WeakSet[CallbackThread] = weakref.WeakSet()
        """Threads of the session's tables, which end with it."""
        self._lock = threading.Lock()
        self._is_ending = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(_end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T:
        """Run ``work`` on the loop and wait for it. TimeoutError; an interrupt cancels it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise LocalProtocolError("the session's own thread would wait for itself here")
        with self._lock:
            # What is passed on before the end is ended with the loop; nothing comes after it, for
            # its caller would wait for ever.
            if self._is_ending:
                work.close()
                raise SubscriptionClosedError("the session is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise TimeoutError(f"no answer for {timeout} seconds") from None
        except CancelledError:
            raise SubscriptionClosedError("the session was closed meanwhile") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End what still runs on the loop, stop it and wait for the thread. Idempotent."""
        with self._lock:
            is_first, self._is_ending = not self._is_ending, True
        if is_first:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_SECONDS)


async def _end_tasks() -> None:
    """Cancel all other tasks of this loop and wait until they are done. Those that are being
    cancelled already may be waiting for something they began."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CLOSE_TIMEOUT_SECONDS)


class Session:
    """A connection to one server; close it or use it as a context manager."""

    def __init__(self, session: AsyncSession, thread: LoopThread) -> None:
        self._session = session
        self._thread = thread
        self._is_closed = False
        _open_sessions.add(self)

    def tables(self, *, timeout: float | None = TIMEOUT_SECONDS) -> list[TableInfo]:
        """Every table of the server."""
        return self._thread.call(self._session.tables(timeout=None), timeout)

    def table(self, name: str) -> RemoteTable:
        """A handle; nothing is sent until it is used."""
        return RemoteTable(self._session.table(name), self._thread)

    def put(
        self,
        name: str,
        data: TableLike,
        *,
        key: Sequence[str] | str | None = None,
        mode: str | None = None,
        on_progress: Callable[[PutProgress], None] | None = None,
        timeout: float | None = None,
    ) -> PutProgress:
        """See :meth:`AsyncSession.put`. ``on_progress`` runs on the session's thread."""
        work = self._session.put(name, data, key=key, mode=mode, on_progress=on_progress)
        return self._thread.call(work, timeout)

    def create_table(
        self,
        name: str,
        schema: pa.Schema,
        *,
        key: Sequence[str] | str | None = None,
        kind: str | None = None,
        capacity: int | None = None,
        timeout: float | None = TIMEOUT_SECONDS,
    ) -> RemoteTable:
        """See :meth:`AsyncSession.create_table`."""
        self._thread.call(
            self._session.create_table(
                name, schema, key=key, kind=kind, capacity=capacity, timeout=None
            ),
            timeout,
        )
        return self.table(name)

    def drop_table(self, name: str, *, timeout: float | None = TIMEOUT_SECONDS) -> None:
        """See :meth:`AsyncSession.drop_table`."""
        self._thread.call(self._session.drop_table(name, timeout=None), timeout)

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
        except (TimeoutError, SubscriptionClosedError):
            # The thread is ended anyway; closing never complains.
            pass
        finally:
            for callbacks in list(self._thread.callbacks):
                callbacks.close()
            self._thread.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self._session.address.target}{', closed' if self._is_closed else ''}>"


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _close_all() -> None:
    for session in list(_open_sessions):
        session.close()


atexit.register(_close_all)


class RemoteTable:
    """A table on the server."""

    def __init__(self, table: AsyncRemoteTable, thread: LoopThread) -> None:
        self._table = table
        self._thread = thread

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        """The columns, asked of the server each time."""
        return self.info().schema

    def info(self, *, timeout: float | None = TIMEOUT_SECONDS) -> TableInfo:
        """What the server says about the table."""
        return self._thread.call(self._table.info(timeout=None), timeout)

    def snapshot(
        self,
        *,
        columns: Sequence[str] | None = None,
        rows: RowsArgument = None,
        reverse: bool = False,
        timeout: float | None = None,
        on_progress: Callable[[int], None] | None = None,
    ) -> pa.Table:
        """See :meth:`AsyncRemoteTable.snapshot`. ``on_progress`` runs on the session's thread."""
        work = self._table.snapshot(
            columns=columns, rows=rows, reverse=reverse, on_progress=on_progress
        )
        return self._thread.call(work, timeout)

    def subscribe(
        self,
        *,
        columns: Sequence[str] | None = None,
        viewport: RowsArgument = None,
        reverse: bool = False,
        interval_ms: int = 0,
        preview_list_length_limit: int = 0,
        reconnect: bool | Backoff = True,
        on_update: Callable[[Update], None] | None = None,
        on_state: Callable[[State], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> TickingTable:
        """Keep a copy up to date; see :meth:`AsyncRemoteTable.subscribe`. Callbacks run on a thread
        of the table."""
        opening = self._table.subscribe(
            columns=columns,
            viewport=viewport,
            reverse=reverse,
            interval_ms=interval_ms,
            preview_list_length_limit=preview_list_length_limit,
            reconnect=reconnect,
        )

        async def open_it() -> TickingTable:
            # On the loop, before anything can arrive: no state and no error is missed.
            table = TickingTable(await opening, self._thread)
            table._listen(on_state=on_state, on_error=on_error)
            return table

        table = self._thread.call(open_it(), TIMEOUT_SECONDS)
        if on_update is not None:
            table.on_update(on_update)
        return table

    def __repr__(self) -> str:
        return f"<RemoteTable {self.name!r}>"


class TickingTable:
    """A live copy of a table, or of some of its rows and columns. Always one consistent state."""

    def __init__(self, table: AsyncTickingTable, thread: LoopThread) -> None:
        self._table = table
        self._thread = thread
        self._callbacks = CallbackThread(table)
        thread.callbacks.add(self._callbacks)

    # --- reading: answered by the calling thread ------------------------------------------------

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def state(self) -> State:
        return self._table.state

    @property
    def error(self) -> BarrageError | None:
        """Why the state is FAILED, or what the latest attempt to connect failed with."""
        return self._table.error

    @property
    def schema(self) -> pa.Schema:
        """Of the subscribed columns; BarrageError before the first state."""
        return self._table.schema

    @property
    def table_size(self) -> int:
        """Rows of the whole table on the server, as of the state shown."""
        return self._table.table_size

    @property
    def nbytes(self) -> int:
        """Memory the copy takes."""
        return self._table.nbytes

    @property
    def lag(self) -> float | None:
        """Seconds from commit to application of the newest update; None when the server does not
        say."""
        return self._table.lag

    @property
    def stats(self) -> Stats:
        return self._table.stats

    def __len__(self) -> int:
        return len(self._table)

    def to_arrow(self) -> pa.Table:
        """The rows now, as an immutable table."""
        return self._table.to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        return self._table.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        return self._table.to_polars()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return repr(self._table).replace("AsyncTickingTable", "TickingTable", 1)

    # --- following ------------------------------------------------------------------------------

    def wait_ready(self, timeout: float | None = None) -> TickingTable:
        """Until the state shown is that of the latest request. TimeoutError, or the error it died
        of."""
        self._thread.call(self._table.wait_ready(timeout), None)
        return self

    def updates(self, timeout: float | None = None) -> BlockingUpdates:
        """Follow the table from now on. The first update is the whole state (``is_replacement``).

        Bounded: when the consumer is slow, reading pauses and the server merges what follows.
        ``timeout`` is the longest wait for one update; then TimeoutError, and the iterator may be
        used again.
        """
        queue = self._thread.call(self._open_queue(), TIMEOUT_SECONDS)
        return BlockingUpdates(queue, timeout)

    def __iter__(self) -> BlockingUpdates:
        return self.updates()

    def on_update(self, callback: Callable[[Update], None]) -> Callable[[], None]:
        """Call ``callback(update)`` on a thread of this table, starting with the whole state.

        What it raises is logged, counted and given to ``on_error``. Returns what takes it back.
        """
        return self._callbacks.on_update(callback, self.updates)

    def on_state(self, callback: Callable[[State], None]) -> Callable[[], None]:
        """Call ``callback(state)`` at every change of state. Returns what takes it back."""
        return self._callbacks.on_state(callback)

    def on_error(self, callback: Callable[[Exception], None]) -> Callable[[], None]:
        """Call ``callback(error)`` for what callbacks raise, lost connections, and the final
        error."""
        return self._callbacks.on_error(callback)

    # --- changing -------------------------------------------------------------------------------

    def set_viewport(
        self,
        rows: RowsArgument,
        *,
        reverse: bool = False,
        timeout: float | None = TIMEOUT_SECONDS,
    ) -> None:
        """Show other rows. The old rows stay until the new ones are in; ``wait_ready`` waits for
        them."""
        self._thread.call(self._table.set_viewport(rows, reverse=reverse), timeout)

    def set_columns(
        self, columns: Sequence[str] | None, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> None:
        """Show other columns; None for all. Needs a viewport."""
        self._thread.call(self._table.set_columns(columns), timeout)

    def close(self) -> None:
        """End the subscription. Idempotent and quiet; the rows stay readable."""
        try:
            self._thread.call(self._table.close(), CLOSE_TIMEOUT_SECONDS)
        except (TimeoutError, SubscriptionClosedError):
            # The session went first.
            pass
        finally:
            self._callbacks.close()

    def __enter__(self) -> TickingTable:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _listen(
        self,
        *,
        on_state: Callable[[State], None] | None,
        on_error: Callable[[Exception], None] | None,
    ) -> None:
        if on_state is not None:
            self._callbacks.on_state(on_state)
        if on_error is not None:
            self._callbacks.on_error(on_error)

    async def _open_queue(self) -> UpdateQueue:
        return self._table.open_queue()


class BlockingUpdates:
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

    def __enter__(self) -> BlockingUpdates:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # A loop that was left with ``break`` must not hold the stream for ever.
        self._queue.abandon()


def connect(
    uri: str,
    *,
    auth: Auth = None,
    tls: TLS | None = None,
    revision: WireRevision | str = WireRevision.R1_0_0,
    timeout: float | None = CONNECT_TIMEOUT_SECONDS,
    limits: Limits = DEFAULT_LIMITS,
) -> Session:
    """Connect to ``grpc://host:port`` (or ``dh://host:port``, a Deephaven server); see
    :func:`aconnect`."""
    thread = LoopThread(f"barrage client {uri}")

    async def open_it() -> AsyncSession:
        return await aconnect(
            uri, auth=auth, tls=tls, revision=revision, timeout=timeout, limits=limits
        )

    try:
        session = thread.call(open_it(), None)
    except BaseException:
        thread.close()
        raise
    return Session(session, thread)
