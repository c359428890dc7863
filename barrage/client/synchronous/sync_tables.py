# Written by scripts/sync_client.py (make generated); do not edit.
# It follows from barrage/client/tables/remote_table.py.
"""Tables on the server, for the synchronous client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.client.notebook.showing import HEIGHT
from barrage.client.queries.query_methods import QueryMethods
from barrage.client.synchronous.on_thread import TableOnThread
from barrage.client.synchronous.sync_ticking import TickingTable
from barrage.client.tables.remote_table import TIMEOUT_SECONDS
from barrage.proto.resumption import ResumeMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from barrage.client.connection.reconnect import Backoff
    from barrage.client.connection.table_info import TableInfo
    from barrage.client.connection.table_sources import TableSource
    from barrage.client.notebook.first_rows import FirstRows
    from barrage.client.notebook.widget import LiveTable
    from barrage.client.queries.query_steps import Step
    from barrage.client.subscriptions.rows_argument import RowsArgument
    from barrage.client.subscriptions.state import State
    from barrage.client.synchronous.sync_loop import LoopThread
    from barrage.client.tables.history import Moment
    from barrage.client.tables.remote_table import AsyncInputTable
    from barrage.client.updates.update import Update
    from barrage.client.writing.arrow_input import TableLike
    from barrage.model.cursor import Cursor


class RemoteTable(TableOnThread, QueryMethods["RemoteTable"]):
    """A table on the server, or a query to it.

    A handle of what the session exported gives it back when it is closed or collected;
    subscriptions that were opened go on.
    """

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def schema(self) -> pa.Schema:
        """The columns; asked of the server, unless the session exported the table."""
        return self._thread.call(self._table.schema(timeout=None), TIMEOUT_SECONDS)

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
        jobs: int = 1,
        on_query: Callable[[float], None] | None = None,
    ) -> pa.Table:
        """The rows at one moment, in table order; ``on_progress`` gets the bytes received so far.

        ``rows`` are positions; with ``reverse`` counted from the end. With ``jobs`` above 1 the
        server keeps the rows while their ranges are read, so many at a time; ``on_query`` gets how
        far it has got with the query, from 0 to 1. ``on_progress`` and ``on_query`` run on the
        session's thread.
        """
        work = self._table.snapshot(
            columns=columns,
            rows=rows,
            reverse=reverse,
            timeout=None,
            on_progress=on_progress,
            jobs=jobs,
            on_query=on_query,
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
        resume: ResumeMode | str = ResumeMode.COALESCED,
        resume_from: Cursor | str | None = None,
        rows: pa.Table | None = None,
        on_update: Callable[[Update], None] | None = None,
        on_state: Callable[[State], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> TickingTable:
        """Keep a copy up to date: ``with table.subscribe() as live`` or ``live =
        table.subscribe()``.

        ``viewport`` None is the whole table. ``interval_ms`` is the shortest time between two
        updates, 0 the server's default. Does not wait for data: ``live.wait_ready(timeout)`` does.

        After a lost connection the subscription goes on from the rows it holds where the server
        keeps the table's history: ``resume`` ``"coalesced"`` brings what was missed as one update,
        ``"steps"`` as the updates of before, ``"off"`` a new snapshot. ``resume_from`` and ``rows``
        go on from the ``checkpoint()`` of another process in the same way. Callbacks run on threads
        of the table.
        """
        work = self._table.subscribe(
            columns=columns,
            viewport=viewport,
            reverse=reverse,
            interval_ms=interval_ms,
            preview_list_length_limit=preview_list_length_limit,
            reconnect=reconnect,
            resume=resume,
            resume_from=resume_from,
            rows=rows,
        )
        return TickingTable._opened(
            work, self._thread, on_update=on_update, on_state=on_state, on_error=on_error
        )

    def show(
        self, *, height: int = HEIGHT, timeout: float | None = TIMEOUT_SECONDS
    ) -> LiveTable | FirstRows:
        """What a notebook displays as a live grid, ``height`` pixels high: rows in sight come by
        way of this session. Without a notebook, or the extra ``notebook``, the first rows as they
        are now. TableNotFoundError."""
        showing = self._table._showing(height=height)
        return self._thread.call(showing, timeout).displayed()

    def as_of(
        self, moment: Moment, *, columns: Sequence[str] | None = None, timeout: float | None = None
    ) -> pa.Table:
        """The rows as they were: at a step, a cursor or a time. ``where`` may come before it, other
        operators not. NoJournalError, HistoryLostError."""
        return self._thread.call(self._table.as_of(moment, columns=columns, timeout=None), timeout)

    def changes(
        self,
        start: Moment,
        stop: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        preimage: bool = False,
        net: bool = False,
        row_key: bool = False,
        modified_columns: bool = False,
        timeout: float | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """What changed after ``start``, up to and with ``stop`` (None: the newest version), oldest
        first, as batches of the change feed: ``_change_type`` (insert, update_postimage, delete),
        ``_commit_version``, ``_commit_timestamp``, ``_row_id``, then the table's columns.

        ``preimage`` adds rows as they were before updates, ``net`` leaves only the last change of
        each row, ``row_key`` and ``modified_columns`` add columns. ``where`` may come before it.
        ``timeout`` is the longest wait for one batch.
        """
        work = self._table.changes(
            start,
            stop,
            columns=columns,
            preimage=preimage,
            net=net,
            row_key=row_key,
            modified_columns=modified_columns,
        )
        return self._batches(work, timeout)

    def publish_shared(
        self, ticket: bytes | None = None, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> bytes:
        """Let other sessions find the table by a shared ticket, which is returned: ``ticket``, or
        one nobody can guess. It is valid until this session ends; TableExistsError when it is
        taken."""
        return self._thread.call(self._table.publish_shared(ticket, timeout=None), timeout)

    @property
    def is_closed(self) -> bool:
        return self._table.is_closed

    def _query_source(self) -> TableSource:
        return self._table._query_source()

    def _with_steps(self, steps: Sequence[Step]) -> RemoteTable:
        return RemoteTable(self._table._with_steps(steps), self._thread)


class InputTable(RemoteTable):
    """A table that rows can be added to and deleted from."""

    _table: AsyncInputTable

    def __init__(self, table: AsyncInputTable, thread: LoopThread) -> None:
        super().__init__(table, thread)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart; none when rows are only added."""
        return self._thread.call(self._table.key(), TIMEOUT_SECONDS)

    def add(self, rows: TableLike, *, timeout: float | None = TIMEOUT_SECONDS) -> int:
        """Add rows, in a table with a key replacing those with the same one; how many there were.

        SchemaError or RowError, before anything is sent, when they do not fit.
        """
        return self._thread.call(self._table.add(rows, timeout=None), timeout)

    def delete(self, rows: TableLike, *, timeout: float | None = TIMEOUT_SECONDS) -> int:
        """Delete the rows with these keys; other columns are ignored. How many keys there were."""
        return self._thread.call(self._table.delete(rows, timeout=None), timeout)
