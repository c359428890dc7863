"""Tables on the server, for asyncio: :class:`AsyncRemoteTable` and :class:`AsyncInputTable`."""

from __future__ import annotations

import asyncio
import logging
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from barrage.client.bodies.body_stream import OfferedChannel
from barrage.client.connection.opening import Opening
from barrage.client.connection.reconnect import Backoff
from barrage.client.connection.table_info import key_columns
from barrage.client.deephaven.input_tables import add_rows, delete_rows
from barrage.client.notebook.first_rows import ROWS_SHOWN, FirstRows
from barrage.client.notebook.showing import HEIGHT, Showing, height_of, shown_of
from barrage.client.queries.query import with_steps
from barrage.client.queries.query_methods import QueryMethods
from barrage.client.subscriptions.resume import kept_state
from barrage.client.subscriptions.rows_argument import (
    RowsArgument,
    column_indices,
    column_names,
    viewport_of,
)
from barrage.client.subscriptions.state import SubscriptionSettings
from barrage.client.tables.bulk_snapshot import CELLS_MIN, fetch_bulk_snapshot
from barrage.client.tables.history import ChangeOptions, TableHistory
from barrage.client.tables.parallel_snapshot import JOBS_MAX, ParallelSnapshot
from barrage.client.tables.snapshot import fetch_snapshot
from barrage.errors import BodyChannelError, ConfigError, SubscriptionClosedError
from barrage.proto.resumption import ResumeMode
from barrage.wire.messages import SnapshotOptions, SubscriptionOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from typing import Self

    import pyarrow as pa

    from barrage.client.connection.table_info import TableInfo
    from barrage.client.connection.table_sources import ExportSource, TableSource
    from barrage.client.notebook.widget import LiveTable
    from barrage.client.queries.query_steps import Step
    from barrage.client.subscriptions.subscription import AsyncTickingTable
    from barrage.client.tables.history import Moment
    from barrage.client.writing.arrow_input import TableLike
    from barrage.model.cursor import Cursor
    from barrage.model.viewport import Viewport
    from barrage.transport.base import Address

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 30.0
"""Default timeout of calls that answer once."""

COLUMNS_USUAL_MAX = 100
"""Rows times this below the bulk threshold: do not even ask how many columns there are."""


class TableSession(Protocol):
    """What tables need of the session they belong to."""

    @property
    def address(self) -> Address:
        """Of the server."""
        ...

    def subscribe(self, settings: SubscriptionSettings) -> AsyncTickingTable:
        """Begin a subscription that ends with the session. SubscriptionClosedError."""
        ...

    async def publish(
        self, source: TableSource, ticket: bytes | None, *, timeout: float | None
    ) -> bytes:
        """See :meth:`AsyncRemoteTable.publish_shared`."""
        ...


