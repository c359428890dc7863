"""Rows that a client sends and gets back transformed: a query over a table of the client's own.

The descriptor's command is ``{"transform": {"ops": [...]}}`` with operations as in a query; they
stand for the rows that come. Operators that look at one row at a time are applied to each batch as
it comes. With any other one the rows are gathered, within a limit, and answered at the end.
Nothing of it touches the server's tables or its engine.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, cast

import pyarrow as pa

from barrage.engine import UpdateGraph
from barrage.engine.tables.source import StaticTable
from barrage.errors import (
    LimitExceededError,
    RemoteProtocolError,
    TableNotFoundError,
    UnsupportedError,
)
from barrage.model.query import Query
from barrage.server.access.query import QueryRun
from barrage.server.ingest.unpacking import Unpacked, unpacked
from barrage.server.ingest.upload import UploadReader
from barrage.server.runtime.aside import aside
from barrage.server.runtime.catalog import Publication
from barrage.server.settings.json_fields import Fields
from barrage.transport.flight_messages import Descriptor
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder
from barrage.wire.wire_schema import wire_schema

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from barrage.limits import Limits
    from barrage.server.policy.access_gate import Tables
    from barrage.wire.frame import FlightFrame

COMMAND: Final = "transform"

INPUT: Final = "rows"
"""What the query calls the table of the rows that come."""

ROW_BY_ROW: Final = frozenset({"where", "select", "drop"})
"""Operators of which a batch can be answered before the next one comes."""

GATHERED: Final = frozenset(
    {
        *("sort", "head", "tail", "slice", "last_by", "agg_by", "select_distinct"),
        *("head_by", "tail_by", "update_by", "flatten"),
    }
)
"""Operators that need all rows. Those that make many rows of one are not offered."""


class RowTransforms:
    """All exchanges of one server that transform rows. On the event loop."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.running_count = 0

    def open(self, descriptor: bytes) -> RowTransform:
        """One for a new exchange. RemoteProtocolError, UnsupportedError, ExpressionError,
        LimitExceededError."""
        query = transform_query(Descriptor.decode(descriptor).command or b"", self._limits)
        if self.running_count >= self._limits.transforms_max:
            raise LimitExceededError(
                "number of exchanges that transform rows",
                actual=self.running_count + 1,
                maximum=self._limits.transforms_max,
                unit="exchanges",
            )
        self.running_count += 1
        return RowTransform(query, self._limits, on_close=self._closed)

    def _closed(self) -> None:
        self.running_count -= 1


def transform_query(command: bytes, limits: Limits) -> Query:
    """The query of a command, over the rows that come. The errors of :meth:`Query.parse`;
    RemoteProtocolError, UnsupportedError."""
    most = limits.expression_bytes_max
    outer = Fields.parse(command, "exchange command", bytes_max=most)
    fields = outer.part(COMMAND, "'transform'")
    outer.finish()
    operations = fields.get("ops", list)
    fields.finish()
    query = Query.parse(json.dumps({"table": INPUT, "ops": operations}), limits)
    for operation in query.operations:
        if operation.name not in ROW_BY_ROW | GATHERED:
            known = ", ".join(sorted(ROW_BY_ROW | GATHERED))
            raise UnsupportedError(
                f"rows of an exchange are not transformed by {operation.name}; there are {known}"
            )
    return query


class _Rows:
    """The one table there is for the query."""

    def __init__(self, rows: pa.Table, limits: Limits) -> None:
        self._publication = Publication(
            name=INPUT, table=StaticTable(UpdateGraph(limits), rows), kind="static"
        )

    def live(self, name: str) -> Publication:
        if name != INPUT:
            raise TableNotFoundError(name, known=[INPUT])
        return self._publication


class RowTransform:
    """One exchange."""

    def __init__(self, query: Query, limits: Limits, *, on_close: Callable[[], None]) -> None:
        self._query = query
        self._limits = limits
        self._on_close: Callable[[], None] | None = on_close
        self._batches = UploadReader(limits)
        self._is_row_by_row = all(each.name in ROW_BY_ROW for each in query.operations)
        self._encoder: UpdateEncoder[bytes] | None = None
        self._sent: dict[int, pa.Array] = {}
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0

    async def take(self, frame: FlightFrame) -> AsyncIterator[bytes]:
        """What is to be sent after this message. RemoteProtocolError, SchemaError,
        ExpressionError, LimitExceededError."""
        found = await unpacked(self._batches, frame)
        if self._encoder is None and self._batches.schema is not None:
            yield self._begun(self._batches.schema)
        if found is None:
            return
        if not self._is_row_by_row:
            self._gather(found)
            return
        most = self._limits.ingest_bytes_pending_max
        found.check_expanded("batch of rows as a table holds it", most)
        async for encoded in self._answers([found.batch], found.cast_weight):
            yield encoded

    async def finish(self) -> AsyncIterator[bytes]:
        """What is to be sent after the last one."""
        if self._encoder is None:
            raise RemoteProtocolError("an exchange of rows begins with their schema")
        if self._is_row_by_row:
            return
        gathered, self._gathered = self._gathered, []
        async for encoded in self._answers(gathered, self._gathered_bytes):
            yield encoded

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        self._gathered.clear()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def _begun(self, schema: pa.Schema) -> bytes:
        travelling = wire_schema(self._applied(schema.empty_table()).schema, self._limits)
        options = EncodeOptions(message_bytes_max=self._limits.message_bytes_max)
        self._encoder = UpdateEncoder(travelling, options, self._limits)
        return self._encoder.schema_frame()

    def _gather(self, found: Unpacked) -> None:
        self._gathered_bytes += found.table_bytes
        if self._gathered_bytes > self._limits.transform_bytes_max:
            names = [each.name for each in self._query.operations if each.name in GATHERED]
            raise LimitExceededError(
                f"size of the rows that {names[0]} needs all of",
                actual=self._gathered_bytes,
                maximum=self._limits.transform_bytes_max,
                unit="bytes",
            )
        self._gathered.append(found.batch)

    async def _answers(self, batches: list[pa.RecordBatch], weight: int) -> AsyncIterator[bytes]:
        assert self._encoder is not None
        rows = pa.Table.from_batches(batches, schema=self._batches.schema)
        done = await aside(weight, lambda: self._applied(rows))
        if len(done):
            messages = iter(self._encoder.encode_rows(done.columns, len(done), self._sent))
            while (encoded := await aside(weight, lambda: next(messages, None))) is not None:
                assert isinstance(encoded, bytes)
                yield encoded

    def _applied(self, rows: pa.Table) -> pa.Table:
        """Any thread."""
        tables = cast("Tables", _Rows(rows, self._limits))
        return QueryRun(tables, self._query, self._limits)().to_arrow()
