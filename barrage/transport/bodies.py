"""The seam for bodies outside their stream: what a body transport is to client and server.

A :class:`BodyTransport` is a backend of the registry (:mod:`barrage.transport.registry`), found by
the name of its way. On the client's side it connects, and what it receives becomes the bodies of
one stream; on the server's it listens, and gives a sender to each stream whose client has come.
Offers, channels, claims, windows and falling back to inline are not its business.

Shared memory is the one way without connections: its bodies are fetched from memory that all
streams of a client share, and there is one such backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pyarrow as pa

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.model.update import FullUpdate
    from barrage.transport.findings import Finding
    from barrage.transport.shared_memory import Arena, LeaseTable
    from barrage.wire.dissociated.detached import DetachedFrame
    from barrage.wire.dissociated.negotiation import ConnectionTerms, HostIdentity
    from barrage.wire.dissociated.references import BodyReference

    Snapshot = tuple[pa.Schema, Sequence[FullUpdate]]
    TakeSnapshot = Callable[[], Awaitable[Snapshot]]


# --- by connections of their own ------------------------------------------------------------------


class BodyTransport(Protocol):
    """One backend. It has no state of its own."""

    settings: type | None
    """A dataclass of what a server can be told, named after the way: the field ``port`` of the way
    ``toy`` is the server's setting ``toy_port``. Its annotations are what msgspec understands; each
    field has a default."""

    def dial(self, limits: Limits) -> BodyDialer:
        """The client's side, for the connections to one server. Nothing is loaded yet."""
        ...

    async def serve(self, options: ServeOptions) -> BodyServer:
        """The server's side: listen. TransportUnavailableError without what it needs here,
        TransportError when the address cannot be had."""
        ...

    def examine(self) -> list[Finding]:
        """What ``barrage doctor`` says about it on this machine."""
        ...


class BodyDialer(Protocol):
    """The way to one server. On the event loop."""

    def terms(self) -> ConnectionTerms:
        """What a server must have in common with us. TransportUnavailableError."""
        ...

    async def connect(self, location: str, ticket: bytes, timeout: float) -> BodyConnection:
        """A connection whose ticket the server has taken. TransportError."""
        ...

    def close(self) -> None:
        """After the last connection was closed. Idempotent."""
        ...


class BodyConnection(Protocol):
    """What the bodies of one stream come by."""

    async def receive(self) -> tuple[int, pa.Buffer]:
        """The next body and the number of its message, in any order. BodyChannelError when no more
        will come."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What a server gives to a body transport."""

    limits: Limits
    clock: Clock
    settings: Any = None
    """An instance of what the transport declares."""
    arena: Arena | None = None
    """The server's shared memory, if it has any."""


class BodyServer(Protocol):
    """A body transport that listens. On the event loop."""

    def refusal(self, terms: ConnectionTerms) -> str:
        """Why a client with these terms cannot connect; nothing when it can."""
        ...

    def offer(
        self, on_connection: Callable[[Any], None], lifetime_ns: int, peer: str
    ) -> tuple[str, bytes]:
        """A location and a single-use ticket for the caller ``peer``; ``on_connection`` gets the
        connection that shows it. LimitExceededError, TransportError."""
        ...

    def sender(self, connection: Any) -> BodySender:
        """What sends the bodies of one stream over that connection, which is its own now."""
        ...

    @property
    def tables(self) -> TableOffers | None:
        """Snapshots for clients that are none of ours; None where there are none."""
        ...

    async def close(self) -> None:
        """Stop listening and end what is connected."""
        ...


class BodySender(Protocol):
    """The server's end of a connection for bodies."""

    @property
    def is_lost(self) -> bool:
        """Whether the client can get nothing here any more."""
        ...

    def send(self, sequence: int, frame: DetachedFrame) -> None:
        """Let the body of message number ``sequence`` go, without waiting. BarrageError when it
        cannot."""
        ...

    def close(self) -> None:
        """Nothing more is sent. Idempotent."""
        ...


class TableOffers(Protocol):
    """Snapshots of tables by Arrow's Dissociated IPC Protocol."""

    @property
    def running_count(self) -> int:
        """Streams under way."""
        ...

    @property
    def sent(self) -> SentCounts:
        """What became of the bodies of all streams."""
        ...

    def offer(
        self, take_snapshot: TakeSnapshot, place: str, peer: str, *, is_one_location: bool = False
    ) -> TableOffer:
        """For one reading of a table by the caller ``peer``; ``place`` is where bodies are left.
        With ``is_one_location`` metadata and bodies come from the same one. UnsupportedError when
        there is no such place here, LimitExceededError."""
        ...


class SentCounts(Protocol):
    """Bodies that were sent, and those that their clients still have."""

    @property
    def count(self) -> int: ...

    @property
    def byte_count(self) -> int: ...

    @property
    def pending_count(self) -> int: ...

    @property
    def pending_bytes(self) -> int: ...


class TableOffer(NamedTuple):
    """What a client of the protocol needs: where metadata and bodies come from, and a ticket of use
    once."""

    locations: tuple[str, ...]
    """One for both, or that of metadata and that of bodies."""
    ticket: bytes


# --- in shared memory -----------------------------------------------------------------------------


class SharedMemory(Protocol):
    """How a client reaches memory of servers on its host."""

    def identity(self) -> HostIdentity:
        """Of this host and user. TransportUnavailableError."""
        ...

    def open(self, arena: str) -> tuple[MappedMemory, bytes, Callable[[], None]]:
        """The memory of that name, the proof that stands in it, and what lets go of it.
        TransportUnavailableError."""
        ...


class MappedMemory(Protocol):
    """Memory of a server as a client has it."""

    def borrow(self, reference: BodyReference, on_release: Callable[[int], None]) -> pa.Buffer: ...

    def copy(self, reference: BodyReference) -> pa.Buffer: ...


class SharedMemoryTransport(Protocol):
    """The backend for shared memory."""

    def memory(self) -> SharedMemory:
        """The client's side."""
        ...

    def serve(self, limits: Limits) -> tuple[Arena, HostIdentity]:
        """The server's side: its memory, and whose host that is of. TransportUnavailableError."""
        ...

    def leases(self) -> LeaseTable:
        """What one stream has lent to its client."""
        ...
