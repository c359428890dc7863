"""Credentials that were found right a moment ago, so that a hash of tens of milliseconds is not
made for every call.

What is kept is a keyed digest, of the credentials and of the connection they came by: it helps
nobody who has not shown them on that connection, so that guesses of others cost what they cost.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.identity.caller import Caller
    from barrage.server.identity.credentials import Credentials

_DIGEST_BYTES = 32


class VerifiedCredentials:
    """Those of one server. Runs on the event loop."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._key = secrets.token_bytes(_DIGEST_BYTES)
        self._callers: dict[bytes, tuple[Caller, int]] = {}
        """With when it is to be looked at again; in the order of that."""

    def __len__(self) -> int:
        return len(self._callers)

    def digest(self, credentials: Credentials, peer: str) -> bytes:
        """What stands for credentials that came from ``peer``."""
        text = f"{credentials.kind.value}\0{peer}\0{credentials.user}\0{credentials.secret}"
        return hashlib.blake2b(
            text.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES, key=self._key
        ).digest()

    def find(self, digest: bytes) -> Caller | None:
        """Who showed them, if that was not long ago."""
        found = self._callers.get(digest)
        if found is None:
            return None
        caller, ends_ns = found
        if self._clock.monotonic_ns() >= ends_ns or caller.has_expired(self._clock.wall_ns()):
            del self._callers[digest]
            return None
        return caller

    def keep(self, digest: bytes, caller: Caller) -> None:
        """They were found right now."""
        self._callers.pop(digest, None)
        while len(self._callers) >= self._limits.verified_credentials_max:
            del self._callers[next(iter(self._callers))]
        ends_ns = self._clock.monotonic_ns() + self._limits.verified_credentials_ns
        self._callers[digest] = (caller, ends_ns)

    def revoke(self, is_meant: Callable[[Caller], bool]) -> None:
        """Forget those of some callers."""
        self._callers = {
            digest: found for digest, found in self._callers.items() if not is_meant(found[0])
        }
