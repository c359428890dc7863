"""Bearer tokens that this server gives out for credentials: random, kept as digests, for a time.

A handshake gives one, and a fresh one for one that still holds, until the day since the credentials
were shown is over. They say nothing by themselves: what they stand for is a :class:`Caller`.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError
from barrage.server.identity.credentials import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.identity.caller import Caller, Owner

PREFIX = "bt_"
_RANDOM_BYTES = 32
_RANDOM_LENGTH = 43
"""That many bytes in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Issued:
    caller: Caller
    """Expires when the token does."""
    source: Caller
    """As its credentials have shown it."""
    proven_ns: int
    """Wall clock, when they were shown."""
    login: object
    """The one showing of credentials that this token and all it was renewed to come from."""


class IssuedTokens:
    """Those of one server. Runs on the event loop."""

    def __init__(self, limits: Limits, clock: Clock, lifetime_ns: int) -> None:
        self._limits = limits
        self._clock = clock
        self._lifetime_ns = lifetime_ns
        self._tokens: dict[bytes, _Issued] = {}
        """By digest, in the order in which they were given out."""
        self._of_owner: dict[Owner, dict[bytes, None]] = {}
        """The same for each caller, so that nobody's tokens make those of others go."""

    def __len__(self) -> int:
        return len(self._tokens)

    def issue(self, caller: Caller) -> str:
        """A token for who has just shown its credentials."""
        return self._issue(caller, self._clock.wall_ns(), object())

    def renew(self, token: str) -> str | None:
        """A fresh token for one that holds; None when it is none of ours, or not any more.
        AuthenticationError when the credentials have to be shown again."""
        if self.find(token) is None:
            return None
        issued = self._tokens[_digest(token)]
        if self._clock.wall_ns() - issued.proven_ns >= self._limits.token_age_ns_max:
            raise AuthenticationError(f"{REFUSED}; tokens of this age are not renewed, log in")
        return self._issue(issued.source, issued.proven_ns, issued.login)

    def find(self, token: str) -> Caller | None:
        """Who was given this token; None when it is none of ours, or not any more."""
        issued = self._tokens.get(_digest(token))
        if issued is None or issued.caller.has_expired(self._clock.wall_ns()):
            return None
        return issued.caller

    def expires_ns(self, token: str) -> int:
        """Until when a token holds, by the wall clock; 0 for what is none of ours."""
        issued = self._tokens.get(_digest(token))
        return 0 if issued is None else issued.caller.expires_ns or 0

    def log_out(self, token: str) -> list[Caller]:
        """Forget a token, all it was renewed to, and those it comes from; the callers that were
        known by one of them."""
        shown = self._tokens.get(_digest(token))
        if shown is None:
            return []
        meant = [
            digest
            for digest in self._of_owner[shown.source.owner]
            if self._tokens[digest].login is shown.login
        ]
        callers = [self._tokens[digest].caller for digest in meant]
        for digest in meant:
            self._forget(digest)
        return callers

    def revoke(self, is_meant: Callable[[Caller], bool]) -> None:
        """Forget the tokens of some callers."""
        for digest, issued in list(self._tokens.items()):
            if is_meant(issued.source):
                self._forget(digest)

    def sweep(self) -> None:
        """Forget the tokens whose time is up."""
        wall_ns = self._clock.wall_ns()
        expired = [
            digest for digest, each in self._tokens.items() if each.caller.has_expired(wall_ns)
        ]
        for digest in expired:
            self._forget(digest)

    def _forget(self, digest: bytes) -> None:
        owner = self._tokens.pop(digest).source.owner
        of_owner = self._of_owner[owner]
        del of_owner[digest]
        if not of_owner:
            del self._of_owner[owner]

    def _issue(self, source: Caller, proven_ns: int, login: object) -> str:
        now_ns = self._clock.wall_ns()
        if len(self._tokens) >= self._limits.issued_tokens_max:
            self.sweep()
        while len(self._tokens) >= self._limits.issued_tokens_max:
            self._forget(next(iter(self._tokens)))
        of_owner = self._of_owner.get(source.owner, {})
        if len(of_owner) >= self._limits.issued_tokens_per_caller_max:
            self._forget(next(iter(of_owner)))
        ends = now_ns + self._lifetime_ns
        if source.expires_ns is not None:
            ends = min(ends, source.expires_ns)
        token = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
        caller = replace(source, expires_ns=ends)
        digest = _digest(token)
        self._tokens[digest] = _Issued(
            caller=caller, source=source, proven_ns=proven_ns, login=login
        )
        self._of_owner.setdefault(source.owner, {})[digest] = None
        return token


def looks_issued(token: str) -> bool:
    """Whether this has the form of such a token, which nobody guesses."""
    return token.startswith(PREFIX) and len(token) == len(PREFIX) + _RANDOM_LENGTH


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
