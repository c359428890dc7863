"""Sessions of pages: credentials that a page shows once become a token, which its browser keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from barrage.server.identity.caller import Proof
from barrage.server.identity.credentials import Credentials

if TYPE_CHECKING:
    from typing import Protocol

    from barrage.server.identity.authenticator import Authenticator
    from barrage.transport.base import CallContext, PeerIdentity

    class ShownRequest(Protocol):
        """The part of a request of HTTP that counts here."""

        @property
        def headers(self) -> tuple[tuple[str, str], ...]: ...

        @property
        def peer(self) -> str: ...

        @property
        def identity(self) -> PeerIdentity: ...


class TokenSessions:
    """Those of one server. Runs on the event loop."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def token_for(self, request: ShownRequest) -> str | None:
        """A token for the credentials of a request; None for who is anybody. AuthenticationError,
        TooManyFailuresError."""
        credentials = Credentials.of_metadata(request.headers)
        context = cast("CallContext", _RequestContext(request))
        caller = await self._authenticator.authenticate(credentials, context)
        if caller.proof is Proof.ANONYMOUS:
            return None
        return self._authenticator.tokens.issue(caller)

    def end(self, token: str) -> None:
        """Nobody is let in by this token any more, and who was is out."""
        self._authenticator.log_out(token)


class _RequestContext:
    """A request as what finds out who calls sees a call."""

    def __init__(self, request: ShownRequest) -> None:
        self._request = request

    def invocation_metadata(self) -> Any:
        return self._request.headers

    def peer(self) -> str:
        return self._request.peer

    def peer_identity(self) -> PeerIdentity:
        return self._request.identity
