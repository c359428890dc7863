"""The tables of a server in this process, for asyncio: views, tables that are written,
transactions, and the calls of a server that make and find them.

The blocking form, :mod:`barrage.server.api.publish_tables`, is written from this file by
``scripts/sync_publisher.py``.

What both have and nobody waits for is in :mod:`barrage.server.api.table_handle`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, Unpack

from barrage.engine.operators.derive import BUILDERS
from barrage.engine.operators.snapshot import snapshot
from barrage.engine.tables.source import SourceTable
from barrage.server.api.operator_methods import OperatorMethods
from barrage.server.api.table_handle import ChangeList, SourceHandle, TableHandle, recipe_and_rows
from barrage.server.serving.serving import ServerBase
from barrage.supervision import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from barrage.engine.tables.table import Table
    from barrage.model.schema_like import SchemaLike
    from barrage.server.api.history import Moment
    from barrage.server.api.table_handle import Numbered
    from barrage.server.tables.table_service import TableService


class AsyncView(OperatorMethods[Coroutine[Any, Any, "AsyncView"]], TableHandle):
    """A derived table. It ticks with its parent and costs nothing once nobody refers to it."""

    async def to_arrow(self) -> pa.Table:
        """The rows as of the last cycle."""
        return await in_thread(self._service.read, self._table)

    async def as_of(self, moment: Moment) -> AsyncView:
        """A table of the rows as they were at a step, a cursor or a time, which never changes.
        NoJournalError, HistoryLostError."""
        rows = await in_thread(self._rows_at, moment)
        table = await asyncio.wrap_future(await in_thread(self._service.create_static, rows))
        return AsyncView(self._service, table, None)

    async def changes(self, after: Moment, upto: Moment | None = None, **options: Any) -> pa.Table:
        """What changed after one moment up to another (default: now), a row for each change with
        its kind, version, time and row id before the table's columns. NoJournalError,
        HistoryLostError."""
        return await in_thread(self._changes, after, upto, options)

    async def snapshot(self) -> AsyncView:
        """A table of the rows as of now, which never changes."""
        return await self._made(snapshot)

    async def _view(self, operator: str, /, *arguments: Any, **named: Any) -> AsyncView:
        return await self._made(BUILDERS[operator], *arguments, **named)

    async def _made(
        self, build: Callable[..., Table], /, *arguments: Any, **named: Any
    ) -> AsyncView:
        table = await asyncio.wrap_future(self._derived(build, *arguments, **named))
        return AsyncView(self._service, table, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label()}, {len(self)} rows>"


class AsyncPublishedTable(AsyncView, SourceHandle):
    """A source table: what is written here reaches every subscriber and every derived table.

    Rows may be Arrow, pandas, polars, anything with ``__arrow_c_stream__``, a list of dicts or a
    dict of lists. A batch is applied whole or not at all: SchemaError and RowError name what does
    not fit. To not wait, make a task.

    With a durable journal a write returns when it is on disk. It may be numbered by its
    ``producer``: with a ``sequence`` not larger than the last one the table has of that producer it
    is not applied again, so a program that cannot know whether a write got through just repeats it.
    """

    async def add(self, rows: Any, **numbered: Unpack[Numbered]) -> int:
        """Add rows at the end. Returns the step that committed them."""
        return await asyncio.wrap_future(self._change(self._add(rows), **numbered))

    async def upsert(self, rows: Any, **numbered: Unpack[Numbered]) -> int:
        """Replace the rows with these keys and add those whose key is new."""
        return await asyncio.wrap_future(self._change(self._upsert(rows), **numbered))

    async def remove(self, keys: Any, **numbered: Unpack[Numbered]) -> int:
        """Remove the rows with these keys: one value, a list of values or tuples, or rows that have
        the key columns. Keys that do not exist are ignored."""
        return await asyncio.wrap_future(self._change(self._remove(keys), **numbered))

    async def insert(self, position: int, rows: Any, **numbered: Unpack[Numbered]) -> int:
        """Insert rows before the row at ``position``."""
        return await asyncio.wrap_future(self._change(self._insert(position, rows), **numbered))

    async def delete(self, start: int, stop: int, **numbered: Unpack[Numbered]) -> int:
        """Delete the rows at positions ``start`` to ``stop - 1``."""
        return await asyncio.wrap_future(self._change(self._delete(start, stop), **numbered))

    async def replace(self, rows: Any, **numbered: Unpack[Numbered]) -> int:
        """Make these rows the whole content."""
        return await asyncio.wrap_future(self._change(self._replace(rows), **numbered))

    async def position(self, producer: str) -> int | None:
        """The last ``sequence`` the table has of a producer; None when it has none."""
        return await asyncio.wrap_future(self._last_position(producer))


class AsyncTransaction(ChangeList):
    """Changes of several tables that become visible in one cycle, all of them or none.

    Rows are checked as they are given; when the block ends everything is committed together, and an
    error there leaves every table as it was. A block left by an exception commits nothing.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        changes = self._end()
        if kind is None and changes:
            committed = self._service.change(changes, self._position)
            self.step = await asyncio.wrap_future(committed)


