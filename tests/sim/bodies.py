"""The server's half of bodies that leave their streams: real channels, arena, leases and windows;
only the connection that stands for UCX is virtual. It delays, reorders, loses, stalls and dies."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa

from barrage.errors import BodyChannelError, ConnectionLostError
from barrage.limits import NANOS_PER_MS, Limits
from barrage.proto.outgoing_bodies import OutgoingBodies, OutgoingState
from barrage.server.bodies.body_channels import BodyChannels, Channel, ClaimRefusedError
from barrage.server.bodies.body_frames import BodyFrame, Frame, loosener, placer
from barrage.server.bodies.body_outlets import ConnectedOutlet, Outlet, SharedMemoryOutlet
from barrage.server.identity.caller import ANYBODY
from barrage.transport.shared_memory import Arena, LeaseTable
from barrage.wire.dissociated.detached import DetachedFrame
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.dissociated.negotiation import (
    Answer,
    Claim,
    ClaimOutcome,
    ConnectionTerms,
    HostIdentity,
    Offer,
)
from barrage.wire.dissociated.ways import BodyWay
from tests.helpers.virtual_clock import VirtualClock

HOST = HostIdentity(boot_id="simulated", user_id=1)
TERMS = ConnectionTerms(release="1.0", settings={"TLS": "tcp"})
NUMBER_BEFORE_LAST = 2**32 - 3
"""Streams begin to count here in some seeds, so that they roll over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyOptions:
    """What one seed switches on for bodies. Chances are per body, tick or client; 0 is never."""

    ways: tuple[BodyWay, ...] = ()
    """What the server offers; nothing in some seeds."""
    asking: float = 0.0
    """Share of connections that ask for a channel."""
    delay_ms_max: int = 0
    lose: float = 0.0
    stall: float = 0.0
    die: float = 0.0
    stale: float = 0.0
    """A reference cannot be followed."""
    misfit: float = 0.0
    """Other host, other release, wrong proof, forgotten channel."""
    keep: float = 0.0
    """A consumer keeps what it is shown for a while."""
    first_number: int = 0
    inline_bytes_max: int = 64
    window_bytes: int = 1 << 20
    window_count: int = 256
    wait_ms: int = 100
    deadline_ms: int = 500
    lease_ms: int = 60_000
    arena_bytes: int = 1 << 20

    @classmethod
    def draw(cls, random: Random) -> BodyOptions:
        """Swarm style, as :class:`~tests.sim.options.Options`."""
        if random.random() < 0.25:
            return cls()

        def sometimes(chance: float, high: float) -> float:
            return random.uniform(0, high) if random.random() < chance else 0.0

        ways = random.choice(
            [(BodyWay.SHM,), (BodyWay.UCX,), (BodyWay.SHM, BodyWay.UCX), (BodyWay.UCX, BodyWay.SHM)]
        )
        return cls(
            ways=ways,
            asking=random.choice([0.5, 0.9, 1.0]),
            delay_ms_max=random.choice([0, 3, 30, 120]),
            lose=sometimes(0.3, 0.02),
            stall=sometimes(0.3, 0.02),
            die=sometimes(0.3, 0.01),
            stale=sometimes(0.2, 0.02),
            misfit=sometimes(0.3, 0.5),
            keep=sometimes(0.6, 0.15),
            first_number=random.choice([0, NUMBER_BEFORE_LAST]),
            inline_bytes_max=random.choice([0, 0, 64, 300]),
            window_bytes=random.choice([700, 3000, 1 << 20]),
            window_count=random.choice([1, 2, 8, 256]),
            wait_ms=random.choice([0, 10, 100]),
            deadline_ms=random.choice([200, 500]),
            lease_ms=random.choice([300, 60_000, 60_000]),
            arena_bytes=random.choice([3 * 4096, 5 * 4096, 1 << 20]),
        )

    def limits(self) -> dict[str, int]:
        """The fields of :class:`~barrage.limits.Limits` that follow from them."""
        return {
            "body_inline_bytes_max": self.inline_bytes_max,
            "body_window_bytes": self.window_bytes,
            "body_window_count": self.window_count,
            "body_wait_ns_max": self.wait_ms * NANOS_PER_MS,
            "body_deadline_ns": self.deadline_ms * NANOS_PER_MS,
            "body_lease_ns_max": self.lease_ms * NANOS_PER_MS,
            "body_arena_bytes": self.arena_bytes,
            "body_segment_bytes": min(self.arena_bytes, 1 << 16),
        }


