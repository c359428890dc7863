"""SetSessionOptions, GetSessionOptions and CloseSession, as actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import LimitExceededError
from barrage.server.access.call_guard import SessionCall
from barrage.server.access.method_table import CallAction
from barrage.server.identity.current_call import current_caller
from barrage.server.results.flight_sessions import (
    NoFlightSessionError,
    cookie_of,
    ended_cookie,
)
from barrage.transport import flight_messages
from barrage.transport.flight_messages import CLOSE_SESSION, GET_OPTIONS, SET_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from barrage.limits import Limits
    from barrage.server.access.session_store import ClientSession, SessionStore
    from barrage.server.results.flight_sessions import FlightSession, FlightSessions
    from barrage.server.results.query_jobs import ResultOptions
    from barrage.transport.base import CallContext


class SessionOptionCalls:
    """The behaviors. On the event loop."""

    def __init__(self, options: FlightSessions, sessions: SessionStore, limits: Limits) -> None:
        self._options = options
        self._sessions = sessions
        self._limits = limits

    def actions(self) -> Mapping[str, CallAction]:
        return {
            SET_OPTIONS: CallAction(
                "Set options of the session; begins one, whose cookie is in the headers. Body: "
                "SetSessionOptionsRequest with endpoint_rows (rows of one endpoint) or lifetime_ms "
                "(how long results are kept), both int64. Result: SetSessionOptionsResult.",
                self._set,
            ),
            GET_OPTIONS: CallAction(
                "The options of the session. Body: GetSessionOptionsRequest. Result: "
                "GetSessionOptionsResult.",
                self._get,
            ),
            CLOSE_SESSION: CallAction(
                "End the session. Body: CloseSessionRequest. Result: CloseSessionResult.",
                self._close,
            ),
        }

    def wanted(self, context: CallContext, session: ClientSession | None) -> ResultOptions:
        """What the options of the call's session say about results."""
        return self._options.wanted(self._find(context, session))

    async def _set(self, body: bytes, context: CallContext, session: ClientSession | None) -> bytes:
        wanted = flight_messages.decode_options("SetSessionOptionsRequest", body)
        if len(wanted) > self._limits.session_options_max:
            raise LimitExceededError(
                "number of options in one request",
                actual=len(wanted),
                maximum=self._limits.session_options_max,
                unit="options",
            )
        found = self._find(context, session)
        if found is None:
            found = self._options.open(session, current_caller())
            if session is None:
                await _open(context, cookie_of(found))
        return flight_messages.encode_option_errors(self._options.put(found, wanted))

    async def _get(self, body: bytes, context: CallContext, session: ClientSession | None) -> bytes:
        flight_messages.check_empty("GetSessionOptionsRequest", body)
        found = self._find(context, session)
        if found is None and session is None:
            raise NoFlightSessionError
        options = {} if found is None else found.options
        return flight_messages.encode_options("GetSessionOptionsResult", options)

    async def _close(
        self, body: bytes, context: CallContext, session: ClientSession | None
    ) -> bytes:
        flight_messages.check_empty("CloseSessionRequest", body)
        found = self._find(context, session)
        if found is None and session is None:
            raise NoFlightSessionError
        if found is not None:
            self._options.close(found)
        if session is None:
            await _open(context, ended_cookie())
        else:
            self._sessions.close(session)
        return flight_messages.encode_close_result(flight_messages.SESSION_CLOSED)

    def _find(self, context: CallContext, session: ClientSession | None) -> FlightSession | None:
        metadata = context.invocation_metadata() or ()
        return self._options.find(metadata, session, current_caller())


async def _open(context: CallContext | SessionCall, cookie: str) -> None:
    headers = (("set-cookie", cookie),)
    if isinstance(context, SessionCall):
        await context.open(headers)
    else:
        await context.send_initial_metadata(headers)
