"""What the synchronous and the asynchronous API have in common: handles of tables and their
changes.

A handle knows its engine table and turns rows of any form into Arrow on the caller's thread. It
holds one reference to the table, which it gives back on the engine thread when the handle dies.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypedDict

import pyarrow as pa

from barrage.errors import LocalProtocolError, SchemaError, SequenceError, UnsupportedError
from barrage.model.cursor import Cursor
from barrage.model.schema_like import schema_of
from barrage.server.api.history import changes_between, journal_for, rows_at
from barrage.server.ingest.rows import inferred_table, key_table, rows_table
from barrage.server.journaling.producer_positions import ProducerPosition, check_producer
from barrage.server.runtime.query_dispatcher import THE_SERVER
from barrage.server.tables.table_service import Change, TableRecipe, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Unpack

    from barrage.engine.tables.source import SourceTable
    from barrage.engine.tables.table import Table
    from barrage.errors import BarrageError
    from barrage.model.schema_like import SchemaLike
    from barrage.server.api.history import Moment
    from barrage.server.tables.table_service import TableService


class Numbered(TypedDict, total=False):
    """How a write may be numbered; both or neither."""

    producer: str | None
    """Who numbers its writes."""
    sequence: int | None
    """The number of this one; it grows, and may have gaps."""


class TableHandle:
    """A table of the engine as seen from outside its thread."""

    def __init__(self, service: TableService, table: Table, name: str | None) -> None:
        self._service = service
        self._table = table
        self._name = name

    def __del__(self) -> None:
        """Tables are freed on the engine thread, which may be walking over them right now."""
        service = getattr(self, "_service", None)
        if service is not None:
            service.release(self.__dict__.pop("_table", None))

    @property
    def name(self) -> str | None:
        """The published name; None for a view nobody has published."""
        return self._name

    @property
    def schema(self) -> pa.Schema:
        """The table's Arrow schema."""
        return self._table.schema

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns that name a row; empty when there are none."""
        return self._table.key_columns

    def __len__(self) -> int:
        """Rows as of the last cycle."""
        return self._table.size

    @property
    def cursor(self) -> Cursor | None:
        """The name of the table's latest state that is as safe as its journal makes it; None when
        it has no journal."""
        journal = self._service.journals.journal_of(self._table)
        return None if journal is None else Cursor(journal.epoch, journal.durable_version)

    def _rows_at(self, moment: Moment) -> pa.Table:
        return rows_at(journal_for(self._service, self._table, self._name), moment)

    def _changes(self, after: Moment, upto: Moment | None, options: Mapping[str, Any]) -> pa.Table:
        journal = journal_for(self._service, self._table, self._name)
        return changes_between(journal, after, upto, **options)

    def _label(self) -> str:
        return repr(self._name) if self._name is not None else "(unpublished view)"

    def _derived(
        self, build: Callable[..., Table], /, *arguments: Any, **named: Any
    ) -> Future[Table]:
        table = self._table
        return self._service.derive(lambda: build(table, *arguments, **named), THE_SERVER)


class SourceHandle(TableHandle):
    """A published table that can be written. Every method checks its rows at once and returns the
    change to stage."""

    @property
    def _source(self) -> SourceTable:
        return source_of(self._table, self._name or "")

    def fail(self, error: BarrageError) -> None:
        """Whatever wrote the table is gone for good: it and what is derived from it can be read and
        changed no more, and their subscriptions end with ``error``. Returns at once."""
        table = self._table
        self._service.fail(lambda: table, error)

    def _last_position(self, producer: str) -> Future[int | None]:
        return self._service.position(self._source, check_producer(producer))

    def _change(self, change: Change, **numbered: Unpack[Numbered]) -> Future[int]:
        """Commit the change; the future has the step."""
        return self._service.change([change], position_of(**numbered))

    def _commit(
        self, change: Change, wait: bool, **numbered: Unpack[Numbered]
    ) -> int | Future[int]:
        """Commit the change and wait for it or not."""
        if wait:
            return self._change(change, **numbered).result()
        return self._service.change_soon(change, position_of(**numbered))

    def _add(self, rows: Any) -> Change:
        return Change(self._source, "stage_add", (rows_table(rows, self.schema),))

    def _upsert(self, rows: Any) -> Change:
        return Change(self._source, "stage_upsert", (rows_table(rows, self.schema),))

    def _replace(self, rows: Any) -> Change:
        return Change(self._source, "stage_replace", (rows_table(rows, self.schema),))

    def _remove(self, keys: Any) -> Change:
        columns = self.key_columns
        if not columns:
            raise UnsupportedError(f"table {self._label()} has no key; use delete(start, stop)")
        schema = pa.schema([self.schema.field(name) for name in columns])
        return Change(self._source, "stage_remove", (key_table(keys, schema),))

    def _insert(self, position: int, rows: Any) -> Change:
        return Change(self._source, "stage_insert", (position, rows_table(rows, self.schema)))

    def _delete(self, start: int, stop: int) -> Change:
        return Change(self._source, "stage_delete", (start, stop))


class ChangeList:
    """Changes of several tables, gathered by any number of threads until they are committed
    together."""

    def __init__(self, service: TableService, **numbered: Unpack[Numbered]) -> None:
        self._service = service
        self._position = position_of(**numbered)
        self._changes: list[Change] = []
        self._is_open = True
        self._lock = threading.Lock()
        self.step: int | None = None
        """The step that committed the changes; None before that and when there were none."""

    def add(self, table: SourceHandle, rows: Any) -> None:
        """Add rows at the end of ``table``."""
        self._note(table._add(rows))

    def upsert(self, table: SourceHandle, rows: Any) -> None:
        """Replace the rows with these keys and add those whose key is new."""
        self._note(table._upsert(rows))

    def remove(self, table: SourceHandle, keys: Any) -> None:
        """Remove the rows with these keys."""
        self._note(table._remove(keys))

    def insert(self, table: SourceHandle, position: int, rows: Any) -> None:
        """Insert rows before the row at ``position``."""
        self._note(table._insert(position, rows))

    def delete(self, table: SourceHandle, start: int, stop: int) -> None:
        """Delete the rows at positions ``start`` to ``stop - 1``."""
        self._note(table._delete(start, stop))

    def replace(self, table: SourceHandle, rows: Any) -> None:
        """Make these rows the whole content of ``table``."""
        self._note(table._replace(rows))

    def _note(self, change: Change) -> None:
        with self._lock:
            if not self._is_open:
                raise LocalProtocolError("the transaction has ended; open another one")
            self._changes.append(change)

    def _end(self) -> Sequence[Change]:
        """The changes; whoever comes with one from here on is told that it is too late."""
        with self._lock:
            self._is_open = False
            return tuple(self._changes)


def position_of(
    producer: str | None = None, sequence: int | None = None
) -> ProducerPosition | None:
    """Where a write stands in what its producer writes; None when nobody numbers it.
    SequenceError."""
    if producer is None and sequence is None:
        return None
    if producer is None or sequence is None:
        raise SequenceError("'producer' and 'sequence' go together: give both or neither")
    return ProducerPosition(producer, sequence)


def names_of(names: str | Sequence[str]) -> tuple[str, ...]:
    """One name or several, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def recipe_and_rows(
    name: str,
    schema: SchemaLike | None,
    data: Any,
    *,
    key: str | Sequence[str] | None,
    kind: str | None,
    capacity: int | None,
    is_read_only: bool = False,
    journal: str | None = None,
) -> tuple[TableRecipe, pa.Table | None]:
    """The recipe of a new table and its first rows; the schema is taken from the rows when it is
    not given."""
    if schema is None:
        if data is None:
            raise SchemaError("a new table needs a schema or data to take it from")
        rows = inferred_table(data)
        known = rows.schema.remove_metadata()
        rows = rows.replace_schema_metadata(None)
    else:
        known = schema_of(schema)
        rows = None if data is None else rows_table(data, known)
    recipe = TableRecipe.checked(
        name,
        known,
        key=key,
        kind=kind,
        capacity=capacity,
        is_read_only=is_read_only,
        journal=journal,
    )
    return recipe, rows
