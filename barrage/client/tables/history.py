"""A table's past, out of the server's journal: the rows as of a version, and the changes between
two.

Versions are steps; a moment stands for the last version committed at or before it. Nothing is read
before it is asked for, and batches are handed out as they come.
"""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from barrage.client.connection.table_sources import NamedSource
from barrage.client.queries.query import QuerySource
from barrage.client.tables.journal_read import JournalRead
from barrage.errors import (
    BodyChannelError,
    ConfigError,
    HistoryLostError,
    RemoteProtocolError,
    UnsupportedError,
)
from barrage.json_text import read_json
from barrage.model.cursor import Cursor
from barrage.model.schema_message import read_schema_message
from barrage.rowset import RowSet
from barrage.transport import flight_messages
from barrage.transport.flight_messages import FLIGHT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from barrage.client.connection.connection import Connection
    from barrage.client.connection.table_sources import TableSource

Moment: TypeAlias = "int | Cursor | str | datetime"
"""A version, a cursor or its text, or a time."""

JOURNAL_ROUTE = b"j/"
ROW_KEY = "_row_key"
FEED_COLUMNS = (
    "_change_type",
    "_commit_version",
    "_commit_timestamp",
    "_row_id",
    ROW_KEY,
    "_modified_columns",
)
"""Columns of the feed that are not the table's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFacts:
    """What a server says about one journal."""

    epoch: str
    version: int
    """The newest version that nothing can take back."""
    earliest: int
    """The oldest version whose rows can be had."""
    schema: pa.Schema
    """Of the table."""
    key: tuple[str, ...]
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOptions:
    """Which part of the changes is wanted, and in which form."""

    columns: Sequence[str] | None = None
    filter: str | None = None
    preimage: bool = False
    net: bool = False
    row_key: bool = False
    modified_columns: bool = False

    def fields(self) -> dict[str, Any]:
        """As a ticket says it; defaults are left out."""
        told: dict[str, Any] = {}
        if self.columns is not None:
            told["columns"] = list(self.columns)
        if self.filter is not None:
            told["filter"] = self.filter
        flags = ("preimage", "net", "row_key", "modified_columns")
        return told | {name: True for name in flags if getattr(self, name)}


class TableHistory:
    """The journal of one table, over one connection."""

    def __init__(self, source: TableSource) -> None:
        self._connection, self._table, self._filter = _scope(source)

    @property
    def table(self) -> str:
        return self._table

    async def facts(self) -> JournalFacts:
        """What the journal has; NoJournalError, TableNotFoundError."""
        told = await self._act("journal.info", {"table": self._table})
        try:
            return JournalFacts(
                epoch=str(told["epoch"]),
                version=int(told["version"]),
                earliest=int(told["earliest"]),
                schema=_schema(told["schema"]),
                key=tuple(told.get("key") or ()),
                kind=str(told.get("kind")),
            )
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise RemoteProtocolError(f"journal.info cannot be read: {error}") from error

    async def cursor_of(self, moment: Moment) -> Cursor:
        """The cursor a moment stands for; HistoryLostError when it is out of reach."""
        if isinstance(moment, str):
            moment = Cursor.parse(moment)
        if isinstance(moment, Cursor):
            return moment
        if isinstance(moment, datetime):
            told = await self._act(
                "journal.version", {"table": self._table, "timestamp_us": _micros(moment)}
            )
            return Cursor(str(told.get("epoch")), int(told.get("version", -1)))
        if isinstance(moment, bool) or not isinstance(moment, int) or not -1 <= moment < 2**63:
            raise ConfigError(f"{moment!r} is no version, cursor or time")
        return Cursor((await self.facts()).epoch, moment)

    async def as_of(self, moment: Moment, options: ChangeOptions) -> pa.Table:
        """The rows at a moment, in the table's order."""
        cursor = await self.cursor_of(moment)
        return (await self.state(cursor, await self.facts(), options))[1]

    async def state(
        self, cursor: Cursor, facts: JournalFacts, options: ChangeOptions
    ) -> tuple[RowSet, pa.Table]:
        """The row keys and the rows at a cursor, in the table's order."""
        selected = self._options(options) | {"row_key": True}
        ticket = {"mode": "snapshot", "table": self._table, "epoch": cursor.epoch}
        fields = {**ticket, "version": cursor.version, **selected}
        rows = await self._all(fields)
        keys = rows.column(ROW_KEY)
        if not _ascends(keys):
            rows = rows.take(pc.sort_indices(keys))
            keys = rows.column(ROW_KEY)
        names = [name for name in rows.column_names if name not in FEED_COLUMNS]
        rows = rows.select(names)
        columns = [facts.schema.field(name) for name in names]
        rows = rows.cast(pa.schema(columns, metadata=facts.schema.metadata))
        return RowSet.from_keys(keys.to_numpy()), rows

    @asynccontextmanager
    async def changes(
        self, start: Moment, stop: Moment | None, options: ChangeOptions
    ) -> AsyncIterator[JournalRead]:
        """The changes after ``start`` up to and with ``stop`` (None: the newest version)."""
        first = await self.cursor_of(start)
        last = await self._last(first, stop)
        ticket = {"mode": "changes", "table": self._table, "epoch": first.epoch}
        selected = self._options(options)
        fields = {**ticket, "from": first.version, "to": last, **selected}
        async with self._read(fields, is_in_order=not options.net) as read:
            yield read

    async def _last(self, first: Cursor, stop: Moment | None) -> int:
        if stop is None:
            return max((await self.facts()).version, first.version)
        if isinstance(stop, int) and not isinstance(stop, bool):
            last = stop
        else:
            cursor = await self.cursor_of(stop)
            if cursor.epoch != first.epoch:
                raise HistoryLostError(
                    self._table,
                    asked=str(first),
                    reason=f"the end, {cursor}, belongs to another epoch",
                )
            last = cursor.version
        if last < first.version:
            raise ConfigError(f"changes from {first.version} to {last} go backwards")
        return last

    def _options(self, options: ChangeOptions) -> dict[str, Any]:
        told = options.fields()
        if self._filter is not None:
            more = told.get("filter")
            told["filter"] = self._filter if more is None else f"({self._filter}) and ({more})"
        return told

    async def _act(self, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        request = flight_messages.encode_action(kind, json.dumps(fields).encode())
        results = self._connection.channel.results(
            FLIGHT + "DoAction", request, timeout=None, table=self._table
        )
        answers = [flight_messages.decode_result(message) async for message in results]
        try:
            told = read_json(answers[0])
        except (IndexError, ValueError) as error:
            raise RemoteProtocolError(f"the answer to {kind} cannot be read: {error}") from error
        if not isinstance(told, dict):
            raise RemoteProtocolError(f"the answer to {kind} is no object")
        return told

    def _read(self, fields: dict[str, Any], *, is_in_order: bool) -> JournalRead:
        text = json.dumps(fields, separators=(",", ":")).encode()
        ticket = JOURNAL_ROUTE + text
        return JournalRead(self._connection, ticket, table=self._table, is_in_order=is_in_order)

    async def _all(self, fields: dict[str, Any]) -> pa.Table:
        """All rows of a ticket, in memory of this process."""
        for is_last in (False, True):
            try:
                async with self._read(fields, is_in_order=False) as read:
                    received = [batch async for batch in read.batches()]
                    return pa.Table.from_batches(received, schema=read.schema)
            except BodyChannelError:
                # Nobody has seen a row of it, and the next one comes inline.
                if is_last:
                    raise
        raise AssertionError("the last try returns or raises")


def _scope(source: TableSource) -> tuple[Connection, str, str | None]:
    """The table a journal is asked for, and which of its rows; UnsupportedError."""
    connection = source.connection
    if connection.address.is_deephaven:
        raise UnsupportedError("a Deephaven server keeps no history")
    if isinstance(source, NamedSource):
        return connection, source.name, None
    if isinstance(source, QuerySource):
        other = next((step for step in source.steps if step.name != "where"), None)
        if other is None:
            conditions = [step.arguments[0] for step in source.steps]
            return connection, source.name, " and ".join(f"({text})" for text in conditions)
        raise UnsupportedError(
            f"the past of {source.label} cannot be had: {other.name} is computed on the present "
            "only; ask for the table, with columns= and where()"
        )
    raise UnsupportedError(f"{source.label} has no history: it is not a published table")


def _schema(text: str) -> pa.Schema:
    return read_schema_message(base64.b64decode(text))


def _micros(moment: datetime) -> int:
    """Microseconds since 1970; a time without a zone is local, as everywhere in Python."""
    since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if micros < 0:
        raise ConfigError(f"{moment} is before 1970")
    return micros


def _ascends(keys: pa.ChunkedArray) -> bool:
    values = keys.to_numpy()
    return bool((values[1:] > values[:-1]).all())
