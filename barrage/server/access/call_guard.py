"""What stands before and behind every call: credentials, draining, headers, and errors as statuses.

An error of ours becomes its own status with its own text. Anything unexpected is logged under an
id, and the caller gets the id and nothing else. Texts are plain ASCII without ``%``: some clients
cannot decode more. On a session's call they have no ``:`` either once headers are out, which one
client takes for the end of a header's name (deephaven-clients.md section 8, trap 2).

Every answer to a session carries its newest token: in the headers, which go out just before the
first message, or in the trailers of a call that fails. A call that fails before its headers sends
trailers only.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from barrage.errors import (
    BarrageError,
    CallCancelledError,
    ConnectionLostError,
    StatusCode,
    TransportError,
    UnsupportedError,
)
from barrage.server.access.frame_writing import write_parts
from barrage.server.access.grpc_calls import ReadingContext
from barrage.server.identity.credentials import (
    AUTHORIZATION,
    Credentials,
    header_value,
    no_credentials,
)
from barrage.server.identity.current_call import begin_call
from barrage.server.runtime.failure import unexpected_failure, without_frames
from barrage.server.runtime.measures import CallMeasures
from barrage.supervision import start_awaited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from barrage.server.access.call_spans import CallSpan, CallSpans
    from barrage.server.access.session_store import ClientSession, SessionStore
    from barrage.server.identity.audit import AuditLog
    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.identity.caller import Caller
    from barrage.server.identity.credentials import Metadata
    from barrage.server.identity.current_call import CurrentCall
    from barrage.server.presentation.deephaven_types import SessionTypes
    from barrage.transport.base import CallContext
    from barrage.wire.message_parts import MessageParts

    SessionBehavior = Callable[[Any, Any, Any], Awaitable[Any]]

log = logging.getLogger(__name__)

DETAILS_LENGTH_MAX = 1000
"""Longest status text in characters; it travels in a header."""

TYPES_HEADER = "x-barrage-types"
"""Asks, in the call that opens a session, for the types of one family of clients."""

_TYPES: dict[str, SessionTypes] = {"deephaven": "deephaven", "ticking": "ticking"}

CANCELLED = CallCancelledError("the client has ended the call")

DRAINING = "the server is shutting down; connect again"

_GRPC_CODES = {code.value[0]: code for code in grpc.StatusCode}


def grpc_status(code: StatusCode) -> grpc.StatusCode:
    """gRPC's own name for one of our status codes."""
    return _GRPC_CODES[code.value]


def status_details(error: BaseException) -> str:
    """The text of an error as it may travel in a status."""
    text = str(error).replace("%", "\\x25").encode("ascii", "backslashreplace").decode()
    text = " ".join(text.split())
    return text if len(text) <= DETAILS_LENGTH_MAX else text[: DETAILS_LENGTH_MAX - 3] + "..."


class SessionUse(Enum):
    """What a method does with the caller's credentials (deephaven-clients.md section 2.2)."""

    NONE = auto()
    """They are not looked at."""
    OPTIONAL = auto()
    """They are checked; a session token brings its session, anything else brings none."""
    REQUIRED = auto()
    """A session token brings its session, other credentials open one."""


class _GuardedCall:
    """One call behind the guard: its caller, and how it is ended when that is none any more."""

    __slots__ = ("call", "ended_by", "key", "record", "span", "task")

    def __init__(self) -> None:
        self.call: SessionCall | None = None
        self.record: CurrentCall | None = None
        self.span: CallSpan | None = None
        self.key: object = None
        self.ended_by: BarrageError | None = None
        self.task = asyncio.current_task()

    def end(self, error: BarrageError) -> None:
        """Cut short what the behavior does; the call's status is that of ``error``."""
        self.ended_by = error
        if self.task is not None:
            self.task.cancel()

    def taken_end(self) -> BarrageError | None:
        """The error it was ended with, after the cancellation has come; None when it is the client
        that has ended it."""
        if self.ended_by is None or self.task is None or self.task.uncancel():
            return None
        return self.ended_by


class SessionCall:
    """A session's call as its behavior sees it: the headers with the token go out in time."""

    def __init__(self, context: CallContext, session: ClientSession) -> None:
        self._context = context
        self._session = session
        self._opening: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether the headers are out, or on their way."""
        return self._opening is not None

    @property
    def raw(self) -> CallContext:
        """The call itself, to be written to when the headers are out."""
        return self._context

    async def open(self, further: tuple[tuple[str, str], ...] = ()) -> None:
        """Send the headers and ``further`` ones, if they are not out yet. Not cut short when the
        caller is cancelled: gRPC would send them a second time with the status."""
        if self._opening is None:
            self._opening = start_awaited(self._send(further))
        await asyncio.shield(self._opening)

    async def _send(self, further: tuple[tuple[str, str], ...]) -> None:
        await self._context.send_initial_metadata((*self.metadata(), *further))

    async def settle(self) -> None:
        """Wait for headers that are on their way."""
        if self._opening is not None:
            await asyncio.wait([self._opening])

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The header with the token; none for a session that has ended."""
        return () if self._session.is_closed else ((AUTHORIZATION, self._session.bearer),)

    async def write(self, message: bytes) -> None:
        if self._opening is None or not self._opening.done():
            await self.open()
        await self._context.write(message)

    async def write_parts(self, message: MessageParts) -> None:
        if self._opening is None or not self._opening.done():
            await self.open()
        await write_parts(self._context, message)

    async def read(self) -> Any:
        return await self._context.read()

    def read_from(self, read: Callable[[], Awaitable[Any]]) -> None:
        """The client's messages come otherwise than on this call."""
        self._context = cast("CallContext", ReadingContext(self._context, read))

    def invocation_metadata(self) -> Any:
        return self._context.invocation_metadata()


