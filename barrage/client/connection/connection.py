"""One way to one server: its channel, what every call carries, and who keeps the session alive."""

from __future__ import annotations

import threading
import weakref
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from barrage.client.bodies.body_routes import BodyRoutes
from barrage.client.bodies.body_stream import BodyStream, OfferedChannel
from barrage.client.connection.export_calls import DeephavenCalls
from barrage.client.connection.failover import FailoverConnector
from barrage.client.connection.reconnect import ENDED_MAX, was_ended
from barrage.errors import (
    BarrageError,
    BodyChannelError,
    ConnectionLostError,
    SubscriptionClosedError,
    TransportError,
)
from barrage.transport import flight_messages
from barrage.transport.base import REUSE_CONNECTION, TLS
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.tls.client_tls import explained
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any

    from barrage.client.bodies.bodies import BodyChoice, BodyCounter
    from barrage.client.connection.login import DeephavenLogin
    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.arrow_flight import ArrowFlightClient
    from barrage.transport.base import Address, FlightConnector, FrameStream
    from barrage.wire.dissociated.ways import BodyWay

T = TypeVar("T")

SESSION_MESSAGE_BYTES = 4 * 1024 * 1024
"""Messages asked of a Deephaven server, which would otherwise send up to 100 MiB at once."""

_REVISION_HEADER = "x-barrage-revision"
_EXTENSIONS_HEADER = "x-barrage-extensions"
_SOURCE_TIME = "source-time"


