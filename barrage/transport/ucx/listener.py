"""Waiting for connections on a port."""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any, Final

from barrage.errors import TransportError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.ucx import declarations as d
from barrage.transport.ucx.connection import UcxConnection
from barrage.transport.ucx.endpoints import accepted_endpoint, ipv4_literal, pack_sockaddr
from barrage.transport.ucx.worker import UcxWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.transport.ucx.context import UcxContext

REQUESTS_WAITING_MAX: Final = 64
"""Requests to connect that wait for their worker, which takes about 10 ms to make."""

_log = logging.getLogger(__name__)


class UcxListener:
    """Accepts connections, one per turn of the loop, and hands them to ``on_connection``.

    A connection handed over is the owner's to close. Past ``connections_max`` they are rejected.
    """

    def __init__(
        self,
        context: UcxContext,
        host: str,
        port: int,
        on_connection: Callable[[UcxConnection], None],
        *,
        connections_max: int = DEFAULT_LIMITS.ucx_connections_max,
    ) -> None:
        """Listen on ``host``, an IPv4 address, and ``port``; 0 takes a free one."""
        self._context = context
        self._on_connection = on_connection
        self._connections_max = connections_max
        self._connections: set[UcxConnection] = set()
        self.rejected_count = 0
        sockaddr = _sockaddr(host, port)
        self._worker = UcxWorker(context)
        self._handle: Any = None
        try:
            self._handle = self._create(sockaddr, f"{host}:{port}")
            self.port = self._query_port()
        except BaseException:
            self.close()
            raise
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

    def _deliver(self) -> None:
        waiting = self._worker.requests_to_connect
        while len(waiting) > REQUESTS_WAITING_MAX:
            self._reject(waiting.pop())
        if waiting:
            request = waiting.pop(0)
            if len(self._connections) >= self._connections_max:
                self._reject(request)
            else:
                self._accept(request)
        if waiting:
            self._worker.wake()

    def _reject(self, request: Any) -> None:
        self.rejected_count += 1
        self._context.library.functions.ucp_listener_reject(self._handle, request)

    def _accept(self, request: Any) -> None:
        try:
            worker = UcxWorker(self._context)
        except TransportError as error:
            _log.warning("cannot accept a UCX connection: %s", error)
            self._reject(request)
            return
        try:
            connection = UcxConnection(worker, lambda: accepted_endpoint(worker, request))
        except TransportError as error:
            _log.warning("a UCX connection was not accepted: %s", error)
            return
        self._connections.add(connection)
        connection.on_closed = lambda: self._connections.discard(connection)
        try:
            self._on_connection(connection)
        except Exception:
            _log.exception("a UCX connection was not taken over")
            connection.abort()

    def close(self) -> None:
        """Stop listening; accepted connections stay. Idempotent."""
        if self._worker.is_destroyed:
            return
        if not self._context.is_poisoned:
            for request in self._worker.requests_to_connect:
                self._reject(request)
            if self._handle is not None:
                self._context.library.functions.ucp_listener_destroy(self._handle)
        self._worker.requests_to_connect.clear()
        self._worker.destroy()
        self._context.listeners.discard(self)


def _sockaddr(host: str, port: int) -> bytes:
    address = ipv4_literal("127.0.0.1" if host == "localhost" else host)
    if address is None:
        raise TransportError(f"a UCX listener needs an IPv4 address, not {host!r}")
    return pack_sockaddr(address, port)
