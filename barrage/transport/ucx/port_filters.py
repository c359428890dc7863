"""Who may open connections to the ports that UCX listens on: a filter in the kernel, on the sockets
themselves.

UCX listens on a port for connection requests and on one more per worker and network device, and
believes what comes there: 61 wrong bytes end the process. Packets that open a connection (SYN) are
dropped unless they come from an address that is named here; everything else passes, so connections
that are open stay. Filters are classic BPF programs (``SO_ATTACH_FILTER``), which take no
privileges. A relay in front of UCX would see and judge more, but cannot be: UCX takes the address
of its peer from the connection it accepts.

What UCX has accepted and nobody has done anything sensible with is ended here, too
(:func:`disconnect`): UCX waits for ever, and spins when the peer goes in the wrong moment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from typing import TYPE_CHECKING, Final

from barrage.errors import TransportError

if TYPE_CHECKING:
    import ipaddress
    from collections.abc import Iterable, Iterator, Mapping

_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_DESCRIPTORS: Final = "/proc/self/fd"
_libc: Final = ctypes.CDLL(None)

# Instructions (linux/bpf_common.h). Offsets count from the TCP header; those of the IPv4 header
# before it from SKF_NET_OFF.
_LOAD_BYTE: Final = 0x30
_LOAD_WORD: Final = 0x20
_AND: Final = 0x54
_JUMP_EQUAL: Final = 0x15
_RETURN: Final = 0x06
_TCP_FLAGS: Final = 13
_SOURCE_ADDRESS: Final = 0xFFF00000 + 12
_ALL: Final = 0xFFFFFFFF
_INSTRUCTION_BYTES: Final = 8
_SYN, _SYN_AND_ACK = 0x02, 0x12
_PROGRAM = struct.Struct("HL")


def only_from(hosts: Iterable[ipaddress.IPv4Address]) -> bytes:
    """The program that lets connections be opened from these addresses and from no others."""
    accept, drop = (_RETURN, 0, 0, _ALL), (_RETURN, 0, 0, 0)
    program = [(_LOAD_BYTE, 0, 0, _TCP_FLAGS), (_AND, 0, 0, _SYN_AND_ACK)]
    program += [(_JUMP_EQUAL, 1, 0, _SYN), accept, (_LOAD_WORD, 0, 0, _SOURCE_ADDRESS)]
    for host in hosts:
        program += [(_JUMP_EQUAL, 0, 1, int(host)), accept]
    return b"".join(struct.pack("HBBI", *each) for each in [*program, drop])


class ListeningPort:
    """A socket of UCX that listens; known by its descriptor, and owned by the library."""

    def __init__(self, descriptor: int, address: tuple[str, int]) -> None:
        self.descriptor = descriptor
        self.address = address

    def restrict(self, hosts: Iterable[ipaddress.IPv4Address] | None) -> None:
        """Let connections be opened from ``hosts`` only; None: from everywhere. TransportError when
        the system has no filters."""
        program = only_from(() if hosts is None else hosts)
        buffer = ctypes.create_string_buffer(program, len(program))
        option = _PROGRAM.pack(len(program) // _INSTRUCTION_BYTES, ctypes.addressof(buffer))
        listening = socket.socket(fileno=self.descriptor)
        try:
            if listening.getsockname() != self.address:
                raise TransportError(f"the socket of UCX at {self.address} is gone")
            listening.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
            if hosts is None:
                listening.setsockopt(socket.SOL_SOCKET, _SO_DETACH_FILTER, 0)
        except OSError as error:
            raise TransportError(f"cannot restrict the port {self.address}: {error}") from error
        finally:
            listening.detach()


def listening_ports() -> dict[int, ListeningPort]:
    """The IPv4 sockets of this process that listen, by descriptor."""
    found = {}
    for number in _socket_numbers():
        address = _listening_address(number)
        if address is not None:
            found[number] = ListeningPort(number, address)
    return found


def _socket_numbers() -> Iterator[int]:
    """Descriptors that are sockets."""
    try:
        names = os.listdir(_DESCRIPTORS)
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError):  # it may have been closed meanwhile
            if os.readlink(f"{_DESCRIPTORS}/{name}").startswith("socket:"):
                yield int(name)


def _listening_address(descriptor: int) -> tuple[str, int] | None:
    """None when it is no such socket, or one that has just gone."""
    try:
        candidate = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        is_listening = candidate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if candidate.family != socket.AF_INET or not is_listening:
            return None
        host, port = candidate.getsockname()
        return host, port
    except OSError:
        return None
    finally:
        candidate.detach()


def ports_of(address: bytes, before: Mapping[int, ListeningPort]) -> list[ListeningPort]:
    """The ports that a worker with this (packed) address listens on, given what listened before it
    was made: its address names its ports, in the order of the network."""
    known = {(number, port.address) for number, port in before.items()}
    return [
        port
        for number, port in listening_ports().items()
        if (number, port.address) not in known and struct.pack("!H", port.address[1]) in address
    ]


def peers_at(port: int) -> dict[int, tuple[str, int]]:
    """Descriptors of this process's IPv4 connections that were accepted at ``port``, and where
    they come from."""
    found = {}
    for number in _socket_numbers():
        peer = _peer_at(number, port)
        if peer is not None:
            found[number] = peer
    return found


def _peer_at(descriptor: int, port: int) -> tuple[str, int] | None:
    try:
        candidate = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        if candidate.family != socket.AF_INET or candidate.getsockname()[1] != port:
            return None
        host, number = candidate.getpeername()
        return host, number
    except OSError:
        return None  # It listens, or is not connected any more.
    finally:
        candidate.detach()


def disconnect(descriptor: int, peer: tuple[str, int]) -> bool:
    """Reset the connection of a descriptor that is somebody else's, if it is still one to
    ``peer``. Its owner sees an error and closes it, whatever state it was left in."""
    try:
        candidate = socket.socket(fileno=descriptor)
    except OSError:
        return False
    try:
        if candidate.getpeername() != peer:
            return False
    except OSError:
        return False
    finally:
        candidate.detach()
    nowhere = bytes(16)  # a sockaddr of the family AF_UNSPEC
    return bool(_libc.connect(descriptor, nowhere, len(nowhere)) == 0)
