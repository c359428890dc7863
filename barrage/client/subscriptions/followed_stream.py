"""One stream of a whole table as it comes: for who keeps the rows elsewhere.

Nothing is applied here and nothing is tried again: a :class:`FollowedStream` gives the schema, how
it begins, and then update after update in row keys, each complete, until the stream ends, which is
an error.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import ConnectionLostError, RemoteProtocolError
from barrage.model.update import FullUpdate
from barrage.proto.client_events import SchemaArrived, UpdateArrived
from barrage.proto.client_exchange import ClientExchange
from barrage.proto.resumption import (
    EPOCH_HEADER,
    RESUMED_HEADER,
    UPDATES_EACH,
    UPDATES_HEADER,
    Outcome,
    ResumeMode,
    ResumeRequest,
    parse_epoch,
    parse_outcome,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    import pyarrow as pa

    from barrage.client.bodies.body_stream import BodyStream
    from barrage.client.connection.table_sources import TableSource
    from barrage.model.cursor import Cursor
    from barrage.wire.messages import SubscriptionOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBeginning:
    """How a stream begins."""

    schema: pa.Schema
    epoch: str | None
    """Of the table's history; None where the server keeps none."""
    outcome: Outcome | None
    """What became of the cursor; None when none was sent."""

    @property
    def is_resumed(self) -> bool:
        """Whether no snapshot comes, but what was missed."""
        return self.outcome is not None and self.outcome.is_resumed

    @property
    def missed(self) -> int:
        """The first so many updates tell what happened before the stream."""
        return 0 if self.outcome is None or not self.is_resumed else self.outcome.updates


class FollowedStream:
    """A full subscription to all columns, in row keys. Used by one task; an asynchronous context
    manager. Everything raises BarrageError when the stream breaks."""

    def __init__(
        self, source: TableSource, options: SubscriptionOptions, *, cursor: Cursor | None = None
    ) -> None:
        """``cursor``: the state to go on from, step by step. Updates are wanted for every step by
        itself, as long as they are taken."""
        self._source = source
        self._options = options
        self._cursor = cursor
        connection = source.connection
        self._exchange = ClientExchange(revision=connection.revision, limits=connection.limits)
        self._stream: BodyStream | None = None
        self._events: deque[SchemaArrived | UpdateArrived] = deque()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()

    def cancel(self) -> None:
        """End the stream; idempotent."""
        if self._stream is not None:
            self._exchange.abandon()
            self._stream.cancel()
            self._stream = None

    async def begin(self) -> StreamBeginning:
        """Subscribe, and wait for how it begins."""
        source, connection = self._source, self._source.connection
        asked = None
        if self._cursor is not None:
            asked = ResumeRequest(self._cursor, ResumeMode.STEPS)
        frame = self._exchange.subscribe(await source.ticket(), options=self._options)
        headers = {UPDATES_HEADER: UPDATES_EACH, **({} if asked is None else asked.headers())}
        with await connection.body_channel() as channel:
            self._stream = connection.open_bodies(source.label, channel, headers=headers)
        await self._stream.write(frame)
        event = await self._next()
        if not isinstance(event, SchemaArrived):
            raise RemoteProtocolError("a stream began without a schema")
        told = await self._stream.headers()
        outcome = None if asked is None else parse_outcome(told.get(RESUMED_HEADER))
        if outcome is not None and outcome.is_resumed:
            self._exchange.resume(outcome.updates)
        return StreamBeginning(
            schema=event.schema, epoch=parse_epoch(told.get(EPOCH_HEADER)), outcome=outcome
        )

    async def next(self) -> tuple[FullUpdate, bool]:
        """The next update, and whether the rows are all there after it."""
        event = await self._next()
        if isinstance(event, SchemaArrived) or not isinstance(event.message, FullUpdate):
            raise RemoteProtocolError("an update was expected, in row keys")
        return event.message, event.is_consistent

    async def _next(self) -> SchemaArrived | UpdateArrived:
        while not self._events:
            await self._read()
        return self._events.popleft()

    async def _read(self) -> None:
        stream = self._stream
        frame = None if stream is None else await stream.read()
        found = self._exchange.receive_end(None) if frame is None else self._exchange.receive(frame)
        for event in found:
            if isinstance(event, SchemaArrived | UpdateArrived):
                self._events.append(event)
            elif event.error is not None:
                raise event.error
        if frame is None:
            raise ConnectionLostError(f"the stream of table {self._source.label!r} has ended")
