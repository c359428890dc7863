"""One-shot snapshots: ask, half-close, read to the end.

Cost: the columns are views of the received messages; nothing is copied after the network. Peak
memory is the answer plus one message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import RemoteProtocolError
from barrage.model.snapshot_parts import SnapshotParts
from barrage.model.update import ViewUpdate
from barrage.proto.client_events import ExchangeEnded, SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import ClientExchange

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.limits import Limits
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.proto.client_events import ClientEvent
    from barrage.transport.base import FrameStream
    from barrage.wire.messages import SnapshotOptions
    from barrage.wire.revision import WireRevision


async def fetch_snapshot(
    stream: FrameStream,
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
    exchange = ClientExchange(0, revision=revision, limits=limits)
    collected = SnapshotAnswer(columns)
    try:
        await stream.write(
            exchange.take_snapshot(ticket, columns=columns, viewport=viewport, options=options)
        )
        await stream.half_close()
        exchange.half_close()
        size = 0
        while (buffer := await stream.read()) is not None:
            collected.take(exchange.receive_frame(buffer))
            if on_progress is not None:
                size += len(buffer)
                on_progress(size)
        collected.take(exchange.receive_end(None))
    finally:
        stream.cancel()
    return collected.to_arrow()


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
