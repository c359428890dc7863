"""All DoExchange streams of a server: tells the engine thread what they want, and takes what it
hands over and gives it to them (:mod:`barrage.server.exchange.exchange_messages` has both).

Flow control: gRPC takes one message at a time and finishes it when the peer's window has room. What
the engine delivers waits in the stream's outbox. At ``exchange_outbox_updates_max`` updates or
``exchange_outbox_bytes_max`` bytes the subscription is *held*: its producer sends it nothing and
merges its changes instead. When there is room again it is released and gets everything it missed as
one update. Nothing is ever dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from barrage.errors import UnsupportedError
from barrage.server.exchange.exchange_messages import (
    AnswerAnnounced,
    ChangeViewport,
    EncodedViews,
    ForgetSnapshot,
    Hold,
    PlanBuilt,
    ReadSnapshot,
    Refused,
    Release,
    RenewHold,
    StreamEnded,
    Subscribe,
    Unsubscribe,
)
from barrage.server.exchange.exchange_stream import ExchangeStream
from barrage.server.exchange.resume_jobs import ResumeJobs
from barrage.server.exchange.stream_sending import SendingAccount
from barrage.server.exchange.stream_table import StreamTable
from barrage.server.presentation.conversions import check_conversions
from barrage.supervision import in_thread
from barrage.wire.dissociated.negotiation import HEADER as BODIES_HEADER
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.messages import CONVERT_STRINGIFY
from barrage.wire.revision import WireRevision
from barrage.wire.updates.update_codec import EncodeOptions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.proto.events import SessionRequested, SubscriptionChanged, SubscriptionRequested
    from barrage.proto.resumption import ResumeRequest
    from barrage.server.access.call_guard import SessionCall
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import ClientSession
    from barrage.server.bodies.body_frames import Frame
    from barrage.server.bodies.body_service import BodyService
    from barrage.server.bodies.body_writer import BodyWriter
    from barrage.server.exchange.exchange_messages import (
        EnginePort,
        Headers,
        SnapshotBegun,
        StreamEvent,
    )
    from barrage.server.exchange.exchange_stream import Transform
    from barrage.server.identity.current_call import CurrentCall
    from barrage.server.tables.table_lease import TableSource
    from barrage.transport.base import CallContext
    from barrage.wire.updates.update_codec import UpdateEncoder, UpdatePlan

Messages = TypeVar("Messages")

OpenTransform: TypeAlias = "Callable[[bytes], Transform]"
TellSession: TypeAlias = "Callable[[SessionRequested, ClientSession | None], Awaitable[bytes]]"


class ExchangeHub:
    """All streams of one server. Runs on the event loop, but for :meth:`hand_over`."""

    def __init__(
        self,
        engine: EnginePort,
        resolver: TicketResolver,
        *,
        limits: Limits,
        bodies: BodyService | None = None,
        account: SendingAccount | None = None,
        transform: OpenTransform | None = None,
        session_info: TellSession | None = None,
    ) -> None:
        """``bodies``: without one, bodies stay in their messages. ``account`` counts what is sent;
        ``transform`` and ``session_info`` serve what is neither a subscription nor a snapshot."""
        self._account = SendingAccount() if account is None else account
        self._open_transform = transform
        self._tell_session = session_info
        self._engine = engine
        self._resolver = resolver
        self._limits = limits
        self._bodies = bodies
        self._loop = asyncio.get_running_loop()
        self._streams = StreamTable(limits.subscriptions_max, self._account)
        self._resume_jobs = ResumeJobs(engine, self._streams)
        self._ids = itertools.count(1)
        self._releases: list[int] = []
        self._reading = asyncio.Lock()
        """One large snapshot is read at a time."""

    @property
    def stream_count(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    @property
    def streams(self) -> Iterable[ExchangeStream]:
        """Those that are open now."""
        return self._streams

    def call_of(self, stream_id: int) -> CurrentCall | None:
        """The call that a stream is; None for one that has ended."""
        return self._streams.call_of(stream_id)

    def new_stream_id(self) -> int:
        """A number no other stream of this server has."""
        return next(self._ids)

    # --- what the engine hands over ---

    def hand_over(self, events: Sequence[StreamEvent]) -> None:
        """Engine thread: pass events to the loop."""
        self._loop.call_soon_threadsafe(self._take, events)

    def _take(self, events: Sequence[StreamEvent]) -> None:
        streams = self._streams
        full: list[int] = []
        for event in events:
            if isinstance(event, StreamEnded):
                streams.end(event)
            elif isinstance(event, EncodedViews):
                streams.deliver_views(event, full)
            elif isinstance(event, AnswerAnnounced):
                streams.announce(event)
            elif isinstance(event, PlanBuilt):
                self._resume_jobs.plan_built(event)
            else:
                streams.deliver(event, full)
        self._engine.events_taken()
        # A connection that writes for one stream may take what others have waiting: those that are
        # not held any more have been released, and would be held for ever.
        full = streams.held(full)
        if full:
            self._post_releases()  # Of a stream among these the release came before.
            self._engine.tell(Hold(stream_ids=tuple(full)))

    # --- subscribe ---

    def open(
        self,
        context: CallContext | SessionCall,
        session: ClientSession | None,
        *,
        revision: WireRevision,
        sends_source_time: bool,
        resume: ResumeRequest | None = None,
        claim: str | None = None,
        wants_each_step: bool = False,
    ) -> ExchangeStream:
        """A stream for a new call; ``claim`` names the channel for its bodies. LimitExceededError
        when there are too many."""
        self._streams.check_room()
        stream_id = self.new_stream_id()
        writer, headers = self._claimed(claim, stream_id, is_session=session is not None)
        stream = ExchangeStream(
            self,
            stream_id,
            context,
            session=session,
            revision=revision,
            sends_source_time=sends_source_time,
            resume=resume,
            limits=self._limits,
            wants_each_step=wants_each_step,
            bodies=writer,
            body_headers=headers,
            account=self._account,
        )
        self._streams.add(stream)
        return stream

    def _claimed(
        self, claim: str | None, stream_id: int, *, is_session: bool
    ) -> tuple[BodyWriter | None, Headers]:
        """What a stream gets for its claim of a body channel, and the header that tells it."""
        if claim is None or self._bodies is None:
            return None, ()
        writer, outcome = self._bodies.claimed(claim, stream_id, is_session=is_session)
        return writer, () if outcome is None else ((BODIES_HEADER, outcome.header()),)

    async def subscribe(self, stream: ExchangeStream, event: SubscriptionRequested) -> Headers:
        """Start the subscription a client asked for; the headers of the response."""
        source = await self._resolver.source(event.ticket, stream.session)
        if stream.session is not None:
            # Both leases live until the subscription has its table.
            source, _view = await self._resolver.viewed(source, stream.session)
            if stream.revision is WireRevision.DRAFT_2020:
                mode = event.options.column_conversion_mode
                check_conversions(source.schema, stream.session.types, mode)
        request = Subscribe(
            stream_id=stream.stream_id,
            source=source,
            wanted=event,
            options=EncodeOptions.for_subscription(
                event.options,
                self._limits,
                revision=stream.revision,
                sends_source_time=stream.sends_source_time,
            ),
            types=stream.types,
            way=stream.way,
            resume=stream.resume,
            wants_each_step=stream.wants_each_step,
            token=event.token if stream.announces else None,
        )
        if request.resume is not None:
            answer = await self._resume_jobs.subscribe(request, request.resume, stream.session)
        else:
            answer = await asyncio.wrap_future(self._engine.ask(request))
        if isinstance(answer, Refused):
            try:
                raise answer.error
            finally:
                # The error has this frame from now on, which must not have the error.
                del answer
        return answer.headers

    # --- change of viewport ---

    def change_soon(self, stream: ExchangeStream, event: SubscriptionChanged) -> None:
        """Have a change applied at the next cycle boundary, unless another one follows before."""
        change = ChangeViewport(
            stream_id=stream.stream_id,
            columns=event.columns,
            viewport=event.viewport,
            token=event.token if stream.announces else None,
        )
        self._engine.tell(change)

    # --- cancel ---

    def close(self, stream: ExchangeStream) -> None:
        """Forget a stream and end its subscription."""
        self._streams.remove(stream.stream_id)
        self._engine.tell(Unsubscribe(stream_id=stream.stream_id))

    def finish_all(self, error: BarrageError, *, is_flushed: bool) -> None:
        """End every stream with ``error``, after what is queued for it or at once."""
        for stream in self._streams:
            stream.finish(error, is_flushed=is_flushed)
        self._resume_jobs.close()
        self._engine.close()

    # --- flow control ---

    def release_soon(self, stream: ExchangeStream) -> None:
        """Let the producer send to ``stream`` again; all releases of one loop turn are one
        message."""
        if not self._releases:
            self._loop.call_soon(self._post_releases)
        self._releases.append(stream.stream_id)

    def _post_releases(self) -> None:
        releases, self._releases = self._releases, []
        if releases:
            self._engine.tell(Release(stream_ids=tuple(releases)))

    def renew_hold(self, stream: ExchangeStream) -> None:
        """The held subscriber is reading: its stall clock starts anew."""
        self._engine.tell(RenewHold(stream_id=stream.stream_id))

    # --- what is neither a subscription nor a snapshot ---

    def transform(self, descriptor: bytes) -> Transform:
        """What becomes of rows, as a descriptor says."""
        if self._open_transform is None:
            raise UnsupportedError("rows are not transformed here")
        return self._open_transform(descriptor)

    async def session_info(self, stream: ExchangeStream, event: SessionRequested) -> bytes:
        """The answer to a session message of the draft, encoded."""
        if self._tell_session is None:
            raise UnsupportedError("session messages are not answered here")
        return await self._tell_session(event, stream.session)

    # --- snapshot ---

    async def snapshot(
        self,
        ticket: bytes | None,
        session: ClientSession | None,
        options: EncodeOptions,
        *,
        columns: ColumnSet | None = None,
        viewport: Viewport | None = None,
        is_reverse: bool = False,
        way: BodyWay = BodyWay.INLINE,
        conversion: int = CONVERT_STRINGIFY,
    ) -> tuple[UpdateEncoder[Frame], Sequence[FullUpdate]]:
        """The messages answering a snapshot request and the encoder for them."""
        source = await self._resolver.source(ticket, session)
        async with self.held(
            source,
            session,
            options,
            columns=columns,
            viewport=viewport,
            is_reverse=is_reverse,
            way=way,
            conversion=conversion,
        ) as begun:
            messages = begun.work.messages
            if messages is None:
                messages = await self.read_beside(begun.work.read)
        return begun.encoder, messages

    @asynccontextmanager
    async def held(
        self,
        source: TableSource,
        session: ClientSession | None,
        options: EncodeOptions,
        *,
        columns: ColumnSet | None = None,
        viewport: Viewport | None = None,
        is_reverse: bool = False,
        way: BodyWay = BodyWay.INLINE,
        conversion: int = CONVERT_STRINGIFY,
        is_parted: bool = False,
    ) -> AsyncIterator[SnapshotBegun]:
        """A table as it is now, while the block lasts."""
        if session is not None:
            source, _view = await self._resolver.viewed(source, session)
            if options.revision is WireRevision.DRAFT_2020:
                check_conversions(source.schema, session.types, conversion)
        request = ReadSnapshot(
            snapshot_id=self.new_stream_id(),
            source=source,
            columns=columns,
            viewport=viewport,
            is_reverse=is_reverse,
            options=options,
            types=None if session is None else session.types,
            way=way,
            is_parted=is_parted,
        )
        try:
            yield await asyncio.wrap_future(self._engine.ask(request))
        finally:
            self._engine.tell(ForgetSnapshot(snapshot_id=request.snapshot_id))

    async def read_beside(self, read: Callable[[], Messages]) -> Messages:
        """What ``read`` reads, beside the loop; one large read at a time."""
        async with self._reading:
            return await in_thread(read)

    async def plans(
        self, encoder: UpdateEncoder[Frame], messages: Sequence[FullUpdate]
    ) -> list[UpdatePlan[Frame]]:
        """The messages ready to be encoded frame by frame. What is done once for all frames of one
        (its dictionaries and row sets) may take long and is done beside the loop."""
        return await in_thread(lambda: [encoder.plan(message) for message in messages])
