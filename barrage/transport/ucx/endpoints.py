"""Endpoints of connections, and the addresses they are made of."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from typing import TYPE_CHECKING, Any

from barrage.errors import TransportError
from barrage.transport.ucx import declarations as d

if TYPE_CHECKING:
    from barrage.transport.ucx.worker import UcxWorker

_SOCKADDR = struct.Struct("=H2s4s8x")


def pack_sockaddr(address: ipaddress.IPv4Address, port: int) -> bytes:
    """A ``struct sockaddr_in``."""
    return _SOCKADDR.pack(socket.AF_INET, struct.pack("!H", port), address.packed)


def ipv4_literal(host: str) -> ipaddress.IPv4Address | None:
    """The address, when ``host`` is one. TransportError for IPv6, with which UCX corrupts memory
    unless it is set up for nothing else."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    if address.version == 6:
        raise TransportError(f"UCX is used with IPv4 only here, and {host!r} is IPv6")
    return ipaddress.IPv4Address(address)


async def ipv4_of(host: str) -> ipaddress.IPv4Address:
    """The first IPv4 address of a name, or the literal one. TransportError."""
    literal = ipv4_literal(host)
    if literal is not None:
        return literal
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, family=socket.AF_INET)
    except OSError as error:
        raise TransportError(f"host {host!r} has no IPv4 address: {error.strerror}") from error
    return ipaddress.IPv4Address(found[0][4][0])


def client_endpoint(
    worker: UcxWorker, address: ipaddress.IPv4Address, port: int, *, error_mode: int
) -> Any:
    """An endpoint that begins to connect; that it cannot shows in what is sent later.
    ``error_mode`` is the library's number."""
    ffi = worker.library.ffi
    params = _endpoint_params(worker)
    sockaddr = ffi.from_buffer(pack_sockaddr(address, port))
    params.field_mask |= d.EP_ERROR_MODE | d.EP_SOCKADDR | d.EP_FLAGS
    params.err_mode = error_mode
    params.flags = d.EP_CLIENT_SERVER
    params.sockaddr.addr = ffi.cast("void *", sockaddr)
    params.sockaddr.addrlen = len(sockaddr)
    return _create(worker, params, f"connect to {address}:{port}")


def accepted_endpoint(worker: UcxWorker, request: Any) -> Any:
    """The endpoint of an accepted connection; its error mode is that of the peer."""
    params = _endpoint_params(worker)
    params.field_mask |= d.EP_CONNECTION_REQUEST
    params.conn_request = request
    return _create(worker, params, "accept a connection")


def _endpoint_params(worker: UcxWorker) -> Any:
    ffi = worker.library.ffi
    params = ffi.new("ucp_ep_params_t *")
    params.field_mask = d.EP_ERROR_HANDLER
    params.err_cb = ffi.cast("void *", worker.library.on_failed)
    params.err_arg = ffi.cast("void *", worker.number)
    return params


def _create(worker: UcxWorker, params: Any, what: str) -> Any:
    out = worker.library.ffi.new("void **")
    status = worker.library.functions.ucp_ep_create(worker.handle, params, out)
    worker.library.check(what, status)
    return out[0]
