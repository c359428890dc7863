"""SessionService: the end of a session, its exports, and tables shared between sessions.

Source: deephaven-clients.md sections 2.2, 2.5 and 4.4.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from barrage.errors import (
    BarrageError,
    TicketError,
    UnsupportedError,
)
from barrage.limits import NANOS_PER_MS
from barrage.server.access.call_guard import SessionUse, open_headers
from barrage.server.access.method_table import MethodEntry
from barrage.server.deephaven.operations.operations import as_failure
from barrage.server.identity.credentials import AUTHORIZATION
from barrage.server.tables.tickets import export_id_of_ticket
from barrage.transport.deephaven_messages import MESSAGES

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.server.access.resolver import TicketResolver
    from barrage.server.access.session_store import ClientSession, SessionStore


class SessionCalls:
    """The behaviors, and the calls that wait for the end of the server."""

    def __init__(self, sessions: SessionStore, resolver: TicketResolver, limits: Limits) -> None:
        self._sessions = sessions
        self._resolver = resolver
        self._limits = limits
        self._waiting: set[asyncio.Future[str]] = set()

    def methods(self) -> dict[str, MethodEntry]:
        unary = {
            "NewSession": self.new_session,
            "RefreshSessionToken": self.new_session,
            "CloseSession": self.close_session,
            "Release": self.release,
            "ExportFromTicket": self.export_from_ticket,
            "PublishFromTicket": self.publish_from_ticket,
            "TerminationNotification": self.termination_notification,
        }
        entries = {name: MethodEntry("unary", behavior) for name, behavior in unary.items()}
        notifications = MethodEntry("server_stream", self.export_notifications, SessionUse.REQUIRED)
        return {**entries, "ExportNotifications": notifications}

    async def new_session(self, request: bytes, _context: object, session: ClientSession) -> bytes:
        """The old form of logging in and of staying so: the guard has done the work, and the answer
        repeats the token."""
        MESSAGES.decode("HandshakeRequest", request)
        return MESSAGES.encode(
            "HandshakeResponse",
            metadata_header=AUTHORIZATION.encode(),
            session_token=session.token.encode(),
            token_deadline_time_millis=self._sessions.expires_wall_ms(session),
            token_expiration_delay_millis=self._sessions.lifetime_ns // NANOS_PER_MS,
        )

    async def close_session(
        self, request: bytes, _context: object, session: ClientSession
    ) -> bytes:
        """End the caller's session and everything in it."""
        MESSAGES.decode("HandshakeRequest", request)
        self._sessions.close(session)
        return MESSAGES.encode("CloseSessionResponse")

    async def release(self, request: bytes, _context: object, session: ClientSession) -> bytes:
        """Let go of an export. What was made from it, and who subscribes to it, stay."""
        message = MESSAGES.decode("ReleaseRequest", request)
        session.exports.release(export_id_of_ticket(bytes(message.id.ticket), self._limits))
        return MESSAGES.encode("ReleaseResponse")

    async def export_from_ticket(
        self, request: bytes, _context: object, session: ClientSession
    ) -> bytes:
        """Another export of whatever a ticket names."""
        message = MESSAGES.decode("ExportRequest", request)
        if message.source_id.ticket == message.result_id.ticket:
            raise TicketError("ExportFromTicket: the result cannot be its own source")
        export = self._resolver.result_export(bytes(message.result_id.ticket), session)
        try:
            lease = await self._resolver.resolve(bytes(message.source_id.ticket), session)
        except BaseException as error:
            # Whatever it is: who waits for the export must not wait until its time is up.
            export.fail(as_failure(error))
            raise
        export.fulfil(lease)
        return MESSAGES.encode("ExportResponse")

    async def publish_from_ticket(
        self, request: bytes, _context: object, session: ClientSession
    ) -> bytes:
        """Share an export with other sessions."""
        message = MESSAGES.decode("PublishRequest", request)
        await self._resolver.publish_shared(
            bytes(message.source_id.ticket), bytes(message.result_id.ticket), session
        )
        return MESSAGES.encode("PublishResponse")

    async def export_notifications(
        self, _request: bytes, _context: object, _session: ClientSession
    ) -> None:
        raise UnsupportedError("SessionService/ExportNotifications is not offered")

    async def termination_notification(
        self, request: bytes, context: Any, session: ClientSession
    ) -> bytes:
        """Answered when the server stops; fails when the session ends. JS clients take an early end
        for a lost connection."""
        MESSAGES.decode("TerminationNotificationRequest", request)
        await open_headers(context, session)
        waiting: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def end(error: BarrageError) -> None:
            if not waiting.done():
                waiting.set_exception(error)

        unregister = session.on_close(end)
        self._waiting.add(waiting)
        try:
            reason = await waiting
        finally:
            unregister()
            self._waiting.discard(waiting)
        return MESSAGES.encode("TerminationNotificationResponse", reason=reason)

    def announce_stop(self, reason: str) -> None:
        """Answer everybody who waits for the end of the server."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(reason)
