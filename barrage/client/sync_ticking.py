"""Live tables of the synchronous client: reads are answered by the calling thread, everything else
by the session's loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.client.callbacks import CallbackThreads, close_all
from barrage.client.closing import ClosedByWith
from barrage.client.remote_table import TIMEOUT_SECONDS
from barrage.client.sync_loop import CLOSE_TIMEOUT_SECONDS
from barrage.errors import SubscriptionClosedError, WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from barrage.client.bodies import BodyStatus
    from barrage.client.rows_argument import RowsArgument
    from barrage.client.state import State, Stats
    from barrage.client.subscription import AsyncTickingTable
    from barrage.client.sync_loop import LoopThread
    from barrage.client.update import Update
    from barrage.client.update_queue import UpdateQueue
    from barrage.errors import BarrageError
    from barrage.model.cursor import Cursor


class TickingTable(ClosedByWith):
    """A live copy of a table, or of some of its rows and columns. Always one consistent state."""

    def __init__(self, table: AsyncTickingTable, thread: LoopThread) -> None:
        self._table = table
        self._thread = thread
        self._callbacks = CallbackThreads(table)
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

    @property
    def bodies(self) -> BodyStatus:
        """The way bodies of record batches may come on the latest stream, and why it is inline when
        it is. ``stats.bodies`` counts the ways they really came."""
        return self._table.bodies

    @property
    def cursor(self) -> Cursor | None:
        """The place of the state shown in the table's history; None where the server keeps none."""
        return self._table.cursor

    @property
    def resumption(self) -> str | None:
        """How the latest stream went on from the state shown before: ``live``, ``replayed 17
        steps`` or ``resnapshot (reason)``. None as long as none had to."""
        return self._table.resumption

    def checkpoint(self) -> tuple[Cursor | None, pa.Table]:
        """The cursor and the rows it names, which belong together: to be given to
        ``subscribe(resume_from=cursor, rows=rows)`` in another process."""
        return self._table.checkpoint()

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

        Bounded: while the consumer is slow, what waits for it is merged; nobody else is held up.
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
        except (TimeoutError, SubscriptionClosedError, WorkerDiedError):
            # The session went first.
            pass
        finally:
            close_all([self._callbacks])

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

    async def _open_queue(self) -> UpdateQueue:
        return self._table.open_queue()


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