class AsyncRemoteTable(QueryMethods["AsyncRemoteTable"]):
    """A table on the server, or a query to it.

    A handle of what the session exported gives it back when it is closed or collected;
    subscriptions that were opened go on.
    """

    def __init__(self, session: TableSession, source: TableSource) -> None:
        self._session = session
        self._source = source
        source.retain()
        self._giving_back = weakref.finalize(self, source.release)
        # At exit the server notices that the connection is gone.
        self._giving_back.atexit = False

    @property
    def name(self) -> str:
        return self._source.label

    async def schema(self, *, timeout: float | None = TIMEOUT_SECONDS) -> pa.Schema:
        """The columns; asked of the server, unless the session exported the table."""
        source = self._open_source()
        return await source.read(lambda: source.schema(timeout))

    async def info(self, *, timeout: float | None = TIMEOUT_SECONDS) -> TableInfo:
        """What the server says about the table."""
        source = self._open_source()
        return await source.read(lambda: source.info(timeout))

    async def snapshot(
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
        far it has got with the query, from 0 to 1.
        """
        viewport = viewport_of(rows, reverse=reverse)
        names = column_names(columns)
        if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= JOBS_MAX:
            raise ConfigError(f"jobs is {jobs!r}, it must be from 1 to {JOBS_MAX}")
        source = self._open_source()
        async with asyncio.timeout(timeout):
            wanted = self._part(names, viewport) if jobs > 1 else None
            if wanted is not None:
                work = partial(wanted._in_parallel, jobs, on_progress, on_query)
                table = await source.read(work)
                if table is not None:
                    return table
            return await source.read(
                lambda: self._snapshot(source, names, viewport, on_progress=on_progress)
            )

    def _part(
        self, columns: tuple[str, ...] | None, viewport: Viewport | None
    ) -> AsyncRemoteTable | None:
        """These columns and rows as a query; None when they are none, or come in one stream."""
        connection = self._open_source().connection
        if connection.address.is_deephaven or not connection.has_bulk_client:
            return None
        table = self if columns is None else self.select(*columns)
        if viewport is None:
            return table
        positions = viewport.positions
        if positions.range_count != 1:
            return None
        first, stop = positions.first, positions.last + 1
        return table.slice(-stop, -first) if viewport.is_reverse else table.slice(first, stop)

    async def _in_parallel(
        self,
        jobs: int,
        on_progress: Callable[[int], None] | None,
        on_query: Callable[[float], None] | None,
    ) -> pa.Table | None:
        """All rows, read in parts; None when the server does not keep any, or cannot be asked so.
        Every call is a read of its own."""
        source = self._open_source()
        if not source.connection.has_bulk_client:
            return None
        reading = ParallelSnapshot(
            source.connection,
            table=source.label,
            jobs=jobs,
            on_progress=on_progress,
            on_query=on_query,
        )
        return await reading.run(await source.ticket())

    async def _snapshot(
        self,
        source: TableSource,
        columns: tuple[str, ...] | None,
        viewport: Viewport | None,
        *,
        on_progress: Callable[[int], None] | None,
    ) -> pa.Table:
        connection, bodies = source.connection, source.connection.bodies
        has_bulk = connection.has_bulk_client and columns is None
        is_large = (has_bulk or bodies.can_ask) and await _is_large(source, columns, viewport)
        if bodies.can_ask if is_large else bodies.is_ready:
            try:
                table = await self._fetch(
                    source, columns, viewport, on_progress=on_progress, tries=True
                )
            except BodyChannelError as error:
                logger.info("table %s: the snapshot is repeated inline: %s", source.label, error)
            else:
                if table is not None:
                    return table
        if has_bulk and is_large:
            return await fetch_bulk_snapshot(
                connection.bulk_client(),
                table=source.label,
                ticket=await source.ticket(),
                viewport=viewport,
                options=SnapshotOptions(max_message_size=connection.message_bytes),
                headers=connection.call_headers(),
                limits=connection.limits,
                on_progress=on_progress,
            )
        table = await self._fetch(source, columns, viewport, on_progress=on_progress)
        assert table is not None
        return table

    async def _fetch(
        self,
        source: TableSource,
        columns: tuple[str, ...] | None,
        viewport: Viewport | None,
        *,
        on_progress: Callable[[int], None] | None,
        tries: bool = False,
    ) -> pa.Table | None:
        """The snapshot through our own stream. ``tries``: with bodies outside of it, or None when
        they cannot be had."""
        connection = source.connection
        indices = None
        if columns is not None:
            indices = column_indices(await source.schema(TIMEOUT_SECONDS), columns)
        ticket = await source.ticket()
        with await connection.body_channel() if tries else OfferedChannel(None) as channel:
            if tries and not channel.is_there:
                return None
            stream = connection.open_bodies(source.label, channel)
        table = await fetch_snapshot(
            stream,
            ticket=ticket,
            columns=indices,
            viewport=viewport,
            options=SnapshotOptions(max_message_size=connection.message_bytes),
            revision=connection.revision,
            limits=connection.limits,
            on_progress=on_progress,
        )
        return table if columns is None else table.select(list(columns))

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
    ) -> Opening[AsyncTickingTable]:
        """Keep a copy up to date: ``async with table.subscribe() as live`` or ``live = await
        table.subscribe()``.

        ``viewport`` None is the whole table. ``interval_ms`` is the shortest time between two
        updates, 0 the server's default. Does not wait for data: ``await live.wait_ready(timeout)``
        does.

        After a lost connection the subscription goes on from the rows it holds where the server
        keeps the table's history: ``resume`` ``"coalesced"`` brings what was missed as one update,
        ``"steps"`` as the updates of before, ``"off"`` a new snapshot. ``resume_from`` and ``rows``
        go on from the ``checkpoint()`` of another process in the same way.
        """
        source = self._open_source()
        options = SubscriptionOptions(
            min_update_interval_ms=_whole("interval_ms", interval_ms, bits=32, minimum=0),
            max_message_size=source.connection.message_bytes,
            preview_list_length_limit=_whole(
                "preview_list_length_limit", preview_list_length_limit, bits=64
            ),
        )
        settings = SubscriptionSettings(
            source=source,
            columns=column_names(columns),
            viewport=viewport_of(viewport, reverse=reverse),
            options=options,
            reconnects=reconnect is not False,
            backoff=_backoff_of(reconnect),
            resume=ResumeMode.parse(resume),
            kept=kept_state(resume_from, rows),
        )

        async def open_it() -> AsyncTickingTable:
            return self._session.subscribe(settings)

        return Opening(open_it)

    async def show(
        self, *, height: int = HEIGHT, timeout: float | None = TIMEOUT_SECONDS
    ) -> LiveTable | FirstRows:
        """What a notebook displays as a live grid, ``height`` pixels high: rows in sight come by
        way of this session. Without a notebook, or the extra ``notebook``, the first rows as they
        are now. TableNotFoundError."""
        return (await self._showing(height=height, timeout=timeout)).displayed()

    async def _showing(self, *, height: int = HEIGHT, timeout: float | None = None) -> Showing:
        """What :meth:`show` needs of the server."""
        source = self._open_source()
        checked = height_of(height)
        async with asyncio.timeout(timeout):
            rows = await self.snapshot(rows=(0, ROWS_SHOWN))
            total = (await self.info(timeout=timeout)).total_records
            shown = await shown_of(source)
        return Showing(
            rows=FirstRows(name=self.name, rows=rows, total=total),
            shown=shown,
            connection=source.connection,
            loop=asyncio.get_running_loop(),
            height=checked,
        )

    def history(self) -> TableHistory:
        """The table's journal. ``where`` may come before it, other operators not."""
        return TableHistory(self._open_source())

    async def as_of(
        self,
        moment: Moment,
        *,
        columns: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> pa.Table:
        """The rows as they were: at a step, a cursor or a time. ``where`` may come before it, other
        operators not. NoJournalError, HistoryLostError."""
        history = self.history()
        async with asyncio.timeout(timeout):
            return await history.as_of(moment, ChangeOptions(columns=column_names(columns)))

    async def changes(
        self,
        start: Moment,
        stop: Moment | None = None,
        *,
        columns: Sequence[str] | None = None,
        preimage: bool = False,
        net: bool = False,
        row_key: bool = False,
        modified_columns: bool = False,
    ) -> AsyncIterator[pa.RecordBatch]:
        """What changed after ``start``, up to and with ``stop`` (None: the newest version), oldest
        first, as batches of the change feed: ``_change_type`` (insert, update_postimage, delete),
        ``_commit_version``, ``_commit_timestamp``, ``_row_id``, then the table's columns.

        ``preimage`` adds rows as they were before updates, ``net`` leaves only the last change of
        each row, ``row_key`` and ``modified_columns`` add columns. ``where`` may come before it.
        """
        options = ChangeOptions(
            columns=column_names(columns),
            preimage=preimage,
            net=net,
            row_key=row_key,
            modified_columns=modified_columns,
        )
        async with self.history().changes(start, stop, options) as read:
            async for batch in read.batches():
                yield batch

    async def publish_shared(
        self, ticket: bytes | None = None, *, timeout: float | None = TIMEOUT_SECONDS
    ) -> bytes:
        """Let other sessions find the table by a shared ticket, which is returned: ``ticket``, or
        one nobody can guess. It is valid until this session ends; TableExistsError when it is
        taken."""
        return await self._session.publish(self._open_source(), ticket, timeout=timeout)

    @property
    def is_closed(self) -> bool:
        return not self._giving_back.alive

    async def close(self) -> None:
        """Give back what the server holds for this handle; subscriptions go on. Idempotent."""
        self.give_back()

    def give_back(self) -> None:
        """What :meth:`close` does, from any thread and without waiting."""
        self._giving_back()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open_source(self) -> TableSource:
        if self.is_closed:
            raise SubscriptionClosedError(f"table {self.name!r} is closed")
        return self._source

    def _query_source(self) -> TableSource:
        return self._open_source()

    def _with_steps(self, steps: Sequence[Step]) -> AsyncRemoteTable:
        return AsyncRemoteTable(self._session, with_steps(self._open_source(), steps))

    def __repr__(self) -> str:
        state = ", closed" if self.is_closed else ""
        return f"<{type(self).__name__} {self.name!r} on {self._session.address.target}{state}>"


async def _is_large(
    source: TableSource, columns: tuple[str, ...] | None, viewport: Viewport | None
) -> bool:
    """Whether the answer is worth more than a stream of the connection at hand, as far as one can
    know."""
    if viewport is not None and len(viewport.positions) * COLUMNS_USUAL_MAX < CELLS_MIN:
        return False
    info = await source.info(TIMEOUT_SECONDS)
    rows = info.total_records
    if viewport is not None:
        rows = len(viewport.resolve(rows) if rows is not None else viewport.positions)
    width = len(info.schema if columns is None else columns)
    return rows is not None and rows * width >= CELLS_MIN


class AsyncInputTable(AsyncRemoteTable):
    """A table that rows can be added to and deleted from."""

    def __init__(self, session: TableSession, source: ExportSource) -> None:
        super().__init__(session, source)
        self._export = source

    async def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart; none when rows are only added."""
        return key_columns(await self.schema())

    async def add(self, rows: TableLike, *, timeout: float | None = TIMEOUT_SECONDS) -> int:
        """Add rows, in a table with a key replacing those with the same one; how many there were.

        SchemaError or RowError, before anything is sent, when they do not fit.
        """
        source = self._open_export()

        async def work() -> int:
            target = await source.exported()
            return await add_rows(source.calls, target, rows, label=source.label)

        async with asyncio.timeout(timeout):
            return await source.connection.call(work)

    async def delete(self, rows: TableLike, *, timeout: float | None = TIMEOUT_SECONDS) -> int:
        """Delete the rows with these keys; other columns are ignored. How many keys there were."""
        source = self._open_export()

        async def work() -> int:
            target = await source.exported()
            key = key_columns(target.schema)
            return await delete_rows(source.calls, target, rows, key=key, label=source.label)

        async with asyncio.timeout(timeout):
            return await source.connection.call(work)

    def _open_export(self) -> ExportSource:
        self._open_source()
        return self._export


def _whole(name: str, value: int, *, bits: int, minimum: int | None = None) -> int:
    """``value`` if it fits a signed number of so many bits and is not below ``minimum``."""
    lowest = -(2 ** (bits - 1)) if minimum is None else minimum
    highest = 2 ** (bits - 1) - 1
    if not isinstance(value, int) or not lowest <= value <= highest:
        raise ConfigError(f"{name} is {value!r}, it must be a whole number {lowest} to {highest}")
    return value


def _backoff_of(reconnect: bool | Backoff) -> Backoff:
    """A backoff of the subscription's own: the caller may give one to several of them."""
    if isinstance(reconnect, bool):
        return Backoff()
    if not isinstance(reconnect, Backoff):
        raise ConfigError(f"reconnect is {reconnect!r}, it must be True, False or a Backoff")
    return replace(reconnect, attempt=0)
