"""What connections are called."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def peer_name(transport: asyncio.Transport) -> str:
    """Who calls, as gRPC names it."""
    name: Any = transport.get_extra_info("peername")
    made: Any = transport.get_extra_info("socket")
    if made is None or not name or made.family == getattr(socket, "AF_UNIX", None):
        return f"unix:{name if isinstance(name, str) else ''}"
    host, port = name[0], name[1]
    if made.family == socket.AF_INET6 and not host.startswith("::ffff:"):
        return f"ipv6:%5B{host.replace('%', '%25')}%5D:{port}"
    return f"ipv4:{host.removeprefix('::ffff:')}:{port}"
