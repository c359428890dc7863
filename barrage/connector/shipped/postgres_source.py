"""Changes of a PostgreSQL table, by logical replication with ``pgoutput``.

A message is a transaction, or a part of a large one: a JSON object for each changed row, with
``_deleted`` for what is gone. Its id is the position of the commit in the write-ahead log and the
number of the part. The slot keeps what nobody has confirmed; it is confirmed when it is safe. The
rows that were there before are copied first, as they stood when the slot was made.
"""

from __future__ import annotations

import contextlib
import json
import math
import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.connector.messages import MessageBatch
from barrage.connector.shipped.pgoutput import (
    Relation,
    RowChange,
    TransactionBegin,
    TransactionEnd,
    Truncated,
    Unchanged,
    decode_pgoutput,
)
from barrage.connector.source import SyncSource
from barrage.errors import ConfigError, ConnectionLostError, SourceLostError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from barrage.connector.shipped.pgoutput import Cells, RelationColumn

PART_BITS = 12
LAST_PART = (1 << PART_BITS) - 1
PART_BYTES = 1024 * 1024
WAIT_SECONDS = 0.2
FEEDBACK_SECONDS = 5.0
COPY_ROWS = 2_000
DELETED = "_deleted"

_NUMBERS = {21, 23, 20, 26}
_FLOATS = {700, 701}
_BOOLEAN = 16
COLUMN_TYPES: dict[int, pa.DataType] = {
    16: pa.bool_(),
    21: pa.int16(),
    23: pa.int32(),
    20: pa.int64(),
    26: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
"""By the number of the type; all others are text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresTable:
    """What is known of a table before its changes are read."""

    schema: str
    name: str
    columns: pa.Schema
    key: tuple[str, ...]


def connect_postgres(dsn: str, **options: Any) -> Any:
    """A connection; ConnectionLostError when there is none to be had, ConfigError without the
    library."""
    try:
        import psycopg2
    except ImportError:
        raise ConfigError("PostgreSQL needs a library: pip install 'barrage[connectors]'") from None
    try:
        return psycopg2.connect(dsn, connect_timeout=10, **options)
    except psycopg2.OperationalError as error:
        raise ConnectionLostError(f"PostgreSQL: {error}") from None


def describe_table(dsn: str, table: str) -> PostgresTable:
    """The columns and the key of ``[schema.]name``; ConfigError when it has none."""
    schema, _, name = table.rpartition(".")
    schema = schema or "public"
    with contextlib.closing(connect_postgres(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "select a.attname, a.atttypid, exists (select 1 from pg_index i where "
            "i.indrelid = c.oid and i.indisprimary and a.attnum = any(i.indkey)) "
            "from pg_attribute a join pg_class c on c.oid = a.attrelid "
            "join pg_namespace n on n.oid = c.relnamespace where n.nspname = %s "
            "and c.relname = %s and a.attnum > 0 and not a.attisdropped order by a.attnum",
            (schema, name),
        )
        found = cursor.fetchall()
    if not found:
        raise ConfigError(f"PostgreSQL has no table {schema}.{name}")
    key = tuple(column for column, _, is_key in found if is_key)
    if not key:
        raise ConfigError(f"PostgreSQL table {schema}.{name} has no primary key")
    columns = pa.schema([(name, COLUMN_TYPES.get(oid, pa.string())) for name, oid, _ in found])
    return PostgresTable(schema=schema, name=name, columns=columns, key=key)


class PostgresChanges(SyncSource):
    """Changes of one table. Slot and publication are made when there is no position yet.

    SourceLostError when the slot is gone, or was cut off because it kept too much, or the first
    copy was broken off: then the slot and the target are to be dropped, to begin anew.
    """

    def __init__(
        self,
        dsn: str,
        table: PostgresTable,
        *,
        slot: str,
        publication: str | None = None,
        name: str | None = None,
        stops_at: int | None = None,
    ) -> None:
        """``stops_at``: end when the log has been read up to this position, and all is safe."""
        self._dsn = dsn
        self._table = table
        self._slot = slot
        self._publication = publication or slot
        self.name = name or f"postgres:{slot}"
        self._stops_at = stops_at
        self._ends: dict[int, int] = {}
        """Id of the last part of a transaction to what may be confirmed then."""
        self._confirmed = 0

    def acknowledged_blocking(self, last: int) -> None:
        """See :class:`~barrage.connector.source.SyncSource`."""
        for number in [each for each in tuple(self._ends) if each <= last]:
            self._confirmed = max(self._confirmed, self._ends.pop(number))

    def read_blocking(self, after: int | None) -> Iterator[MessageBatch]:
        """See :class:`~barrage.connector.source.SyncSource`."""
        import psycopg2
        from psycopg2.extras import LogicalReplicationConnection

        self._ends.clear()
        self._confirmed = 0
        self._prepare(after)
        try:
            connection = connect_postgres(
                self._dsn, connection_factory=LogicalReplicationConnection
            )
            with contextlib.closing(connection), connection.cursor() as cursor:
                if after is None:
                    after = yield from self._copied(cursor)
                yield from self._changes(cursor, after)
        except psycopg2.errors.UndefinedObject as error:
            raise SourceLostError(f"PostgreSQL: {error}") from None
        except psycopg2.errors.ObjectNotInPrerequisiteState as error:
            raise SourceLostError(f"PostgreSQL slot {self._slot!r}: {error}") from None
        except psycopg2.Error as error:
            # A copy that is cut short is told without a code, by whichever class is at hand.
            if isinstance(error, psycopg2.OperationalError) or error.pgcode is None:
                raise ConnectionLostError(f"PostgreSQL: {error}") from None
            raise

    # --- the slot -------------------------------------------------------------------------------

    def _prepare(self, after: int | None) -> None:
        """Have a publication, and a slot exactly when there is a position."""
        table = self._table
        with contextlib.closing(connect_postgres(self._dsn)) as connection:
            connection.autocommit = True
            cursor = connection.cursor()
            cursor.execute(
                "select wal_status from pg_replication_slots where slot_name = %s", (self._slot,)
            )
            slot = cursor.fetchone()
            if after is not None:
                if slot is None or slot[0] == "lost":
                    raise SourceLostError(
                        f"PostgreSQL has not kept slot {self._slot!r}, and with it the changes "
                        "since the last one that arrived"
                    )
                return
            if slot is not None:
                raise SourceLostError(
                    f"PostgreSQL has slot {self._slot!r} already, and nothing of it has arrived: "
                    "drop it to begin anew"
                )
            cursor.execute("select 1 from pg_publication where pubname = %s", (self._publication,))
            if cursor.fetchone() is None:
                names = f"{_quoted(table.schema)}.{_quoted(table.name)}"
                cursor.execute(f"create publication {_quoted(self._publication)} for table {names}")

    def _copied(self, cursor: Any) -> Generator[MessageBatch, None, int]:
        """Make the slot, and copy what is there as it stood then; returns the id of the last
        part."""
        cursor.execute(
            f"CREATE_REPLICATION_SLOT {_quoted(self._slot)} LOGICAL pgoutput EXPORT_SNAPSHOT"
        )
        _, point, snapshot, _ = cursor.fetchone()
        start = _lsn_of(point) << PART_BITS
        table = self._table
        with contextlib.closing(connect_postgres(self._dsn)) as connection:
            connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
            with connection.cursor() as plain:
                plain.execute("set transaction snapshot %s", (snapshot,))
                plain.execute("set datestyle to iso")
            with connection.cursor("barrage_copy") as rows:
                columns = ", ".join(f"{_quoted(name)}::text" for name in table.columns.names)
                rows.itersize = COPY_ROWS
                rows.execute(f"select {columns} from {_quoted(table.schema)}.{_quoted(table.name)}")
                parts = self._parts_of(rows)
                number = start
                held = next(parts, b"")
                for part in parts:
                    yield MessageBatch(ids=[number], payloads=[held])
                    held, number = part, number + 1
                    if number - start >= LAST_PART:
                        raise ConfigError("the table is too large for a first copy")
        yield MessageBatch(ids=[start + LAST_PART], payloads=[held])
        return start + LAST_PART

    def _parts_of(self, rows: Any) -> Iterator[bytes]:
        """Rows as JSON lines, about a part's size together."""
        types = [_oid_of(each.type) for each in self._table.columns]
        lines: list[bytes] = []
        size = 0
        for row in rows:
            # A boolean as text is a word here, and a letter in the log.
            values = {
                name: _value(text[:1] if oid == _BOOLEAN and text else text, oid)
                for name, oid, text in zip(self._table.columns.names, types, row, strict=True)
            }
            lines.append(json.dumps(values).encode())
            size += len(lines[-1])
            if size >= PART_BYTES:
                yield b"\n".join(lines)
                lines, size = [], 0
        if lines:
            yield b"\n".join(lines)

    # --- the log --------------------------------------------------------------------------------

    def _changes(self, cursor: Any, after: int) -> Iterator[MessageBatch]:
        if after & LAST_PART != LAST_PART and not self._is_in_log(after):
            raise SourceLostError(
                f"the first copy of PostgreSQL table {self._table.name!r} was broken off: drop "
                f"slot {self._slot!r} and the target to begin anew"
            )
        cursor.start_replication(
            slot_name=self._slot,
            options={"proto_version": "1", "publication_names": self._publication},
            decode=False,
        )
        feedback = _Feedback(cursor)
        reader = _Transactions(self._table, after)
        while not self.is_stopping:
            batches: list[MessageBatch] = []
            while not batches and (message := cursor.read_message()) is not None:
                batches += reader.take(message.payload, self._ends)
            yield from batches
            if not batches:
                # Transactions of other tables are not told: the log has come so far without ours.
                if not self._ends and not reader.is_within:
                    self._confirmed = max(self._confirmed, cursor.wal_end)
                    if self._stops_at is not None and cursor.wal_end >= self._stops_at:
                        feedback.send(self._confirmed, is_last=True)
                        return
                select.select([cursor], [], [], WAIT_SECONDS)
            feedback.send(self._confirmed)

    def _is_in_log(self, after: int) -> bool:
        """Whether a position within a transaction is one of the log, not of the first copy."""
        with contextlib.closing(connect_postgres(self._dsn)) as connection:
            cursor = connection.cursor()
            cursor.execute(
                "select confirmed_flush_lsn from pg_replication_slots where slot_name = %s",
                (self._slot,),
            )
            (confirmed,) = cursor.fetchone()
        return after >> PART_BITS > _lsn_of(confirmed)


class _Feedback:
    """Confirms to the server what is safe, and that somebody is there."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor
        self._told = 0
        self._sent = -math.inf

    def send(self, confirmed: int, *, is_last: bool = False) -> None:
        """Up to ``confirmed`` all is safe. The server may sync its slot for each, so not more
        often than every ``WAIT_SECONDS``."""
        now = time.monotonic()
        soonest = self._sent + (WAIT_SECONDS if confirmed > self._told else FEEDBACK_SECONDS)
        if is_last or now >= soonest:
            self._told, self._sent = confirmed, now
            # Not forced, the library would keep it to itself until its own interval ends.
            self._cursor.send_feedback(flush_lsn=confirmed, apply_lsn=confirmed, force=True)


class _Transactions:
    """Makes messages of what the log says, one transaction after the other."""

    def __init__(self, table: PostgresTable, after: int) -> None:
        self._table = table
        self._after = after
        self._relations: dict[int, Relation] = {}
        self._lsn = 0
        self._part = 0
        self._lines: list[bytes] = []
        self._size = 0
        self.is_within = False
        """Whether a transaction has begun and not ended."""

    def take(self, payload: bytes, ends: dict[int, int]) -> list[MessageBatch]:
        """Messages that are complete with this one of the log."""
        message = decode_pgoutput(payload)
        if isinstance(message, TransactionBegin):
            self._lsn, self._part, self.is_within = message.lsn, 0, True
            self._lines, self._size = [], 0
        elif isinstance(message, Relation):
            self._relations[message.oid] = message
        elif isinstance(message, RowChange):
            relation = self._relations.get(message.oid)
            if relation is not None and self._is_ours(relation):
                self._lines += _lines_of(relation, message)
                self._size += len(self._lines[-1])
                if self._size >= PART_BYTES:
                    return self._message(self._part)
        elif isinstance(message, Truncated):
            if any(self._is_ours(self._relations[oid]) for oid in message.oids):
                raise SourceLostError(
                    f"PostgreSQL table {self._table.name!r} was truncated: which rows are gone is "
                    "not told; drop the slot and the target to begin anew"
                )
        elif isinstance(message, TransactionEnd):
            self.is_within = False
            found = self._message(LAST_PART)
            if found:
                ends[(self._lsn << PART_BITS) + LAST_PART] = message.end_lsn
            return found
        return []

    def _is_ours(self, relation: Relation) -> bool:
        return (relation.schema, relation.name) == (self._table.schema, self._table.name)

    def _message(self, part: int) -> list[MessageBatch]:
        if part == LAST_PART - 1:
            raise SourceLostError("a transaction of PostgreSQL is too large")
        number = (self._lsn << PART_BITS) + part
        payload = b"\n".join(self._lines)
        self._lines, self._size = [], 0
        self._part = part + 1
        if number <= self._after:
            return []
        return [MessageBatch(ids=[number], payloads=[payload])]


def _lines_of(relation: Relation, change: RowChange) -> list[bytes]:
    """The rows to write and those to delete."""
    columns = relation.columns
    old = None if change.old is None else _named(columns, change.old)
    if change.new is None:
        assert old is not None
        return [_deletion(columns, old)]
    new = _named(columns, change.new)
    for name, value in new.items():
        if isinstance(value, Unchanged):
            if old is None or isinstance(old.get(name), (Unchanged, type(None))):
                raise ConfigError(
                    f"column {name!r} of PostgreSQL table {relation.name!r} has large values that "
                    "updates do not tell: alter table ... replica identity full"
                )
            new[name] = old[name]
    lines = [json.dumps(new).encode()]
    if old is not None:
        keys = [each.name for each in columns if each.is_key]
        if any(old.get(name) != new[name] for name in keys):
            lines.insert(0, _deletion(columns, old))
    return lines


def _deletion(columns: tuple[RelationColumn, ...], old: dict[str, Any]) -> bytes:
    keys = {each.name: old[each.name] for each in columns if each.is_key}
    return json.dumps({**keys, DELETED: True}).encode()


def _named(columns: tuple[RelationColumn, ...], cells: Cells) -> dict[str, Any]:
    if len(columns) != len(cells):
        raise ConfigError("a row of PostgreSQL has another number of columns than its table")
    return {
        column.name: cell if isinstance(cell, Unchanged) else _value(cell, column.type_oid)
        for column, cell in zip(columns, cells, strict=True)
    }


def _value(text: str | None, oid: int) -> Any:
    """A value of the log as JSON has it. Numbers that JSON does not have become null."""
    if text is None:
        return None
    if oid in _NUMBERS:
        return int(text)
    if oid in _FLOATS:
        number = float(text)
        return number if math.isfinite(number) else None
    return text == "t" if oid == _BOOLEAN else text


def _oid_of(data_type: pa.DataType) -> int:
    return next((oid for oid, each in COLUMN_TYPES.items() if each == data_type), 25)


def _lsn_of(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
