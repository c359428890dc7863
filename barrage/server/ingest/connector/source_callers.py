"""Who a source is: the cookie of its HELLO is a credential, as those of calls are.

The server's key, ``USER:PASSWORD``, or a token; nothing, where nothing need be shown or a client
certificate says it already.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.server.identity.credentials import CredentialKind, Credentials
from barrage.transport.peer_identity import identity_of_connection, peer_of

if TYPE_CHECKING:
    import asyncio

    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.identity.caller import Caller
    from barrage.transport.base import PeerIdentity


@dataclass(frozen=True, slots=True)
class Source:
    """What a connection shows, in the form in which calls do."""

    name: str
    identity: PeerIdentity

    @classmethod
    def of(cls, transport: asyncio.Transport) -> Source:
        tls = transport.get_extra_info("ssl_object")
        made = transport.get_extra_info("socket")
        return cls(peer_of(transport), identity_of_connection(tls, made))

    def peer(self) -> str:
        return self.name

    def peer_identity(self) -> PeerIdentity:
        return self.identity


class SourceCallers:
    """Finds the callers of connections, in the same place as all others are found."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self.calls = authenticator.calls
        """A connection is a call that stays: it ends when its caller is none any more."""

    def known(self, cookie: str, source: Source) -> Caller | None:
        """The caller, if nothing has to be tried for that. CredentialsExpiredError."""
        return self._authenticator.known(self._credentials(cookie), source)

    async def caller(self, cookie: str, source: Source) -> Caller:
        """As :meth:`~barrage.server.identity.authenticator.Authenticator.authenticate`."""
        return await self._authenticator.authenticate(self._credentials(cookie), source)

    def _credentials(self, cookie: str) -> Credentials | None:
        if not cookie:
            return None
        key = self._authenticator.key
        is_key = key is not None and hmac.compare_digest(cookie.encode(), key.encode())
        user, colon, password = cookie.partition(":")
        if is_key or not colon:
            return Credentials(CredentialKind.TOKEN, cookie)
        return Credentials(CredentialKind.PASSWORD, password, user)
