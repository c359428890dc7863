"""All DoExchange streams of a server: takes what the engine thread hands over and gives it to the
streams.

Flow control: gRPC takes one message at a time and finishes it when the peer's window has room. What
the engine delivers waits in the stream's outbox. At ``exchange_outbox_updates_max`` updates or
``exchange_outbox_bytes_max`` bytes the subscription is *held*: its producer sends it nothing and
merges its changes instead. When there is room again it is released and gets everything it missed as
one update. Nothing is ever dropped.
"""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError, SlowConsumerError
from barrage.server.delivery import EncodedUpdate, LazyUpdate, StreamEnded, convert
from barrage.server.exchange_stream import ExchangeStream
from barrage.server.resume_jobs import ResumeJobs
from barrage.server.snapshot_work import SnapshotWork
from barrage.server.subscription_desk import SubscriptionDesk
from barrage.supervision import in_thread
from barrage.wire.dissociated.negotiation import HEADER as BODIES_HEADER
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.update_codec import EncodeOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barrage.clock import Clock
    from barrage.engine.making import Delivery, Disconnect
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.proto.events import SubscriptionRequested
    from barrage.proto.resumption import ResumeRequest
    from barrage.server.body_frames import Frame
    from barrage.server.body_service import BodyService
    from barrage.server.body_writer import BodyWriter
    from barrage.server.exchange_stream import Context, Headers
    from barrage.server.flight.call_guard import SessionCall
    from barrage.server.journal_service import JournalService
    from barrage.server.resolver import TicketResolver
    from barrage.server.runtime import EngineRuntime
    from barrage.server.session_store import ClientSession
    from barrage.wire.revision import WireRevision
    from barrage.wire.update_codec import UpdateEncoder, UpdatePlan


