"""What the connections of one session are made with: credentials, TLS, limits, and where to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.client.connection.address import Bearer, authorization_header
from barrage.client.connection.connection import Connection
from barrage.client.connection.failover import FailoverConnector
from barrage.client.connection.login import DeephavenLogin
from barrage.transport.base import TLS, ConnectOptions
from barrage.transport.registry import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.client.bodies.bodies import BodyChoice
    from barrage.client.connection.address import Auth
    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.base import Address, FlightConnector
    from barrage.wire.dissociated.ways import BodyWay
    from barrage.wire.revision import WireRevision

STREAMS_PER_CONNECTION = 100
"""Exchanges over one connection to a Deephaven server: 250 were seen to stall without an error,
100 never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialing:
    """What was said when the session was made."""

    auth: Auth
    is_deephaven: bool
    """Whose server it is: whose form credentials have."""
    tls: TLS | None
    revision: WireRevision
    limits: Limits
    clock: Clock
    bodies: BodyChoice | BodyWay
    connect_seconds_max: float | None = None
    """How long one of several servers may take to be reached."""

    def connect(
        self, addresses: Sequence[Address], channel: FlightConnector | None = None
    ) -> Connection:
        """A connection to one of ``addresses``, the first if it can be; ``channel`` replaces it."""
        first = addresses[0]
        channel = channel or self._channel(addresses)
        login = None
        if first.is_deephaven:
            # Where a server wants no credentials, a session still begins with a word.
            login = DeephavenLogin(channel, channel.authorization or "Anonymous")
        return Connection(
            first,
            channel,
            tls=self.tls,
            revision=self.revision,
            limits=self.limits,
            clock=self.clock,
            bodies=self.bodies,
            login=login,
            has_renewed_tokens=self.has_renewed_tokens,
        )

    @property
    def has_renewed_tokens(self) -> bool:
        """Whether credentials that were refused may be others the next time."""
        return isinstance(self.auth, Bearer) and self.auth.is_renewed

    def _channel(self, addresses: Sequence[Address]) -> FlightConnector:
        if len(addresses) == 1:
            return self._dial(addresses[0], None)
        return FailoverConnector(addresses, lambda each: self._dial(each, self.connect_seconds_max))

    def _dial(self, address: Address, seconds_max: float | None) -> FlightConnector:
        auth, is_renewed = self.auth, self.has_renewed_tokens and not self.is_deephaven
        options = ConnectOptions(
            limits=self.limits,
            authorization=None
            if is_renewed
            else authorization_header(auth, is_deephaven=self.is_deephaven),
            renewed_authorization=(lambda: auth.header)
            if is_renewed and isinstance(auth, Bearer)
            else None,
            tls=(self.tls or TLS()) if address.is_tls else None,
            streams_per_connection_max=STREAMS_PER_CONNECTION if address.is_deephaven else None,
            connect_seconds_max=seconds_max,
        )
        return TRANSPORTS.find(address.scheme).connect(address, options)
