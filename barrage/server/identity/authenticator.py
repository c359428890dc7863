"""From what a call shows to its caller: every door asks here, for every call.

What was found a moment ago, and tokens of our own, are looked up; that takes microseconds. The rest
is tried way by way, once for all calls that show the same at the same time, and only while the peer
has not been wrong too often.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError, BarrageError
from barrage.server.identity.caller import ANYBODY, Caller, Proof
from barrage.server.identity.calls_under_way import (
    LOGGED_OUT,
    REVOKED,
    CallsUnderWay,
    CredentialsExpiredError,
)
from barrage.server.identity.credentials import REFUSED, CredentialKind, no_credentials
from barrage.server.identity.issued_tokens import looks_issued
from barrage.server.identity.login_failures import LoginFailures
from barrage.server.identity.peers import CertificateRevokedError
from barrage.server.identity.verified import VerifiedCredentials
from barrage.server.identity.ways import Attempt, refused
from barrage.supervision import start_awaited

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.identity.credentials import Credentials
    from barrage.server.identity.issued_tokens import IssuedTokens
    from barrage.server.identity.password_way import PasswordWay
    from barrage.server.identity.peers import Connected, PeerWays
    from barrage.server.identity.ways import Way

    Revoked = Callable[[Callable[[Caller], bool], BarrageError], None]
    Tried = Callable[..., None]

_SESSION_TOKEN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Authenticator:
    """All ways of one server. Runs on the event loop."""

    def __init__(
        self,
        ways: Sequence[Way],
        *,
        limits: Limits,
        clock: Clock,
        tokens: IssuedTokens,
        is_open: bool,
        users: PasswordWay | None = None,
        peers: PeerWays | None = None,
        key: str | None = None,
    ) -> None:
        """``ways`` are tried in this order, ``users`` is one of them, if any; ``is_open``: whether
        callers that show nothing pass, as anonymous."""
        self._ways = tuple(ways)
        self._users = users
        self._peers = peers
        self._is_open = is_open
        self._clock = clock
        self.key = key
        """The server's pre-shared key; None when it has none."""
        self.tokens = tokens
        self.calls = CallsUnderWay()
        self._failures = LoginFailures(limits, clock)
        self._verified = VerifiedCredentials(limits, clock)
        self._proving: dict[bytes, asyncio.Task[Caller]] = {}
        self._revocations = 0
        self._on_revoke: list[Revoked] = []
        self._on_tried: list[Tried] = []

    @property
    def is_open(self) -> bool:
        """Whether callers that show nothing pass."""
        return self._is_open

    @property
    def tells_apart(self) -> bool:
        """Whether anybody can show here who it is."""
        return bool(self._ways) or (self._peers is not None and self._peers.is_proof)

    @property
    def handlers(self) -> tuple[str, ...]:
        """The ways, as Deephaven's web UI knows them; without that of who shows nothing."""
        return tuple(dict.fromkeys(way.handler for way in self._ways))

    def on_revoke(self, told: Revoked) -> None:
        """Tell whoever keeps something for callers when some of them are callers no more."""
        self._on_revoke.append(told)

    def on_tried(self, told: Tried) -> None:
        """Tell what became of credentials that were looked at: who it was, or why nobody."""
        self._on_tried.append(told)

    # --- callers ---

    def known(self, credentials: Credentials | None, context: Connected) -> Caller | None:
        """The caller, if nothing has to be tried for that. CredentialsExpiredError."""
        if credentials is None or credentials.kind is CredentialKind.ANONYMOUS:
            if self._peers is None:
                return ANYBODY if self._is_open else None
            caller = self._peers.caller(context, is_open=self._is_open)
            if caller is not None and caller.has_expired(self._clock.wall_ns()):
                raise CredentialsExpiredError
            return caller or (ANYBODY if self._is_open else None)
        if credentials.kind is CredentialKind.TOKEN:
            caller = self.tokens.find(credentials.secret)
            if caller is not None:
                return caller
        if not self._ways:
            return None
        return self._verified.find(self._verified.digest(credentials, context.peer()))

    async def authenticate(self, credentials: Credentials | None, context: Connected) -> Caller:
        """The caller. AuthenticationError, TooManyFailuresError, LimitExceededError."""
        caller = self.known(credentials, context)
        if caller is not None:
            return caller
        if credentials is None:
            raise no_credentials()
        if not self._ways and self._is_open:
            return _anybody(credentials)
        if credentials.kind in (CredentialKind.ANONYMOUS, CredentialKind.UNREADABLE):
            raise refused()
        return await self._proven(credentials, context.peer())

    async def _proven(self, credentials: Credentials, peer: str) -> Caller:
        digest = self._verified.digest(credentials, peer)
        while True:
            before = self._revocations
            proving = self._proving.get(digest)
            if proving is None:
                proving = start_awaited(self._tried(credentials, peer, digest))
                self._proving[digest] = proving
                proving.add_done_callback(lambda _: self._proving.pop(digest))
            caller = await asyncio.shield(proving)
            if before == self._revocations:
                return caller
            # Who was somebody then may be nobody now.

    async def _tried(self, credentials: Credentials, peer: str, digest: bytes) -> Caller:
        try:
            self._failures.check(peer)
            caller = await self._asked(Attempt(credentials=credentials, peer=peer))
        except BarrageError as error:
            if _is_wrong_guess(credentials, error):
                self._failures.count(peer)
            self._tell(credentials, peer, error=error)
            raise
        self._verified.keep(digest, caller)
        self._tell(credentials, peer, caller=caller)
        return caller

    async def _asked(self, attempt: Attempt) -> Caller:
        for way in self._ways:
            caller = await way.prove(attempt)
            if caller is None:
                continue
            if caller.has_expired(self._clock.wall_ns()):
                raise CredentialsExpiredError
            return caller
        raise refused()

    def _tell(
        self,
        credentials: Credentials,
        peer: str,
        *,
        caller: Caller | None = None,
        error: BarrageError | None = None,
    ) -> None:
        for told in self._on_tried:
            told(credentials, peer, caller=caller, error=error)

    # --- what ends ---

    def revoke(self, is_meant: Callable[[Caller], bool]) -> None:
        """Some callers are callers no more: their tokens are forgotten, their calls and sessions
        end with an AuthenticationError."""
        self._revoke(is_meant, AuthenticationError(REVOKED))

    def log_out(self, token: str) -> None:
        """A token of ours, and all it was renewed to, are nobody's any more: what goes on for who
        has shown one ends with an AuthenticationError. Other logins of the same user stay."""
        callers = self.tokens.log_out(token)
        if callers:
            self._end(
                lambda caller: any(caller is each for each in callers),
                AuthenticationError(LOGGED_OUT),
            )

    def _revoke(self, is_meant: Callable[[Caller], bool], error: AuthenticationError) -> None:
        self._revocations += 1
        self._verified.revoke(is_meant)
        self.tokens.revoke(is_meant)
        self._end(is_meant, error)

    def _end(self, is_meant: Callable[[Caller], bool], error: AuthenticationError) -> None:
        self.calls.end(is_meant, error)
        for told in self._on_revoke:
            told(is_meant, error)

    def revoke_certificates(self, identifiers: frozenset[bytes]) -> None:
        """These are all that are revoked now: whoever is known by one is known no more."""
        if self._peers is None or identifiers == self._peers.revoked:
            return
        self._peers.revoked = identifiers
        self._revoke(lambda caller: caller.certificate in identifiers, CertificateRevokedError())

    def sweep(self) -> None:
        """Forget tokens that have run out, and end calls with what has run out; now and then."""
        self.tokens.sweep()
        self.calls.end_expired(self._clock.wall_ns())

    @property
    def has_users(self) -> bool:
        """Whether there is a file of users, which may change."""
        return self._users is not None

    async def refresh(self) -> None:
        """Look whether users have changed; now and then. Who is not what it was loses what it has
        open."""
        if self._users is None:
            return
        changed = await self._users.refresh()
        if changed:
            self.revoke(lambda caller: caller.proof is Proof.PASSWORD and caller.name in changed)

    def close(self) -> None:
        """After the last call. Idempotent."""
        for way in self._ways:
            way.close()


def _anybody(credentials: Credentials) -> Caller:
    """Where nothing need be shown, whatever is shown is right, but for tokens: nobody has been
    given one that is not a session's."""
    if credentials.kind is CredentialKind.UNREADABLE:
        raise refused()
    if credentials.kind is CredentialKind.TOKEN:
        raise AuthenticationError(
            f"{REFUSED}; this server needs no token and has no session with the one given"
        )
    return ANYBODY


def _is_wrong_guess(credentials: Credentials, error: BarrageError) -> bool:
    """Not so tokens that were right and have run out, nor those of ours, which nobody guesses."""
    if not isinstance(error, AuthenticationError) or isinstance(error, CredentialsExpiredError):
        return False
    token = credentials.secret
    return credentials.kind is not CredentialKind.TOKEN or not (
        looks_issued(token) or _SESSION_TOKEN.fullmatch(token)
    )
