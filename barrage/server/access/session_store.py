"""Sessions of Deephaven clients: a token, a table of exports, and whatever ends with them.

Source of the rules: deephaven-clients.md section 2.2. A token is a UUID. It is replaced when it is
older than a fifth of the session's lifetime and stays good until its own time is up; a session ends
when its newest token does, when its client closes it, or with the server. Only calls renew it: a
quiet subscription does not keep a session alive.

Tokens are kept as digests, so the time a look-up takes says nothing about them. Everything here
runs on the event loop.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError, LimitExceededError
from barrage.limits import NANOS_PER_MS
from barrage.server.access.exports import ExportTable
from barrage.server.identity.calls_under_way import CredentialsExpiredError
from barrage.server.identity.credentials import REFUSED, CredentialKind, Credentials, bearer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from barrage.clock import Clock
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.server.identity.caller import Caller
    from barrage.server.presentation.deephaven_types import SessionTypes

    CloseListener = Callable[[BarrageError], None]

log = logging.getLogger(__name__)

LIFETIME_NS = 300 * 1_000_000_000
"""The reference server's default."""

ROTATIONS_PER_LIFETIME = 5
"""A token is replaced when it is older than the lifetime divided by this."""


class ClientSession:
    """One client's session. Invariant: once closed it has no exports, listeners or tokens."""

    def __init__(
        self, session_id: int, caller: Caller, types: SessionTypes, *, limits: Limits
    ) -> None:
        self.session_id = session_id
        self.caller = caller
        """Whose it is; never anybody else's."""
        self.types: SessionTypes = types
        self.exports = ExportTable(limits)
        self._token = ""
        self._ended: BarrageError | None = None
        self._listeners: dict[object, CloseListener] = {}

    @property
    def token(self) -> str:
        """The newest token."""
        return self._token

    @property
    def bearer(self) -> str:
        """The header value every answer carries."""
        return bearer(self._token)

    @property
    def is_closed(self) -> bool:
        return self._ended is not None

    @property
    def holds_something(self) -> bool:
        """Whether there are exports in it, or calls that end with it."""
        return bool(len(self.exports) or self._listeners)

    def on_close(self, callback: CloseListener) -> Callable[[], None]:
        """Call ``callback`` with the reason when the session ends, at once if it has; the function
        returned ends that. The reason is an AuthenticationError, or a TransportError when the
        server goes away."""
        if self._ended is not None:
            callback(self._ended)
            return lambda: None
        key = object()
        self._listeners[key] = callback

        def end() -> None:
            self._listeners.pop(key, None)

        return end

    def _renew(self, token: str) -> None:
        self._token = token

    def _close(self, error: BarrageError) -> None:
        if self._ended is not None:
            return
        self._ended = error
        listeners, self._listeners = self._listeners, {}
        for listener in listeners.values():
            try:
                listener(error)
            except Exception:
                log.exception("session %d: what should end with it failed", self.session_id)
        self.exports.close(error)


@dataclass(slots=True)
class _Entry:
    """What the store knows about a session."""

    session: ClientSession
    issued_ns: int
    """When the newest token was made."""
    digests: list[tuple[bytes, int]]
    """Digest of each token that may still be good, oldest first, and when it ends."""


