"""gRPC as a backend: over TCP, with TLS for clients, and over sockets of the file system. Servers
have the choice between ``grpc.aio`` and :mod:`barrage.transport.over_http2`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import grpc
import grpc.aio

from barrage.errors import ConfigError
from barrage.limits import NANOS_PER_MS
from barrage.transport.base import Address
from barrage.transport.host_names import is_address, is_loopback, is_served, with_port
from barrage.transport.over_grpc.grpc_channel import GrpcChannel
from barrage.transport.sockets.listening_sockets import free_at_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from barrage.transport.base import (
        ConnectOptions,
        Listener,
        ListenOptions,
        ServerCertificates,
        TLSMaterial,
    )

PORT_DEFAULT = 10000

_SCHEMES = {
    "grpc": (False, False),
    "grpc+tcp": (False, False),
    "grpcs": (True, False),
    "grpc+tls": (True, False),
    "dh": (False, True),
    "dh+plain": (False, True),
    "dhs": (True, True),
}
"""Scheme: (TLS, a Deephaven server that needs a session)."""

_UNIX = "unix"

_PING_INTERVAL_MS_MIN = 5_000
_CALLS_WAITING = 10_000
"""Calls that have come and are not taken up yet, past which gRPC begins to cancel some at random,
and twice that all: a thousand by default, which many clients that connect again at once exceed."""

_NO_COMPRESSION = 1
"""The set of message encodings with identity only. gRPC unpacks a message whole before anybody can
say what it may cost: 90 kB of gzip become 90 MiB. Arrow's own compression of bodies is taken, since
it says what it will be."""


def _channel_to(address: Address, options: ConnectOptions) -> GrpcChannel:
    return GrpcChannel(
        address.target,
        message_bytes_max=options.limits.message_bytes_max,
        authorization=options.authorization,
        renewed_authorization=options.renewed_authorization,
        tls=options.tls,
        streams_per_connection_max=options.streams_per_connection_max,
        connect_seconds_max=options.connect_seconds_max,
    )


class GrpcTransport:
    """``grpc://host:port`` and its like. A server's ``host`` is a plain address."""

    def parse(self, uri: str) -> Address:
        try:
            parts = urlsplit(uri)
            port = parts.port or PORT_DEFAULT
        except ValueError as error:
            raise ConfigError(f"cannot connect to {uri!r}: {error}") from error
        if not parts.hostname:
            raise ConfigError(f"cannot connect to {uri!r}: no host; write grpc://host:port")
        is_tls, is_deephaven = _SCHEMES[parts.scheme]
        target = with_port(parts.hostname, port)
        return Address(
            scheme=parts.scheme,
            target=target,
            is_tls=is_tls,
            is_deephaven=is_deephaven,
            is_private=is_loopback(parts.hostname),
            flight_uri=f"grpc+{'tls' if is_tls else 'tcp'}://{target}",
        )

    def connect(self, address: Address, options: ConnectOptions) -> GrpcChannel:
        return _channel_to(address, options)

    def is_local(self, host: str) -> bool:
        return is_loopback(host)

    def listen(self, host: str, options: ListenOptions) -> Listener:
        if "://" in host:
            raise ConfigError(
                f"cannot listen on {host!r}: for gRPC the host is an address without a scheme, "
                "and the port is a setting of its own"
            )
        if options.http == "grpcio":
            return GrpcListener(host, options)
        from barrage.transport.over_http2.http2_listener import Http2Listener

        return Http2Listener(host, options)


class UnixTransport:
    """``unix:///run/barrage.sock``: who may connect is a matter of the directory's permissions."""

    def parse(self, uri: str) -> Address:
        path = _path_of(uri)
        target = _target_of(path)
        is_plain = target == f"{_UNIX}://{path}"
        return Address(
            scheme=_UNIX,
            target=target,
            is_private=True,
            flight_uri=f"grpc+{target}" if is_plain else None,
        )

    def connect(self, address: Address, options: ConnectOptions) -> GrpcChannel:
        return _channel_to(address, options)

    def is_local(self, host: str) -> bool:
        return True

    def listen(self, host: str, options: ListenOptions) -> Listener:
        path = _path_of(host)
        if options.tls is not None:
            raise ConfigError(
                f"{host}: TLS is for addresses of a network; on a socket of the file system the "
                "kernel says who calls"
            )
        if options.http == "grpcio":
            return UnixListener(path, options)
        from barrage.transport.over_http2.http2_listener import UnixHttp2Listener

        return UnixHttp2Listener(path, options)


