"""One DoExchange call: reads its client's requests, writes its updates.

Cost per small message on the loop: where the transport can be given it without waiting (``post``),
one call; otherwise one append, one future, one write by the writer. No task and no lock either way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from barrage.errors import BarrageError, PermissionDeniedError, TransportError
from barrage.proto.events import (
    BodiesReleased,
    HalfClosed,
    RowsArrived,
    SessionRequested,
    SnapshotRequested,
    SubscriptionChanged,
    SubscriptionRequested,
    TransformRequested,
)
from barrage.proto.server_exchange import ServerExchange
from barrage.server.access.call_guard import SessionCall
from barrage.server.access.frame_writing import write_frames
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.exchange.exchange_messages import (
    AnswerAnnounced,
    EncodedUpdate,
    PlannedUpdate,
)
from barrage.server.exchange.lazy_update import LazyUpdate
from barrage.server.exchange.stream_sending import SendingAccount, StreamSending
from barrage.server.runtime.failure import without_frames
from barrage.supervision import Role, start_awaited, start_task
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import encode_flight_data
from barrage.wire.frame import FlightFrame
from barrage.wire.updates.update_codec import BEGINNING, EncodeOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence

    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.proto.events import ServerEvent
    from barrage.proto.resumption import ResumeRequest
    from barrage.server.access.session_store import ClientSession
    from barrage.server.bodies.body_frames import Frame
    from barrage.server.bodies.body_writer import BodyWriter
    from barrage.server.exchange.exchange_messages import Headers
    from barrage.server.presentation.deephaven_types import SessionTypes
    from barrage.server.runtime.observation import UpdateOrigin
    from barrage.transport.base import CallContext
    from barrage.wire.revision import WireRevision
    from barrage.wire.updates.update_codec import UpdateEncoder, UpdatePlan


READER = Role("barrage-exchange-reader", "the stream")
WRITER = Role("barrage-exchange-writer", "the stream")

FRAMES_BETWEEN_RENEWALS = 16
"""Frames of one large update after which a held but reading subscriber's stall clock starts
anew."""


class StreamHub(Protocol):
    """What a stream asks of whoever has all streams and speaks to the engine thread."""

    async def subscribe(self, stream: ExchangeStream, event: SubscriptionRequested) -> Headers:
        """Start the subscription a client asked for; the headers of the response."""
        ...

    def change_soon(self, stream: ExchangeStream, event: SubscriptionChanged) -> None:
        """Apply a change the client wants; of several that come quickly, the last."""
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
        conversion: int,
    ) -> tuple[UpdateEncoder[Frame], Sequence[FullUpdate]]:
        """The messages answering a snapshot request and the encoder for them."""
        ...

    async def plans(
        self, encoder: UpdateEncoder[Frame], messages: Sequence[FullUpdate]
    ) -> list[UpdatePlan[Frame]]:
        """The messages ready to be encoded frame by frame."""
        ...

    def transform(self, descriptor: bytes) -> Transform:
        """What becomes of rows, as a descriptor says."""
        ...

    async def session_info(self, stream: ExchangeStream, event: SessionRequested) -> bytes:
        """The answer to a session message of the draft, encoded."""
        ...

    def close(self, stream: ExchangeStream) -> None:
        """The call has ended, and with it the subscription."""
        ...


class Transform(Protocol):
    """Rows that come, and what becomes of them, as FlightData both ways."""

    def take(self, frame: FlightFrame) -> AsyncIterator[bytes]:
        """What is to be sent after this message."""
        ...

    def finish(self) -> AsyncIterator[bytes]:
        """What is to be sent after the last one."""
        ...

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        ...


class ExchangeStream:
    """One call. Belongs to the event loop: the engine thread knows its number alone."""

    def __init__(
        self,
        hub: StreamHub,
        stream_id: int,
        context: CallContext | SessionCall,
        *,
        session: ClientSession | None,
        revision: WireRevision,
        sends_source_time: bool,
        resume: ResumeRequest | None,
        limits: Limits,
        wants_each_step: bool = False,
        bodies: BodyWriter | None = None,
        body_headers: Headers = (),
        account: SendingAccount | None = None,
    ) -> None:
        """``account`` counts what all streams send, ``bodies`` writes the frames of a stream that
        has claimed a body channel. ``wants_each_step``: no two steps in one update, as long as the
        client takes them."""
        self.wants_each_step = wants_each_step
        self.stream_id = stream_id
        self.revision = revision
        self.sends_source_time = sends_source_time
        self.resume = resume
        self.session = session
        self.types: SessionTypes | None = None if session is None else session.types
        self.way = BodyWay.INLINE if bodies is None else bodies.way
        self._hub = hub
        self._call = context if isinstance(context, SessionCall) else None
        self._context = context.raw if isinstance(context, SessionCall) else context
        self._post: Callable[[Any, Callable[[], None]], bool] | None = (
            getattr(self._context, "post", None) if bodies is None else None
        )
        self._posted: deque[tuple[int, UpdateOrigin | None]] = deque()
        """Bytes of each update that was posted and is not taken, and where it comes from."""
        peer = getattr(self._context, "peer", None)
        self.sending = StreamSending(
            SendingAccount() if account is None else account,
            stream_id,
            "" if peer is None else peer(),
        )
        self._announce: Callable[[bytes], None] | None = getattr(self._context, "announce", None)
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
        self._outbox: deque[EncodedUpdate | LazyUpdate | AnswerAnnounced] = deque()
        self._updates_pending = 0
        self._bytes_pending = 0
        self._is_held = False
        self._waker: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_finishing = False
        self._is_snapshot = False
        self._is_answering = False
        """Whether messages are sent that belong to no subscription."""
        self._transform: Transform | None = None
        self._room: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        while_paused = getattr(self._context, "while_paused", None)
        if while_paused is not None:
            while_paused(self._renew_paused)

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
            if self._transform is not None:
                self._transform.close()
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
        except BarrageError as error:
            # Kept here, its frames would keep the stream, and tables, of a call that was cancelled.
            self.finish(without_frames(error), is_flushed=False)
        except Exception as error:
            self.finish(error, is_flushed=False)

    def _died(self, error: BarrageError) -> None:
        self.finish(error, is_flushed=False)

    def finish(self, error: Exception | None, *, is_flushed: bool) -> None:
        """End the call with ``error`` or OK: after the outbox is written, or at once. The first one
        counts, but an error that cuts an answer off counts over an OK that was to come after it:
        rows would be missing, and nobody would know. What comes before the headers are known is not
        written: they say what it goes on from."""
        cuts_off = not is_flushed and self._error is None and not self._ended.done()
        if not self._is_finishing or cuts_off:
            self._is_finishing = True
            self._error = error
        if not is_flushed or not self._is_accepted.is_set():
            self._outbox.clear()
        if not is_flushed:
            self._end()
        self._is_accepted.set()
        self._wake()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    # --- writing ---

    def enqueue(
        self, item: bytes | EncodedUpdate | LazyUpdate, origin: UpdateOrigin | None = None
    ) -> bool:
        """Queue an update, or its only frame; True when the subscription is to be held from now
        on."""
        if self._is_finishing:
            return False
        if isinstance(item, bytes):
            if self._is_idle:
                return self._post_frame(item, origin)
            return self._put(EncodedUpdate.of((self.stream_id,), (item,), origin))
        if isinstance(item, EncodedUpdate) and len(item.frames) == 1 and self._is_idle:
            return self._post_frame(item.frames[0], origin)
        return self._put(item)

    @property
    def announces(self) -> bool:
        """Whether its client can be told which request an update answers."""
        return self._announce is not None

    def announce(self, event: AnswerAnnounced) -> None:
        """Say so of the next update."""
        if self._announce is None or self._is_finishing:
            return
        if self._is_idle:
            self._announce(event.token)
        else:
            self._outbox.append(event)
            self._wake()

    def _put(self, item: EncodedUpdate | LazyUpdate) -> bool:
        self._outbox.append(item)
        self._wake()
        return self._is_to_be_held(item.byte_count)

    @property
    def _is_idle(self) -> bool:
        """Whether the writer waits for something to write, and need not be woken for one frame."""
        waker = self._waker
        return (
            self._post is not None and waker is not None and not waker.done() and not self._outbox
        )

    def _post_frame(self, frame: Frame, origin: UpdateOrigin | None) -> bool:
        assert self._post is not None
        try:
            if self._post(frame, self._posted_was_taken):
                self.sending.sent_at_once(len(frame))
                return False
        except Exception as error:
            self.finish(error, is_flushed=False)
            return False
        self._posted.append((len(frame), origin))
        return self._is_to_be_held(len(frame))

    def _posted_was_taken(self) -> None:
        self._took(*self._posted.popleft())
        if self._is_finishing and not self._posted:
            self._wake()

    @property
    def has_pending(self) -> bool:
        """Whether anything waits to be written."""
        return self._updates_pending > 0

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait to be written."""
        return self._bytes_pending

    @property
    def is_held(self) -> bool:
        """Whether the engine is to send nothing until there is room again."""
        return self._is_held

    def _is_to_be_held(self, byte_count: int) -> bool:
        """Count one update more that waits."""
        self._updates_pending += 1
        self._bytes_pending += byte_count
        if self._is_held or not self._is_full():
            return False
        self._is_held = True
        self.sending.held()
        return True

    def _is_full(self) -> bool:
        limits = self._limits
        if self.wants_each_step:
            return (
                self._updates_pending >= limits.each_step_outbox_updates_max
                or self._bytes_pending >= limits.each_step_outbox_bytes_max
            )
        return (
            self._updates_pending >= limits.exchange_outbox_updates_max
            or self._bytes_pending >= limits.exchange_outbox_bytes_max
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
                item = outbox.popleft()
                if isinstance(item, AnswerAnnounced):
                    if self._announce is not None:
                        self._announce(item.token)
                else:
                    await self._write_update(write, item)
                del item
            # A status that tells of an error overtakes posted messages that wait.
            if self._is_finishing and not self._posted:
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
        self._took(item.byte_count, item.origin)

    def _writer(self) -> Callable[[Frame], Awaitable[None]]:
        """How one frame is written. Without a body channel all of them are complete messages."""
        write: Callable[[bytes], Awaitable[None]] = self._context.write
        if self._bodies is not None:
            return partial(self._bodies.write, write)
        return cast("Callable[[Frame], Awaitable[None]]", write)

    def _renew_hold(self, frames_written: int) -> None:
        if self._is_held and frames_written % FRAMES_BETWEEN_RENEWALS == 0:
            self._hub.renew_hold(self)

    def _renew_paused(self) -> None:
        """Its client has said that it takes nothing for now."""
        if self._is_held:
            self._hub.renew_hold(self)

    def _took(self, byte_count: int, origin: UpdateOrigin | None) -> None:
        """One update less waits."""
        self._updates_pending -= 1
        self._bytes_pending -= byte_count
        self.sending.sent_later(byte_count, origin)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)
        if self._is_held and not self._is_full():
            self._is_held = False
            self.sending.released()
            self._hub.release_soon(self)

    # --- reading ---

    async def _read_requests(self) -> None:
        read = self._context.read
        while True:
            frame = await read()
            if frame is END_OF_STREAM:
                break
            self.sending.received(len(frame))
            for event in self._exchange.receive_frame(frame):
                await self._handle(event)
        for event in self._exchange.receive_half_close():
            await self._handle(event)

    async def _handle(self, event: ServerEvent) -> None:
        if isinstance(event, SubscriptionChanged):
            self._hub.change_soon(self, event)
        elif isinstance(event, BodiesReleased):
            if self._bodies is not None:
                self._bodies.released(event.ids)
        elif isinstance(event, SubscriptionRequested):
            self._headers = (*self._body_headers, *await self._hub.subscribe(self, event))
            self.sending.interval_ms = event.options.min_update_interval_ms
            self.sending.is_subscription = True
            self._is_accepted.set()
        elif isinstance(event, SnapshotRequested):
            await self._send_snapshot(event)
        elif isinstance(event, HalfClosed):
            await self._half_closed()
        else:
            await self._handle_other(event)

    async def _half_closed(self) -> None:
        if self._transform is not None:
            async for frame in self._transform.finish():
                await self._send(frame)
        self.finish(None, is_flushed=self._is_snapshot or self._is_answering)

    async def _handle_other(
        self, event: TransformRequested | RowsArrived | SessionRequested
    ) -> None:
        """What is neither about a subscription nor about a snapshot."""
        if isinstance(event, TransformRequested):
            self._transform = self._hub.transform(event.descriptor)
            self._is_accepted.set()
        elif isinstance(event, RowsArrived):
            assert self._transform is not None
            async for frame in self._transform.take(event.frame):
                await self._send(frame)
        elif self._announce is not None:
            # Its script has no token, and is to have none: it may have come by a cookie.
            raise PermissionDeniedError("a page says who it is in its hello, and gets no token")
        else:
            answer = await self._hub.session_info(self, event)
            self._is_accepted.set()
            await self._send(encode_flight_data(FlightFrame(metadata=answer)))

    async def _send(self, frame: bytes) -> None:
        """Queue a message once there is room: a client that does not read is not read from."""
        self._is_answering = True
        while self._updates_pending and self._is_full():
            self._room = self._loop.create_future()
            await self._room
        self._updates_pending += 1
        self._bytes_pending += len(frame)
        self._outbox.append(EncodedUpdate.of((self.stream_id,), (frame,)))
        self._wake()

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
            conversion=event.options.column_conversion_mode,
        )
        plans = await self._hub.plans(encoder, messages)
        self._is_accepted.set()
        stream_ids = (self.stream_id,)
        self.enqueue(EncodedUpdate.of(stream_ids, (encoder.schema_frame(),)))
        for plan in plans:
            update = PlannedUpdate(stream_ids=stream_ids, plan=plan, mark=BEGINNING)
            self.enqueue(LazyUpdate(update))