async def open_headers(context: Any, session: ClientSession | None) -> None:
    """Send the headers now: for calls whose first message may be long in coming. Errors are told
    better without, so first check what can be checked."""
    if session is not None and isinstance(context, SessionCall):
        await context.open()
    else:
        await context.send_initial_metadata(())


class CallGuard:
    """Wraps the methods of one server."""

    def __init__(
        self,
        authenticator: Authenticator,
        sessions: SessionStore,
        audit: AuditLog | None = None,
        *,
        measures: CallMeasures | None = None,
    ) -> None:
        self._authenticator = authenticator
        self._sessions = sessions
        self._audit = audit
        self._measures = CallMeasures() if measures is None else measures
        self.spans: CallSpans | None = None
        """Who is told of single calls."""
        self.is_draining = False

    def wrap(
        self,
        method: str,
        behavior: SessionBehavior,
        *,
        session: SessionUse = SessionUse.OPTIONAL,
    ) -> Callable[[Any, CallContext], Awaitable[Any]]:
        """``behavior`` behind the guard; ``method`` is the full name, with a leading slash."""
        use = session

        async def guarded(request: Any, context: CallContext) -> Any:
            guarding = _GuardedCall()
            if self.spans is not None:
                guarding.span = self.spans.begin(method, context.invocation_metadata() or ())
            failure: BarrageError
            try:
                session = await self._admitted(guarding, context, use)
                if session is None:
                    answer = await behavior(request, context, None)
                    self._note(method, guarding, context)
                    return answer
                guarding.call = call = SessionCall(context, session)
                answer = await behavior(request, call, session)
                self._authenticator.calls.finish(guarding.key)
                await call.open()
                self._note(method, guarding, context)
                return answer
            except asyncio.CancelledError:
                ended_by = guarding.taken_end()
                if ended_by is None:
                    self._note(method, guarding, context, CANCELLED)
                    raise
                failure = ended_by
            except grpc.aio.AbortError:
                raise
            except grpc.aio.InternalError:
                log.debug("%s: the client has gone", method)
                failure = ConnectionLostError("the connection was lost")
            except BarrageError as error:
                failure = guarding.taken_end() or error
            except Exception:
                failure = guarding.taken_end() or unexpected_failure(log, f"{method} failed")
            finally:
                self._authenticator.calls.finish(guarding.key)
            try:
                await _abort(context, guarding.call, failure)
            except grpc.aio.InternalError:
                log.debug("%s: the client has gone before its status", method)
                raise asyncio.CancelledError from None
            finally:
                self._note(method, guarding, context, failure)
                # An export may keep the error, whose frames would keep the tables of the call.
                without_frames(failure)

        return guarded

    def _note(
        self,
        method: str,
        guarding: _GuardedCall,
        context: CallContext,
        *failure: BarrageError | None,
    ) -> None:
        """Count a call that has ended, and leave a record of it in the audit log if there is
        one."""
        ended_by = next(iter(failure), None)
        self._measures.note(ended_by)
        if guarding.span is not None:
            guarding.span.end(ended_by)
        if self._audit is None:
            return
        record = guarding.record
        self._audit.record(
            user=None if record is None else record.caller.name,
            proof=None if record is None else record.caller.proof.value,
            peer=context.peer(),
            method=method,
            action=None if record is None else record.action,
            tables=None if record is None else record.tables,
            outcome="OK" if ended_by is None else ended_by.status_code.name,
        )

    async def open_headers(self, context: Any, session: ClientSession | None) -> None:
        """See :func:`open_headers`."""
        await open_headers(context, session)

    async def _admitted(
        self, guarding: _GuardedCall, context: CallContext, use: SessionUse
    ) -> ClientSession | None:
        """The caller's session, if it has one or must have one; from now on the call ends when the
        caller is none any more. AuthenticationError, TransportError."""
        if self.is_draining:
            raise TransportError(DRAINING)
        if use is SessionUse.NONE:
            return None
        metadata = context.invocation_metadata() or ()
        credentials = Credentials.of_metadata(metadata)
        session = self._sessions.find(credentials)
        caller = await self._caller(credentials, context) if session is None else session.caller
        if use is SessionUse.REQUIRED and session is None:
            if credentials is None:
                raise no_credentials()
            session = self._sessions.open(caller, wanted_types(metadata))
        guarding.record = begin_call(caller)
        if guarding.span is not None:
            guarding.span.admitted(guarding.record)
        guarding.key = self._authenticator.calls.begin(caller, guarding.end)
        return session

    async def _caller(self, credentials: Credentials | None, context: CallContext) -> Caller:
        known = self._authenticator.known(credentials, context)
        return known or await self._authenticator.authenticate(credentials, context)


async def _abort(context: CallContext, call: SessionCall | None, failure: BarrageError) -> None:
    code, details = grpc_status(failure.status_code), status_details(failure)
    if call is None:
        await context.abort(code, details)
        return
    if call.is_open:
        await call.settle()
        details = details.replace(":", ";")
    await context.abort(code, details, call.metadata())


def wanted_types(metadata: Metadata) -> SessionTypes | None:
    """The types a call asks for; None when it does not care. UnsupportedError."""
    wanted = header_value(metadata, TYPES_HEADER)
    if wanted is None:
        return None
    types = _TYPES.get(wanted.strip().lower())
    if types is None:
        raise UnsupportedError(
            f"{TYPES_HEADER} is {wanted!r}; this server knows {' and '.join(_TYPES)}"
        )
    return types
