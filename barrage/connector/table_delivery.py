"""SourceDelivery to a table of a server over gRPC: payloads become rows on this side.

The table remembers the last id with the rows, as that of a producer (the name of the source). What
cannot be decoded goes to the table of dead letters first, under numbers of its own; keys are
deleted before rows are written, which does no harm when it is done twice. The rows come last: their
number is the position, so everything before it is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from barrage.client.connection.reconnect import Backoff
from barrage.client.session import aconnect
from barrage.connector.delivery import SourceDelivery
from barrage.errors import ConfigError, ConnectionLostError, TableNotFoundError
from barrage.limits import DEFAULT_LIMITS
from barrage.supervision import in_thread, start_awaited
from barrage.wire.payloads.source_mapping import REJECTED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from barrage.client import AsyncSession
    from barrage.client.connection.address import Auth
    from barrage.client.writing.writer import AsyncWriter
    from barrage.connector.messages import MessageBatch
    from barrage.connector.source import Source
    from barrage.transport.base import TLS
    from barrage.wire.payloads.payload_batch import PayloadBatch
    from barrage.wire.payloads.source_mapping import MappedRows, SourceMapping

logger = logging.getLogger(__name__)

FLUSH_ROWS = 65_536
"""Rows after which the source is told what is safe, when it never pauses."""


class TableDelivery(SourceDelivery):
    """To the table of ``mapping`` at a server. The table is made when there is none.

    What the server refuses (a schema that does not fit, rights that are missing) is raised.
    """

    def __init__(
        self,
        address: str,
        *,
        mapping: SourceMapping,
        auth: Auth = None,
        tls: TLS | None = None,
        backoff: Backoff | None = None,
    ) -> None:
        super().__init__()
        self._address = address
        self._mapping = mapping
        self._auth = auth
        self._tls = tls
        self._backoff = backoff or Backoff(seconds_max=2.0)
        if "{program}" in mapping.table:
            raise ConfigError("the mapping must name its table: there is no program")

    async def run(self, sources: Sequence[Source]) -> None:
        """See :class:`~barrage.connector.delivery.SourceDelivery`."""
        while True:
            try:
                opened = await aconnect(self._address, auth=self._auth, tls=self._tls)
                async with opened as session:
                    self.progress.connections += 1
                    self._backoff.reset()
                    await self._serve(session, sources)
                    return
            except ConnectionLostError as error:
                logger.info("the server at %s: %s", self._address, error)
            await asyncio.sleep(self._backoff.next_delay())

    async def _serve(self, session: AsyncSession, sources: Sequence[Source]) -> None:
        schema = await _schema_of(session, self._mapping)
        tasks = {start_awaited(self._deliver(session, schema, each)) for each in sources}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _deliver(self, session: AsyncSession, schema: pa.Schema, source: Source) -> None:
        mapping = self._mapping
        mode = "upsert" if mapping.key else "append"
        writer = await session.writer(
            mapping.table, producer=source.name, mode=mode, key=mapping.key or None
        )
        lane = _Lane(session, mapping, schema, writer=writer, producer=source.name)
        batches = source.read(writer.position)
        try:
            await self._pump(source, batches, lane)
            await writer.close()
        finally:
            await lane.close()
            if isinstance(batches, AsyncGenerator):
                await batches.aclose()

    async def _pump(
        self, source: Source, batches: AsyncIterator[MessageBatch], lane: _Lane
    ) -> None:
        waiting = 0
        upcoming = asyncio.ensure_future(_next(batches))
        try:
            while True:
                await asyncio.wait([upcoming], timeout=0)
                if waiting and (waiting >= FLUSH_ROWS or not upcoming.done()):
                    # Nothing is there at once, or much was sent: say what is safe.
                    await lane.flush()
                    await source.acknowledged(lane.last)
                    waiting = 0
                batch = await upcoming
                if batch is None:
                    return
                upcoming = asyncio.ensure_future(_next(batches))
                if len(batch):
                    columns = batch.columns(source.name)
                    self.progress.messages_rejected += await lane.write(columns)
                    self.progress.messages_sent += len(columns)
                    self.progress.bytes_sent += columns.payloads.nbytes
                    waiting += len(columns)
        finally:
            upcoming.cancel()
            await asyncio.wait([upcoming])


async def _next(batches: AsyncIterator[MessageBatch]) -> MessageBatch | None:
    async for batch in batches:
        return batch
    return None


async def _schema_of(session: AsyncSession, mapping: SourceMapping) -> pa.Schema:
    """Of the table, which is made when there is none."""
    try:
        return (await session.table(mapping.table).info()).schema
    except TableNotFoundError:
        schema = mapping.new_schema()
        key = list(mapping.key) or None
        await session.put(mapping.table, schema.empty_table(), key=key, mode="create")
        return schema


class _Lane:
    """What one source writes."""

    def __init__(
        self,
        session: AsyncSession,
        mapping: SourceMapping,
        schema: pa.Schema,
        *,
        writer: AsyncWriter,
        producer: str,
    ) -> None:
        self._session = session
        self._mapping = mapping
        self._mapper = mapping.mapper(schema, limits=DEFAULT_LIMITS)
        self._producer = producer
        self._writer = writer
        self._letters: AsyncWriter | None = None
        self.last = -1 if writer.position is None else writer.position

    async def write(self, batch: PayloadBatch) -> int:
        """Map and write a batch; how many messages could not be decoded."""
        mapping = self._mapping
        mapped = await in_thread(self._mapper.map, batch)
        rejected = len(mapped.rejected)
        if rejected:
            await self._reject(mapped)
        if mapped.deleted is not None:
            await self._writer.flush()
            await self._session.put(
                mapping.table, mapped.deleted, key=list(mapping.key), mode="delete"
            )
        last = batch.ids[-1].as_py()
        # Without rows it is the position alone that moves.
        await self._writer.write(mapped.rows.combine_chunks(), sequence=last)
        self.last = last
        return rejected

    async def _reject(self, mapped: MappedRows) -> None:
        mapping, rows = self._mapping, mapped.rejected
        reason = rows["reason"][0].as_py()
        if mapping.on_bad_payload == "error":
            raise ConfigError(
                f"message {rows['message_id'][0].as_py()} of {self._producer!r}: {reason}"
            )
        if mapping.on_bad_payload == "skip":
            return
        if self._letters is None:
            opened = self._session.writer(
                mapping.table + REJECTED_SUFFIX, producer=self._producer, mode="append"
            )
            self._letters = await opened
        position = self._letters.position
        if position is not None:
            rows = rows.filter(pc.greater(rows["message_id"], pa.scalar(position, pa.uint64())))
        if len(rows):
            await self._letters.write(
                rows.combine_chunks(), sequence=rows["message_id"][-1].as_py()
            )
            await self._letters.flush()

    async def flush(self) -> None:
        """Until everything written before is safe."""
        await self._writer.flush()

    async def close(self) -> None:
        """End without waiting for anything. Idempotent."""
        await self._writer.abandon()
        if self._letters is not None:
            await self._letters.abandon()
