"""From where the client of a call will connect by UCX: from where it calls."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote

from barrage.transport.ucx.endpoints import ipv4_literal

LOOPBACK = ipaddress.IPv4Address("127.0.0.1")

_PEER = re.compile(r"ipv[46]:\[?([^\]]+?)(?:%[^\]]*)?\]?:\d+")


def hosts_of(peer: str, ucx_host: str) -> frozenset[ipaddress.IPv4Address]:
    """The addresses that a caller (``ipv4:10.0.0.2:4711``, as gRPC names it) may have towards
    ``ucx_host``; none when it has no IPv4 address, or one that is not known."""
    own = ipv4_literal("127.0.0.1" if ucx_host == "localhost" else ucx_host)
    caller = _address_of(peer)
    is_here = caller is None if not peer.startswith("ipv") else caller in (own, LOOPBACK)
    if own is not None and (is_here or own.is_loopback):
        # Whoever reaches a loopback address is on this host.
        return frozenset({own, LOOPBACK})
    return frozenset() if caller is None else frozenset({caller})


def _address_of(peer: str) -> ipaddress.IPv4Address | None:
    match = _PEER.fullmatch(unquote(peer))
    if match is None:
        return None
    try:
        address = ipaddress.ip_address(match.group(1))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv4Address):
        return LOOPBACK if address.is_loopback else address
    return LOOPBACK if address.is_loopback else address.ipv4_mapped
