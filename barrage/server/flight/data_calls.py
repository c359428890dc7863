"""DoExchange and DoGet: tables going out. And Handshake, which gives a token for credentials."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from barrage.errors import AuthenticationError, UnsupportedError
from barrage.limits import NANOS_PER_MS
from barrage.proto.read_exchange import HEADER as EXCHANGE_HEADER
from barrage.proto.read_exchange import READ as EXCHANGE_READ
from barrage.proto.resumption import (
    CURSOR_HEADER,
    RESUME_HEADER,
    UPDATES_EACH,
    UPDATES_HEADER,
    ResumeRequest,
)
from barrage.server.access.call_guard import SessionUse, wanted_types
from barrage.server.access.counted_call import counted
from barrage.server.access.frame_writing import write_frames
from barrage.server.access.grpc_calls import END_OF_STREAM
from barrage.server.access.method_table import MethodEntry
from barrage.server.bodies.body_frames import write_whole
from barrage.server.flight.session_messages import (
    encoded_session_info,
    session_info,
    session_message,
)
from barrage.server.history.journal_tickets import is_journal_request
from barrage.server.identity.caller import Proof
from barrage.server.identity.credentials import (
    AUTHORIZATION,
    REFUSED,
    CredentialKind,
    Credentials,
    bearer,
    header_value,
)
from barrage.server.identity.current_call import current_caller
from barrage.server.results.pinned_results import is_result_ticket
from barrage.transport import flight_messages
from barrage.transport.deephaven_messages import MESSAGES
from barrage.wire.dissociated.negotiation import HEADER as BODIES_HEADER
from barrage.wire.messages import NewSessionRequest, RefreshSessionRequest, SnapshotOptions
from barrage.wire.revision import WireRevision
from barrage.wire.updates.update_codec import EncodeOptions

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.proto.events import SessionRequested
    from barrage.server.access.session_store import ClientSession, SessionStore
    from barrage.server.exchange.exchange_driver import ExchangeHub
    from barrage.server.flight.journal_calls import JournalCalls
    from barrage.server.flight.journal_exchange import JournalExchanges
    from barrage.server.flight.result_calls import ResultCalls
    from barrage.server.identity.authenticator import Authenticator
    from barrage.server.identity.credentials import Metadata
    from barrage.server.runtime.measures import TransferMeasures
    from barrage.transport.base import CallContext


REVISION_HEADER = "x-barrage-revision"
EXTENSIONS_HEADER = "x-barrage-extensions"
SOURCE_TIME = "source-time"


class DataCalls:
    """The behaviors; frames are bytes of FlightData."""

    def __init__(
        self,
        hub: ExchangeHub,
        authenticator: Authenticator,
        sessions: SessionStore,
        *,
        limits: Limits,
        draft_2020: str,
        journals: JournalCalls,
        journal_exchanges: JournalExchanges,
        results: ResultCalls,
        transfers: TransferMeasures,
    ) -> None:
        self._transfers = transfers
        self._results = results
        self._hub = hub
        self._authenticator = authenticator
        self._sessions = sessions
        self._limits = limits
        self._draft_2020 = draft_2020
        self._journals = journals
        self._journal_exchanges = journal_exchanges

    def methods(self) -> dict[str, MethodEntry]:
        return {
            "Handshake": MethodEntry("bidi", self.handshake, SessionUse.NONE),
            "DoGet": MethodEntry("server_stream", self.do_get, SessionUse.OPTIONAL),
            "DoExchange": MethodEntry("bidi", self.do_exchange, SessionUse.OPTIONAL),
        }

    async def do_exchange(
        self, _requests: object, context: CallContext, session: ClientSession | None
    ) -> None:
        """One subscription or one snapshot, or a read by ticket."""
        metadata = context.invocation_metadata() or ()
        if header_value(metadata, EXCHANGE_HEADER) == EXCHANGE_READ:
            await self._journal_exchanges.run(context, session, self._hub.new_stream_id())
            return
        extensions = header_value(metadata, EXTENSIONS_HEADER) or ""
        stream = self._hub.open(
            context,
            session,
            revision=chosen_revision(header_value(metadata, REVISION_HEADER), self._draft_2020),
            sends_source_time=SOURCE_TIME in (name.strip() for name in extensions.split(",")),
            resume=resume_request(metadata),
            claim=header_value(metadata, BODIES_HEADER),
            wants_each_step=header_value(metadata, UPDATES_HEADER) == UPDATES_EACH,
        )
        await stream.run()

    async def do_get(
        self, request: bytes, context: CallContext, session: ClientSession | None
    ) -> None:
        """A snapshot of a whole table with default options, a part of a result that is kept, or a
        read of a journal."""
        ticket = flight_messages.decode_ticket(request)
        context = counted(context, "DoGet", self._transfers)
        if is_journal_request(ticket):
            await self._journals.do_get(ticket, context)
            return
        if is_result_ticket(ticket):
            await self._results.do_get(ticket, context)
            return
        header = header_value(context.invocation_metadata() or (), REVISION_HEADER)
        revision = chosen_revision(header, self._draft_2020)
        options = replace(
            EncodeOptions.for_snapshot(SnapshotOptions(), self._limits, revision=revision),
            is_bulk=True,
        )
        encoder, answer = await self._hub.snapshot(ticket, session, options)
        plans = await self._hub.plans(encoder, answer)
        await context.write(encoder.schema_frame())
        for plan in plans:
            await write_frames(partial(write_whole, context), plan.frames())

    async def handshake(self, _requests: object, context: CallContext, _session: None) -> None:
        """Turn credentials into a token (deephaven-clients.md section 2.2): those of the header
        into one in the headers of the answer, without a message; those of the first message into
        one in a message as well."""
        metadata = context.invocation_metadata() or ()
        credentials = Credentials.of_metadata(metadata)
        if credentials is not None:
            token = await self._token_for(credentials, context)
            await context.send_initial_metadata(((AUTHORIZATION, bearer(token)),))
            while await context.read() is not END_OF_STREAM:
                pass
            return
        request = await context.read()
        payload = b"" if request is END_OF_STREAM else flight_messages.decode_handshake(request)[1]
        asked = session_message(payload, self._limits)
        if asked is not None:
            answer = await self._draft_session(asked, context)
            await context.write(flight_messages.encode_handshake_response(answer))
            return
        token = await self._token_for(_credentials_of(payload), context)
        await context.send_initial_metadata(((AUTHORIZATION, bearer(token)),))
        await context.write(flight_messages.encode_handshake_response(token.encode()))

    async def session_info(self, event: SessionRequested, session: ClientSession | None) -> bytes:
        """The answer to a session message of the draft in an exchange: a token for its caller."""
        tokens = self._authenticator.tokens
        if session is not None:
            expires_ns = self._sessions.expires_wall_ms(session) * NANOS_PER_MS
            return encoded_session_info(session_info(session.token, expires_ns))
        shown = (event.session or b"").decode(errors="replace").removeprefix(bearer(""))
        token = tokens.renew(shown) if event.session is not None else None
        if token is None:
            token = tokens.issue(current_caller())
        return encoded_session_info(session_info(token, tokens.expires_ns(token)))

    async def _draft_session(
        self, asked: NewSessionRequest | RefreshSessionRequest, context: CallContext
    ) -> bytes:
        """The same in a handshake, where the message has what its sender shows."""
        tokens = self._authenticator.tokens
        if isinstance(asked, RefreshSessionRequest):
            shown = (asked.session or b"").decode(errors="replace").removeprefix(bearer(""))
            token = tokens.renew(shown)
            if token is None:
                raise AuthenticationError(f"{REFUSED}; the token is none, or not any more")
        else:
            credentials = _credentials_of(asked.payload or b"")
            token = tokens.issue(await self._authenticator.authenticate(credentials, context))
        return encoded_session_info(session_info(token, tokens.expires_ns(token)))

    async def _token_for(self, credentials: Credentials, context: CallContext) -> str:
        """A fresh token of ours, for credentials or for such a token; that of a session for who has
        one, and for who shows nothing where nothing need be shown. AuthenticationError,
        TooManyFailuresError."""
        session = self._sessions.find(credentials)
        if session is not None:
            return session.token
        tokens = self._authenticator.tokens
        if credentials.kind is CredentialKind.TOKEN:
            renewed = tokens.renew(credentials.secret)
            if renewed is not None:
                return renewed
        caller = await self._authenticator.authenticate(credentials, context)
        if caller.proof is Proof.ANONYMOUS:
            metadata = context.invocation_metadata() or ()
            return self._sessions.open(caller, wanted_types(metadata)).token
        return tokens.issue(caller)


def resume_request(metadata: Metadata) -> ResumeRequest | None:
    """The cursor a subscription is to go on from. CursorError or ConfigError when it cannot be
    read."""
    cursor = header_value(metadata, CURSOR_HEADER)
    mode = header_value(metadata, RESUME_HEADER)
    found = {CURSOR_HEADER: cursor, RESUME_HEADER: mode}
    return ResumeRequest.of_headers({name: text for name, text in found.items() if text})


def _credentials_of(payload: bytes) -> Credentials:
    """The credentials in a handshake's message: a WrappedAuthenticationRequest or a BasicAuth,
    which share no field. None at all are those of an anonymous caller."""
    if not payload:
        return Credentials(CredentialKind.ANONYMOUS)
    wrapped = MESSAGES.decode("WrappedAuthenticationRequest", payload)
    if wrapped.type:
        secret = bytes(wrapped.payload).decode(errors="replace")
        return Credentials.of_header(f"{wrapped.type} {secret}")
    user, password = flight_messages.decode_basic_auth(payload)
    return Credentials(CredentialKind.PASSWORD, password, user)


def chosen_revision(header: str | None, draft_2020: str) -> WireRevision:
    """The revision a call speaks: what the endpoint always speaks, or what the header asks for."""
    if draft_2020 == "always":
        return WireRevision.DRAFT_2020
    if header is None or header in ("1.0.0", "1"):
        return WireRevision.R1_0_0
    if header != WireRevision.DRAFT_2020.value:
        raise UnsupportedError(f"unknown revision {header!r}; this server speaks 1.0.0 and 2020")
    if draft_2020 != "header":
        raise UnsupportedError("the 2020 draft is switched off on this server")
    return WireRevision.DRAFT_2020
