"""The sockets of a listener: one port, at all addresses of a host."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.transport.host_names import with_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKLOG = 4096
"""Connections the system takes ahead of us: many clients connect again at once."""

_PORT_TRIES = 5


class ListeningSockets:
    """Bound and listening from :meth:`bind` on; the system keeps who comes until somebody takes
    them."""

    def __init__(self, host: str, port: int) -> None:
        """``port``: 0 lets the system choose."""
        self._host = host
        self._asked = port
        self._sockets: list[socket.socket] = []
        self.port = 0
        """Known once they are bound."""

    def __iter__(self) -> Iterator[socket.socket]:
        return iter(self._sockets)

    def add(self, made: socket.socket) -> None:
        """One that somebody else has bound."""
        self._sockets.append(made)

    def bind(self) -> None:
        """Take the port; ConfigError when it cannot be had."""
        try:
            self._bind_all()
        except (OSError, UnicodeError) as error:
            self.close()
            where = with_port(self._host, self._asked)
            raise ConfigError(f"cannot listen on {where}: {error}") from error

    def _bind_all(self) -> None:
        """One port at all addresses. One that the system has chosen for the first may be taken at
        the next: then it chooses again."""
        host = self._host.removeprefix("[").removesuffix("]")
        if not host:
            raise OSError("no host")
        for tries_left in reversed(range(_PORT_TRIES)):
            try:
                self._bind_each(host)
                break
            except OSError as error:
                is_final = not tries_left or not self._sockets or self._asked
                if is_final or error.errno != errno.EADDRINUSE:
                    raise
                self.close()
        self.port = self._sockets[0].getsockname()[1]

    def _bind_each(self, host: str) -> None:
        port = self._asked
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for family, _, _, _, address in dict.fromkeys(found):
            with contextlib.suppress(_NotHere):
                self._sockets.append(_listening(family, (address[0], port, *address[2:])))
                port = self._sockets[0].getsockname()[1]
        if not self._sockets:
            raise OSError("this machine has no such address")

    def close(self) -> None:
        """Give the port back. Idempotent."""
        for each in self._sockets:
            each.close()
        self._sockets.clear()


def free_at_all(host: str, port: int) -> tuple[list[str], int]:
    """The addresses of a host, and a port that can be had at all of them at this moment, for who
    binds one address after the other. ``port``: 0 lets the system choose, and is left as it is
    where there is one address. ConfigError."""
    tried = ListeningSockets(host, port)
    tried.bind()
    addresses = [_numeric(each) for each in tried]
    tried.close()
    return addresses, tried.port if len(addresses) > 1 else port


def _numeric(bound: socket.socket) -> str:
    flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
    return socket.getnameinfo(bound.getsockname(), flags)[0]


class _NotHere(Exception):  # noqa: N818
    """An address of the host that this machine does not have, one of several."""


def _listening(family: int, address: tuple[object, ...]) -> socket.socket:
    try:
        # Named, or asyncio does not know connections for what they are and lets small writes wait.
        made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise _NotHere from error
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The unspecified address is all of them, as gRPC has it.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address[0] != "::"))
        made.setblocking(False)
        made.bind(address)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRNOTAVAIL:
            raise _NotHere from error
        raise
    return made
