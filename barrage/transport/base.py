"""The seam between whoever speaks and how it travels: what a transport is to client and server.

A :class:`Transport` is a backend of the registry (:mod:`barrage.transport.registry`), found by the
scheme of a URI. A client gets a :class:`FlightConnector` of it, which makes calls; a server gets a
:class:`Listener`, which takes them. Neither knows which backend it is.

Frames are the raw bytes of one FlightData each. A stream keeps order and has back-pressure both
ways: ``write`` returns when the transport took the frame, and what nobody reads fills the peer's
window.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from barrage.errors import ConfigError
from barrage.limits import DEFAULT_LIMITS

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping
    from typing import NoReturn

    import grpc
    import pyarrow as pa

    from barrage.limits import Limits
    from barrage.wire.dissociated.ways import BodyWay

HttpServer: TypeAlias = Literal["own", "grpcio"]
"""What serves gRPC on sockets: this package (``transport/over_http2``), or ``grpc.aio``."""


def is_path_of_pem(text: str) -> bool:
    """Whether ``text`` may be the path of a PEM file, rather than what belongs into one."""
    return bool(text) and "\n" not in text and "-----BEGIN" not in text


ENDPOINTS_HEADER = "x-barrage-endpoints"
ENDPOINTS_ONE = "one"
"""A client that says so wants tickets of tables as they are when they are read, and no rows kept
for it: what it asks information for is not yet to read."""

REUSE_CONNECTION = "arrow-flight-reuse-connection://"
"""What the location of an endpoint begins with that is where its information came from."""

INFORMATION_HEADERS = {ENDPOINTS_HEADER: ENDPOINTS_ONE}
"""What our client says with every call of one request and one answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TLS:
    """How to check the server and who we are. Paths of PEM files; all None: the system's
    authorities."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    server_name: str | None = None
    """Name to expect in the server's certificate instead of the address."""

    def __post_init__(self) -> None:
        for name in ("ca", "certificate", "key"):
            value = getattr(self, name)
            if value is not None and not is_path_of_pem(value):
                # What was passed may be a key.
                raise ConfigError(f"tls.{name} is the path of a file, not what is in it")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("tls.certificate and tls.key belong together: pass both, or neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCertificate:
    """A client's certificate, which one of the server's own authorities has signed."""

    common_name: str | None
    """Of its subject; None when there is none, or more than one."""
    names: tuple[tuple[str, str], ...]
    """Its alternative names, sorted, each with its kind: ``dns``, ``ip``, ``email`` or ``uri``."""
    fingerprint: str
    """SHA-256 of the whole certificate, in lower-case hexadecimal digits."""
    not_after_s: int | None
    """When it ends, in seconds since 1970; None where that cannot be read."""
    identifier: bytes | None = None
    """Its issuer and number, by which lists of revoked certificates name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerIdentity:
    """Who a client has proved to be by its connection alone. None where nothing is known."""

    certificate: PeerCertificate | None = None
    """What it showed in the TLS handshake, if the server asks for it."""
    unix_user: int | None = None
    unix_group: int | None = None
    unix_process: int | None = None
    """Who it was when it connected to a socket of the file system, as the kernel says."""


NOBODY = PeerIdentity()
"""Of whom nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A URI that its backend has read."""

    scheme: str
    """What the backend is found by."""
    target: str
    """Where it leads, for the backend and for messages."""
    is_tls: bool = False
    is_deephaven: bool = False
    """A Deephaven server, which needs a session."""
    is_private: bool = False
    """Whether nothing that is said there leaves this machine."""
    flight_uri: str | None = None
    """Where Arrow's own Flight client connects; None where it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """What a client says about a connection. A backend may leave aside what it has no use for."""

    limits: Limits
    authorization: str | None = None
    """The header every call carries."""
    renewed_authorization: Callable[[], str] | None = None
    """Gives the header of each call, in place of one that stays."""
    tls: TLS | None = None
    streams_per_connection_max: int | None = None
    """Most exchanges over one connection, where several travel on one."""
    connect_seconds_max: float | None = None
    """How long reaching the server may take; None leaves it to the backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """What a server says about where it listens."""

    port: int
    """0 lets the system choose."""
    message_bytes_max: int
    """Longest message that is taken."""
    keepalive_ms: int
    """Silence after which a connection is tried."""
    http: HttpServer = "own"
    """What serves HTTP/2, where the backend has a choice."""
    limits: Limits = DEFAULT_LIMITS
    """Of connections and what is on them, where the backend has any."""
    tls: ServerCertificates | None = None
    """Certificate and key; without them connections are in the clear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSMaterial:
    """What is in a server's files, in PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None
    """Authorities of clients, each of which must then show a certificate."""
    crl: bytes | None = None
    """Lists of certificates of clients that are revoked."""


class ServerCertificates(Protocol):
    """What a server shows to connections that begin now; it may change at any time."""

    @property
    def context(self) -> ssl.SSLContext:
        """For one connection that speaks HTTP/2."""
        ...

    @property
    def web_context(self) -> ssl.SSLContext:
        """For one of a browser: HTTP/2, or HTTP/1.1, which has the WebSockets."""
        ...

    @property
    def material(self) -> TLSMaterial:
        """For a library that brings its own TLS. The same object until it changes."""
        ...


class Transport(Protocol):
    """One backend. It has no state: connections and listeners have."""

    def parse(self, uri: str) -> Address:
        """Read a URI of one of its schemes; ConfigError."""
        ...

    def connect(self, address: Address, options: ConnectOptions) -> FlightConnector:
        """A connection, to be used on the running loop. That nobody is there is said by its first
        call."""
        ...

    def is_local(self, host: str) -> bool:
        """Whether only this machine can reach a server whose ``host`` is this: it needs no
        token."""
        ...

    def listen(self, host: str, options: ListenOptions) -> Listener:
        """What will listen on ``host``: the server's setting, which is a URI unless the backend is
        that of ``grpc``. ConfigError. Nothing is taken before :meth:`Listener.bind`."""
        ...


class Listener(Protocol):
    """Takes the calls to one address and runs the server's handlers for them. On one event loop.

    Handlers are those of ``grpc.aio``; a behavior gets its call as a :class:`CallContext`, is
    cancelled when its client ends the call, and how it ends is the status of the call.
    """

    runs_generators: bool
    """Whether behaviors may be asynchronous generators, which those of reflection are."""

    @property
    def address(self) -> str:
        """What people call it: ``host:port``, or a URI."""
        ...

    @property
    def uri(self) -> str:
        """What clients connect to."""
        ...

    @property
    def port(self) -> int:
        """Known once it is bound; 0 where there is none."""
        ...

    def add_generic_rpc_handlers(
        self, handlers: Iterable[grpc.GenericRpcHandler[Any, Any]]
    ) -> None:
        """Run these; before it starts."""
        ...

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Generated code registers what it also adds as a generic handler."""
        ...

    def bind(self) -> None:
        """Take the address, where that can be done before calls are taken. ConfigError when it
        cannot be had."""
        ...

    async def start(self) -> None:
        """Take calls. ConfigError when the address cannot be had."""
        ...

    async def stop(self, grace_s: float | None) -> None:
        """Take no more calls, wait for those there are, cut what is left after ``grace_s``, and
        give back the address. Idempotent, also without :meth:`start`."""
        ...


class CallContext(Protocol):
    """What a behavior has of its call: the part of ``grpc.aio.ServicerContext`` that ours use.

    One may also have ``post(message, on_taken) -> bool``, which ``grpc.aio`` has not: send a
    message without waiting, and say whether it was taken at once. Otherwise it is sent behind those
    before it, and ``on_taken`` is called, without arguments, when it is taken. It raises what
    ``write`` raises; who posts bounds what waits.

    One may also have ``write_parts(message)``, which is ``write`` for a ``MessageParts``
    (:mod:`barrage.wire.message_parts`): nothing of it is copied before it goes into the socket.

    Two more are those of calls from pages. ``announce(token)`` says that the message sent next
    answers the request with this token. ``while_paused(callback)`` has ``callback`` called every
    now and then while the client has said that it takes nothing for now.
    """

    def invocation_metadata(self) -> Any:
        """The client's headers, pairs of name and value."""
        ...

    def peer(self) -> str:
        """Who calls, as gRPC names it: ``ipv4:10.0.0.2:4711``. On hosts of their own are only those
        whose names begin with ``ipv``."""
        ...

    def peer_identity(self) -> PeerIdentity:
        """Who calls, as far as its connection proves it; the same for all calls of a connection.
        Contexts of ``grpc.aio`` have no such method: ask ``peer_identity.identity_of``."""
        ...

    async def read(self) -> Any:
        """The next message of the client; ``grpc.aio.EOF`` after its last."""
        ...

    async def write(self, message: Any) -> None:
        """Send one message; returns when it is taken. An error of gRPC when the client has gone."""
        ...

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Headers, ahead of the first message."""
        ...

    async def abort(
        self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()
    ) -> NoReturn:
        """End the call with this status."""
        ...


class FrameStream(Protocol):
    """One call with frames in both directions. All methods raise BarrageError, and only that, when
    the call failed."""

    async def read(self) -> bytes | None:
        """The next frame; None when the peer completed the call with OK."""
        ...

    async def headers(self) -> Mapping[str, str]:
        """What the peer sent ahead of its first frame; after that has been read. Names are in
        lower case."""
        ...

    async def write(self, frame: bytes) -> None:
        """Send one frame."""
        ...

    async def half_close(self) -> None:
        """Say that no more frames follow."""
        ...

    def cancel(self) -> None:
        """End the call now. Idempotent."""
        ...


class FlightConnector(Protocol):
    """A connection to one server."""

    target: str
    """Where it leads, for messages."""
    authorization: str | None
    """The header every call carries; replaced by the token a server's answer brings."""

    def exchange(
        self, *, headers: Mapping[str, str] | None = None, table: str | None = None
    ) -> FrameStream:
        """Open a DoExchange call. ``table`` is named in errors that do not name one."""
        ...

    def put(self, *, table: str | None = None) -> FrameStream:
        """Open a DoPut call; what is read are PutResult messages."""
        ...

    def get(self, ticket: bytes, *, table: str | None = None) -> FrameStream:
        """Open a DoGet call; nothing can be written."""
        ...

    async def unary(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> bytes:
        """One request, one answer. ``method`` is a full method name."""
        ...

    def results(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> AsyncIterator[bytes]:
        """One request, a stream of answers."""
        ...

    async def close(self) -> None:
        """Cancel all calls and give back the connection. Idempotent."""
        ...


class BodyReceiver(Protocol):
    """Where the bodies of one stream come in that do not come in its messages. Used on the loop of
    the stream only."""

    way: BodyWay

    def resolve(
        self, sequence: int, reference: bytes, *, is_kept: bool = False
    ) -> pa.Buffer | None:
        """The body of message number ``sequence``, which refers to it by ``reference``; None when
        it comes by itself, through :meth:`receive`. ``is_kept``: it will be used for as long as the
        stream lives. BodyChannelError when there is none."""
        ...

    async def receive(self) -> tuple[int, pa.Buffer]:
        """The next body that comes by itself, with the number of its message; in any order.
        BodyChannelError when no more will come. Waits for ever where none ever does."""
        ...

    def taken(self, sequence: int, size: int) -> None:
        """The message with this body, which came by itself, is handed out."""
        ...

    def finish_taking(self) -> None:
        """No more bodies come here; those that are out are still given back. Idempotent."""
        ...

    @property
    def lent_count(self) -> int:
        """Bodies of this stream that lie in memory of the peer and are still used."""
        ...

    def lent_ranges(self) -> list[tuple[int, int]]:
        """Where they are: address of the first byte and of the one after the last. From any
        thread; may name some that are not used any more."""
        ...

    async def finish_writing(self) -> None:
        """Write nothing more on the stream: it is about to be half-closed."""
        ...

    def close(self) -> None:
        """Take no more. Bodies that were handed out stay valid. Idempotent."""
        ...
