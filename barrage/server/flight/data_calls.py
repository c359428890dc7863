"""DoExchange and DoGet: tables going out. And Handshake, which hands out the token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from barrage.errors import AuthenticationError, UnsupportedError
from barrage.server.auth import AUTHORIZATION, header_value
from barrage.server.frame_writing import write_frames
from barrage.server.grpc_calls import END_OF_STREAM
from barrage.server.tickets import table_name_of_ticket
from barrage.transport import flight_messages
from barrage.wire.messages import SnapshotOptions
from barrage.wire.revision import WireRevision
from barrage.wire.update_codec import EncodeOptions

if TYPE_CHECKING:
    import grpc.aio

    from barrage.limits import Limits
    from barrage.server.auth import Authenticator
    from barrage.server.exchange_driver import ExchangeHub

    Context = grpc.aio.ServicerContext[Any, Any]

REVISION_HEADER = "x-barrage-revision"
EXTENSIONS_HEADER = "x-barrage-extensions"
SOURCE_TIME = "source-time"


class DataCalls:
    """The behaviors; frames are bytes of FlightData."""

    def __init__(
        self,
        hub: ExchangeHub,
        authenticator: Authenticator,
        *,
        limits: Limits,
        draft_2020: str,
    ) -> None:
        self._hub = hub
        self._authenticator = authenticator
        self._limits = limits
        self._draft_2020 = draft_2020

    async def do_exchange(self, _requests: object, context: Context) -> None:
        """One subscription or one snapshot."""
        metadata = context.invocation_metadata() or ()
        extensions = header_value(metadata, EXTENSIONS_HEADER) or ""
        stream = self._hub.open(
            context,
            revision=chosen_revision(header_value(metadata, REVISION_HEADER), self._draft_2020),
            sends_source_time=SOURCE_TIME in (name.strip() for name in extensions.split(",")),
        )
        await stream.run()

    async def do_get(self, request: bytes, context: Context) -> None:
        """A snapshot of a whole table with default options."""
        name = table_name_of_ticket(flight_messages.decode_ticket(request), self._limits)
        header = header_value(context.invocation_metadata() or (), REVISION_HEADER)
        revision = chosen_revision(header, self._draft_2020)
        options = EncodeOptions.for_snapshot(SnapshotOptions(), self._limits, revision=revision)
        encoder, answer = await self._hub.snapshot(name, None, None, options)
        await context.write(encoder.schema_frame())
        for message in answer:
            await write_frames(context, encoder.encode(message))

    async def handshake(self, _requests: object, context: Context) -> None:
        """Turn credentials into the bearer token: a basic header, or a BasicAuth payload."""
        header = header_value(context.invocation_metadata() or (), AUTHORIZATION)
        request = await context.read()
        payload = b"" if request is END_OF_STREAM else flight_messages.decode_handshake(request)[1]
        if header is None and self._authenticator.bearer_header is not None:
            if not payload:
                raise AuthenticationError(
                    "no credentials: send a basic header or a BasicAuth message"
                )
            _, password = flight_messages.decode_basic_auth(payload)
            self._authenticator.check_password(password)
        bearer = self._authenticator.bearer_header
        if bearer is not None:
            await context.send_initial_metadata(((AUTHORIZATION, bearer),))
        await context.write(flight_messages.encode_handshake_response((bearer or "").encode()))


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
