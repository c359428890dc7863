"""The server's side of bodies over UCX: offers of streams on one listener.

This is where a server loads the library.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.transport import shared_memory
from barrage.transport.host_names import is_loopback
from barrage.transport.ucx.caller_hosts import hosts_of
from barrage.transport.ucx.context import UcxContext
from barrage.transport.ucx.library import load_library
from barrage.transport.ucx.numbered_bodies import UcxBodySender
from barrage.transport.ucx.offered_tables import UcxTables
from barrage.transport.ucx.settings import UcxSettings
from barrage.transport.ucx.stream_server import StreamServer
from barrage.wire.dissociated.negotiation import ConnectionTerms

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.transport.bodies import ServeOptions
    from barrage.transport.ucx.stream_server import ServedConnection

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UcxServerSettings:
    """The server's settings that begin with ``ucx_``, where they are explained and checked."""

    host: str = "127.0.0.1"
    port: int = 0
    rma: bool = False
    devices: str = "lo"
    library: str | None = None


class UcxBodies:
    """One listener and what a client must have in common with it. Runs on the event loop."""

    def __init__(
        self,
        context: UcxContext,
        streams: StreamServer,
        terms: ConnectionTerms,
        *,
        tables: UcxTables,
    ) -> None:
        self.streams = streams
        self.tables = tables
        self._context = context
        self._terms = terms

    def refusal(self, terms: ConnectionTerms) -> str:
        """Why a client with these terms cannot connect; nothing when it can."""
        theirs, ours = terms, self._terms
        if theirs.release != ours.release:
            return f"the client has UCX {theirs.release}, the server {ours.release}"
        for name, value in ours.settings.items():
            if theirs.settings.get(name) != value:
                return f"{name} is {value} on the server and not on the client"
        return ""

    def offer(
        self, on_connection: Callable[[ServedConnection], None], lifetime_ns: int, peer: str
    ) -> tuple[str, bytes]:
        """A location and a ticket for the caller ``peer``; ``on_connection`` gets the connection
        that shows it. LimitExceededError, TransportError."""
        location, ticket = self.streams.offer(
            lambda connection, _: on_connection(connection),
            lifetime_ns=lifetime_ns,
            hosts=hosts_of(peer, self.streams.host),
        )
        return location.encode(), ticket

    def sender(self, connection: ServedConnection) -> UcxBodySender:
        return UcxBodySender(connection)

    async def close(self) -> None:
        """Stop listening, end what is connected, and give the library's memory back. In this order:
        the library reads memory for a client as long as it is connected."""
        await self.streams.close()
        await self.tables.close()
        self._context.close()


def warn_of_network(host: str, port: int) -> None:
    """Say what remains when UCX can be reached from other hosts."""
    if not is_loopback(host):
        log.warning(
            "UCX listens on %s:%d: whoever may call this server, or runs on a host from which "
            "somebody calls it, can end it; see docs/security.md",
            host,
            port,
        )


async def listen(options: ServeOptions) -> UcxBodies:
    """Listen as the settings say. TransportUnavailableError without a usable library,
    TransportError when the address cannot be had."""
    wanted: UcxServerSettings = options.settings
    with suppress(OSError):  # an arena of this server has cleaned up before
        shared_memory.remove_stale(shared_memory.DIRECTORY)
    library = load_library(wanted.library)
    settings = UcxSettings(devices=wanted.devices, rma=wanted.rma)
    context = UcxContext(library, settings)
    streams = StreamServer(context, options.limits, options.clock)
    try:
        await streams.start(wanted.host, wanted.port)
    except BaseException:
        context.close()
        raise
    warn_of_network(wanted.host, streams.port)
    terms = ConnectionTerms(release=library.release, settings=settings.agreement())
    tables = UcxTables(
        context, streams, limits=options.limits, clock=options.clock, arena=options.arena
    )
    return UcxBodies(context, streams, terms, tables=tables)
