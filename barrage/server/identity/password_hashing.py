"""Hashes of passwords by argon2, which take tens of milliseconds and as many mebibytes: never on an
event loop, few at a time, and never many that wait."""

from __future__ import annotations

import secrets
from functools import cache
from typing import TYPE_CHECKING

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError, VerifyMismatchError

from barrage.errors import ConfigError
from barrage.server.identity.login_threads import LoginThreads

if TYPE_CHECKING:
    from barrage.limits import Limits

PASSWORD_LENGTH_MAX = 1024
AT_A_TIME = 2
_HASHER = PasswordHasher()


@cache
def nobody() -> str:
    """What costs as much to compare with as the hash of a user, and fits nothing: for names that
    are nobody's. Takes its time when it is made, once."""
    return _HASHER.hash(secrets.token_urlsafe(32))


def hashed(password: str) -> str:
    """The hash to keep of a new password. ConfigError for none and for one that is too long."""
    if not 0 < len(password) <= PASSWORD_LENGTH_MAX:
        raise ConfigError(f"a password has 1 to {PASSWORD_LENGTH_MAX} characters")
    return _HASHER.hash(password)


def fits(password: str, kept: str) -> bool:
    """Whether this is the password of which ``kept`` is the hash. Takes its time, always."""
    try:
        return _HASHER.verify(kept, password)
    except VerifyMismatchError:
        return False
    except (VerificationError, InvalidHashError):
        return False


class PasswordChecks:
    """Compares on threads of its own. Used on one event loop."""

    def __init__(self, limits: Limits) -> None:
        self._threads = LoginThreads(
            "barrage-passwords",
            "their password to be checked",
            at_a_time=AT_A_TIME,
            waiting_max=limits.password_checks_waiting_max,
        )

    async def fits(self, password: str, kept: str) -> bool:
        """See :func:`fits`. LimitExceededError when too many wait."""
        if len(password) > PASSWORD_LENGTH_MAX:
            password, kept = "", nobody()
        return await self._threads.run(fits, password, kept)

    def close(self) -> None:
        """End the threads after what they are at. Idempotent."""
        self._threads.close()
