"""Tables served to any client of the protocol: locations and a ticket for one stream of one table.

Source: Arrow's Dissociated IPC Protocol. Headers and bodies may come from one server or from two;
two that are given the same ticket and the same rows send halves of one stream, since encoding is
deterministic. The rows are asked for when the ticket is shown, so an offer holds nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from barrage.errors import BarrageError, TransportError
from barrage.supervision import Role, start_task
from barrage.transport.ucx.lenders import (
    RemoteMemory,
    RemoteMemoryLender,
    SharedMemoryLender,
)
from barrage.transport.ucx.sender import SentBodies, StreamMessage, StreamSender
from barrage.transport.ucx.stream_server import new_tag
from barrage.wire.flight_data import decode_flight_data
from barrage.wire.updates.update_codec import EncodeOptions, UpdateEncoder

SENDER = Role("barrage-ucx-send", "the stream: its connections are closed")

if TYPE_CHECKING:
    from ipaddress import IPv4Address

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.shared_memory import Arena
    from barrage.transport.ucx.sender import BodyLender
    from barrage.transport.ucx.stream_server import ServedConnection, StreamServer
    from barrage.wire.dissociated.detached import DetachedFrame
    from barrage.wire.dissociated.location import UcxLocation

log = logging.getLogger(__name__)

BATCH_FACTOR = 4
"""How much larger batches are than those of a gRPC stream: what they cost here is their number."""

Messages: TypeAlias = Iterable[StreamMessage]
MessageSource: TypeAlias = Callable[[], Awaitable[Messages]]


class StreamHalf(Enum):
    """What one server sends of a stream."""

    METADATA = "metadata"
    BODIES = "bodies"


BOTH_HALVES = (StreamHalf.METADATA, StreamHalf.BODIES)


class BodyPlace(Enum):
    """Where bodies are left for the client."""

    PACKED = "packed"
    """Nowhere: type 0, their bytes are sent."""
    SHM = "shm"
    """Type 1, in shared memory of this host."""
    RMA = "rma"
    """Type 1, in memory of this server that the client reads by UCX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTable:
    """What a client needs. A location is None when another server sends that half; both are the
    same when one request asks for both halves."""

    metadata: UcxLocation | None
    bodies: UcxLocation | None
    ticket: bytes


def encode_messages(
    schema: pa.Schema, pieces: Iterable[tuple[list[pa.ChunkedArray], int]], limits: Limits
) -> Iterator[StreamMessage]:
    """The messages of one stream: the schema, then columns of so many rows each, cut into batches.
    No rows are a batch, too. SchemaError when a column cannot travel."""
    sized = replace(limits, message_bytes_target=limits.message_bytes_target * BATCH_FACTOR)
    options = EncodeOptions(message_bytes_max=limits.message_bytes_max, keeps_index_types=True)
    encoder = UpdateEncoder(schema, options, sized, detach=_detached)
    yield _message(encoder.schema_frame())
    sent: dict[int, pa.Array] = {}
    for whole, rows in pieces:
        for columns, row_count in with_dictionaries_that_fit(whole, rows):
            for encoded in encoder.encode_rows(columns, row_count, sent, sends_empty=True):
                yield _message(encoded) if isinstance(encoded, bytes) else encoded


def with_dictionaries_that_fit(
    columns: list[pa.ChunkedArray], row_count: int
) -> Iterator[tuple[list[pa.ChunkedArray], int]]:
    """Cut columns where the dictionaries of one column, taken together, could have more values than
    its indexes can count; each dictionary of its own has not."""
    cuts = {0, row_count}
    for column in columns:
        if pa.types.is_dictionary(column.type) and isinstance(column, pa.ChunkedArray):
            cuts.update(_dictionary_cuts(column))
    edges = sorted(cuts)
    if len(edges) < 2:
        yield columns, row_count
    for start, stop in pairwise(edges):
        yield [column.slice(start, stop - start) for column in columns], stop - start


def _dictionary_cuts(column: pa.ChunkedArray) -> Iterator[int]:
    index = column.type.index_type
    bits = index.bit_width - pa.types.is_signed_integer(index)
    values = start = 0
    for chunk in column.chunks:
        values += len(chunk.dictionary)
        if start and values > 2**bits - 1:
            yield start
            values = len(chunk.dictionary)
        start += len(chunk)


def _detached(frame: DetachedFrame) -> StreamMessage:
    return StreamMessage(frame.header(), frame.parts, frame.body_bytes)


def _message(flight_data: bytes) -> StreamMessage:
    """A message that is not worth detaching: without body, or with one of no bytes."""
    frame = decode_flight_data(flight_data)
    assert frame.header is not None
    if frame.body is None:
        return StreamMessage(frame.header)
    return StreamMessage(frame.header, [frame.body], len(frame.body))


def table_source(table: pa.Table | pa.RecordBatch, limits: Limits) -> MessageSource:
    """The stream of a table that is there."""

    async def messages() -> Messages:
        return encode_messages(table.schema, [(table.columns, table.num_rows)], limits)

    return messages


