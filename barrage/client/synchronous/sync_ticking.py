# Written by scripts/sync_client.py (make generated); do not edit.
# It follows from barrage/client/subscriptions/subscription.py.
"""Live tables of the synchronous client: reads are answered by the calling thread,
everything else by the session's loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.client.synchronous.on_thread import TickingOnThread
from barrage.client.tables.remote_table import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from barrage.client.bodies.bodies import BodyStatus
    from barrage.client.subscriptions.rows_argument import RowsArgument
    from barrage.client.subscriptions.state import State, Stats
    from barrage.client.synchronous.on_thread import BlockingUpdates
    from barrage.client.updates.update import Update
    from barrage.errors import BarrageError
    from barrage.model.cursor import Cursor


class TickingTable(TickingOnThread):
    """A live copy of a table, or of some of its rows and columns. Always one consistent state.
    Reads are answered by the calling thread."""

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
        """Seconds from the commit on the server to the application here, of the newest update that
        says when it was committed; needs synchronised clocks. None when the server does not say."""
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

    def wait_ready(self, timeout: float | None = None) -> TickingTable:
        """Until the state shown is that of the latest request. TimeoutError, ServerFailedError when
        only a restart of the server helps, or the error the subscription died of. Returns the
        table."""
        self._thread.call(self._table.wait_ready(timeout), None)
        return self

    def updates(self, timeout: float | None = None) -> BlockingUpdates:
        """Follow the table from now on. The first update is the whole state (``is_replacement``).

        Bounded: while the consumer is slow, what waits for it is merged; nobody else is held up.
        ``timeout`` is the longest wait for one update; then TimeoutError, and the iterator may be
        used again.
        """
        return self._follow(timeout)

    def on_update(self, callback: Callable[[Update], None]) -> Callable[[], None]:
        """Call ``callback(update)`` for every update, starting with the whole state. Returns what
        takes it back.

        What it raises is logged, counted and given to ``on_error``; the subscription lives on. It
        runs on a thread of this table.
        """
        return self._callbacks.on_update(callback, self._follow)

    def on_state(self, callback: Callable[[State], None]) -> Callable[[], None]:
        """Call ``callback(state)`` at every change of state. Returns what takes it back."""
        return self._callbacks.on_state(callback)

    def on_error(self, callback: Callable[[Exception], None]) -> Callable[[], None]:
        """Call ``callback(error)`` for what callbacks raise, lost connections, and the final error.
        Returns what takes it back."""
        return self._callbacks.on_error(callback)

    def set_viewport(
        self, rows: RowsArgument, *, reverse: bool = False, timeout: float | None = TIMEOUT_SECONDS
    ) -> None:
        """Show other rows. The old rows stay until the new ones are in; ``wait_ready`` waits for
        them."""
        self._thread.call(self._table.set_viewport(rows, reverse=reverse), timeout)

    def set_columns(
        self, columns: Sequence[str] | None, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> None:
        """Show other columns; None for all. Needs a viewport, as only such subscriptions can
        change."""
        self._thread.call(self._table.set_columns(columns), timeout)