class AsyncServerTables(ServerBase):
    """What a server says and does about its tables."""

    async def create_table(
        self,
        name: str,
        schema: SchemaLike | None = None,
        *,
        key: str | Sequence[str] | None = None,
        kind: str | None = None,
        capacity: int | None = None,
        data: Any = None,
        is_read_only: bool = False,
        journal: str | None = None,
    ) -> AsyncPublishedTable:
        """Create and publish a table. ``kind`` is ``static``, ``append_only``, ``keyed``, ``list``,
        ``ring`` (the last ``capacity`` rows) or ``blink`` (rows live for one cycle); without it,
        keyed when there is a ``key``, ring when there is a ``capacity``, else append_only.

        ``schema`` is a pyarrow.Schema or a dict of name to type; without it, that of ``data``.
        Clients may write the table (DoPut, Deephaven's input tables) unless it ``is_read_only``.
        ``journal`` is ``durable``, ``memory`` or ``none``; without it, the server's default.
        Errors: TableExistsError, SchemaError, RowError.
        """
        recipe, rows = recipe_and_rows(
            name,
            schema,
            data,
            key=key,
            kind=kind,
            capacity=capacity,
            is_read_only=is_read_only,
            journal=journal,
        )
        made = await asyncio.wrap_future(await in_thread(self._parts.tables.create, recipe, rows))
        return AsyncPublishedTable(self._parts.tables, made.table, name)

    async def publish(
        self, name: str, view: TableHandle, *, is_read_only: bool = False
    ) -> AsyncView:
        """Publish a derived table (or another name for a table, which clients may write unless it
        ``is_read_only``). TableExistsError.

        Derived tables have no journal: after a restart they are published again by whoever
        publishes them, and so are other names."""
        published = self._parts.tables.publish(name, view._table, is_read_only=is_read_only)
        await asyncio.wrap_future(published)
        return AsyncView(self._parts.tables, view._table, name)

    async def drop_table(self, name: str) -> None:
        """Take a table out of the catalog; its subscriptions end with NOT_FOUND, and those of
        queries that name it. Tables derived from it here live on. TableNotFoundError."""
        await asyncio.wrap_future(self._parts.tables.drop(name))

    async def table(self, name: str) -> AsyncView:
        """The published table of that name: an AsyncPublishedTable when it can be written."""
        found = await asyncio.wrap_future(self._parts.tables.look_up(name))
        return _handle_of(self._parts.tables, found.table, name)

    async def table_names(self) -> list[str]:
        """Names of all published tables, sorted."""
        everything = await asyncio.wrap_future(self._parts.tables.all_facts())
        return [facts.name for facts in everything]

    def transaction(self, **numbered: Unpack[Numbered]) -> AsyncTransaction:
        """Changes of several tables in one atomic cycle, as a context manager. It may be numbered
        by a producer as a whole, like a write."""
        return AsyncTransaction(self._parts.tables, **numbered)


def _handle_of(service: TableService, table: Table, name: str) -> AsyncView:
    """The right handle for a published table."""
    kind = AsyncPublishedTable if isinstance(table, SourceTable) else AsyncView
    return kind(service, table, name)
