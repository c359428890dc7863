"""The connection to the upstream servers: one at a time, the next one when it is lost.

The link looks at the server's tables about every second, which also finds out that it has stopped
answering. Followers wait for its session and tell it when theirs has broken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from barrage.client.bodies.bodies import BodyChoice
from barrage.client.connection.address import parse_address, parse_addresses
from barrage.client.connection.reconnect import Backoff
from barrage.client.session import aconnect
from barrage.errors import (
    ActionNotFoundError,
    BarrageError,
    ConfigError,
    ConnectionLostError,
    TransportError,
    UnsupportedError,
)
from barrage.relay.listing import Listing
from barrage.server.flight.relay_calls import RELAY

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.client.connection.address import Auth
    from barrage.client.connection.opening import Opening
    from barrage.client.session import AsyncSession
    from barrage.server.tables.identity import ServerIdentity
    from barrage.transport.base import TLS

log = logging.getLogger(__name__)

UPSTREAMS_MAX: Final = 16

LOOK_SECONDS: Final = 1.0
"""How often the tables of the upstream server are looked at."""

ANSWER_SECONDS_MAX: Final = 5.0
"""A server that takes longer to say what tables it has counts as lost."""

RETRY_SECONDS_MAX: Final = 2.0
"""Longest pause between two rounds over all addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """Where the upstream servers are, and how to get in."""

    addresses: tuple[str, ...]
    auth: Auth = None
    tls: TLS | None = None
    """For those that speak it."""
    look_seconds: float = LOOK_SECONDS
    backoff: Backoff = field(default_factory=lambda: Backoff(seconds_max=RETRY_SECONDS_MAX))

    def check(self) -> None:
        """ConfigError for an address nobody can follow."""
        if not self.addresses:
            raise ConfigError("a relay needs the address of an upstream server")
        if len(self.addresses) > UPSTREAMS_MAX:
            raise ConfigError(f"{len(self.addresses)} upstream servers, at most {UPSTREAMS_MAX}")
        parse_addresses(self.addresses)
        for address in self.addresses:
            if parse_address(address).is_deephaven:
                raise ConfigError(f"{address}: tables of a Deephaven server cannot be relayed")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamServer:
    """What is known of one of them."""

    address: str
    is_followed: bool
    connections: int
    """Made so far."""
    error: BarrageError | None
    """Why it could not be followed, or was lost, when that was tried last."""


