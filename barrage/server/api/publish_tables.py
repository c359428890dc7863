# Written by scripts/sync_publisher.py (make generated); do not edit.
# It follows from barrage/server/api/publish_tables_async.py.
"""The tables of a server in this process: views, tables that are written,
transactions, and the calls of a server that make and find them.

What is awaited in :mod:`barrage.server.api.publish_tables_async` blocks here.

What both have and nobody waits for is in :mod:`barrage.server.api.table_handle`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from barrage.engine.operators.derive import BUILDERS
from barrage.engine.operators.snapshot import snapshot
from barrage.engine.tables.source import SourceTable
from barrage.server.api.operator_methods import OperatorMethods
from barrage.server.api.table_handle import ChangeList, SourceHandle, TableHandle, recipe_and_rows
from barrage.server.serving.serving import ServerBase

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from barrage.engine.tables.table import Table
    from barrage.model.schema_like import SchemaLike
    from barrage.server.api.history import Moment
    from barrage.server.api.table_handle import Numbered
    from barrage.server.tables.table_service import TableService


class View(OperatorMethods["View"], TableHandle):
    """A derived table. It ticks with its parent and costs nothing once nobody refers to it."""

    def to_arrow(self) -> pa.Table:
        """The rows as of the last cycle."""
        return self._service.read(self._table)

    def as_of(self, moment: Moment) -> View:
        """A table of the rows as they were at a step, a cursor or a time, which never changes.
        NoJournalError, HistoryLostError."""
        rows = self._rows_at(moment)
        table = self._service.create_static(rows).result()
        return View(self._service, table, None)

    def changes(self, after: Moment, upto: Moment | None = None, **options: Any) -> pa.Table:
        """What changed after one moment up to another (default: now), a row for each change with
        its kind, version, time and row id before the table's columns. NoJournalError,
        HistoryLostError."""
        return self._changes(after, upto, options)

    def snapshot(self) -> View:
        """A table of the rows as of now, which never changes."""
        return self._made(snapshot)

    def _view(self, operator: str, /, *arguments: Any, **named: Any) -> View:
        return self._made(BUILDERS[operator], *arguments, **named)

    def _made(self, build: Callable[..., Table], /, *arguments: Any, **named: Any) -> View:
        table = self._derived(build, *arguments, **named).result()
        return View(self._service, table, None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._label()}, {len(self)} rows>"


class PublishedTable(View, SourceHandle):
    """A source table: what is written here reaches every subscriber and every derived table.

    Rows may be Arrow, pandas, polars, anything with ``__arrow_c_stream__``, a list of dicts or a
    dict of lists. A batch is applied whole or not at all: SchemaError and RowError name what does
    not fit. With ``wait=False`` rows are still checked for their form at once; the future gets the
    step, or the error that only the engine can find (a null key, for example). Such calls block
    only while ``limits.ingest_bytes_pending_max`` bytes wait to be committed.

    With a durable journal a write returns when it is on disk. It may be numbered by its
    ``producer``: with a ``sequence`` not larger than the last one the table has of that producer it
    is not applied again, so a program that cannot know whether a write got through just repeats it.
    """

    @overload
    def add(
        self, rows: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def add(
        self, rows: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def add(
        self, rows: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Add rows at the end. Returns the step that committed them."""
        return self._commit(self._add(rows), wait, **numbered)

    @overload
    def upsert(
        self, rows: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def upsert(
        self, rows: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def upsert(
        self, rows: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Replace the rows with these keys and add those whose key is new."""
        return self._commit(self._upsert(rows), wait, **numbered)

    @overload
    def remove(
        self, keys: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def remove(
        self, keys: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def remove(
        self, keys: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Remove the rows with these keys: one value, a list of values or tuples, or rows that have
        the key columns. Keys that do not exist are ignored."""
        return self._commit(self._remove(keys), wait, **numbered)

    @overload
    def insert(
        self, position: int, rows: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def insert(
        self, position: int, rows: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def insert(
        self, position: int, rows: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Insert rows before the row at ``position``."""
        return self._commit(self._insert(position, rows), wait, **numbered)

    @overload
    def delete(
        self, start: int, stop: int, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def delete(
        self, start: int, stop: int, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def delete(
        self, start: int, stop: int, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Delete the rows at positions ``start`` to ``stop - 1``."""
        return self._commit(self._delete(start, stop), wait, **numbered)

    @overload
    def replace(
        self, rows: Any, *, wait: Literal[True] = True, **numbered: Unpack[Numbered]
    ) -> int: ...
    @overload
    def replace(
        self, rows: Any, *, wait: Literal[False], **numbered: Unpack[Numbered]
    ) -> Future[int]: ...
    def replace(
        self, rows: Any, *, wait: bool = True, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Make these rows the whole content."""
        return self._commit(self._replace(rows), wait, **numbered)

    def position(self, producer: str) -> int | None:
        """The last ``sequence`` the table has of a producer; None when it has none."""
        return self._last_position(producer).result()


class Transaction(ChangeList):
    """Changes of several tables that become visible in one cycle, all of them or none.

    Rows are checked as they are given; when the block ends everything is committed together, and an
    error there leaves every table as it was. A block left by an exception commits nothing.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        changes = self._end()
        if kind is None and changes:
            committed = self._service.change(changes, self._position)
            self.step = committed.result()


class ServerTables(ServerBase):
    """What a server says and does about its tables."""

    def create_table(
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
    ) -> PublishedTable:
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
        made = self._parts.tables.create(recipe, rows).result()
        return PublishedTable(self._parts.tables, made.table, name)

    def publish(self, name: str, view: TableHandle, *, is_read_only: bool = False) -> View:
        """Publish a derived table (or another name for a table, which clients may write unless it
        ``is_read_only``). TableExistsError.

        Derived tables have no journal: after a restart they are published again by whoever
        publishes them, and so are other names."""
        published = self._parts.tables.publish(name, view._table, is_read_only=is_read_only)
        published.result()
        return View(self._parts.tables, view._table, name)

    def drop_table(self, name: str) -> None:
        """Take a table out of the catalog; its subscriptions end with NOT_FOUND, and those of
        queries that name it. Tables derived from it here live on. TableNotFoundError."""
        self._parts.tables.drop(name).result()

    def table(self, name: str) -> View:
        """The published table of that name: a PublishedTable when it can be written."""
        found = self._parts.tables.look_up(name).result()
        return _handle_of(self._parts.tables, found.table, name)

    def table_names(self) -> list[str]:
        """Names of all published tables, sorted."""
        everything = self._parts.tables.all_facts().result()
        return [facts.name for facts in everything]

    def transaction(self, **numbered: Unpack[Numbered]) -> Transaction:
        """Changes of several tables in one atomic cycle, as a context manager. It may be numbered
        by a producer as a whole, like a write."""
        return Transaction(self._parts.tables, **numbered)


def _handle_of(service: TableService, table: Table, name: str) -> View:
    """The right handle for a published table."""
    kind = PublishedTable if isinstance(table, SourceTable) else View
    return kind(service, table, name)
