"""Peers that are gone and have not said so, where what is spoken has no way to ask them."""

from __future__ import annotations

import socket

_PROBES = 2


def keep_alive(connected: socket.socket, silence_ms: int) -> None:
    """Have the system ask a peer that has been silent for so long, and end the connection when it
    does not answer."""
    seconds = max(1, silence_ms // 1000)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", seconds),
        ("TCP_KEEPINTVL", max(1, seconds // 4)),
        ("TCP_KEEPCNT", _PROBES),
    ):
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            connected.setsockopt(socket.IPPROTO_TCP, option, value)
