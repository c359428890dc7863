"""Bodies outside their streams, as one serving instance has them: the memory, the channels, and the
writers of the streams that claimed one.

Nothing of this is loaded unless the configuration switches a way on: ``shm`` makes an arena of
shared memory when the server starts, any other a listener. All are gone when it stops. Whatever
does not fit between server and client means inline, with a reason that travels to the client.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from barrage.errors import BarrageError
from barrage.server.access.method_table import Action
from barrage.server.bodies.body_channels import TOO_MANY, BodyChannels, Channel, ClaimRefusedError
from barrage.server.bodies.body_frames import loosener, placer
from barrage.server.bodies.body_outlets import ConnectedOutlet, SharedMemoryOutlet
from barrage.server.bodies.body_turns import BodyTurns
from barrage.server.bodies.body_writer import BodyCounts, BodyWriter
from barrage.server.identity.current_call import current_caller
from barrage.server.runtime.failure import unexpected_failure
from barrage.supervision import Role, no_dependants, start_task
from barrage.transport.bodies import ServeOptions
from barrage.transport.registry import body_transport, shared_memory
from barrage.wire.dissociated.negotiation import ACTION, Answer, Claim, ClaimOutcome, Offer
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.bodies.body_frames import Frame
    from barrage.server.bodies.body_outlets import Outlet
    from barrage.server.identity.caller import Caller
    from barrage.server.settings.config import ServerConfig
    from barrage.supervision import OnDeath
    from barrage.transport.bodies import BodyServer, TableOffers
    from barrage.transport.shared_memory import Arena
    from barrage.wire.dissociated.detached import DetachedFrame
    from barrage.wire.dissociated.negotiation import HostIdentity

log = logging.getLogger(__name__)

SWEEPER = Role("barrage-bodies", "health: what clients do not give back would stay")

DESCRIPTION = (
    "Whether bodies of record batches can leave their stream. Body: JSON of the ways the client "
    "can take. Result: JSON of the way, and of the channel to claim in a header of DoExchange."
)

OUTSIDE_BATCH_FACTOR = 4
"""How much larger the record batches of streams are whose bodies go elsewhere: what they cost there
is their number."""

SWEEP_SECONDS_MAX = 1.0

OTHER_HOST = "the client is on another host or belongs to another user"
NOT_OFFERED = "the client does not offer it"
NOT_SWITCHED_ON = "it is not switched on"
FOR_THOSE_WHO_SEE_ALL = "it is for those who may see all tables and all of them"
SESSION_CALL = "sessions get bodies inline"
TOO_MANY_CONNECT = "too many clients connect at the moment"
NO_CLAIM = "the header is no claim"


@dataclass(frozen=True, slots=True)
class BodyEncoding:
    """How encoders for subscribers of one way are made."""

    limits: Limits
    detach: Callable[[DetachedFrame], Frame] | None = None


@dataclass(frozen=True, slots=True)
class WayFacts:
    """What is told about one way; see :mod:`barrage.server.statistics.body_statistics`."""

    way: BodyWay
    counts: BodyCounts
    channels: int
    pending_count: int
    pending_bytes: int


class BodyService:
    """The bodies of one serving instance. Made and used on the event loop, but for
    :meth:`encoding`, which the engine thread reads."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._config = config
        self._limits = config.limits
        self._clock = clock
        self._channels: BodyChannels[Any] = BodyChannels(config.limits, clock)
        self._encodings = {BodyWay.INLINE: BodyEncoding(config.limits)}
        self._ways = tuple(way for way in BodyWay.known() if way.value in config.body_ways)
        """Those that are switched on."""
        self._counts = {way: BodyCounts() for way in self._ways}
        self._writers: set[BodyWriter] = set()
        self._arena: Arena | None = None
        self._host: HostIdentity | None = None
        self._servers: dict[BodyWay, BodyServer] = {}
        """What listens for connections, by its way."""
        self._turns = BodyTurns()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def is_switched_on(self) -> bool:
        """Whether there is any way but inline."""
        return bool(self._ways)

    @property
    def actions(self) -> Mapping[str, Action]:
        """Actions by name; none when everything is inline."""
        return {ACTION: Action(DESCRIPTION, self.offer)} if self.is_switched_on else {}

    # --- life ---

    async def start(self, *, on_death: OnDeath = no_dependants) -> None:
        """Make what the configuration switches on. TransportUnavailableError when that cannot be
        had here, TransportError when one of them cannot listen."""
        try:
            for way in self._ways:
                if way is BodyWay.SHM:
                    self._start_shared_memory()
                else:
                    await self._start_serving(way)
        except BaseException:
            await self.close()
            raise
        if self._ways:
            self._sweeping = start_task(SWEEPER, self._sweep(), on_death=on_death)

    def _start_shared_memory(self) -> None:
        self._arena, self._host = shared_memory().serve(self._limits)
        detach = placer(self._arena.place, self._limits.body_inline_bytes_max)
        self._encodings[BodyWay.SHM] = BodyEncoding(self._outside_limits(), detach)

    async def _start_serving(self, way: BodyWay) -> None:
        transport = body_transport(way)
        options = ServeOptions(
            limits=self._limits,
            clock=self._clock,
            settings=self._config.settings_of(way.value, transport.settings),
            arena=self._arena,
        )
        self._servers[way] = await transport.serve(options)
        detach = loosener(self._limits.body_inline_bytes_max)
        self._encodings[way] = BodyEncoding(self._outside_limits(), detach)

    def _outside_limits(self) -> Limits:
        target = self._limits.message_bytes_target * OUTSIDE_BATCH_FACTOR
        return replace(self._limits, message_bytes_target=target)

    async def close(self) -> None:
        """After the last stream: give the memory back. Idempotent."""
        self._is_closed = True
        sweeping, self._sweeping = self._sweeping, None
        if sweeping is not None:
            sweeping.cancel()
            await asyncio.wait([sweeping])
        for writer in list(self._writers):
            writer.close()
        for channel in self._channels.take_all():
            self._drop(channel)
        servers, self._servers = self._servers, {}
        arena, self._arena = self._arena, None
        # The memory last, each of them whatever becomes of the others.
        async with AsyncExitStack() as ends:
            if arena is not None:
                ends.callback(arena.close)
            for server in servers.values():
                ends.push_async_callback(server.close)

    async def _sweep(self) -> None:
        """Look after what is too old, for as long as the server runs."""
        shortest_ns = min(self._limits.body_lease_ns_max, self._limits.body_ticket_ns)
        pause = max(min(SWEEP_SECONDS_MAX, shortest_ns / 4e9), 0.01)
        while True:
            await asyncio.sleep(pause)
            for channel in self._channels.take_expired():
                self._drop(channel)
            now_ns = self._clock.monotonic_ns()
            for writer in list(self._writers):
                writer.check(now_ns)

    def _drop(self, channel: Channel[Any]) -> None:
        """Close the connection of a channel that no stream has taken over."""
        connection, channel.connection = channel.connection, None
        server = self._servers.get(channel.way)
        if connection is None or server is None:
            return
        try:
            server.sender(connection).close()
        except Exception:  # the other channels are to be looked after all the same
            unexpected_failure(log, "the connection of a body channel could not be closed")

    def revoke(self, is_meant: Callable[[Caller], bool], _error: BarrageError) -> None:
        """Some callers are callers no more, or see other things: their channels are for no further
        stream."""
        for channel in self._channels.take_of(is_meant):
            self._drop(channel)

    # --- offers ---

    async def offer(self, body: bytes, peer: str = "", *, sees_all: bool = True) -> bytes:
        """The action: the first way of the client's that can be had. ``peer`` is the caller as gRPC
        names it, nothing in this process; ``sees_all``: whether it may see what anybody may.
        RemoteProtocolError."""
        offer = Offer.from_json(body)
        reasons = []
        for way in offer.order:
            if way is BodyWay.INLINE:
                break
            answer: Answer | str
            if not sees_all and self._shows_others(way):
                answer = FOR_THOSE_WHO_SEE_ALL
            elif way is BodyWay.SHM:
                answer = self._shared_memory_answer(offer)
            else:
                answer = await self._connected_answer(way, offer, peer)
            if isinstance(answer, Answer):
                return answer.to_json()
            reasons.append(f"{way.value}: {answer}")
        reason = "; ".join(reasons) or "the client asks for nothing else"
        return Answer(way=BodyWay.INLINE, reason=reason).to_json()

    def _shows_others(self, way: BodyWay) -> bool:
        """Whether who takes bodies this way could read those of other callers, too: they lie in the
        same memory. UCX sends each to one connection, unless peers may read by themselves."""
        return way is not BodyWay.UCX or self._config.ucx_rma

    def _shared_memory_answer(self, offer: Offer) -> Answer | str:
        if self._arena is None:
            return NOT_SWITCHED_ON
        if offer.shm is None:
            return NOT_OFFERED
        if offer.shm != self._host:
            return OTHER_HOST
        channel = self._channels.add(BodyWay.SHM, current_caller())
        if channel is None:
            return TOO_MANY
        return self._answer(channel, arena=self._arena.name)

    async def _connected_answer(self, way: BodyWay, offer: Offer, peer: str) -> Answer | str:
        server = self._servers.get(way)
        if server is None:
            return NOT_SWITCHED_ON
        terms = offer.terms.get(way)
        if terms is None:
            return NOT_OFFERED
        refusal = server.refusal(terms)
        if refusal:
            return refusal
        try:
            turn = await self._turns.wait(seconds_max=self._limits.body_ticket_ns / 1e9)
        except TimeoutError:
            return TOO_MANY_CONNECT
        is_served = way in self._servers
        channel = self._channels.add(way, current_caller()) if is_served else None
        if channel is None:
            turn.end()
            return TOO_MANY if is_served else NOT_SWITCHED_ON

        def connected(connection: Any) -> None:
            turn.end()
            channel.connection = connection
            if not self._channels.is_known(channel):
                self._drop(channel)

        try:
            location, ticket = server.offer(connected, self._limits.body_ticket_ns, peer)
        except BarrageError as error:
            turn.end()
            self._channels.discard(channel)
            return str(error)
        return self._answer(channel, location=location, ticket=ticket)

    def _answer(self, channel: Channel[Any], **way: Any) -> Answer:
        return Answer(
            way=channel.way,
            channel_id=channel.channel_id,
            window_bytes=self._limits.body_window_bytes,
            window_count=self._limits.body_window_count,
            **way,
        )

    # --- streams ---

    def claimed(
        self,
        header: str | None,
        stream_id: int,
        *,
        is_session: bool,
        wait_ns_max: int | None = None,
    ) -> tuple[BodyWriter | None, ClaimOutcome | None]:
        """The writer of a new stream and what is told about it: nothing to who does not ask.
        ``wait_ns_max``: how long it waits for room in its window, when that is another time than
        for subscriptions."""
        if header is None or not self.is_switched_on or self._is_closed:
            return None, None
        claim = Claim.parse(header)
        if is_session or claim is None:
            reason = SESSION_CALL if is_session else NO_CLAIM
            return None, ClaimOutcome(way=BodyWay.INLINE, reason=reason)
        try:
            proof = b"" if self._arena is None else self._arena.proof
            channel = self._channels.claim(claim, proof, current_caller())
        except ClaimRefusedError as error:
            log.info("stream %d: bodies go inline: %s", stream_id, error)
            self._counts[self._claimed_way(claim)].refusals += 1
            return None, ClaimOutcome(way=BodyWay.INLINE, reason=str(error))
        limits = self._limits
        if wait_ns_max is not None:
            limits = replace(limits, body_wait_ns_max=wait_ns_max)
        writer = self._writer(channel, stream_id, limits)
        return writer, ClaimOutcome(way=channel.way)

    def _writer(self, channel: Channel[Any], stream_id: int, limits: Limits) -> BodyWriter:
        def closed(writer: BodyWriter) -> None:
            channel.stream_count -= 1
            self._writers.discard(writer)

        writer = BodyWriter(
            stream_id,
            self._outlet(channel),
            self._counts[channel.way],
            limits=limits,
            clock=self._clock,
            on_close=closed,
        )
        self._writers.add(writer)
        return writer

    def _claimed_way(self, claim: Claim) -> BodyWay:
        """The way of a claim whose channel may be unknown: those for shared memory have a proof."""
        connecting = [way for way in self._ways if way is not BodyWay.SHM]
        is_shared = BodyWay.SHM in self._ways and (claim.proof is not None or not connecting)
        return BodyWay.SHM if is_shared else connecting[0]

    def _outlet(self, channel: Channel[Any]) -> Outlet:
        if channel.way is BodyWay.SHM:
            return SharedMemoryOutlet(shared_memory().leases())
        return ConnectedOutlet(channel.way, self._servers[channel.way].sender(channel.connection))

    def encoding(self, way: BodyWay) -> BodyEncoding:
        """Any thread: what encoders for subscribers of ``way`` are made with."""
        return self._encodings.get(way) or self._encodings[BodyWay.INLINE]

    @property
    def tables(self) -> TableOffers | None:
        """Snapshots for clients that are none of ours; None when no way that is switched on has
        any."""
        offers = (server.tables for server in self._servers.values())
        return next((each for each in offers if each is not None), None)

    # --- statistics ---

    @property
    def arena(self) -> Arena | None:
        """The shared memory; None without."""
        return self._arena

    def facts(self) -> list[WayFacts]:
        """What is true now of each way that is switched on."""
        facts = []
        for way in self._ways:
            writers = [writer for writer in self._writers if writer.way is way]
            told = WayFacts(
                way,
                self._counts[way],
                self._channels.count(way),
                sum(writer.pending_count for writer in writers),
                sum(writer.pending_bytes for writer in writers),
            )
            server = self._servers.get(way)
            tables = None if server is None else server.tables
            facts.append(told if tables is None else _with_tables(told, tables))
        return facts


def _with_tables(facts: WayFacts, tables: TableOffers) -> WayFacts:
    """The facts with those of streams that have no DoExchange: they take all their bodies this
    way."""
    sent = tables.sent
    counts = replace(
        facts.counts,
        streams=facts.counts.streams + tables.running_count,
        bodies_out=facts.counts.bodies_out + sent.count,
        bytes_out=facts.counts.bytes_out + sent.byte_count,
    )
    return replace(
        facts,
        counts=counts,
        pending_count=facts.pending_count + sent.pending_count,
        pending_bytes=facts.pending_bytes + sent.pending_bytes,
    )
