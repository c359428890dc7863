"""Sessions of Flight clients: options that hold for the calls of one client.

A session begins with the first option that is set. Its client brings its cookie with every call, or
the token of a session it has anyway; it ends when it is closed, or some time after its last call.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Final

from barrage.errors import LimitExceededError, StatusCode, TicketError
from barrage.limits import NANOS_PER_MS
from barrage.server.identity.credentials import header_value
from barrage.server.results.query_jobs import ResultOptions
from barrage.transport.flight_messages import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from barrage.clock import Clock
    from barrage.errors import BarrageError
    from barrage.limits import Limits
    from barrage.server.access.session_store import ClientSession
    from barrage.server.identity.caller import Caller
    from barrage.server.identity.credentials import Metadata
    from barrage.transport.flight_messages import OptionValue

COOKIE: Final = "arrow_flight_session_id"

ENDPOINT_ROWS: Final = "endpoint_rows"
LIFETIME_MS: Final = "lifetime_ms"

_COOKIE_HEADER_MAX = 4096


class NoFlightSessionError(TicketError):
    """The call has no session, or one that has ended."""

    status_code = StatusCode.NOT_FOUND

    def __init__(self) -> None:
        super().__init__(
            f"the call has no session: SetSessionOptions begins one, and its cookie {COOKIE} goes "
            "with every call"
        )


@dataclass(slots=True, eq=False)
class FlightSession:
    """The options of one client."""

    key: str
    caller: Caller
    used_ns: int
    options: dict[str, OptionValue] = field(default_factory=dict)


class FlightSessions:
    """All of one server. On the event loop."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self._limits = limits
        self._clock = clock
        self._sessions: dict[str, FlightSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def find(
        self, metadata: Metadata, session: ClientSession | None, caller: Caller
    ) -> FlightSession | None:
        """That of a call; None when it has none."""
        key = _key(metadata, session)
        found = None if key is None else self._sessions.get(key)
        if found is None or found.caller.owner != caller.owner:
            return None
        now = self._clock.monotonic_ns()
        if now - found.used_ns >= self._limits.flight_session_ns:
            self.close(found)
            return None
        found.used_ns = now
        return found

    def open(self, session: ClientSession | None, caller: Caller) -> FlightSession:
        """A new one. LimitExceededError."""
        if len(self._sessions) >= self._limits.flight_sessions_max:
            self.sweep()
        if len(self._sessions) >= self._limits.flight_sessions_max:
            raise LimitExceededError(
                "number of sessions of Flight clients",
                actual=len(self._sessions) + 1,
                maximum=self._limits.flight_sessions_max,
                unit="sessions",
            )
        key = secrets.token_hex(16) if session is None else _session_key(session)
        opened = FlightSession(key, caller, self._clock.monotonic_ns())
        self._sessions[key] = opened
        return opened

    def close(self, session: FlightSession) -> None:
        """Forget it. Idempotent."""
        self._sessions.pop(session.key, None)

    def sweep(self) -> None:
        """Forget those nobody uses."""
        oldest = self._clock.monotonic_ns() - self._limits.flight_session_ns
        for session in [each for each in self._sessions.values() if each.used_ns <= oldest]:
            self.close(session)

    def revoke(self, is_meant: Callable[[Caller], bool], _error: BarrageError) -> None:
        """Some callers are none any more."""
        for session in list(self._sessions.values()):
            if is_meant(session.caller):
                self.close(session)

    # --- options ---

    def put(
        self, session: FlightSession, options: Mapping[str, OptionValue]
    ) -> dict[str, OptionError]:
        """Set or forget options; of those that cannot be, why."""
        errors: dict[str, OptionError] = {}
        for name, value in options.items():
            most = self._maximum(name)
            if most is None:
                errors[name] = OptionError.INVALID_NAME
            elif value is None:
                session.options.pop(name, None)
            elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                errors[name] = OptionError.INVALID_VALUE
            else:
                session.options[name] = value
        return errors

    def wanted(self, session: FlightSession | None) -> ResultOptions:
        """What holds for the results of a call."""
        limits = self._limits
        options = {} if session is None else session.options
        rows, lifetime_ms = options.get(ENDPOINT_ROWS), options.get(LIFETIME_MS)
        return ResultOptions(
            endpoint_rows=rows if isinstance(rows, int) else limits.endpoint_rows,
            lifetime_ns=lifetime_ms * NANOS_PER_MS
            if isinstance(lifetime_ms, int)
            else limits.result_lifetime_ns,
        )

    def _maximum(self, name: str) -> int | None:
        """The greatest value of an option; None for one that does not exist."""
        known = {
            ENDPOINT_ROWS: 2**31 - 1,
            LIFETIME_MS: self._limits.result_lifetime_ns_max // NANOS_PER_MS,
        }
        return known.get(name)


def cookie_of(session: FlightSession) -> str:
    """The header by which a client learns of its session."""
    return f"{COOKIE}={session.key}; Path=/; HttpOnly"


def ended_cookie() -> str:
    """The header by which it forgets it."""
    return f"{COOKIE}=; Path=/; Max-Age=0"


def _key(metadata: Metadata, session: ClientSession | None) -> str | None:
    if session is not None:
        return _session_key(session)
    header = header_value(metadata, "cookie")
    if header is None or len(header) > _COOKIE_HEADER_MAX:
        return None
    try:
        morsel = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return None
    return None if morsel is None else morsel.value


def _session_key(session: ClientSession) -> str:
    # No cookie is like this.
    return f"session {session.session_id}"
