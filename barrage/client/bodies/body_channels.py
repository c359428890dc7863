"""Channels for the bodies of streams, as :class:`~barrage.client.bodies.body_routes.BodyRoutes`
prepares them: shared memory that all streams of a connection use, or a connection for one of them.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from barrage.client.bodies.body_receivers import ConnectedReceiver, SharedMemoryReceiver
from barrage.wire.dissociated.lending import Lending
from barrage.wire.dissociated.negotiation import HEADER
from barrage.wire.dissociated.ways import BodyWay

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from barrage.client.bodies.body_receivers import Write
    from barrage.clock import Clock
    from barrage.transport.base import BodyReceiver
    from barrage.transport.bodies import BodyConnection, MappedMemory
    from barrage.wire.dissociated.lending import Window
    from barrage.wire.dissociated.negotiation import Claim

logger = logging.getLogger(__name__)


class ChannelOwner(Protocol):
    """Who hands out channels, and is told what became of them."""

    def forget(self, channel: SharedMemoryChannel) -> None:
        """The channel is of no use to further streams, which may ask for another one."""
        ...

    def failed(self, reason: str) -> None:
        """A body did not come: the way is not tried again for a while."""
        ...

    def close_soon(self, connection: BodyConnection) -> asyncio.Task[None]:
        """Close a connection beside whoever has used it."""
        ...


class SharedMemoryChannel:
    """Shared memory as the streams of one connection have it. ``expires_ns``: when the server
    forgets it unless a stream claims it before."""

    way = BodyWay.SHM

    def __init__(
        self,
        owner: ChannelOwner,
        claim: Claim,
        mapping: MappedMemory,
        *,
        window: Window,
        let_go: Callable[[], None],
        clock: Clock,
        expires_ns: int,
    ) -> None:
        self._owner = owner
        self._claim = claim
        self._mapping = mapping
        self._window = window
        self._lending = Lending()
        self._let_go = let_go
        self._clock = clock
        self._expires_ns = expires_ns
        self._is_claimed = False
        self._users = 1
        """Streams, and the routes that hand it out."""

    @property
    def is_fresh(self) -> bool:
        """Whether the server still knows it."""
        return self._is_claimed or self._clock.monotonic_ns() < self._expires_ns

    def headers(self) -> dict[str, str]:
        return {HEADER: self._claim.header()}

    def open(self, write: Write) -> BodyReceiver:
        self._users += 1
        return SharedMemoryReceiver(
            self._mapping, self._lending, window=self._window, write=write, on_close=self.leave
        )

    def leave(self) -> None:
        """One user less; the last one lets go of the memory."""
        self._users -= 1
        if not self._users:
            self._let_go()

    def accepted(self) -> None:
        self._is_claimed = True

    def refused(self, reason: str) -> None:
        logger.debug("the claim of shared memory was refused: %s", reason)
        self._owner.forget(self)

    def failed(self, reason: str) -> None:
        self._owner.failed(reason)

    def broken(self) -> None:
        self._owner.forget(self)

    def discard(self) -> None:
        """Others may claim it."""


class ConnectedChannel:
    """A connection for the bodies of one stream."""

    def __init__(
        self,
        owner: ChannelOwner,
        way: BodyWay,
        claim: Claim,
        *,
        connection: BodyConnection,
        window: Window,
    ) -> None:
        self.way = way
        self._owner = owner
        self._claim = claim
        self._connection = connection
        self._window = window

    def headers(self) -> dict[str, str]:
        return {HEADER: self._claim.header()}

    def open(self, write: Write) -> BodyReceiver:
        return ConnectedReceiver(
            self.way,
            self._connection,
            window=self._window,
            write=write,
            close_soon=self._owner.close_soon,
        )

    def accepted(self) -> None:
        """Nobody else can have it."""

    def refused(self, reason: str) -> None:
        logger.debug("the claim of a connection by %s was refused: %s", self.way.value, reason)

    def failed(self, reason: str) -> None:
        self._owner.failed(reason)

    def broken(self) -> None:
        """Every stream has a connection of its own."""

    def discard(self) -> None:
        self._owner.close_soon(self._connection)