class UpstreamLink:
    """Runs on the event loop; one task calls :meth:`run`."""

    def __init__(
        self,
        settings: UpstreamSettings,
        identity: ServerIdentity,
        *,
        on_listing: Callable[[Listing], object],
    ) -> None:
        """``on_listing`` is told what tables there are, again and again."""
        self._settings = settings
        self._identity = identity
        self._on_listing = on_listing
        self._session: AsyncSession | None = None
        self._writing: AsyncSession | None = None
        self._looks = asyncio.Event()
        self._looks_begun = 0
        self._looks_ended = 0
        self._has_looked = asyncio.Event()
        self._is_there = asyncio.Event()
        self.address: str | None = None
        """The server followed now; None while there is none."""
        self.listing: Listing | None = None
        """What it said last, also when it is lost."""
        self.error: BarrageError | None = None
        """Why there is no connection, or why the last one was lost."""
        self.connections = 0
        """Connections made so far."""
        self._connections = dict.fromkeys(settings.addresses, 0)
        self._errors: dict[str, BarrageError] = {}

    @property
    def upstreams(self) -> list[UpstreamServer]:
        """Every server this one may follow, in the order in which they are tried."""
        return [
            UpstreamServer(
                address=address,
                is_followed=address == self.address,
                connections=count,
                error=self._errors.get(address),
            )
            for address, count in self._connections.items()
        ]

    async def session(self) -> AsyncSession:
        """The session with the server followed now; waits for one."""
        while self._session is None:
            await self._is_there.wait()
        return self._session

    def writing(self, table: str) -> AsyncSession:
        """The session for writes to the server followed now; TransportError while there is
        none."""
        if self._writing is None:
            raise self.lost(table)
        return self._writing

    def lost(self, table: str) -> TransportError:
        """There is nobody to pass a call on to."""
        reason = "" if self.error is None else f" ({self.error})"
        return TransportError(
            f"table {table!r}: the server that owns it cannot be reached from this relay{reason}; "
            "connect again"
        )

    def look_now(self) -> None:
        """Its tables may be others than they were."""
        self._looks.set()

    async def listing_from_now(self) -> Listing:
        """What there is at the server, asked for after this call. Many who wait share one answer.
        While the server is away this waits for the next one."""
        wanted = self._looks_begun + 1
        self._looks.set()
        while self._looks_ended < wanted:
            await self._has_looked.wait()
        assert self.listing is not None
        return self.listing

    def note_lost(self, session: AsyncSession) -> None:
        """A stream of this session has broken: look now whether the server is there."""
        if session is self._session:
            self._looks.set()

    async def run(self) -> None:
        """Keep a connection until cancelled."""
        addresses, backoff = self._settings.addresses, self._settings.backoff
        at, failures = 0, 0
        while True:
            address = addresses[at % len(addresses)]
            connections = self.connections
            try:
                await self._stay_with(address)
            except BarrageError as error:
                self._note_failure(address, error)
            was_connected = self.connections > connections
            at += 1
            failures = 0 if was_connected else failures + 1
            if failures >= len(addresses) or (was_connected and len(addresses) == 1):
                await asyncio.sleep(backoff.next_delay())

    def _note_failure(self, address: str, error: BarrageError) -> None:
        if self.error is None or str(error) != str(self.error):
            log.warning("upstream %s: %s", address, error)
        self.error = self._errors[address] = error

    async def _stay_with(self, address: str) -> None:
        """Connect, and stay connected until the server is lost, which is an error."""
        settings = self._settings
        async with self._opening(address) as session, self._opening(address) as writing:
            listing = await self._look(session)
            try:
                self._writing = writing
                self._connected(address, session, listing)
                while True:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(settings.look_seconds):
                            await self._looks.wait()
                    # Who asks for a look while one is under way is not answered by that one.
                    self._looks.clear()
                    self._note(await self._look(session))
            finally:
                self._session, self._writing, self.address = None, None, None
                self._is_there.clear()

    def _opening(self, address: str) -> Opening[AsyncSession]:
        settings = self._settings
        return aconnect(
            address,
            auth=settings.auth,
            tls=settings.tls if parse_address(address).is_tls else None,
            bodies=BodyChoice.INLINE,
            timeout=ANSWER_SECONDS_MAX,
        )

    async def _look(self, session: AsyncSession) -> Listing:
        self._looks_begun += 1
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                (answer,) = await session.act(RELAY)
        except TimeoutError as error:
            raise ConnectionLostError(f"no answer within {ANSWER_SECONDS_MAX} seconds") from error
        except ActionNotFoundError as error:
            raise UnsupportedError(
                "the server cannot be relayed: it is of an earlier version, or no barrage server"
            ) from error
        except ValueError as error:
            raise ConnectionLostError("the server did not say what tables it has") from error
        listing = Listing.parse(answer)
        listing.check_path(self._identity)
        return listing

    def _connected(self, address: str, session: AsyncSession, listing: Listing) -> None:
        log.info("upstream %s: connected, %d tables", address, len(listing.tables))
        self._session, self.address, self.error = session, address, None
        self.connections += 1
        self._connections[address] += 1
        self._errors.pop(address, None)
        self._settings.backoff.reset()
        self._note(listing)
        self._is_there.set()

    def _note(self, listing: Listing) -> None:
        self.listing = listing
        self._identity.via = listing.path
        self._on_listing(listing)
        # Looks come one after the other: the one that ends is the one that began last.
        self._looks_ended = self._looks_begun
        has_looked, self._has_looked = self._has_looked, asyncio.Event()
        has_looked.set()
