"""Reading the journal of a table by a ticket: whole record batches, whatever way bodies come.

Where the server offers shared memory the ticket goes out on an exchange, which has a way back for
what is done with (:mod:`barrage.proto.read_exchange`); otherwise by DoGet. A read whose bodies
cannot be had is repeated by DoGet, from the row at which it stopped.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pyarrow as pa

from barrage.client.bodies.bodies import BodyCounter
from barrage.client.bodies.body_stream import OfferedChannel
from barrage.errors import BodyChannelError, RemoteProtocolError
from barrage.proto.read_exchange import HEADER, READ, encode_read, is_end
from barrage.transport import flight_messages
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.updates.batch_reader import BatchReader, ReceivedBatch, SchemaReceived

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from barrage.client.bodies.body_stream import BodyStream
    from barrage.client.connection.connection import Connection

logger = logging.getLogger(__name__)

INLINE_ONLY = "journals come inline or through shared memory"


class JournalRead:
    """One read, as an asynchronous context manager: :attr:`schema`, then :meth:`batches`."""

    def __init__(
        self,
        connection: Connection,
        ticket: bytes,
        *,
        table: str,
        is_in_order: bool,
        counter: BodyCounter | None = None,
    ) -> None:
        """``is_in_order``: the ticket gives the same rows in the same order each time, so that a
        read can go on where another stopped. ``counter`` is told of every body."""
        self._connection = connection
        self._ticket = ticket
        self._table = table
        self._is_in_order = is_in_order
        self.counter = counter or BodyCounter()
        self._stream: BodyStream | None = None
        self._reader = BatchReader(connection.limits)
        self._rows = 0
        """Rows that were handed out."""
        self.schema: pa.Schema = pa.schema([])

    async def __aenter__(self) -> JournalRead:
        try:
            with await self._channel() as channel:
                await self._open(channel)
            self.schema = await self._schema()
        except BodyChannelError as error:
            await self._repeat(error)
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the call. What was handed out stays valid. Idempotent."""
        if self._stream is not None:
            self._stream.cancel()

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """The rows. BodyChannelError when a body cannot be had and the read cannot be repeated
        any more, for rows without an order were handed out."""
        try:
            while (batch := await self._next()) is not None:
                self._rows += batch.num_rows
                yield batch
                # It may be lent, and is to go when nobody else has it.
                del batch
            return
        except BodyChannelError as error:
            if self._rows and not self._is_in_order:
                raise
            failure = error
        skip = self._rows
        await self._repeat(failure)
        while (batch := await self._next()) is not None:
            if batch.num_rows > skip:
                yield batch.slice(skip)
            skip = max(0, skip - batch.num_rows)

    # --- the stream -----------------------------------------------------------------------------

    async def _channel(self) -> OfferedChannel:
        if self._connection.bodies.way is not BodyWay.SHM:
            return OfferedChannel(None, INLINE_ONLY)
        return await self._connection.body_channel()

    async def _open(self, channel: OfferedChannel) -> None:
        if not channel.is_there:
            self._get(channel.reason)
            return
        stream = self._connection.open_bodies(
            self._table, channel, headers={HEADER: READ}, counter=self.counter
        )
        self._stream = stream
        command = flight_messages.Descriptor(command=self._ticket)
        await stream.write(encode_read(command.encode()))

    def _get(self, reason: str) -> None:
        self._stream = self._connection.open_get(
            self._table, flight_messages.encode_ticket(self._ticket), reason, counter=self.counter
        )

    async def _repeat(self, error: BodyChannelError) -> None:
        logger.info("a read of table %r is repeated inline: %s", self._table, error)
        self.close()
        self._reader = BatchReader(self._connection.limits)
        self._get(str(error))
        try:
            schema = await self._schema()
        except BaseException:
            self.close()
            raise
        if self._rows and schema != self.schema:
            raise RemoteProtocolError("the schema of a journal changed between two reads of it")
        self.schema = schema

    async def _schema(self) -> pa.Schema:
        """The first message."""
        received = await self._received()
        if not isinstance(received, SchemaReceived):
            raise RemoteProtocolError("a read of a journal must begin with its schema")
        return received.schema

    async def _next(self) -> pa.RecordBatch | None:
        while (received := await self._received()) is not None:
            if isinstance(received, ReceivedBatch):
                return pa.RecordBatch.from_arrays(list(received.columns), schema=self.schema)
        return None

    async def _received(self) -> SchemaReceived | ReceivedBatch | None:
        """The next schema or batch; None at the end."""
        assert self._stream is not None
        while (frame := await self._stream.read()) is not None:
            if is_end(frame):
                await self._stream.half_close()
            if frame.header is None:
                continue
            received = self._reader.receive(frame)
            if received is not None:
                return received
        return None
