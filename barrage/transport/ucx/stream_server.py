"""The listening side: offers of streams, and which connection takes which.

Source: Arrow's Dissociated IPC Protocol (``want_data`` and the ticket). UCX has no authentication,
so the ticket is all there is: 128 random bits, of use once and for a short time. A connection
that shows none within ``limits.ucx_unauthenticated_ns`` is closed, as is one that sends anything
nobody asked for. There is no error message in the protocol: who is refused sees a closed
connection.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from barrage.errors import BarrageError, LimitExceededError, TransportError
from barrage.supervision import Role, no_dependants, start_task
from barrage.transport.ucx.listener import UcxListener
from barrage.transport.ucx.tagged_channel import ANY_TAG, note
from barrage.wire.dissociated.location import UcxLocation

CLOSER = Role("barrage-ucx-close", "nothing: the connection is forgotten already")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from ipaddress import IPv4Address

    import pyarrow as pa

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.ucx.tagged_channel import ProbedMessage, TaggedChannel
    from barrage.wire.columns.base import BufferLike

log = logging.getLogger(__name__)

TICKET_BYTES = 16

RECEIVING_BYTES_MAX = 4 * 1024 * 1024
"""Memory for messages of one client that are announced and have not come yet."""

_MESSAGE_BYTES_MIN = 64
"""What a short message counts for at least."""

_NEVER_A_BODY = 1 << 54
"""A bit that is zero in every tag of a body, whichever way its type is written."""

_WILDCARDS = ("", "0.0.0.0", "::")


def new_tag() -> int:
    """A random tag that no body can have."""
    return secrets.randbits(64) | _NEVER_A_BODY


class OfferedStream(NamedTuple):
    """What a client needs to take a stream."""

    location: UcxLocation
    ticket: bytes


class _Offer(NamedTuple):
    ticket: bytes
    expires_ns: int
    on_stream: Callable[[ServedConnection, bytes], None]
    expiry: asyncio.TimerHandle
    hosts: frozenset[IPv4Address] | None
    on_asked: Callable[[ServedConnection], None] | None


class ServedState(Enum):
    """Where a connection stands."""

    WAITING = "waiting"
    """No ticket yet."""
    CLAIMED = "claimed"
    """It has taken a stream, perhaps several."""
    CLOSED = "closed"


class ServedConnection:
    """One connection a client has opened: what it sends is looked at here, whoever owns the
    stream sends through it."""

    def __init__(self, server: StreamServer, channel: TaggedChannel) -> None:
        self._server = server
        self.channel = channel
        self.state = ServedState.WAITING
        self._routes: dict[int, tuple[int, Callable[[pa.Buffer], None]]] = {}
        self._lost: list[Callable[[TransportError], None]] = []
        self._error: TransportError | None = None
        self._receiving: dict[asyncio.Future[pa.Buffer], int] = {}
        """Messages that are being fetched, and what each counts for."""
        self._receiving_bytes = 0
        self._ending: TransportError | None = None
        """The peer is gone; what it sent before is still being fetched."""
        channel.on_untagged = self._refuse_untagged
        channel.on_lost = self._mark_lost
        channel.on_tagged = self.pump

    # --- for the owner of a stream ---

    def send_untagged(self, data: BufferLike) -> asyncio.Future[None]:
        return self.channel.send_untagged(data)

    def send_tagged(
        self, tag: int, buffers: Sequence[BufferLike] | BufferLike, *, synchronous: bool = False
    ) -> asyncio.Future[None]:
        return self.channel.send_tagged(tag, buffers, synchronous=synchronous)

    async def flush(self) -> None:
        await self.channel.flush()

    def route(self, tag: int, on_message: Callable[[pa.Buffer], None], *, bytes_max: int) -> None:
        """Hand messages under ``tag`` to ``on_message``; longer ones close the connection."""
        self._routes[tag] = (bytes_max, on_message)

    def when_lost(self, on_lost: Callable[[TransportError], None]) -> None:
        """Call ``on_lost`` when the connection ends, whoever ends it; at once when it has."""
        if self._error is not None:
            on_lost(self._error)
        else:
            self._lost.append(on_lost)

    @property
    def is_lost(self) -> bool:
        return self._error is not None

    def close_soon(self, reason: TransportError | None = None) -> None:
        """End the connection; a peer sees it go. Idempotent."""
        if self.state is ServedState.CLOSED:
            return
        self.state = ServedState.CLOSED
        self._tell_lost(reason or TransportError("the stream has ended"))
        self._server.forget(self)

    # --- what comes ---

    def pump(self) -> None:
        """Take what has come."""
        while self.state is not ServedState.CLOSED:
            probed = self.channel.probe(0, ANY_TAG)
            if probed is None:
                return
            self._take(probed)

    def _take(self, probed: ProbedMessage) -> None:
        tag = probed.tag
        route = self._routes.get(tag)
        if route is not None:
            bytes_max, on_message = route
        elif self._server.has_offer(tag):
            bytes_max = self._server.limits.ucx_ticket_bytes_max
            on_message = _Claimed(self._server, self, tag)
            self._server.asked(self, tag)
        else:
            self._drop(probed, f"message under tag {tag:#018x}, which nobody asked for")
            return
        if probed.length > bytes_max:
            reason = f"message of {probed.length} bytes, the limit is {bytes_max} bytes"
            self._drop(probed, reason)
            return
        weight = max(probed.length, _MESSAGE_BYTES_MIN)
        if self._receiving_bytes + weight > RECEIVING_BYTES_MAX:
            self._drop(probed, f"more than {RECEIVING_BYTES_MAX} bytes of messages at once")
            return
        receiving = self.channel.receive(probed)
        self._receiving[receiving] = weight
        self._receiving_bytes += weight
        receiving.add_done_callback(lambda done: self._received(done, on_message))

    def _drop(self, probed: ProbedMessage, reason: str) -> None:
        """End a connection over a message, which is not looked at."""
        self.channel.discard(probed).add_done_callback(note)
        self.refuse(reason)

    def _received(
        self, done: asyncio.Future[pa.Buffer], on_message: Callable[[pa.Buffer], None]
    ) -> None:
        self._receiving_bytes -= self._receiving.pop(done)
        if done.exception() is None and self.state is not ServedState.CLOSED:
            try:
                on_message(done.result())
            except BarrageError as error:
                self.refuse(str(error))
            except Exception:
                log.exception("a message of a UCX client was not taken")
                self.refuse("it cannot be served")
        if self._ending is not None and not self._receiving:
            self.close_soon(self._ending)

    def refuse(self, reason: str) -> None:
        """End a connection that broke the rules; the reason is for the log only."""
        log.info("UCX connection refused: %s", reason)
        self.close_soon(TransportError(f"connection refused: {reason}"))

    def _refuse_untagged(self, data: bytes | memoryview) -> None:
        self.refuse(f"untagged message of {len(data)} bytes from a client")

    def _mark_lost(self, error: TransportError) -> None:
        # What was sent before the end is still there: releases must not be missed.
        self._ending = error
        self.pump()
        if not self._receiving:
            self.close_soon(error)

    def _tell_lost(self, error: TransportError) -> None:
        if self._error is not None:
            return
        self._error = error
        told, self._lost = self._lost, []
        for on_lost in told:
            on_lost(error)


class _Claimed:
    """A ticket that is being received for one offer."""

    def __init__(self, server: StreamServer, served: ServedConnection, tag: int) -> None:
        self._server = server
        self._served = served
        self._tag = tag

    def __call__(self, ticket: pa.Buffer) -> None:
        self._server.claim(self._served, self._tag, ticket.to_pybytes())


class StreamServer:
    """Listens on one address and hands connections with a valid ticket to who offered the stream.

    ``listen`` makes the listener; without one it is that of UCX.
    """

    def __init__(
        self,
        context: Any,
        limits: Limits,
        clock: Clock,
        *,
        listen: Callable[..., Any] | None = None,
    ) -> None:
        self._context = context
        self.limits = limits
        self._clock = clock
        self._listen = listen or UcxListener
        self._listener: Any = None
        self.host = ""
        """Where it listens."""
        self.port = 0
        self._offers: dict[int, _Offer] = {}
        self._served: set[ServedConnection] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self._admitted: frozenset[IPv4Address] | None = frozenset()

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._served)

    @property
    def offer_count(self) -> int:
        """Streams that are offered and not taken yet."""
        return len(self._offers)

    async def start(self, host: str, port: int = 0) -> None:
        """Listen. TransportError when the address cannot be had; it must be one that clients can
        connect to, since the locations of streams name it."""
        if host in _WILDCARDS:
            raise TransportError(
                f"cannot offer streams on {host!r}: name the address that clients connect to"
            )
        self.host = host
        self._listener = self._listen(
            self._context,
            host,
            port,
            on_connection=self._accept,
            connections_max=self.limits.ucx_connections_max,
            patience_ns=self.limits.ucx_unauthenticated_ns,
            is_guarded=True,
        )
        self.port = self._listener.port

    def offer(
        self,
        on_stream: Callable[[ServedConnection, bytes], None],
        *,
        lifetime_ns: int | None = None,
        ticket: bytes | None = None,
        want_data: int | None = None,
        free_data: int | None = None,
        remote_handle: bytes | None = None,
        hosts: Iterable[IPv4Address] | None = None,
        on_asked: Callable[[ServedConnection], None] | None = None,
    ) -> OfferedStream:
        """Let one client take a stream: ``on_stream`` is called with its connection and the
        ticket, once. Without ``ticket`` it is random. LimitExceededError when too many wait.

        ``hosts``: from where the client may connect; by default from anywhere. Connections from
        other places are not even accepted, unless there are offers to clients there.
        ``on_asked`` is called before the client is told that its ticket has come, right or wrong.
        """
        if len(self._offers) >= self.limits.body_channels_max:
            raise LimitExceededError(
                "number of streams offered",
                actual=len(self._offers) + 1,
                maximum=self.limits.body_channels_max,
                unit="streams",
            )
        if self._is_closed:
            raise TransportError("the server of UCX streams has stopped")
        lifetime = self.limits.body_ticket_ns if lifetime_ns is None else lifetime_ns
        tag = new_tag() if want_data is None else want_data
        if tag in self._offers:
            raise TransportError(f"a stream is offered under tag {tag:#018x} already")
        secret = secrets.token_bytes(TICKET_BYTES) if ticket is None else ticket
        loop = asyncio.get_running_loop()
        expiry = loop.call_later(lifetime / 1e9, self.withdraw, tag)
        now_ns = self._clock.monotonic_ns()
        self._offers[tag] = _Offer(
            secret,
            now_ns + lifetime,
            on_stream,
            expiry,
            None if hosts is None else frozenset(hosts),
            on_asked,
        )
        self._admit()
        location = UcxLocation(
            host=self.host,
            port=self.port,
            want_data=tag,
            free_data=free_data,
            remote_handle=remote_handle,
        )
        return OfferedStream(location, secret)

    def withdraw(self, want_data: int) -> None:
        """Take an offer back. Nothing happens when it is taken or expired."""
        offer = self._offers.pop(want_data, None)
        if offer is not None:
            offer.expiry.cancel()
            self._admit()

    def has_offer(self, want_data: int) -> bool:
        return want_data in self._offers

    def asked(self, served: ServedConnection, want_data: int) -> None:
        """A ticket for an offer is being received."""
        offer = self._offers[want_data]
        if offer.on_asked is not None:
            offer.on_asked(served)

    def _admit(self) -> None:
        """Let in who has been offered something, and nobody while nothing is offered."""
        hosts: frozenset[IPv4Address] | None = frozenset()
        for offer in self._offers.values():
            if offer.hosts is None:
                hosts = None
                break
            hosts = (hosts or frozenset()) | offer.hosts
        if self._listener is not None and hosts != self._admitted:
            self._admitted = hosts
            self._listener.admit(hosts)

    def claim(self, served: ServedConnection, want_data: int, ticket: bytes) -> None:
        """A connection shows a ticket: it gets the stream, or is closed. A wrong ticket does not
        use up the offer. What the owner of the stream raises closes the connection."""
        offer = self._offers.get(want_data)
        if offer is None:
            served.refuse("ticket of a stream that is taken")
            return
        if self._clock.monotonic_ns() >= offer.expires_ns:
            self.withdraw(want_data)
            served.refuse("expired ticket")
            return
        if not hmac.compare_digest(ticket, offer.ticket):
            served.refuse("wrong ticket")
            return
        self.withdraw(want_data)
        served.state = ServedState.CLAIMED
        served.channel.seal()
        offer.on_stream(served, ticket)

    def forget(self, served: ServedConnection) -> None:
        """Close a connection's channel; called by the connection."""
        self._served.discard(served)
        task = start_task(CLOSER, served.channel.close(), on_death=no_dependants)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _accept(self, channel: TaggedChannel) -> None:
        served = ServedConnection(self, channel)
        if self._is_closed or len(self._served) >= self.limits.ucx_connections_max:
            served.refuse("too many connections")
            return
        self._served.add(served)
        patience_s = self.limits.ucx_unauthenticated_ns / 1e9
        asyncio.get_running_loop().call_later(patience_s, _end_unclaimed, served)
        served.pump()

    async def close(self) -> None:
        """Stop listening, end every connection, drop every offer. Idempotent."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for tag in tuple(self._offers):
            self.withdraw(tag)
        for served in tuple(self._served):
            served.close_soon(TransportError("the server of UCX streams has stopped"))
        while self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)


def _end_unclaimed(served: ServedConnection) -> None:
    if served.state is ServedState.WAITING:
        served.refuse("no ticket in time")
