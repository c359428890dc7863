"""A PostgreSQL table that follows a table with a key: rows are upserted and deleted there, and the
cursor is kept in the same transaction. So it has each change exactly once."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from barrage.connector.shipped.postgres_source import connect_postgres
from barrage.connector.sink import SinkBatch, SyncSink
from barrage.errors import ConfigError, ConnectionLostError

if TYPE_CHECKING:
    import pyarrow as pa

POSITIONS = "barrage_positions"
"""The table of cursors, one row a sink."""
PAGE_ROWS = 1_000


class PostgresUpserts(SyncSink):
    """Upserts into ``[schema.]name``, which has the columns of the followed table and a unique key.
    ``name``: of the sink, among others of that database."""

    def __init__(self, dsn: str, table: str, *, name: str | None = None) -> None:
        self._dsn = dsn
        schema, _, plain = table.rpartition(".")
        self._table = f"{_quoted(schema or 'public')}.{_quoted(plain)}"
        self._name = name or f"barrage:{table}"
        self._connection: Any = None

    @property
    def keeps_position(self) -> bool:
        """See :class:`~barrage.connector.sink.Sink`."""
        return True

    def position_blocking(self) -> str | None:
        """See :class:`~barrage.connector.sink.SyncSink`."""
        with self._transaction() as cursor:
            cursor.execute(
                f"create table if not exists {POSITIONS} (sink text primary key, position text)"
            )
            cursor.execute(f"select position from {POSITIONS} where sink = %s", (self._name,))
            found = cursor.fetchone()
        return None if found is None else str(found[0])

    def write_blocking(self, batch: SinkBatch) -> None:
        """See :class:`~barrage.connector.sink.SyncSink`."""
        if not batch.key:
            raise ConfigError("only tables with a key can be followed by upserts")
        there, gone = batch.last_of_each_row()
        with self._transaction() as cursor:
            if batch.is_first:
                cursor.execute(f"delete from {self._table}")
            self._delete(cursor, gone.select(list(batch.key)))
            self._upsert(cursor, there, batch.key)
            cursor.execute(
                f"insert into {POSITIONS} values (%s, %s) "
                "on conflict (sink) do update set position = excluded.position",
                (self._name, batch.cursor),
            )

    def close(self) -> None:
        """End the connection. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextlib.contextmanager
    def _transaction(self) -> Any:
        """A cursor; what was done with it is committed as a whole, or not at all."""
        import psycopg2

        try:
            if self._connection is None:
                self._connection = connect_postgres(self._dsn)
            with self._connection, self._connection.cursor() as cursor:
                yield cursor
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
            self.close()
            raise ConnectionLostError(f"PostgreSQL: {error}") from None
        except psycopg2.ProgrammingError as error:
            raise ConfigError(f"PostgreSQL: {error}") from None

    def _upsert(self, cursor: Any, rows: pa.Table, key: tuple[str, ...]) -> None:
        from psycopg2.extras import execute_values

        names = ", ".join(map(_quoted, rows.column_names))
        others = [name for name in rows.column_names if name not in key]
        sets = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in others)
        does = f"update set {sets}" if sets else "nothing"
        keys = ", ".join(map(_quoted, key))
        for batch in rows.to_batches(PAGE_ROWS):
            execute_values(
                cursor,
                f"insert into {self._table} ({names}) values %s on conflict ({keys}) do {does}",
                _tuples(batch),
                page_size=PAGE_ROWS,
            )

    def _delete(self, cursor: Any, keys: pa.Table) -> None:
        from psycopg2.extras import execute_values

        names = keys.column_names
        same = " and ".join(f"t.{_quoted(name)} = gone.{_quoted(name)}" for name in names)
        for batch in keys.to_batches(PAGE_ROWS):
            execute_values(
                cursor,
                f"delete from {self._table} t using (values %s) as gone "
                f"({', '.join(map(_quoted, names))}) where {same}",
                _tuples(batch),
                page_size=PAGE_ROWS,
            )


def _tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
