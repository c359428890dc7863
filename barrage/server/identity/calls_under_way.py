"""The calls there are, each with its caller: those of a caller that is none any more are ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError
from barrage.server.identity.credentials import REFUSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from barrage.errors import BarrageError
    from barrage.server.identity.caller import Caller

    End = Callable[[BarrageError], None]

LOGGED_OUT = f"{REFUSED}; the session was ended, log in again"
REVOKED = f"{REFUSED}; the user was removed or changed, log in again"


class CredentialsExpiredError(AuthenticationError):
    """What the call was let in with holds no more; with new credentials, a subscription goes on
    from its cursor."""

    def __init__(self) -> None:
        super().__init__(f"{REFUSED}; the credentials have expired, log in again")


class CallsUnderWay:
    """Those of one server. Runs on the event loop."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[Caller, End]] = {}
        self._expiring: dict[object, tuple[Caller, End]] = {}
        """Those of them whose callers are so for a time."""

    def __len__(self) -> int:
        return len(self._calls)

    def callers(self) -> Iterator[Caller]:
        """That of each call."""
        return (caller for caller, _ in self._calls.values())

    def begin(self, caller: Caller, end: End) -> object:
        """A call has begun; ``end`` ends it with an error. Returns what :meth:`finish` wants."""
        key = object()
        self._calls[key] = (caller, end)
        if caller.expires_ns is not None:
            self._expiring[key] = (caller, end)
        return key

    def finish(self, key: object) -> None:
        """It has ended. Idempotent."""
        self._calls.pop(key, None)
        self._expiring.pop(key, None)

    def end(self, is_meant: Callable[[Caller], bool], error: BarrageError) -> None:
        """End the calls of some callers, each once."""
        self._end(self._calls, is_meant, error)

    def end_expired(self, wall_ns: int) -> None:
        """End the calls of those whose time is up."""
        self._end(
            self._expiring, lambda caller: caller.has_expired(wall_ns), CredentialsExpiredError()
        )

    def _end(
        self,
        calls: Mapping[object, tuple[Caller, End]],
        is_meant: Callable[[Caller], bool],
        error: BarrageError,
    ) -> None:
        for key, (caller, end) in list(calls.items()):
            if is_meant(caller):
                self.finish(key)
                end(error)
