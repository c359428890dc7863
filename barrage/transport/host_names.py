"""Hosts and sockets as settings name them."""

from __future__ import annotations

import errno
import ipaddress
import socket
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether ``host`` is an address itself and no name of some."""
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


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


def normal_origin(text: str) -> str | None:
    """An origin in the one form it is compared in, the port said; None when it is none."""
    try:
        parts = urlsplit(text.strip())
        port = parts.port or _PORTS.get(parts.scheme)
        name = parts.hostname
    except ValueError:
        return None
    is_more = parts.path or parts.query or parts.fragment or parts.username is not None
    if parts.scheme not in _PORTS or not name or is_more:
        return None
    host = f"[{name}]" if ":" in name else name
    return f"{parts.scheme}://{host}:{port}"


def host_and_port(text: str) -> tuple[str, int] | None:
    """What ``host:port`` says; None when it is none."""
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65_535
    return (host.strip("[]"), int(port)) if colon and host and is_port else None
