"""Calls within one process as a backend: ``inproc://name``."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.transport.base import Address
from barrage.transport.inproc.inproc_call import SCHEME
from barrage.transport.inproc.inproc_channel import InprocChannel
from barrage.transport.inproc.inproc_listener import InprocListener

if TYPE_CHECKING:
    from barrage.transport.base import ConnectOptions, ListenOptions

_PREFIX = f"{SCHEME}://"


class InprocTransport:
    """A server is found by its name; ``inproc://`` alone makes one up for a server, as a port
    is."""

    def parse(self, uri: str) -> Address:
        name = uri.partition("://")[2]
        if not name:
            raise ConfigError(f"cannot connect to {uri!r}: no name; write {_PREFIX}name")
        return Address(scheme=SCHEME, target=_PREFIX + name, is_private=True)

    def connect(self, address: Address, options: ConnectOptions) -> InprocChannel:
        name = address.target.removeprefix(_PREFIX)
        return InprocChannel(
            name,
            limits=options.limits,
            authorization=options.authorization,
            renewed_authorization=options.renewed_authorization,
        )

    def is_local(self, host: str) -> bool:
        return True

    def listen(self, host: str, options: ListenOptions) -> InprocListener:
        if options.tls is not None:
            raise ConfigError(f"{host}: TLS is for addresses of a network")
        name = host.partition("://")[2] or secrets.token_hex(8)
        return InprocListener(name, message_bytes_max=options.message_bytes_max)


INPROC = InprocTransport()
