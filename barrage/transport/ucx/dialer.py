"""The client's side of bodies over UCX."""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
from typing import TYPE_CHECKING

from barrage.errors import TransportUnavailableError
from barrage.supervision import in_thread
from barrage.transport.ucx.context import UcxContext
from barrage.transport.ucx.library import load_library
from barrage.transport.ucx.numbered_bodies import UcxBodyReceiver
from barrage.transport.ucx.settings import UcxSettings
from barrage.transport.ucx.stream_client import open_stream
from barrage.wire.dissociated.location import UcxLocation
from barrage.wire.dissociated.negotiation import ConnectionTerms

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.transport.ucx.library import UcxLibrary

DEVICES_VARIABLE = "BARRAGE_UCX_DEVICES"
"""Network devices for UCX, as UCX names them; by default the one towards the server."""

_SIOCGIFADDR = 0x8915
_DISCARD_PORT = 9


class LocalUcx:
    """UCX in this process: the library, and one context per network device."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._library: UcxLibrary | None = None
        self._contexts: dict[str, UcxContext] = {}

    def terms(self) -> ConnectionTerms:
        if self._library is None:
            self._library = load_library()
        return ConnectionTerms(release=self._library.release, settings=UcxSettings().agreement())

    async def connect(self, location: str, ticket: bytes, timeout: float) -> UcxBodyReceiver:
        place = UcxLocation.parse(location)
        devices = os.environ.get(DEVICES_VARIABLE)
        if not devices:
            async with asyncio.timeout(timeout):
                # The server may have given a name, which takes its time to be looked up.
                devices = await in_thread(device_towards, place.host)
        connection = await open_stream(self._context(devices), place, ticket, timeout=timeout)
        return UcxBodyReceiver(connection, self._limits)

    def _context(self, devices: str) -> UcxContext:
        assert self._library is not None
        context = self._contexts.get(devices)
        if context is None:
            context = UcxContext(self._library, UcxSettings(devices=devices))
            self._contexts[devices] = context
        return context

    def close(self) -> None:
        contexts, self._contexts = self._contexts, {}
        for context in contexts.values():
            context.close()


def device_towards(host: str) -> str:
    """Name of the network device packets to ``host``, an IPv4 address, leave by; that keeps UCX
    from listening on the others. TransportUnavailableError."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Nothing is sent: the system only chooses the way.
            probe.connect((host, _DISCARD_PORT))
            own = probe.getsockname()[0]
            for _, name in socket.if_nameindex():
                if _address_of(probe, name) == own or (own.startswith("127.") and name == "lo"):
                    return name
    except OSError as error:
        raise TransportUnavailableError(f"there is no way to {host}: {error}") from error
    raise TransportUnavailableError(f"there is no network device towards {host}")


def _address_of(probe: socket.socket, name: str) -> str | None:
    request = struct.pack("256s", name.encode()[:15])
    try:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
    except OSError:
        return None
    return socket.inet_ntoa(answer[20:24])
