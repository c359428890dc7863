"""DoPut of Deephaven clients: the upload becomes a table under an export ticket of the session.

Source: deephaven-clients.md sections 2.5 and 4.1. The descriptor is the path ``["export", "<id>"]``
or a command holding the ticket. The export is promised with the first message, so other calls may
use it at once and wait; it holds a static table once the client has half-closed, or the error that
ended the upload. The schema and every batch are answered at once with an empty PutResult: the
client half-closes only after one of them (trap 4).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

import grpc.aio
import pyarrow as pa

from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    LimitExceededError,
    RemoteProtocolError,
)
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.ingest.unpacking import unpacked
from barrage.server.ingest.upload import UploadReader
from barrage.server.presentation.deephaven_input_schema import stored_schema
from barrage.server.runtime.failure import unexpected_failure
from barrage.server.tables.static_tables import static_table
from barrage.server.tables.table_lease import TableLease
from barrage.server.tables.tickets import EXPORT_ROUTE, result_export_id, ticket_of_descriptor
from barrage.supervision import start_awaited
from barrage.transport.flight_messages import encode_put_result
from barrage.wire.flight_data import decode_flight_data

if TYPE_CHECKING:
    from barrage.engine.tables.source import SourceTable
    from barrage.limits import Limits
    from barrage.server.access.exports import Export
    from barrage.server.ingest.unpacking import Unpacked
    from barrage.server.tables.table_service import TableService
    from barrage.transport.base import CallContext
    from barrage.transport.flight_messages import Descriptor
    from barrage.wire.frame import FlightFrame


log = logging.getLogger(__name__)

ROW_BYTES_MIN = 8
"""What a row counts at least."""


def export_id_of_descriptor(descriptor: Descriptor, limits: Limits) -> int | None:
    """The number of the export an upload is for; None when it is for something else. TicketError
    for the ticket of an export no client may make."""
    command, path = descriptor.command, descriptor.path
    if not (command.startswith(EXPORT_ROUTE) if command is not None else path[:1] == ("export",)):
        return None
    if command is None and len(path) == 1:
        return None  # A table of that name.
    return result_export_id(ticket_of_descriptor(descriptor, limits), limits)


class UploadBudget:
    """The bytes that all uploads under way have gathered. Used on one event loop."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.bytes_gathered = 0

    def take(self, byte_count: int) -> None:
        """LimitExceededError when there is no room for that much more."""
        if self.bytes_gathered + byte_count > self._bytes_max:
            raise LimitExceededError(
                "uploads of whole tables under way",
                actual=self.bytes_gathered + byte_count,
                maximum=self._bytes_max,
                unit="bytes",
            )
        self.bytes_gathered += byte_count

    def give_back(self, byte_count: int) -> None:
        """What an upload took; it has become a table or has failed."""
        self.bytes_gathered -= byte_count


class ExportUpload:
    """One call."""

    def __init__(
        self,
        export: Export,
        context: CallContext,
        tables: TableService,
        *,
        limits: Limits,
        budget: UploadBudget,
    ) -> None:
        self._export = export
        self._context = context
        self._tables = tables
        self._limits = limits
        self._budget = budget
        self._batches = UploadReader(limits)
        self._gathered: list[pa.RecordBatch] = []
        self._schema: pa.Schema | None = None
        self._bytes_taken = 0

    async def run(self, first: FlightFrame) -> None:
        """Serve the call from its first message on; whatever ends it early fails the export."""
        try:
            await self._receive(first)
            table = await self._stored(self._rows())
            self._export.fulfil(TableLease(self._tables, table))
        except BarrageError as error:
            self._export.fail(error)
            raise
        except asyncio.CancelledError:
            self._export.fail(ConnectionLostError("the upload was cancelled"))
            raise
        except grpc.aio.InternalError as error:
            lost = ConnectionLostError("the connection was lost in the upload")
            self._export.fail(lost)
            raise lost from error
        except Exception as error:
            failure = unexpected_failure(log, "an upload failed")
            self._export.fail(failure)
            raise failure from error
        finally:
            self._gathered.clear()
            self._give_back()

    async def _stored(self, rows: pa.Table) -> SourceTable:
        """Who cancels the call does not end this, and the bytes count until it is over."""
        storing = start_awaited(static_table(self._tables, rows))
        give_back = partial(self._budget.give_back, self._bytes_taken)
        self._bytes_taken = 0
        storing.add_done_callback(lambda _: give_back())
        return await asyncio.shield(storing)

    def _give_back(self) -> None:
        self._budget.give_back(self._bytes_taken)
        self._bytes_taken = 0

    async def _receive(self, first: FlightFrame) -> None:
        await self._take(first)
        while (message := await self._context.read()) is not END_OF_STREAM:
            await self._take(decode_flight_data(message, self._limits))

    async def _take(self, frame: FlightFrame) -> None:
        had_schema = self._batches.schema is not None
        found = await unpacked(self._batches, frame)
        if found is not None:
            self._gather(found)
        elif had_schema or self._batches.schema is None:
            return
        else:
            self._schema = stored_schema(self._batches.schema, self._limits)
        await self._context.write(encode_put_result(b""))

    def _gather(self, found: Unpacked) -> None:
        # Nulls and run-ends take no room here, but they do wherever the rows are read.
        batch = found.batch
        held_bytes = max(batch.get_total_buffer_size(), batch.num_rows * ROW_BYTES_MIN)
        byte_count = max(held_bytes, found.expanded_bytes)
        self._budget.take(byte_count)
        self._bytes_taken += byte_count
        self._gathered.append(batch)

    def _rows(self) -> pa.Table:
        if self._schema is None:
            raise RemoteProtocolError("the upload ended before its schema came")
        rows = pa.Table.from_batches(self._gathered, schema=self._batches.schema)
        return pa.table(rows.columns, schema=self._schema)