@dataclass(slots=True)
class _UnderWay:
    arrives_ns: int
    sequence: int
    frame: DetachedFrame


@dataclass(eq=False, slots=True)
class BodyPipe:
    """The connection of one stream that stands for UCX: both ends of it. Parts are joined when they
    arrive, as they would be read while they are sent: who changes them before is found out."""

    random: Random
    options: BodyOptions
    clock: VirtualClock
    has_failed: bool = False
    """Whether any fault has befallen it, so that bodies may be missing."""
    is_lost: bool = False
    is_calm: bool = False
    is_closed: bool = False
    """The server sends nothing more; what is under way still arrives."""
    stalled_until_ns: int = 0
    _under_way: list[_UnderWay] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self._under_way

    def send(self, sequence: int, frame: DetachedFrame) -> None:
        """The server's end."""
        if self.is_lost or self.is_closed:
            raise ConnectionLostError("the connection for bodies is lost")
        if not self.is_calm and self.random.random() < self.options.lose:
            self.has_failed = True
            return
        delay_ns = self.random.randint(0, self.options.delay_ms_max * NANOS_PER_MS)
        arrives_ns = self.clock.monotonic_ns() + delay_ns
        self._under_way.append(_UnderWay(arrives_ns, sequence, frame))

    def receive(self, now_ns: int) -> list[tuple[int, pa.Buffer]]:
        """The client's end: bodies in the order in which they have arrived."""
        if self.is_lost:
            raise BodyChannelError("the connection for bodies is lost")
        if now_ns < self.stalled_until_ns:
            return []
        arrived = [each for each in self._under_way if each.arrives_ns <= now_ns]
        self._under_way = [each for each in self._under_way if each.arrives_ns > now_ns]
        arrived.sort(key=lambda each: (each.arrives_ns, each.sequence))
        return [(each.sequence, pa.py_buffer(b"".join(each.frame.parts))) for each in arrived]

    def disturb(self, now_ns: int) -> None:
        """One tick of faults."""
        if self.random.random() < self.options.die:
            self.die()
        if self.random.random() < self.options.stall:
            self.has_failed = True
            until_ms = self.random.randint(1, 2 * self.options.deadline_ms)
            self.stalled_until_ns = now_ns + until_ms * NANOS_PER_MS

    def close(self) -> None:
        """The server's end."""
        self.is_closed = True

    def die(self) -> None:
        """What is under way is lost; both ends notice when they use it next."""
        self.is_lost = self.has_failed = True
        self._under_way.clear()


class StreamBodies:
    """The bodies of one stream, on the server: which frames go whole, which without their body."""

    def __init__(self, outlet: Outlet | None, options: BodyOptions, limits: Limits) -> None:
        self.way = BodyWay.INLINE if outlet is None else outlet.way
        self.outside_count = 0
        self.outgoing: OutgoingBodies[BodyFrame] | None = None
        if outlet is not None:
            self.outgoing = OutgoingBodies(outlet, limits, first=options.first_number)

    def message(self, frame: Frame, now_ns: int) -> bytes | None:
        """What goes out for ``frame``; None: wait for credit and ask again."""
        if self.outgoing is None:
            assert isinstance(frame, bytes)
            return frame
        sent = self.outgoing.message(frame, now_ns)
        self.outgoing.validate()
        if sent is None:
            assert self.outgoing.window.wait_until_ns is not None
            return None
        self.outside_count += sent.is_outside
        return sent.message

    def released(self, ids: Sequence[int], now_ns: int) -> None:
        if self.outgoing is not None:
            self.outgoing.released(ids, now_ns)
            self.outgoing.validate()

    @property
    def is_inline(self) -> bool:
        """Whether the server has given up the way."""
        return self.outgoing is not None and self.outgoing.state is OutgoingState.INLINE

    @property
    def pending_count(self) -> int:
        return 0 if self.outgoing is None else self.outgoing.window.pending_count

    def close(self) -> None:
        if self.outgoing is not None:
            self.outgoing.close()


