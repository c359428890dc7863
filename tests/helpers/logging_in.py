"""A chain of ways without a server, on a clock that stands still, and calls that show something."""

from __future__ import annotations

import asyncio
import base64

from barrage.limits import Limits
from barrage.server.identity.authenticator import Authenticator
from barrage.server.identity.caller import Caller
from barrage.server.identity.credentials import Credentials
from barrage.server.identity.setting_up import authenticator_of
from barrage.server.settings.config import ServerConfig
from barrage.transport.base import NOBODY, PeerIdentity
from tests.helpers.virtual_clock import VirtualClock

PEER = "ipv4:10.0.0.2:4711"


class ShownCall:
    """The part of a call's context that the chain looks at."""

    def __init__(self, peer: str = PEER, identity: PeerIdentity = NOBODY) -> None:
        self._peer = peer
        self._identity = identity

    def peer(self) -> str:
        return self._peer

    def peer_identity(self) -> PeerIdentity:
        return self._identity


def basic(password: str, user: str = "me") -> str:
    """The header of a user and a password."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Chain:
    """The chain of one configuration."""

    def __init__(self, *, is_local=True, hook=None, limits: Limits | None = None, **config) -> None:
        self.clock = VirtualClock(1_000_000)
        if "users" in config:
            config["users"] = str(config["users"])
        settings = ServerConfig(limits=limits or Limits(), **config)
        self.authenticator: Authenticator = authenticator_of(
            settings, self.clock, hook=hook, is_local=is_local
        )

    def shown(self, header: str | None, call: ShownCall | None = None) -> Caller:
        """The caller, or the error."""
        return asyncio.run(self.ashown(header, call))

    async def ashown(self, header: str | None, call: ShownCall | None = None) -> Caller:
        metadata = [] if header is None else [("authorization", header)]
        credentials = Credentials.of_metadata(metadata)
        return await self.authenticator.authenticate(credentials, call or ShownCall())
