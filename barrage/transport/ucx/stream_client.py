"""The client of the protocol: take a stream from wherever its locations say.

Source: Arrow's Dissociated IPC Protocol. Headers and bodies may come over one connection or two,
from one server or two, in any order. Batches are read by our own reader, which checks all of them.

::

    async with open_batches(metadata, bodies, ticket, context=context) as batches:
        async for batch in batches: ...

    table = await fetch(metadata, bodies, ticket, context=context)
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypedDict, Unpack

import pyarrow as pa

from barrage.clock import SystemClock
from barrage.errors import RemoteProtocolError, TransportError, TransportUnavailableError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.shared_memory import ArenaMapping
from barrage.transport.ucx.connection import ErrorMode, UcxConnection
from barrage.transport.ucx.context import UcxContext
from barrage.transport.ucx.library import load_library
from barrage.transport.ucx.range_readers import (
    ReleaseSender,
    RemoteMemoryReader,
    SharedMemoryReader,
)
from barrage.transport.ucx.receiver import StreamReceiver
from barrage.transport.ucx.settings import UcxSettings
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.updates.batch_reader import BatchReader, ReceivedBatch, SchemaReceived

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.ucx.receiver import RangeReader
    from barrage.transport.ucx.tagged_channel import TaggedChannel

CONNECT_SECONDS = 5.0
"""How long connecting may take, and being let in: 1.22 takes up to half a second on a busy
machine."""

ARENA_PREFIX = b"barrage-"
"""How a ``remote_handle`` begins that names shared memory of ours; all others are packed keys."""


async def open_stream(
    context: UcxContext,
    location: UcxLocation | str,
    ticket: bytes,
    *,
    timeout: float = CONNECT_SECONDS,
    error_mode: ErrorMode = ErrorMode.PEER,
) -> UcxConnection:
    """Connect and show the ticket; it is sent synchronously, so who returns was let in by the
    server that offered the stream. TransportUnavailableError otherwise."""
    place = UcxLocation.parse(location) if isinstance(location, str) else location
    try:
        async with asyncio.timeout(timeout):
            connection = await _connect(context, place, timeout, error_mode=error_mode)
            try:
                await claim(connection, place, ticket)
                connection.seal()
            except BaseException:
                await connection.close()
                raise
    except (TransportError, TimeoutError) as error:
        reason = f"no answer in {timeout:g} s" if isinstance(error, TimeoutError) else error
        raise TransportUnavailableError(
            f"no stream from UCX at {place.host}:{place.port}: {reason}"
        ) from error
    return connection


async def claim(channel: TaggedChannel, location: UcxLocation, ticket: bytes) -> None:
    """Show the ticket on a connection that is there. TransportError when the server closes it."""
    await channel.send_tagged(location.want_data, ticket, synchronous=True)


class BatchStream:
    """Record batches of one stream, in order. Made by :func:`open_batches`."""

    def __init__(self, receiver: StreamReceiver, limits: Limits) -> None:
        self._receiver = receiver
        self._reader = BatchReader(limits)
        self.batch_count = 0

    @property
    def schema(self) -> pa.Schema:
        """What all batches have."""
        assert self._reader.schema is not None
        return self._reader.schema

    async def open(self) -> None:
        """Wait for the schema, which comes first. RemoteProtocolError when something else
        does."""
        frame = await self._receiver.next()
        received = None if frame is None else self._reader.receive(frame)
        if not isinstance(received, SchemaReceived):
            raise RemoteProtocolError("a stream without a schema")

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        """The next batch.

        RemoteProtocolError, ConnectionLostError, or BodyChannelError when nothing comes in time.
        """
        while True:
            frame = await self._receiver.next()
            if frame is None:
                raise StopAsyncIteration
            received = self._reader.receive(frame)
            if isinstance(received, ReceivedBatch):
                self.batch_count += 1
                return _batch(received, self.schema)


def _batch(received: ReceivedBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Arrow's form of a batch, whose columns must all have the rows it states."""
    for name, column in zip(schema.names, received.columns, strict=True):
        if len(column) != received.rows:
            raise RemoteProtocolError(
                f"column {name!r} has {len(column)} rows in a batch of {received.rows}"
            )
    return pa.RecordBatch.from_arrays(list(received.columns), schema=schema)


class StreamOptions(TypedDict, total=False):
    """How a stream is taken; the defaults and what they mean are with :func:`open_batches`."""

    context: UcxContext | None
    limits: Limits
    clock: Clock | None
    timeout: float
    one_connection: bool
    error_mode: ErrorMode
    first_sequence: int