class ServerBodies:
    """Channels and memory of the server, and what it answers to those who ask."""

    def __init__(
        self, options: BodyOptions, limits: Limits, clock: VirtualClock, random: Random
    ) -> None:
        self.options = options
        self.pipes: list[BodyPipe] = []
        self._limits = limits
        self._clock = clock
        self._random = random
        self._is_calm = False
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._arena: Arena | None = None
        self._channels: BodyChannels[BodyPipe] = BodyChannels(limits, clock)
        self._opened: dict[str, Channel[BodyPipe]] = {}

    # --- before a stream --------------------------------------------------------------------------

    def answer(self, asked: bytes) -> bytes:
        """The action before the stream."""
        offer = Offer.from_json(asked)
        for way in offer.order:
            fits = offer.shm == HOST if way is BodyWay.SHM else offer.terms.get(way) == TERMS
            if way in self.options.ways and fits:
                return self._open(way).to_json()
        return Answer(way=BodyWay.INLINE, reason="nothing fits").to_json()

    def _open(self, way: BodyWay) -> Answer:
        channel = self._channels.add(way, ANYBODY)
        assert channel is not None
        self._opened[channel.channel_id] = channel
        if way is BodyWay.UCX:
            location = UcxLocation(host="server", port=1, want_data=1 << 40)
            return self._answer(channel, location=location.encode(), ticket=secrets.token_bytes(16))
        return self._answer(channel, arena=self.arena.name)

    def _answer(self, channel: Channel[BodyPipe], **fields: str | bytes) -> Answer:
        return Answer(
            way=channel.way,
            channel_id=channel.channel_id,
            window_bytes=self._limits.body_window_bytes,
            window_count=self._limits.body_window_count,
            **fields,
        )

    def connect(self, channel_id: str) -> BodyPipe:
        """The client has shown its ticket to the other end of a UCX channel."""
        pipe = BodyPipe(self._random, self.options, self._clock, is_calm=self._is_calm)
        channel = self._opened.get(channel_id)
        if channel is None:
            raise ConnectionLostError("nobody listens")
        channel.connection = pipe
        self.pipes.append(pipe)
        return pipe

    @property
    def directory(self) -> str:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="barrage-sim-")
        return self._directory.name

    @property
    def arena(self) -> Arena:
        if self._arena is None:
            self._arena = Arena.create(self._limits, directory=self.directory)
        return self._arena

    # --- with a stream ----------------------------------------------------------------------------

    def claim(self, header: str | None) -> tuple[StreamBodies, str | None]:
        """The bodies of a new stream, and the header of its answer."""
        if header is None:
            return StreamBodies(None, self.options, self._limits), None
        try:
            claim = Claim.parse(header)
            if claim is None:
                raise ClaimRefusedError("no claim")
            outlet = self._outlet(self._channels.claim(claim, self.arena.proof, ANYBODY))
        except ClaimRefusedError as error:
            outcome = ClaimOutcome(way=BodyWay.INLINE, reason=str(error))
            return StreamBodies(None, self.options, self._limits), outcome.header()
        bodies = StreamBodies(outlet, self.options, self._limits)
        return bodies, ClaimOutcome(way=outlet.way).header()

    def _outlet(self, channel: Channel[BodyPipe]) -> Outlet:
        if channel.way is BodyWay.SHM:
            return SharedMemoryOutlet(LeaseTable())
        assert channel.connection is not None
        return ConnectedOutlet(channel.way, channel.connection)

    def detach(self, way: BodyWay):
        """The detaching half of an encoder for streams of one way."""
        if way is BodyWay.SHM:
            return placer(self.arena.place, self._limits.body_inline_bytes_max)
        return loosener(self._limits.body_inline_bytes_max) if way is BodyWay.UCX else None

    def disturb(self, now_ns: int) -> None:
        """One tick of faults."""
        self.pipes = [pipe for pipe in self.pipes if not pipe.is_lost]
        for pipe in self.pipes:
            pipe.disturb(now_ns)

    def restart(self) -> None:
        """Another process takes the server's place: its channels and memory are others."""
        for pipe in self.pipes:
            pipe.die()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
        self._channels = BodyChannels(self._limits, self._clock)
        self._opened.clear()

    def calm_down(self) -> None:
        """No more faults; what was stalled goes on."""
        self._is_calm = True
        for pipe in self.pipes:
            pipe.stalled_until_ns = 0
            pipe.is_calm = True

    def check_all_free(self) -> None:
        """After the last close nobody holds any memory."""
        if self._arena is not None:
            found = self._arena.statistics()
            assert found.bytes_in_use == 0, f"memory of bodies is left: {found}"

    def close(self) -> None:
        if self._arena is not None:
            self._arena.close()
        if self._directory is not None:
            self._directory.cleanup()