def _path_of(uri: str) -> str:
    path = uri.partition("://")[2]
    if not path.startswith("/"):
        raise ConfigError(f"{uri!r} has no path; write {_UNIX}:///path/of/the/socket")
    if "," in path or not path.isprintable():
        raise ConfigError(f"{uri!r}: gRPC finds no socket whose path has commas or such characters")
    return path


def _target_of(path: str) -> str:
    """What gRPC reads as that very path: it takes a percent sign for the beginning of a character,
    and cuts at a question mark."""
    return f"{_UNIX}://{quote(path)}"


class GrpcListener:
    """A ``grpc.aio.Server`` on one port."""

    runs_generators = True

    def __init__(self, host: str, options: ListenOptions) -> None:
        self._host = host
        self._options = options
        self._port = 0
        self._server: grpc.aio.Server | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        return with_port(self._host, self._port)

    @property
    def uri(self) -> str:
        return f"{'grpc' if self._options.tls is None else 'grpcs'}://{self.address}"

    def bind(self) -> None:
        """A name is taken as the system reads it, at all of its addresses: gRPC would be content
        with any of them, and clients of the others would meet somebody else."""
        hosts, port = [self._host], self._options.port
        if not is_address(self._host):
            hosts, port = free_at_all(self._host, port)
        for host in hosts:
            self._port = self._bound(with_port(host, port))

    def _bound(self, address: str) -> int:
        """What gRPC calls the port of ``address``, which is taken now; ConfigError."""
        try:
            port = self._add_port(address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: {error}") from error
        if port == 0:
            raise ConfigError(f"cannot listen on {address}")
        return port

    def _add_port(self, address: str) -> int:
        tls = self._options.tls
        if tls is None:
            return self._made().add_insecure_port(address)
        return self._made().add_secure_port(address, _credentials(tls))

    def _made(self) -> grpc.aio.Server:
        if self._server is None:
            self._server = grpc.aio.server(options=server_options(self._options))
        return self._server

    def add_generic_rpc_handlers(
        self, handlers: Iterable[grpc.GenericRpcHandler[Any, Any]]
    ) -> None:
        self._made().add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        made: Any = self._made()
        made.add_registered_method_handlers(service, handlers)

    async def start(self) -> None:
        await self._made().start()

    async def stop(self, grace_s: float | None) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(grace_s)


class UnixListener(GrpcListener):
    """The same on a socket of the file system."""

    def __init__(self, path: str, options: ListenOptions) -> None:
        super().__init__(f"{_UNIX}://{path}", options)
        self._path = path

    @property
    def address(self) -> str:
        return self._host

    @property
    def uri(self) -> str:
        return self._host

    def bind(self) -> None:
        """gRPC takes the place of any socket of that path, also of one that is served."""
        if is_served(self._path):
            raise ConfigError(f"cannot listen on {self._host}: another server does")
        self._bound(_target_of(self._path))


def _credentials(tls: ServerCertificates) -> grpc.ServerCredentials:
    """Asked for a new pair before each handshake, on a thread of gRPC's."""
    told = tls.material

    def renewed() -> Any:
        nonlocal told
        now = tls.material
        if now is told:
            return None
        told = now
        return _configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(told), renewed, require_client_authentication=told.client_ca is not None
    )


def _configuration(material: TLSMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(material.key, material.certificate)], root_certificates=material.client_ca
    )


def server_options(options: ListenOptions) -> list[tuple[str, int]]:
    """gRPC settings: message sizes by the limits, pings that find dead peers, one process per
    port."""
    return [
        ("grpc.max_receive_message_length", options.message_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
        ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
        ("grpc.server.max_pending_requests", _CALLS_WAITING),
        ("grpc.server.max_pending_requests_hard_limit", 2 * _CALLS_WAITING),
        ("grpc.keepalive_time_ms", options.keepalive_ms),
        ("grpc.keepalive_timeout_ms", max(options.keepalive_ms // 2, 1)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.server_handshake_timeout_ms", options.limits.http2_preface_ns_max // NANOS_PER_MS),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", _PING_INTERVAL_MS_MIN),
    ]


GRPC = GrpcTransport()
UNIX = UnixTransport()