@asynccontextmanager
async def open_batches(
    metadata: UcxLocation | str,
    bodies: UcxLocation | str | None,
    ticket: bytes,
    *,
    context: UcxContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
    clock: Clock | None = None,
    timeout: float = CONNECT_SECONDS,
    one_connection: bool = False,
    error_mode: ErrorMode = ErrorMode.PEER,
    first_sequence: int = 0,
) -> AsyncIterator[BatchStream]:
    """Take the stream ``ticket`` from ``metadata`` and ``bodies``; None for ``bodies``: both come
    from ``metadata``. With ``one_connection`` two locations of one server share a connection.

    Without ``context`` one is made for this stream. ``timeout`` in seconds is for connecting; what
    then does not come within ``limits.body_deadline_ns`` ends the stream with BodyChannelError.
    ``error_mode`` NONE makes connections as the protocol's example does; ``first_sequence`` is the
    number of the schema, which servers other than a test's begin with 0. TransportUnavailableError
    when the stream cannot be had.
    """
    async with contextlib.AsyncExitStack() as stack:
        if context is None:
            context = UcxContext(load_library(), UcxSettings())
            stack.callback(context.close)
        client = _Client(
            context,
            limits,
            clock or SystemClock(),
            error_mode=error_mode,
            first_sequence=first_sequence,
        )
        stack.push_async_callback(client.close)
        headers_at = _location(metadata)
        bodies_at = headers_at if bodies is None else _location(bodies)
        try:
            async with asyncio.timeout(timeout):
                await client.connect(headers_at, bodies_at, timeout, one_connection=one_connection)
                await client.claim(headers_at, bodies_at, ticket)
            # A server that refuses the ticket has received it first, and closes then.
            batches = BatchStream(client.receiver, limits)
            await batches.open()
        except (TransportError, TimeoutError) as error:
            reason = f"no answer in {timeout:g} s" if isinstance(error, TimeoutError) else error
            raise TransportUnavailableError(f"no stream from UCX: {reason}") from error
        yield batches


async def fetch(
    metadata: UcxLocation | str,
    bodies: UcxLocation | str | None,
    ticket: bytes,
    **options: Unpack[StreamOptions],
) -> pa.Table:
    """The whole stream as one table; arguments and errors as :func:`open_batches`."""
    async with open_batches(metadata, bodies, ticket, **options) as batches:
        received = [batch async for batch in batches]
        return pa.Table.from_batches(received, schema=batches.schema)


class _Client:
    """The connections of one stream."""

    def __init__(
        self,
        context: UcxContext,
        limits: Limits,
        clock: Clock,
        *,
        error_mode: ErrorMode,
        first_sequence: int,
    ) -> None:
        self._context = context
        self._limits = limits
        self._error_mode = error_mode
        self.receiver = StreamReceiver(
            limits, clock, deadline_ns=limits.body_deadline_ns, first=first_sequence
        )
        self._metadata: UcxConnection | None = None
        self._bodies: UcxConnection | None = None
        self._releases: ReleaseSender | None = None
        self._mapping: ArenaMapping | None = None

    async def connect(
        self,
        headers_at: UcxLocation,
        bodies_at: UcxLocation,
        timeout: float,
        *,
        one_connection: bool,
    ) -> None:
        """Connect and set up everything that takes what comes."""
        self._metadata = await _connect(
            self._context, headers_at, timeout, error_mode=self._error_mode
        )
        is_same = headers_at is bodies_at
        if one_connection and not is_same:
            is_same = (headers_at.host, headers_at.port) == (bodies_at.host, bodies_at.port)
        if is_same:
            self._bodies = self._metadata
        else:
            self._bodies = await _connect(
                self._context, bodies_at, timeout, error_mode=self._error_mode
            )
        reader = self._range_reader(self._bodies, bodies_at)
        self.receiver.attach(self._metadata, self._bodies, reader)

    async def claim(self, headers_at: UcxLocation, bodies_at: UcxLocation, ticket: bytes) -> None:
        """Ask for headers first, then for bodies, as the protocol's example does."""
        assert self._metadata is not None
        assert self._bodies is not None
        await claim(self._metadata, headers_at, ticket)
        if bodies_at is not headers_at:
            await claim(self._bodies, bodies_at, ticket)

    def _range_reader(self, channel: UcxConnection, at: UcxLocation) -> RangeReader | None:
        """What reads bodies of type 1. Whoever cannot read them takes those of type 0 only, and
        says so when another comes."""
        if at.free_data is None or at.remote_handle is None:
            return None
        if at.remote_handle.startswith(ARENA_PREFIX):
            name = at.remote_handle.decode("ascii", "replace")
            self._mapping = ArenaMapping.open(name)
            self._releases = ReleaseSender(channel, at.free_data, self._limits)
            return SharedMemoryReader(self._mapping, self._releases, self._limits)
        if not self._context.settings.rma:
            raise TransportUnavailableError(
                "the bodies lie in memory of the server, and reading it is not switched on here"
            )
        self._releases = ReleaseSender(channel, at.free_data, self._limits)
        return RemoteMemoryReader(channel, channel.unpack_key(at.remote_handle), self._releases)

    async def close(self) -> None:
        self.receiver.close()
        if self._releases is not None:
            self._releases.close()
        if self._mapping is not None:
            self._mapping.close()
        connections = {id(c): c for c in (self._metadata, self._bodies) if c}.values()
        # Together: who is cancelled while the first one closes has closed the second one, too.
        await asyncio.gather(*(each.close(force=self._releases is None) for each in connections))


async def _connect(
    context: UcxContext, location: UcxLocation, timeout: float, *, error_mode: ErrorMode
) -> UcxConnection:
    return await UcxConnection.connect(
        context, location.host, location.port, timeout=timeout, error_mode=error_mode
    )


def _location(location: UcxLocation | str) -> UcxLocation:
    return UcxLocation.parse(location) if isinstance(location, str) else location
