"""Bodies over UCX as the body service sees them: offers of streams on one listener.

Imported only when ``ucx`` is switched on; this is where the library is loaded.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from barrage.server.auth import is_loopback
from barrage.server.body_outlets import UcxOutlet
from barrage.server.ucx_hosts import hosts_of
from barrage.server.ucx_tables import UcxTables
from barrage.transport.ucx.context import UcxContext
from barrage.transport.ucx.library import load_library
from barrage.transport.ucx.numbered_bodies import UcxBodySender
from barrage.transport.ucx.settings import UcxSettings
from barrage.transport.ucx.stream_server import StreamServer
from barrage.wire.dissociated.negotiation import UcxTerms

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.clock import Clock
    from barrage.server.config import ServerConfig
    from barrage.transport.shared_memory import Arena
    from barrage.transport.ucx.stream_server import ServedConnection
    from barrage.wire.dissociated.negotiation import Offer

log = logging.getLogger(__name__)


class UcxBodies:
    """One listener and what a client must have in common with it. Runs on the event loop."""

    def __init__(
        self, context: UcxContext, streams: StreamServer, terms: UcxTerms, tables: UcxTables
    ) -> None:
        self.streams = streams
        self.tables = tables
        self._context = context
        self._terms = terms

    def refusal(self, offer: Offer) -> str:
        """Why a client with this offer cannot connect; nothing when it can."""
        theirs, ours = offer.ucx, self._terms
        if theirs is None:
            return "the client does not offer it"
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

    def outlet(self, connection: ServedConnection) -> UcxOutlet:
        return UcxOutlet(UcxBodySender(connection))

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


async def listen(config: ServerConfig, clock: Clock, *, arena: Arena | None = None) -> UcxBodies:
    """Listen as the configuration says. TransportUnavailableError without a usable library,
    TransportError when the address cannot be had."""
    library = load_library(config.ucx_library)
    settings = UcxSettings(devices=config.ucx_devices, rma=config.ucx_rma)
    context = UcxContext(library, settings)
    streams = StreamServer(context, config.limits, clock)
    try:
        await streams.start(config.ucx_host, config.ucx_port)
    except BaseException:
        context.close()
        raise
    warn_of_network(config.ucx_host, streams.port)
    terms = UcxTerms(release=library.release, settings=settings.agreement())
    tables = UcxTables(context, streams, limits=config.limits, clock=clock, arena=arena)
    return UcxBodies(context, streams, terms, tables)
