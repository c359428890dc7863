"""Users with passwords, from a file that is read again when it changes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from barrage.errors import ConfigError
from barrage.server.identity.caller import Caller, Proof
from barrage.server.identity.credentials import CredentialKind
from barrage.server.identity.password_hashing import PasswordChecks, nobody
from barrage.server.identity.users_file import read_users, stamp_of
from barrage.server.identity.ways import refused
from barrage.supervision import in_own_thread

if TYPE_CHECKING:
    from pathlib import Path

    from barrage.limits import Limits
    from barrage.server.identity.users_file import Stamp, UserRecord, Users
    from barrage.server.identity.ways import Attempt

log = logging.getLogger(__name__)


class PasswordWay:
    """The users of one file. Used on the event loop; made anywhere."""

    handler = "io.deephaven.auth.BasicAuthHandler"

    def __init__(self, path: Path, limits: Limits) -> None:
        """Reads the file; ConfigError when it cannot be read."""
        self._path = path
        self._users, read = read_users(path)
        self._read: Stamp | None = read
        self._failure: str | None = None
        """Why the newest file does not hold."""
        self._checks = PasswordChecks(limits)
        nobody()

    @property
    def users(self) -> Users:
        """As they are now, by name."""
        return self._users

    async def prove(self, attempt: Attempt) -> Caller | None:
        """A user with the right password. Who is not known, or switched off, is refused after the
        same time and with the same words as a wrong password."""
        shown = attempt.credentials
        if shown.kind is not CredentialKind.PASSWORD:
            return None
        user = self._users.get(shown.user)
        kept = nobody() if user is None else user.password
        is_right = await self._checks.fits(shown.secret, kept)
        if user is None or not is_right or user.is_disabled:
            return None
        if self._users.get(shown.user) != user:
            raise refused()
        return _caller_of(user)

    async def refresh(self) -> set[str]:
        """Read the file again if it has changed; the names of those who are not what they were. A
        file that cannot be read changes nothing, is told once, and is tried again: who gives it to
        the server's user changes nothing that stands in it."""
        found = await in_own_thread(stamp_of, self._path)
        if found == self._read and self._failure is None:
            return set()
        try:
            users, self._read = await in_own_thread(read_users, self._path)
        except ConfigError as error:
            if str(error) != self._failure:
                log.error("users stay as they were: %s", error)
            self._read, self._failure = found, str(error)
            return set()
        self._failure = None
        before, self._users = self._users, users
        changed = {name for name, user in before.items() if users.get(name) != user}
        log.info("users were read again: %d, of %d before", len(users), len(before))
        return changed

    def close(self) -> None:
        self._checks.close()


def _caller_of(user: UserRecord) -> Caller:
    return Caller(name=user.name, roles=frozenset(user.roles), proof=Proof.PASSWORD)