class ExchangeHub:
    """All streams of one server. Runs on the event loop, but for the two methods of the engine's
    outlet."""

    def __init__(
        self,
        runtime: EngineRuntime,
        resolver: TicketResolver,
        journals: JournalService,
        *,
        limits: Limits,
        clock: Clock,
        bodies: BodyService | None = None,
    ) -> None:
        """``bodies``: without one, bodies stay in their messages."""
        self._bodies = bodies
        self._runtime = runtime
        self._resolver = resolver
        self._desk = SubscriptionDesk(runtime, journals, limits=limits, clock=clock, bodies=bodies)
        self._resume_jobs = ResumeJobs(runtime, self._desk, is_open=self._is_open)
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, ExchangeStream] = {}
        self._ids = itertools.count(1)
        self._releases: list[ExchangeStream] = []
        self._reading = asyncio.Lock()
        """One large snapshot is read at a time."""

    @property
    def stream_count(self) -> int:
        """Streams that have not ended."""
        return len(self._streams)

    # --- the engine thread's outlet ---

    def convert(self, item: Delivery | Disconnect) -> Iterable[object]:
        """Engine thread: hand-over items for what a producer said."""
        return convert(item)

    def hand_over(self, items: Sequence[object]) -> None:
        """Engine thread: pass items to the loop."""
        self._loop.call_soon_threadsafe(self._take, items)

    def _take(self, items: Sequence[object]) -> None:
        streams = self._streams
        held: list[ExchangeStream] = []
        for item in items:
            if isinstance(item, StreamEnded):
                self._end(item)
                continue
            assert isinstance(item, EncodedUpdate | LazyUpdate)
            for subscription_id in item.subscription_ids:
                stream = streams.get(subscription_id)
                if stream is not None and stream.enqueue(item):
                    held.append(stream)
        self._runtime.handover_taken()
        if held:
            self._runtime.post(partial(self._desk.hold, held))

    def _end(self, item: StreamEnded) -> None:
        """A reader that is too slow would never take what is queued, so it is not waited for."""
        stream = self._streams.get(item.subscription_id)
        if stream is not None:
            stream.finish(item.error, is_flushed=not isinstance(item.error, SlowConsumerError))

    # --- streams ---

    def new_stream_id(self) -> int:
        """A number no other stream of this server has."""
        return next(self._ids)

    def open(
        self,
        context: Context | SessionCall,
        session: ClientSession | None,
        *,
        revision: WireRevision,
        sends_source_time: bool,
        resume: ResumeRequest | None = None,
        claim: str | None = None,
    ) -> ExchangeStream:
        """A stream for a new call; ``claim`` names the channel for its bodies. LimitExceededError
        when there are too many."""
        if len(self._streams) >= self._limits.subscriptions_max:
            raise LimitExceededError(
                "number of open exchanges",
                actual=len(self._streams) + 1,
                maximum=self._limits.subscriptions_max,
                unit="streams",
            )
        stream_id = self.new_stream_id()
        writer, headers = self._claimed(claim, stream_id, is_session=session is not None)
        stream = ExchangeStream(
            self,
            stream_id,
            context,
            session,
            revision=revision,
            sends_source_time=sends_source_time,
            resume=resume,
            limits=self._limits,
            bodies=writer,
            body_headers=headers,
        )
        self._streams[stream.stream_id] = stream
        return stream

    def _claimed(
        self, claim: str | None, stream_id: int, *, is_session: bool
    ) -> tuple[BodyWriter | None, Headers]:
        """What a stream gets for its claim of a body channel, and the header that tells it."""
        if claim is None or self._bodies is None:
            return None, ()
        writer, outcome = self._bodies.claimed(claim, stream_id, is_session=is_session)
        return writer, () if outcome is None else ((BODIES_HEADER, outcome.header()),)

    def close(self, stream: ExchangeStream) -> None:
        """Forget a stream and end its subscription."""
        self._streams.pop(stream.stream_id, None)
        self._runtime.post(partial(self._desk.unsubscribe, stream))

    def finish_all(self, error: BarrageError, *, is_flushed: bool) -> None:
        """End every stream with ``error``, after what is queued for it or at once."""
        for stream in list(self._streams.values()):
            stream.finish(error, is_flushed=is_flushed)
        self._resume_jobs.close()

    def _is_open(self, stream: ExchangeStream) -> bool:
        return self._streams.get(stream.stream_id) is stream

    async def subscribe(self, stream: ExchangeStream, event: SubscriptionRequested) -> Headers:
        """Start the subscription a client asked for; the headers of the answer."""
        source = await self._resolver.source(event.ticket, stream.session)
        if stream.session is not None:
            # Both leases live until the subscription has its table.
            source, _view = await self._resolver.viewed(source, stream.session)
        options = EncodeOptions.for_subscription(
            event.options,
            self._limits,
            revision=stream.revision,
            sends_source_time=stream.sends_source_time,
        )
        if stream.resume is not None:
            return await self._resume_jobs.subscribe(stream, source, event, options)
        add = partial(self._desk.subscribe, stream, source, event, options)
        headers: Headers = await asyncio.wrap_future(self._runtime.submit(add))
        return headers

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
    ) -> tuple[UpdateEncoder[Frame], list[FullUpdate]]:
        """The messages answering a snapshot request and the encoder for them."""
        source = await self._resolver.source(ticket, session)
        if session is not None:
            source, _view = await self._resolver.viewed(source, session)
        types = None if session is None else session.types
        work = SnapshotWork(columns=columns, viewport=viewport, is_reverse=is_reverse)
        begin = partial(self._desk.snapshot, source, types, options, way, work)
        try:
            encoder = await asyncio.wrap_future(self._runtime.submit(begin))
            messages = work.messages
            if messages is None:
                async with self._reading:
                    messages = await in_thread(work.read)
        finally:
            self._runtime.post(work.pinned.clear)
        return encoder, messages

    async def plans(
        self, encoder: UpdateEncoder[Frame], messages: Sequence[FullUpdate]
    ) -> list[UpdatePlan[Frame]]:
        """The messages ready to be encoded frame by frame. What is done once for all frames of one
        (its dictionaries and row sets) may take long and is done beside the loop."""
        return await in_thread(lambda: [encoder.plan(message) for message in messages])

    def change_soon(self, stream: ExchangeStream) -> None:
        """Apply the change ``stream`` wants at the next cycle boundary."""
        self._runtime.post(partial(self._desk.change, stream))

    def release_soon(self, stream: ExchangeStream) -> None:
        """Let the producer send to ``stream`` again; all releases of one loop turn are one
        command."""
        if not self._releases:
            self._loop.call_soon(self._post_releases)
        self._releases.append(stream)

    def _post_releases(self) -> None:
        releases, self._releases = self._releases, []
        self._runtime.post(partial(self._desk.release, releases))

    def renew_hold(self, stream: ExchangeStream) -> None:
        """The held subscriber is reading: its stall clock starts anew."""
        self._runtime.post(partial(self._desk.renew, stream))
