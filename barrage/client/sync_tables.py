"""Tables on the server, for the synchronous client."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import TYPE_CHECKING

from barrage.client.closing import ClosedByWith
from barrage.client.query_methods import QueryMethods
from barrage.client.remote_table import TIMEOUT_SECONDS
from barrage.client.sync_loop import CLOSE_TIMEOUT_SECONDS
from barrage.client.sync_ticking import TickingTable
from barrage.errors import SubscriptionClosedError
from barrage.proto.resumption import ResumeMode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    import pyarrow as pa

    from barrage.client.arrow_input import TableLike
    from barrage.client.history import Moment
    from barrage.client.query_steps import Step
    from barrage.client.reconnect import Backoff
    from barrage.client.remote_table import AsyncInputTable, AsyncRemoteTable
    from barrage.client.rows_argument import RowsArgument
    from barrage.client.state import State
    from barrage.client.sync_loop import LoopThread
    from barrage.client.table_info import TableInfo
    from barrage.client.table_sources import TableSource
    from barrage.client.update import Update
    from barrage.model.cursor import Cursor


class RemoteTable(ClosedByWith, QueryMethods["RemoteTable"]):
    """A table on the server, or a query to it; see :class:`AsyncRemoteTable`."""

    def __init__(self, table: AsyncRemoteTable, thread: LoopThread) -> None:
        self._table = table
        self._thread = thread

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
        resume: ResumeMode | str = ResumeMode.COALESCED,
        resume_from: Cursor | str | None = None,
        rows: pa.Table | None = None,
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
            resume=resume,
            resume_from=resume_from,
            rows=rows,
        )

        async def open_it() -> TickingTable:
            # On the loop, before anything can arrive: no state and no error is missed.
            table = TickingTable(await opening, self._thread)
            table.listen(on_state=on_state, on_error=on_error)
            return table

        table = self._thread.call(open_it(), TIMEOUT_SECONDS)
        if on_update is not None:
            table.on_update(on_update)
        return table

    def as_of(
        self,
        moment: Moment,
        *,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> pa.Table:
        """See :meth:`AsyncRemoteTable.as_of`."""
        return self._thread.call(self._table.as_of(moment, columns=columns), timeout)

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
        """See :meth:`AsyncRemoteTable.changes`. ``timeout`` is the longest wait for one batch."""
        batches = self._table.changes(
            start,
            stop,
            columns=columns,
            preimage=preimage,
            net=net,
            row_key=row_key,
            modified_columns=modified_columns,
        )
        return self._batches(batches, timeout)

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

    def publish_shared(
        self, ticket: bytes | None = None, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> bytes:
        """See :meth:`AsyncRemoteTable.publish_shared`."""
        return self._thread.call(self._table.publish_shared(ticket, timeout=None), timeout)

    @property
    def is_closed(self) -> bool:
        return self._table.is_closed

    def close(self) -> None:
        """Give back what the server holds for this handle; subscriptions go on. Idempotent and
        quiet."""
        self._table.give_back()

    def _query_source(self) -> TableSource:
        return self._table._query_source()

    def _with_steps(self, steps: Sequence[Step]) -> RemoteTable:
        return RemoteTable(self._table._with_steps(steps), self._thread)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{', closed' if self.is_closed else ''}>"


class InputTable(RemoteTable):
    """A table that rows can be added to and deleted from; see :class:`AsyncInputTable`."""

    def __init__(self, table: AsyncInputTable, thread: LoopThread) -> None:
        super().__init__(table, thread)
        self._input = table

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart; none when rows are only added."""
        return self._thread.call(self._input.key(), TIMEOUT_SECONDS)

    def add(self, rows: TableLike, *, timeout: float | None = TIMEOUT_SECONDS) -> int:
        """See :meth:`AsyncInputTable.add`."""
        return self._thread.call(self._input.add(rows, timeout=None), timeout)

    def delete(self, rows: TableLike, *, timeout: float | None = TIMEOUT_SECONDS) -> int:
        """See :meth:`AsyncInputTable.delete`."""
        return self._thread.call(self._input.delete(rows, timeout=None), timeout)