class TableStreams:
    """Offers streams on one :class:`StreamServer`. Without ``arena`` or ``memory`` there are no
    bodies of that kind of type 1."""

    def __init__(
        self,
        server: StreamServer,
        limits: Limits,
        clock: Clock,
        *,
        arena: Arena | None = None,
        memory: RemoteMemory | None = None,
    ) -> None:
        self._server = server
        self._limits = limits
        self._clock = clock
        self._arena = arena
        self.memory = memory
        """May be set later, when it is first needed."""
        self._running: set[asyncio.Task[None]] = set()
        self.served_count = 0
        """Streams that were sent completely."""
        self.sent = SentBodies()
        """Bodies of all streams."""

    @property
    def patience_s(self) -> float:
        """How long the second half of a stream may be asked for after the first."""
        return self._limits.body_ticket_ns / 1e9

    @property
    def running_count(self) -> int:
        """Streams under way."""
        return len(self._running)

    def offer(
        self,
        source: MessageSource,
        *,
        halves: tuple[StreamHalf, ...] = BOTH_HALVES,
        place: BodyPlace = BodyPlace.PACKED,
        ticket: bytes | None = None,
        is_one_location: bool = False,
        lifetime_ns: int | None = None,
        first_sequence: int = 0,
        hosts: frozenset[IPv4Address] | None = None,
    ) -> OfferedTable:
        """Offer one stream to one client, once, which connects from one of ``hosts`` (None: from
        anywhere). With ``is_one_location`` one request asks for headers and bodies. TransportError
        when the place is not to be had here, LimitExceededError."""
        lender = self._lender(place)
        free_data = None if lender is None else new_tag()
        stream = _Stream(self, source, lender, free_data=free_data, first_sequence=first_sequence)
        handle = None if lender is None else lender.remote_handle
        locations: dict[StreamHalf, UcxLocation] = {}
        groups = [halves] if is_one_location else [(half,) for half in halves]
        try:
            for group in groups:
                has_bodies = StreamHalf.BODIES in group
                offered = self._server.offer(
                    stream.claimed_by(group),
                    ticket=ticket,
                    lifetime_ns=lifetime_ns,
                    free_data=free_data if has_bodies else None,
                    remote_handle=handle if has_bodies else None,
                    hosts=hosts,
                )
                ticket = offered.ticket
                stream.wanted |= set(group)
                locations |= dict.fromkeys(group, offered.location)
        except BarrageError:
            for location in locations.values():  # half a stream is of use to nobody
                self._server.withdraw(location.want_data)
            raise
        assert ticket is not None
        return OfferedTable(
            metadata=locations.get(StreamHalf.METADATA),
            bodies=locations.get(StreamHalf.BODIES),
            ticket=ticket,
        )

    def _lender(self, place: BodyPlace) -> SharedMemoryLender | RemoteMemoryLender | None:
        if place is BodyPlace.PACKED:
            return None
        if place is BodyPlace.SHM and self._arena is not None:
            return SharedMemoryLender(self._arena, self._limits)
        if place is BodyPlace.RMA and self.memory is not None:
            return RemoteMemoryLender(self.memory, self._limits)
        raise TransportError(f"this server leaves no bodies in {place.value!r}")

    def start(self, stream: _Stream) -> None:
        """Send a stream whose connections are all there."""
        task = start_task(SENDER, self._run(stream), on_death=lambda _: stream.close())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, stream: _Stream) -> None:
        try:
            await stream.run(self._limits, self._clock)
            self.served_count += 1
        except BarrageError as error:
            log.info("a UCX stream ended early: %s", error)
        except Exception:
            log.exception("a UCX stream could not be sent")
        finally:
            stream.close()

    async def close(self) -> None:
        """End what is under way. Idempotent."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class _Stream:
    """One stream from its offer on: it starts when all its halves are asked for."""

    def __init__(
        self,
        streams: TableStreams,
        source: MessageSource,
        lender: BodyLender | None,
        *,
        free_data: int | None,
        first_sequence: int,
    ) -> None:
        self._streams = streams
        self._source = source
        self._lender = lender
        self._free_data = free_data
        self._first = first_sequence
        self.wanted: set[StreamHalf] = set()
        self._claimed: dict[StreamHalf, ServedConnection] = {}
        self._patience: asyncio.TimerHandle | None = None

    def claimed_by(
        self, group: tuple[StreamHalf, ...]
    ) -> Callable[[ServedConnection, bytes], None]:
        """What a :class:`StreamServer` calls when ``group`` is asked for."""

        def claimed(connection: ServedConnection, _ticket: bytes) -> None:
            self._claimed |= dict.fromkeys(group, connection)
            if self._claimed.keys() == self.wanted:
                if self._patience is not None:
                    self._patience.cancel()
                self._streams.start(self)
            else:
                self._wait_for_the_rest()

        return claimed

    def _wait_for_the_rest(self) -> None:
        patience_s = self._streams.patience_s
        self._patience = asyncio.get_running_loop().call_later(patience_s, self.close)

    async def run(self, limits: Limits, clock: Clock) -> None:
        sender = StreamSender(
            await self._source(),
            metadata=self._claimed.get(StreamHalf.METADATA),
            bodies=self._claimed.get(StreamHalf.BODIES),
            limits=limits,
            clock=clock,
            lender=self._lender,
            free_data=self._free_data,
            first=self._first,
            sent=self._streams.sent,
        )
        await sender.run()

    def close(self) -> None:
        """End its connections."""
        for connection in self._claimed.values():
            connection.close_soon()