class SessionStore:
    """All sessions of one server."""

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        *,
        lifetime_ns: int = LIFETIME_NS,
        types: SessionTypes = "deephaven",
    ) -> None:
        """``lifetime_ns``: how long a token is good; ``types``: what sessions are shown that do not
        ask for anything else."""
        self.lifetime_ns = lifetime_ns
        self._limits = limits
        self._clock = clock
        self._types = types
        self._ids = itertools.count(1)
        self._entries: dict[ClientSession, _Entry] = {}
        self._tokens: dict[bytes, _Entry] = {}
        self._unused: dict[ClientSession, None] = {}
        """Sessions whose token has not come back yet, oldest first."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._entries))

    def open(self, caller: Caller, types: SessionTypes | None = None) -> ClientSession:
        """A new session of ``caller``. LimitExceededError."""
        self._check_room()
        session = ClientSession(next(self._ids), caller, types or self._types, limits=self._limits)
        entry = _Entry(session=session, issued_ns=0, digests=[])
        self._entries[session] = entry
        self._unused[session] = None
        self._issue(entry, self._clock.monotonic_ns())
        log.info("session %d: opened for %s", session.session_id, caller.name)
        return session

    def find(self, credentials: Credentials | None) -> ClientSession | None:
        """The session whose token this is, with a fresh one if it is time for that; None when it is
        no session's."""
        if credentials is None or credentials.kind is not CredentialKind.TOKEN:
            return None
        entry = self._tokens.get(_digest(credentials.secret))
        if entry is None:
            return None
        self._unused.pop(entry.session, None)
        now_ns = self._clock.monotonic_ns()
        self._drop_old_tokens(entry, now_ns)
        if self._has_expired(entry) or _digest(credentials.secret) not in self._tokens:
            return None
        if now_ns - entry.issued_ns >= self.lifetime_ns // ROTATIONS_PER_LIFETIME:
            self._issue(entry, now_ns)
        return entry.session

    def close(self, session: ClientSession, error: BarrageError | None = None) -> None:
        """End a session and everything that belongs to it. Idempotent."""
        entry = self._entries.pop(session, None)
        if entry is None:
            return
        self._unused.pop(session, None)
        for digest, _ in entry.digests:
            self._tokens.pop(digest, None)
        log.info("session %d: closed", session.session_id)
        session._close(error or AuthenticationError(f"{REFUSED}; the session was closed"))

    def close_all(self, error: BarrageError) -> None:
        """End every session: the server goes away."""
        for session in self:
            self.close(session, error)

    def sweep(self) -> None:
        """End the sessions and forget the tokens whose time is up."""
        now_ns = self._clock.monotonic_ns()
        for entry in list(self._entries.values()):
            if not self._has_expired(entry):
                self._drop_old_tokens(entry, now_ns)

    def revoke(self, is_meant: Callable[[Caller], bool], error: BarrageError) -> None:
        """End the sessions of some callers."""
        for session in self:
            if is_meant(session.caller):
                self.close(session, error)

    def _has_expired(self, entry: _Entry) -> bool:
        """Whether its caller has, which ends the session."""
        is_over = entry.session.caller.has_expired(self._clock.wall_ns())
        if is_over:
            self.close(entry.session, CredentialsExpiredError())
        return is_over

    def expires_wall_ms(self, session: ClientSession) -> int:
        """When the newest token of an open session ends, in milliseconds since the Unix epoch."""
        entry = self._entries[session]
        left_ns = entry.issued_ns + self.lifetime_ns - self._clock.monotonic_ns()
        return (self._clock.wall_ns() + left_ns) // NANOS_PER_MS

    def _check_room(self) -> None:
        if len(self._entries) >= self._limits.sessions_max:
            self.sweep()
        if len(self._entries) >= self._limits.sessions_max:
            self._close_an_unused_one()
        if len(self._entries) >= self._limits.sessions_max:
            raise LimitExceededError(
                "number of open sessions",
                actual=len(self._entries) + 1,
                maximum=self._limits.sessions_max,
                unit="sessions",
            )

    def _close_an_unused_one(self) -> None:
        """A client that never uses the token it is given leaves a session behind with every call;
        those go before anybody is turned away."""
        while self._unused:
            session = next(iter(self._unused))
            del self._unused[session]
            if not session.holds_something:
                self.close(session)
                return

    def _issue(self, entry: _Entry, now_ns: int) -> None:
        token = str(uuid.uuid4())
        digest = _digest(token)
        entry.issued_ns = now_ns
        entry.digests.append((digest, now_ns + self.lifetime_ns))
        self._tokens[digest] = entry
        entry.session._renew(token)

    def _drop_old_tokens(self, entry: _Entry, now_ns: int) -> None:
        """Forget what is past its time; a session without a token has ended."""
        while entry.digests and entry.digests[0][1] <= now_ns:
            self._tokens.pop(entry.digests.pop(0)[0], None)
        if not entry.digests:
            self.close(
                entry.session, AuthenticationError(f"{REFUSED}; the session has run out of time")
            )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
