"""Waiting for connections on a port."""

from __future__ import annotations

import ipaddress
import logging
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from barrage.errors import TransportError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.ucx import declarations as d
from barrage.transport.ucx.acceptance import Acceptance, Accepted
from barrage.transport.ucx.connection import UcxConnection
from barrage.transport.ucx.endpoints import ipv4_literal, pack_sockaddr
from barrage.transport.ucx.port_filters import disconnect, listening_ports, peers_at
from barrage.transport.ucx.worker import UcxWorker

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from barrage.transport.ucx.context import UcxContext
    from barrage.transport.ucx.port_filters import ListeningPort

REQUESTS_WAITING_MAX: Final = 64
"""Requests to connect that wait for their worker, which takes about 10 ms to make."""

_log = logging.getLogger(__name__)


class UcxListener:
    """Accepts connections, one at a time and beside the loop, and hands them to ``on_connection``.

    A connection handed over is the owner's to close. Past ``connections_max`` they are rejected.
    """

    def __init__(
        self,
        context: UcxContext,
        host: str,
        port: int,
        *,
        on_connection: Callable[[UcxConnection], None],
        connections_max: int = DEFAULT_LIMITS.ucx_connections_max,
        patience_ns: int = DEFAULT_LIMITS.ucx_unauthenticated_ns,
        is_guarded: bool = False,
    ) -> None:
        """Listen on ``host``, an IPv4 address, and ``port``; 0 takes a free one.

        What has not become a request to connect within ``patience_ns`` is ended. With
        ``is_guarded`` nobody can connect before :meth:`admit` says who may."""
        self._context = context
        self._on_connection = on_connection
        self._connections_max = connections_max
        self._connections: dict[UcxConnection, tuple[str, int]] = {}
        """Accepted ones, and where they come from."""
        self._accepting: tuple[str, int] | None = None
        """Where the one comes from that is being accepted."""
        self.rejected_count = 0
        self.ended_count = 0
        """Connections that were ended because they did not become a request, or not a valid one."""
        self._strangers: dict[tuple[int, tuple[str, int]], int] = {}
        """Descriptors and peers that are no connections of ours, and when they were seen first."""
        self._patience_ns = patience_ns
        self._admitted: Collection[ipaddress.IPv4Address] | None = None
        sockaddr = _sockaddr(host, port)
        self._worker = UcxWorker(context, is_guarded=is_guarded)
        self._worker.restrict(())  # it has no connections, so there is no data for it
        self._acceptance = Acceptance(context, self._worker, is_guarded=is_guarded)
        self._handle: Any = None
        self._sweeping: asyncio.TimerHandle | None = None
        try:
            self._handle = self._create(sockaddr, f"{host}:{port}")
            self.port = self._query_port()
        except BaseException:
            self.close()
            raise
        self._port = _listening_at(self.port) if is_guarded else None
        self.admit(() if is_guarded else None)
        self._sweeping = self._worker.loop.call_later(patience_ns / 2e9, self._sweep)
        self._worker.deliver = self._deliver
        context.listeners.add(self)

    def _create(self, sockaddr: bytes, where: str) -> Any:
        library = self._context.library
        ffi = library.ffi
        params = ffi.new("ucp_listener_params_t *")
        address = ffi.from_buffer(sockaddr)
        params.field_mask = d.LISTENER_SOCKADDR | d.LISTENER_CONNECTION_HANDLER
        params.sockaddr.addr = ffi.cast("void *", address)
        params.sockaddr.addrlen = len(sockaddr)
        params.conn_cb = ffi.cast("void *", library.on_connected)
        params.conn_arg = ffi.cast("void *", self._worker.number)
        out = ffi.new("void **")
        status = library.functions.ucp_listener_create(self._worker.handle, params, out)
        library.check(f"listen on {where}", status)
        return out[0]

    def _query_port(self) -> int:
        library = self._context.library
        attributes = library.ffi.new("ucp_listener_attr_t *")
        attributes.field_mask = d.LISTENER_ATTR_SOCKADDR
        status = library.functions.ucp_listener_query(self._handle, attributes)
        library.check("find the port of a listener", status)
        raw = bytes(library.ffi.buffer(attributes.sockaddr))
        return int(struct.unpack_from("!H", raw, 2)[0])

    @property
    def connection_count(self) -> int:
        """Accepted connections that are not closed yet."""
        return len(self._connections)

    def admit(self, hosts: Collection[ipaddress.IPv4Address] | None) -> None:
        """Let connections be opened from ``hosts`` only, None: from everywhere; what is connected
        stays. Where the system cannot do that, the log says so once."""
        self._admitted = hosts
        if self._port is None:
            return
        try:
            self._port.restrict(hosts)
        except TransportError as error:
            self._port = None
            _log.warning("the port of UCX can be reached by anybody: %s", error)

    def _sweep(self) -> None:
        """End what has not become a connection in time. UCX waits for ever for whoever is silent,
        and its thread spins when a peer goes that has sent too much."""
        loop = self._worker.loop
        self._sweeping = loop.call_later(self._patience_ns / 2e9, self._sweep)
        known = {*self._connections.values(), self._accepting}
        known |= {self._peer_of(request) for request in self._worker.requests_to_connect}
        now_ns = time.monotonic_ns()
        strangers = {each for each in peers_at(self.port).items() if each[1] not in known}
        self._strangers = {each: self._strangers.get(each, now_ns) for each in strangers}
        for stranger, since_ns in self._strangers.items():
            if now_ns - since_ns >= self._patience_ns and disconnect(*stranger):
                self.ended_count += 1
                _log.info("a connection of %s:%d to UCX led to nothing and is ended", *stranger[1])

    def _peer_of(self, request: Any) -> tuple[str, int]:
        """Where a request comes from."""
        library = self._context.library
        attributes = library.ffi.new("ucp_conn_request_attr_t *")
        attributes.field_mask = d.REQUEST_ATTR_CLIENT_ADDRESS
        status = library.functions.ucp_conn_request_query(request, attributes)
        if status < 0:
            return "", 0
        raw = bytes(library.ffi.buffer(attributes.client_address))
        return str(ipaddress.IPv4Address(raw[4:8])), int(struct.unpack_from("!H", raw, 2)[0])

    def _deliver(self) -> None:
        waiting = self._worker.requests_to_connect
        while len(waiting) > REQUESTS_WAITING_MAX:
            self._reject(waiting.pop())
        if waiting and not self._acceptance.is_under_way:
            request = waiting.pop(0)
            if len(self._connections) >= self._connections_max:
                self._reject(request)
                self._worker.wake()
            else:
                self._accept(request)

    def _reject(self, request: Any) -> None:
        self.rejected_count += 1
        self._context.library.functions.ucp_listener_reject(self._handle, request)

    def _accept(self, request: Any) -> None:
        self._accepting = self._peer_of(request)
        self._acceptance.begin(request, partial(self._accepted, request))

    def _accepted(self, request: Any, accepted: Accepted) -> None:
        peer, self._accepting = self._accepting, None
        connection = self._connection(request, accepted)
        if connection is None or peer is None:
            return
        self._connections[connection] = peer
        connection.on_closed = lambda: self._forget(connection)
        try:
            self._on_connection(connection)
        except Exception:
            _log.exception("a UCX connection was not taken over")
            connection.abort()

    def _connection(self, request: Any, accepted: Accepted) -> UcxConnection | None:
        """What a request has become, if it has."""
        worker = accepted.worker
        if accepted.error is not None:
            _log.warning("a UCX connection was not accepted: %s", accepted.error)
            if worker is None:
                self._reject(request)
            else:
                worker.destroy()
            return None
        assert worker is not None
        worker.start()
        return UcxConnection(worker, lambda: accepted.endpoint)

    def _forget(self, connection: UcxConnection) -> None:
        self._connections.pop(connection, None)

    def close(self) -> None:
        """Stop listening; accepted connections stay. Idempotent."""
        if self._worker.is_destroyed:
            return
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._end_acceptance()
        if not self._context.is_poisoned:
            for request in self._worker.requests_to_connect:
                self._reject(request)
            if self._handle is not None:
                self._context.library.functions.ucp_listener_destroy(self._handle)
        self._worker.requests_to_connect.clear()
        self._worker.destroy()
        self._context.listeners.discard(self)

    def _end_acceptance(self) -> None:
        """Nothing is accepted any more; what is being accepted is given up."""
        if self._context.is_poisoned:
            return  # Its thread is not in this process.
        accepted = self._acceptance.close()
        if accepted is not None and accepted.endpoint is not None:
            connection = self._connection(None, accepted)
            if connection is not None:
                connection.abort()
        elif accepted is not None and accepted.worker is not None:
            accepted.worker.destroy()


def _listening_at(port: int) -> ListeningPort | None:
    for each in listening_ports().values():
        if each.address[1] == port:
            return each
    _log.warning("the port of UCX is not among the sockets of this process: nobody is kept off it")
    return None


def _sockaddr(host: str, port: int) -> bytes:
    address = ipv4_literal("127.0.0.1" if host == "localhost" else host)
    if address is None:
        raise TransportError(f"a UCX listener needs an IPv4 address, not {host!r}")
    return pack_sockaddr(address, port)