class Connection:
    """A channel to one server, or to one of several. With ``login`` its calls belong to a session
    that can be opened anew; without, every call stands for itself."""

    def __init__(
        self,
        address: Address,
        channel: FlightConnector,
        *,
        tls: TLS | None,
        revision: WireRevision,
        limits: Limits,
        clock: Clock,
        bodies: BodyChoice | BodyWay,
        login: DeephavenLogin | None = None,
        has_renewed_tokens: bool = False,
    ) -> None:
        self._address = address
        self.channel = channel
        self._servers = channel if isinstance(channel, FailoverConnector) else None
        """Where there are several."""
        self.revision = revision
        self.limits = limits
        self.login = login
        self.logs_in = login is not None or has_renewed_tokens
        """Whether credentials that were refused may be others the next time."""
        self._tls = tls
        self._clock = clock
        self.bodies = BodyRoutes(
            bodies, self.act, limits=limits, clock=clock, is_session=login is not None
        )
        """Ways of bodies other than in their messages."""
        if self._servers is not None:
            self._servers.on_move(self.bodies.begin_anew)
        self._headers: dict[str, str] = {}
        if not address.is_deephaven:
            if revision is WireRevision.DRAFT_2020:
                self._headers[_REVISION_HEADER] = revision.value
            self._headers[_EXTENSIONS_HEADER] = _SOURCE_TIME
        self.calls: DeephavenCalls | None = None
        """What can be called within the session; None without one."""
        self._streams: weakref.WeakKeyDictionary[FrameStream, int] = weakref.WeakKeyDictionary()
        """Streams and the sessions they were opened in."""
        if login is not None:
            login.on_end(self._end_streams)
        self._bulk_lock = threading.Lock()
        self._bulk: dict[str, ArrowFlightClient] = {}
        """By address: reads from a server that was left may still be under way."""
        self._is_closed = False

    async def open(self, timeout: float | None) -> None:
        """Log in, where there is a session; AuthenticationError or ConnectionLostError."""
        if self.login is not None:
            login = self.login
            try:
                await self.ask(lambda: login.open(timeout))
            except ConnectionLostError as error:
                raise await self.explained(error, timeout) from error
            self.calls = DeephavenCalls(self.channel, login)

    @property
    def address(self) -> Address:
        """Of the server in use."""
        return self._address if self._servers is None else self._servers.address

    @property
    def addresses(self) -> Sequence[Address]:
        """Of all servers, that in use first."""
        return (self._address,) if self._servers is None else self._servers.addresses

    @property
    def message_bytes(self) -> int:
        """Largest message to ask for; 0 lets the server choose, which ours does well."""
        return SESSION_MESSAGE_BYTES if self.address.is_deephaven else 0

    def open_exchange(self, table: str, headers: Mapping[str, str] | None = None) -> FrameStream:
        """A stream for a subscription or a snapshot; ``table`` is named in errors, ``headers`` are
        sent besides the usual ones."""
        self.check_open()
        stream = self.channel.exchange(headers={**self._headers, **(headers or {})}, table=table)
        if self.login is not None:
            self._streams[stream] = self.login.generation
        return stream

    async def body_channel(self) -> OfferedChannel:
        """A channel for the bodies of one new stream, to be given to :meth:`open_bodies` at once,
        or the reason why they come inline."""
        self.check_open()
        return await self.bodies.channel()

    def open_bodies(
        self,
        table: str,
        channel: OfferedChannel,
        *,
        headers: Mapping[str, str] | None = None,
        counter: BodyCounter | None = None,
    ) -> BodyStream:
        """:meth:`open_exchange`, whose bodies may come by ``channel``; ``counter`` counts them."""
        stream = self.open_exchange(table, {**(headers or {}), **channel.headers()})
        return BodyStream(
            stream,
            channel.take(),
            reason=channel.reason,
            limits=self.limits,
            clock=self._clock,
            counter=counter,
        )

    def open_get(
        self, table: str, ticket: bytes, reason: str, *, counter: BodyCounter | None = None
    ) -> BodyStream:
        """A DoGet call for an encoded ticket. Its bodies are in its messages, because of
        ``reason``."""
        self.check_open()
        stream = self.channel.get(ticket, table=table)
        return BodyStream(
            stream, None, reason=reason, limits=self.limits, clock=self._clock, counter=counter
        )

    async def act(self, kind: str, body: bytes, timeout: float) -> list[bytes]:
        """The results of an action."""
        request = flight_messages.encode_action(kind, body)
        results = self.channel.results(FLIGHT + "DoAction", request, timeout=timeout)
        return [flight_messages.decode_result(message) async for message in results]

    def _end_streams(self, generation: int) -> None:
        """A session is over: its streams may stay open, but nothing comes through them."""
        for stream, opened_in in list(self._streams.items()):
            if opened_in <= generation:
                stream.cancel()

    @property
    def has_bulk_client(self) -> bool:
        """Whether large snapshots can go through Arrow's own Flight client."""
        if self.address.flight_uri is None:
            return False
        return self.revision is WireRevision.R1_0_0 and find_spec("pyarrow._flight") is not None

    def bulk_client(self) -> ArrowFlightClient:
        """Arrow's own client, connected when it connects for the first time."""
        self.check_open()
        address = self.address
        assert address.flight_uri is not None
        return self._arrow_client(address.flight_uri, is_tls=address.is_tls)

    def client_at(self, location: str) -> tuple[ArrowFlightClient, dict[str, str]]:
        """Arrow's own client for a location of an endpoint, and what its calls carry: credentials
        for the server of this connection, nothing for any other. Any thread. TransportError for a
        location that is no Flight server's, or that would be asked in the clear by a connection
        with TLS."""
        own = self.address
        if not location or location.startswith(REUSE_CONNECTION):
            return self.bulk_client(), self.call_headers()
        scheme, _, authority = location.partition("://")
        is_tls = scheme == "grpc+tls"
        if scheme not in ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix"):
            raise TransportError(f"an endpoint at {location!r} is no Flight server's")
        if own.is_tls and scheme in ("grpc", "grpc+tcp"):
            raise TransportError(
                f"an endpoint at {location!r} would be read in the clear, and the session uses TLS"
            )
        uri = location if scheme != "grpc" else f"grpc+tcp://{authority}"
        if uri.rstrip("/") == (own.flight_uri or "").rstrip("/"):
            return self.bulk_client(), self.call_headers()
        return self._arrow_client(uri, is_tls=is_tls), {}

    def _arrow_client(self, uri: str, *, is_tls: bool) -> ArrowFlightClient:
        with self._bulk_lock:
            if uri not in self._bulk:
                from barrage.transport.arrow_flight import ArrowFlightClient

                tls = (self._tls or TLS()) if is_tls else None
                self._bulk[uri] = ArrowFlightClient(uri, tls)
            return self._bulk[uri]

    def call_headers(self) -> dict[str, str]:
        """What every call carries."""
        authorization = self.channel.authorization
        return {} if authorization is None else {"authorization": authorization}

    async def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do ``work``; once more in a new session when the server has forgotten the old one."""
        self.check_open()
        return await (work() if self.login is None else self.login.call(work))

    async def ask(self, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to what changes nothing, of another server when that in use cannot be reached.
        ConnectionLostError that names all of them and why when none can."""
        return await (question() if self._servers is None else self._servers.ask_each(question))

    async def explained(
        self, error: ConnectionLostError, timeout: float | None
    ) -> ConnectionLostError:
        """Why the first call found no connection, if more can be known; of several servers each has
        said so for itself."""
        if self._servers is not None:
            return error
        return await explained(error, self._address, self._tls, timeout=timeout)

    async def read(
        self,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        is_ended: Callable[[BarrageError], bool] = was_ended,
    ) -> T:
        """:meth:`call` for ``work`` that changes nothing. A derived table that the server has
        ended, as ``is_ended`` says, is asked for again."""
        for _ in range(ENDED_MAX):
            try:
                return await self.ask(lambda: self.call(work))
            except BarrageError as error:
                if not is_ended(error):
                    raise
        return await self.ask(lambda: self.call(work))

    def leave(self, address: Address, error: BarrageError) -> None:
        """A stream to the server at ``address`` failed with ``error``: go on at another, if there
        is one. One of ours that has not got the table counts as lost, for the others may have it;
        with a Deephaven server the whole session would be. One that has ended it makes it again."""
        if self._servers is None or isinstance(error, BodyChannelError) or was_ended(error):
            return
        if isinstance(error, ConnectionLostError) or self.login is None:
            self._servers.leave(address, error)

    async def renew(self) -> None:
        """Before a stream is opened again: a server that restarted does not know the session."""
        if self.login is not None:
            await self.login.renew()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def check_open(self) -> None:
        if self._is_closed:
            raise SubscriptionClosedError("the session is closed")

    async def close(self) -> None:
        """Log out and give back the connection. Idempotent and quiet."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.login is not None:
            await self.login.close()
        if self.calls is not None:
            await self.calls.close()
        # This ends the streams that are still open, and those have connections for bodies.
        await self.channel.close()
        await self.bodies.close()
        for client in self._bulk.values():
            client.close()
