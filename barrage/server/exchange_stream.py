"""One DoExchange call: reads its client's requests, writes its updates.

Cost per small message on the loop: one append, one future, one gRPC write; no task and no lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from barrage.errors import TransportError
from barrage.proto.events import (
    BodiesReleased,
    HalfClosed,
    SnapshotRequested,
    SubscriptionChanged,
    SubscriptionRequested,
)
from barrage.proto.server_exchange import ServerExchange
from barrage.server.delivery import EncodedUpdate, LazyUpdate
from barrage.server.flight.call_guard import SessionCall
from barrage.server.frame_writing import write_frames
from barrage.server.grpc_calls import END_OF_STREAM
from barrage.supervision import Role, start_awaited, start_task
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.update_codec import EncodeOptions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    import grpc.aio

    from barrage.engine.table import Table
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.proto.events import ServerEvent
    from barrage.proto.resumption import ResumeRequest
    from barrage.server.body_frames import Frame
    from barrage.server.body_writer import BodyWriter
    from barrage.server.deephaven.types import SessionTypes
    from barrage.server.session_store import ClientSession
    from barrage.wire.revision import WireRevision
    from barrage.wire.update_codec import UpdateEncoder, UpdatePlan

    Context = grpc.aio.ServicerContext[Any, Any]

READER = Role("barrage-exchange-reader", "the stream")
WRITER = Role("barrage-exchange-writer", "the stream")

FRAMES_BETWEEN_RENEWALS = 16
"""Frames of one large update after which a held but reading subscriber's stall clock starts
anew."""

Headers: TypeAlias = "tuple[tuple[str, str], ...]"
"""What the answer to a subscription carries besides its messages."""


class StreamHub(Protocol):
    """What a stream asks of whoever has all streams and knows the engine thread."""

    async def subscribe(self, stream: ExchangeStream, event: SubscriptionRequested) -> Headers:
        """Start the subscription a client asked for; the headers of the answer."""
        ...

    def change_soon(self, stream: ExchangeStream) -> None:
        """Apply the change ``stream`` wants (:meth:`ExchangeStream.take_wanted`)."""
        ...

    def release_soon(self, stream: ExchangeStream) -> None:
        """There is room again in the outbox of a held stream."""
        ...

    def renew_hold(self, stream: ExchangeStream) -> None:
        """A held stream is reading, if slowly."""
        ...

    async def snapshot(
        self,
        ticket: bytes | None,
        session: ClientSession | None,
        options: EncodeOptions,
        *,
        columns: ColumnSet | None,
        viewport: Viewport | None,
        is_reverse: bool,
        way: BodyWay,
    ) -> tuple[UpdateEncoder[Frame], list[FullUpdate]]:
        """The messages answering a snapshot request and the encoder for them."""
        ...

    async def plans(
        self, encoder: UpdateEncoder[Frame], messages: Sequence[FullUpdate]
    ) -> list[UpdatePlan[Frame]]:
        """The messages ready to be encoded frame by frame."""
        ...

    def close(self, stream: ExchangeStream) -> None:
        """The call has ended, and with it the subscription."""
        ...


class ExchangeStream:
    """One call. The engine thread uses ``table`` and :meth:`take_wanted`; all else stays on the
    loop."""

    def __init__(
        self,
        hub: StreamHub,
        stream_id: int,
        context: Context | SessionCall,
        session: ClientSession | None,
        *,
        revision: WireRevision,
        sends_source_time: bool,
        resume: ResumeRequest | None,
        limits: Limits,
        bodies: BodyWriter | None = None,
        body_headers: Headers = (),
    ) -> None:
        """``bodies`` writes the frames of a stream that has claimed a body channel."""
        self.stream_id = stream_id
        self.revision = revision
        self.sends_source_time = sends_source_time
        self.resume = resume
        self.session = session
        self.types: SessionTypes | None = None if session is None else session.types
        self.way = BodyWay.INLINE if bodies is None else bodies.way
        self.table: Table | None = None
        self._wanted: SubscriptionChanged | None = None
        self._taken: SubscriptionChanged | None = None
        self._is_change_posted = False
        self._hub = hub
        self._call = context if isinstance(context, SessionCall) else None
        self._context = context.raw if isinstance(context, SessionCall) else context
        self._is_accepted = asyncio.Event()
        self._bodies = bodies
        self._body_headers = body_headers
        self._headers: Headers = body_headers
        self._opening: asyncio.Future[None] | None = None
        self._limits = limits
        self._exchange = ServerExchange(stream_id, revision, limits)
        if bodies is not None:
            self._exchange.claim_body_channel()
        self._loop = asyncio.get_running_loop()
        self._outbox: deque[EncodedUpdate | LazyUpdate] = deque()
        self._updates_pending = 0
        self._bytes_pending = 0
        self._is_held = False
        self._waker: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_finishing = False
        self._is_snapshot = False
        self._error: Exception | None = None

    async def run(self) -> None:
        """Serve the call until it ends; returns for OK, raises what it ends with."""
        tasks: list[asyncio.Task[None]] = []
        unregister = None if self.session is None else self.session.on_close(self._session_ended)
        try:
            tasks += [
                start_task(READER, self._guarded(self._read_requests), on_death=self._died),
                start_task(WRITER, self._guarded(self._write_updates), on_death=self._died),
            ]
            await self._ended
        finally:
            if unregister is not None:
                unregister()
            self._hub.close(self)
            for task in tasks:
                task.cancel()
            # Before anything is waited for: this call may be cancelled more than once.
            self._outbox.clear()
            if self._bodies is not None:
                self._bodies.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._opening is not None:
                await asyncio.wait([self._opening])
        if self._error is not None:
            raise self._error

    def _session_ended(self, error: BarrageError) -> None:
        """What is queued is still sent when the server goes, not when the session is over."""
        self.finish(error, is_flushed=isinstance(error, TransportError))

    async def _guarded(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Run one half of the stream; its error ends both."""
        try:
            await work()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.finish(error, is_flushed=False)

    def _died(self, error: BarrageError) -> None:
        self.finish(error, is_flushed=False)

    def finish(self, error: Exception | None, *, is_flushed: bool) -> None:
        """End the call with ``error`` or OK: after the outbox is written, or at once. The first one
        counts."""
        if not self._is_finishing:
            self._is_finishing = True
            self._error = error
        if not is_flushed:
            self._outbox.clear()
            self._end()
        self._is_accepted.set()
        self._wake()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    # --- writing ---

    def enqueue(self, item: EncodedUpdate | LazyUpdate) -> bool:
        """Queue an update; True when the subscription is to be held from now on."""
        if self._is_finishing:
            return False
        self._outbox.append(item)
        self._updates_pending += 1
        self._bytes_pending += item.byte_count
        self._wake()
        if self._is_held or not self._is_full():
            return False
        self._is_held = True
        return True

    def _is_full(self) -> bool:
        return (
            self._updates_pending >= self._limits.exchange_outbox_updates_max
            or self._bytes_pending >= self._limits.exchange_outbox_bytes_max
        )

    def _wake(self) -> None:
        waker = self._waker
        self._waker = None
        # The writer may have ended where it waited.
        if waker is not None and not waker.done():
            waker.set_result(None)

    async def _open(self) -> None:
        """Send the headers once the request is accepted: a refusal is told without.

        gRPC would send them with the first message otherwise, and knows that they are gone only
        when that is written: a call that ends in between would send them twice, which fails, and
        the peer would never hear how its call ended. For the same reason sending them is not cut
        short.
        """
        await self._is_accepted.wait()
        if self._is_finishing and not self._outbox:
            return
        if self._call is not None:
            # Clients of Deephaven are told nothing they have not asked for.
            await self._call.open(self._headers if self.resume is not None else ())
            return
        # It fails when the client has gone, and by then perhaps nobody waits for it any more.
        self._opening = start_awaited(self._context.send_initial_metadata(self._headers))
        await asyncio.shield(self._opening)

    async def _write_updates(self) -> None:
        await self._open()
        write = self._writer()
        outbox = self._outbox
        while True:
            while outbox:
                await self._write_update(write, outbox.popleft())
            if self._is_finishing:
                self._end()
                return
            self._waker = self._loop.create_future()
            await self._waker

    async def _write_update(
        self, write: Callable[[Frame], Awaitable[None]], item: EncodedUpdate | LazyUpdate
    ) -> None:
        """Write one update. A function of its own, so that nothing of it is kept until the next
        one comes: its bodies may lie in shared memory."""
        if isinstance(item, EncodedUpdate):
            for frame in item.frames:
                await write(frame)
        else:
            await write_frames(write, item.frames(), on_frame=self._renew_hold)
        self._wrote(item)

    def _writer(self) -> Callable[[Frame], Awaitable[None]]:
        """How one frame is written. Without a body channel all of them are complete messages."""
        write: Callable[[bytes], Awaitable[None]] = self._context.write
        if self._bodies is not None:
            return partial(self._bodies.write, write)
        return cast("Callable[[Frame], Awaitable[None]]", write)

    def _renew_hold(self, frames_written: int) -> None:
        if self._is_held and frames_written % FRAMES_BETWEEN_RENEWALS == 0:
            self._hub.renew_hold(self)

    def _wrote(self, item: EncodedUpdate | LazyUpdate) -> None:
        self._updates_pending -= 1
        self._bytes_pending -= item.byte_count
        if self._is_held and not self._is_full():
            self._is_held = False
            self._hub.release_soon(self)

    # --- reading ---

    async def _read_requests(self) -> None:
        read = self._context.read
        while True:
            frame = await read()
            if frame is END_OF_STREAM:
                break
            for event in self._exchange.receive_frame(frame):
                await self._handle(event)
        for event in self._exchange.receive_half_close():
            await self._handle(event)

    async def _handle(self, event: ServerEvent) -> None:
        if isinstance(event, SubscriptionChanged):
            self._wants(event)
        elif isinstance(event, BodiesReleased):
            if self._bodies is not None:
                self._bodies.released(event.ids)
        elif isinstance(event, SubscriptionRequested):
            self._headers = (*self._body_headers, *await self._hub.subscribe(self, event))
            self._is_accepted.set()
        elif isinstance(event, SnapshotRequested):
            await self._send_snapshot(event)
        elif isinstance(event, HalfClosed):
            self.finish(None, is_flushed=self._is_snapshot)

    def _wants(self, event: SubscriptionChanged) -> None:
        """Note the latest change; one command at a time is on its way to the engine, however many
        come."""
        self._wanted = event
        if not self._is_change_posted:
            self._is_change_posted = True
            self._hub.change_soon(self)

    def take_wanted(self) -> SubscriptionChanged | None:
        """Engine thread: the latest change, or None if it was taken before.

        The flag is cleared before the change is read, and the loop sets the change before it reads
        the flag: so a change noted meanwhile is either taken now or has a command of its own.
        """
        self._is_change_posted = False
        wanted = self._wanted
        if wanted is self._taken:
            return None
        self._taken = wanted
        return wanted

    async def _send_snapshot(self, event: SnapshotRequested) -> None:
        """Queue the whole answer; the call completes when it is written and the client has
        half-closed."""
        self._is_snapshot = True
        options = EncodeOptions.for_snapshot(event.options, self._limits, revision=self.revision)
        encoder, messages = await self._hub.snapshot(
            event.ticket,
            self.session,
            options,
            columns=event.columns,
            viewport=event.viewport,
            is_reverse=event.is_reverse,
            way=self.way,
        )
        plans = await self._hub.plans(encoder, messages)
        self._is_accepted.set()
        self.enqueue(EncodedUpdate((self.stream_id,), (encoder.schema_frame(),)))
        for plan in plans:
            self.enqueue(LazyUpdate((self.stream_id,), plan))
