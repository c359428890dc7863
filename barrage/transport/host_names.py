"""Hosts and sockets as settings name them."""

from __future__ import annotations

import errno
import ipaddress
import socket


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def with_port(host: str, port: int) -> str:
    """``host:port``; an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_served(path: str) -> bool:
    """Whether a socket of that path is somebody's. Does not wait: who is too busy to answer is
    there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except (BlockingIOError, PermissionError):
            return True
        except OSError as error:
            return error.errno == errno.EPROTOTYPE  # A live one of another type.
    return True
