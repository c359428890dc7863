"""One-shot snapshots: ask, half-close, read to the end.

Bodies that come outside the stream are given back on it, so then it is half-closed only when the
answer is complete: before, the server would have to stop when its window is full.

Cost: the columns are views of the received messages, or of the server's own memory; nothing is
copied after the network. Peak memory is the answer plus one message.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from barrage.errors import BarrageError, RemoteProtocolError
from barrage.model.snapshot_parts import SnapshotParts
from barrage.model.update import ViewUpdate
from barrage.proto.client_events import ExchangeEnded, SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import ClientExchange
from barrage.supervision import Role, start_task
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.client.bodies.body_stream import BodyStream
    from barrage.limits import Limits
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.proto.client_events import ClientEvent
    from barrage.wire.messages import SnapshotOptions
    from barrage.wire.revision import WireRevision


ENDING = Role("barrage-snapshot", "the snapshot's stream")

IDLE_SECONDS = 1.0
"""When nothing has come for so long the stream is half-closed after all: a static table without
rows is answered by its schema alone, and who waits for more would wait for ever."""


async def fetch_snapshot(
    stream: BodyStream,
    *,
    ticket: bytes,
    columns: ColumnSet | None,
    viewport: Viewport | None,
    options: SnapshotOptions,
    revision: WireRevision,
    limits: Limits,
    on_progress: Callable[[int], None] | None = None,
) -> pa.Table:
    """The answer to one snapshot request; the stream is used up."""
    exchange = ClientExchange(revision=revision, limits=limits)
    collected = SnapshotAnswer(columns)
    ending = _Ending(stream)
    try:
        await stream.write(
            exchange.take_snapshot(ticket, columns=columns, viewport=viewport, options=options)
        )
        await ending.begin()
        size = 0
        while (frame := await stream.read()) is not None:
            events = exchange.receive(frame)
            collected.take(events)
            await ending.note(events)
            if on_progress is not None:
                size += stream.frame_bytes
                on_progress(size)
        collected.take(exchange.receive_end(None))
    finally:
        ending.close()
        stream.cancel()
    return collected.to_arrow()


class _Ending:
    """When the request side of one stream is closed."""

    def __init__(self, stream: BodyStream) -> None:
        self._stream = stream
        self._frames = 0
        self._is_half_closed = False
        self._watching: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """The request is written."""
        if self._stream.status.way is BodyWay.INLINE:
            await self._half_close()
        else:
            work = self._half_close_when_idle()
            self._watching = start_task(ENDING, work, on_death=self._died)

    def _died(self, _: BarrageError) -> None:
        # Whoever reads the stream hears of it.
        self._stream.cancel()

    async def note(self, events: list[ClientEvent]) -> None:
        """A message has come and meant this."""
        self._frames += 1
        is_answered = any(isinstance(event, UpdateArrived) for event in events)
        if not self._is_half_closed and (is_answered or self._stream.status.way is BodyWay.INLINE):
            await self._half_close()

    async def _half_close(self) -> None:
        self._is_half_closed = True
        await self._stream.half_close()

    async def _half_close_when_idle(self) -> None:
        seen = -1
        while self._frames != seen:
            seen = self._frames
            await asyncio.sleep(IDLE_SECONDS)
        if not self._is_half_closed:
            with contextlib.suppress(BarrageError):
                # Whoever reads hears how the stream ended.
                await self._half_close()

    def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()


class SnapshotAnswer:
    """Collects the events of a one-shot exchange."""

    def __init__(self, columns: ColumnSet | None) -> None:
        self._columns = columns
        self._parts: SnapshotParts | None = None

    def take(self, events: list[ClientEvent]) -> None:
        """Raises the error a failed exchange ended with."""
        for event in events:
            if isinstance(event, SchemaArrived):
                self._parts = SnapshotParts(event.schema, self._columns)
            elif isinstance(event, UpdateArrived):
                assert self._parts is not None
                assert not isinstance(event.message, ViewUpdate)
                self._parts.add(event.message)
            elif isinstance(event, ExchangeEnded) and event.error is not None:
                raise event.error

    def to_arrow(self) -> pa.Table:
        if self._parts is None:
            raise RemoteProtocolError("the snapshot ended before its schema")
        return self._parts.to_arrow()
