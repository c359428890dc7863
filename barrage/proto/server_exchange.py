"""The server's side of one DoExchange stream, without IO: FlightData bytes in, events out.

Sources of the rules: barrage-wire.md sections 3.2 (first messages), 3.5 (end of a stream), 7
(requests) and 13 (errors). The life of an exchange is :class:`ExchangeState` and
:data:`TRANSITIONS`; whatever is not in that table is an error of the peer, which closes the
exchange. Encoding of answers is not done here.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from barrage.errors import LocalProtocolError, RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.model.viewport import Viewport
from barrage.proto.events import (
    BodiesReleased,
    HalfClosed,
    RowsArrived,
    ServerEvent,
    SessionRequested,
    SnapshotRequested,
    SubscriptionChanged,
    SubscriptionRequested,
    TransformRequested,
)
from barrage.wire.dissociated.ranges import decode_addresses
from barrage.wire.flight_data import decode_flight_data
from barrage.wire.messages import (
    NewSessionRequest,
    RefreshSessionRequest,
    SessionInfoResponse,
    SnapshotRequest,
    SubscriptionRequest,
)
from barrage.wire.metadata import WrongMagicError, decode_wrapper
from barrage.wire.revision import WireRevision

if TYPE_CHECKING:
    from barrage.wire.frame import FlightFrame
    from barrage.wire.messages import BarrageMessage


SUBSCRIPTION_NAME = "BarrageSubscriptionRequest"
SNAPSHOT_NAME = "BarrageSnapshotRequest"


class ExchangeState(Enum):
    """Where one exchange stands."""

    OPENED = auto()
    """Nothing has come yet."""
    GREETED = auto()
    """One message without metadata has come, which is all that is allowed (pyarrow's descriptor,
    for example)."""
    SUBSCRIBED_FULL = auto()
    SUBSCRIBED_VIEWPORT = auto()
    SNAPSHOT_REQUESTED = auto()
    TRANSFORMING = auto()
    """Plain Arrow: rows come, and go back transformed."""
    FINISHING = auto()
    """A request was made and the client has half-closed."""
    CLOSED = auto()
    """Nothing more may come: half-closed without a request, or failed."""


class ExchangeInput(Enum):
    """Everything that can happen to an exchange."""

    BARE_FRAME = auto()
    """A message without metadata, or with metadata of a foreign magic number."""
    SESSION_FRAME = auto()
    """One of the draft's session messages, which the draft itself calls not yet used. The two
    requests are answered."""
    FULL_SUBSCRIPTION = auto()
    VIEWPORT_SUBSCRIPTION = auto()
    SNAPSHOT = auto()
    TRANSFORM = auto()
    """A first message whose descriptor asks for a transform."""
    ROWS = auto()
    """Any message after it."""
    UNHANDLED_TYPE = auto()
    RELEASED_BODIES = auto()
    """A message that says nothing but which bodies are done with, on a stream that has a channel
    for them; on others it is a bare message."""
    HALF_CLOSE = auto()


_S = ExchangeState
_I = ExchangeInput

TRANSITIONS: dict[tuple[ExchangeState, ExchangeInput], ExchangeState] = {
    (_S.OPENED, _I.BARE_FRAME): _S.GREETED,
    (_S.OPENED, _I.SESSION_FRAME): _S.OPENED,
    (_S.OPENED, _I.FULL_SUBSCRIPTION): _S.SUBSCRIBED_FULL,
    (_S.OPENED, _I.VIEWPORT_SUBSCRIPTION): _S.SUBSCRIBED_VIEWPORT,
    (_S.OPENED, _I.SNAPSHOT): _S.SNAPSHOT_REQUESTED,
    (_S.OPENED, _I.TRANSFORM): _S.TRANSFORMING,
    (_S.TRANSFORMING, _I.ROWS): _S.TRANSFORMING,
    (_S.TRANSFORMING, _I.HALF_CLOSE): _S.FINISHING,
    (_S.OPENED, _I.HALF_CLOSE): _S.CLOSED,
    (_S.GREETED, _I.SESSION_FRAME): _S.GREETED,
    (_S.GREETED, _I.FULL_SUBSCRIPTION): _S.SUBSCRIBED_FULL,
    (_S.GREETED, _I.VIEWPORT_SUBSCRIPTION): _S.SUBSCRIBED_VIEWPORT,
    (_S.GREETED, _I.SNAPSHOT): _S.SNAPSHOT_REQUESTED,
    (_S.GREETED, _I.HALF_CLOSE): _S.CLOSED,
    (_S.SUBSCRIBED_FULL, _I.SESSION_FRAME): _S.SUBSCRIBED_FULL,
    (_S.SUBSCRIBED_FULL, _I.HALF_CLOSE): _S.FINISHING,
    (_S.SUBSCRIBED_VIEWPORT, _I.SESSION_FRAME): _S.SUBSCRIBED_VIEWPORT,
    (_S.SUBSCRIBED_VIEWPORT, _I.VIEWPORT_SUBSCRIPTION): _S.SUBSCRIBED_VIEWPORT,
    (_S.SUBSCRIBED_VIEWPORT, _I.HALF_CLOSE): _S.FINISHING,
    (_S.SNAPSHOT_REQUESTED, _I.SESSION_FRAME): _S.SNAPSHOT_REQUESTED,
    (_S.SNAPSHOT_REQUESTED, _I.HALF_CLOSE): _S.FINISHING,
    (_S.FINISHING, _I.HALF_CLOSE): _S.FINISHING,
    (_S.CLOSED, _I.HALF_CLOSE): _S.CLOSED,
    **{
        (state, _I.RELEASED_BODIES): state for state in _S if state not in (_S.FINISHING, _S.CLOSED)
    },
}
"""Declared transitions. A half-close may cross the end of the call, so it is harmless in CLOSED."""

_SUBSCRIBED = (_S.SUBSCRIBED_FULL, _S.SUBSCRIBED_VIEWPORT)
_SESSION_MESSAGES = (NewSessionRequest, RefreshSessionRequest, SessionInfoResponse)

TRANSFORM_MARK = b'"transform"'
"""What stands near the beginning of a descriptor whose command asks for a transform."""

MARK_END = 64
"""Bytes of the descriptor that are searched for it."""

CHANGE_REFUSED = "cannot change from full subscription to viewport or vice versa"
"""Text of the reference server (barrage-wire.md section 13)."""


def classify(message: BarrageMessage) -> ExchangeInput:
    """Which input of the table a decoded message is."""
    if isinstance(message, SubscriptionRequest):
        return _I.FULL_SUBSCRIPTION if message.viewport is None else _I.VIEWPORT_SUBSCRIPTION
    if isinstance(message, SnapshotRequest):
        return _I.SNAPSHOT
    if isinstance(message, _SESSION_MESSAGES):
        return _I.SESSION_FRAME
    return _I.UNHANDLED_TYPE


class ServerExchange:
    """One stream. Every method either makes a declared transition and returns its events, or raises
    a ProtocolError and leaves the exchange CLOSED.
    """

    def __init__(
        self,
        exchange_id: int | str,
        revision: WireRevision = WireRevision.R1_0_0,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._exchange_id = exchange_id
        self._revision = revision
        self._limits = limits
        self._has_body_channel = False
        self._state = ExchangeState.OPENED

    @property
    def state(self) -> ExchangeState:
        return self._state

    @property
    def revision(self) -> WireRevision:
        return self._revision

    def claim_body_channel(self) -> None:
        """The stream has a channel for bodies, so its client may say which ones it is done with."""
        self._has_body_channel = True

    def receive_frame(self, buffer: bytes | memoryview) -> list[ServerEvent]:
        """Take one FlightData message. Arrow header and body that come with a request are ignored.

        Raises RemoteProtocolError for malformed bytes and for messages that must not come now.
        """
        if self._state is _S.CLOSED:
            raise LocalProtocolError(f"exchange {self._exchange_id} is closed")
        try:
            frame = decode_flight_data(buffer, self._limits)
            if self._has_body_channel and frame.is_release_only:
                return [self._released(frame.released)]
            if self._is_plain(frame):
                return self._plain_events(frame)
            message = self._decode(frame.metadata)
            before = self._state
            self._step(_I.BARE_FRAME if message is None else classify(message), message)
            return self._request_events(message, before)
        except RemoteProtocolError:
            self._state = _S.CLOSED
            raise

    def receive_half_close(self) -> list[ServerEvent]:
        """The client has sent its last message. Only the first half-close is an event."""
        before = self._state
        self._step(_I.HALF_CLOSE, None)
        if before in (_S.FINISHING, _S.CLOSED):
            return []
        return [HalfClosed()]

    # --- one step ---------------------------------------------------------------------------------

    def _released(self, released: bytes | None) -> BodiesReleased:
        if (self._state, _I.RELEASED_BODIES) not in TRANSITIONS:
            raise RemoteProtocolError(self._refusal(_I.RELEASED_BODIES, None))
        return BodiesReleased(ids=decode_addresses(released or b"", self._limits))

    def _is_plain(self, frame: FlightFrame) -> bool:
        """Whether a message belongs to an exchange of plain rows, or begins one."""
        if self._state is _S.TRANSFORMING:
            return True
        told = frame.descriptor
        return self._state is _S.OPENED and told is not None and TRANSFORM_MARK in told[:MARK_END]

    def _plain_events(self, frame: FlightFrame) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        if self._state is _S.OPENED:
            assert frame.descriptor is not None
            self._step(_I.TRANSFORM, None)
            events.append(TransformRequested(descriptor=bytes(frame.descriptor)))
            if frame.header is None:
                return events
        else:
            self._step(_I.ROWS, None)
        return [*events, RowsArrived(frame=frame)]

    def _decode(self, metadata: bytes | None) -> BarrageMessage | None:
        """The Barrage message in a frame's metadata, or None if it is none (a wrong magic counts as
        none)."""
        if not metadata:
            return None
        try:
            return decode_wrapper(metadata, self._revision, self._limits)
        except WrongMagicError:
            return None

    def _step(self, stimulus: ExchangeInput, message: BarrageMessage | None) -> None:
        """Move to the next state, or raise what the peer did wrong."""
        following = TRANSITIONS.get((self._state, stimulus))
        if following is None:
            raise RemoteProtocolError(self._refusal(stimulus, message))
        self._state = following

    def _refusal(self, stimulus: ExchangeInput, message: BarrageMessage | None) -> str:
        """Why ``stimulus`` is not allowed now, in the reference server's words where it has some
        (section 13)."""
        if self._state is _S.FINISHING:
            return "message after the client's half-close"
        if stimulus is _I.BARE_FRAME:
            return f"{self._label}: failed to receive Barrage request metadata"
        if self._state is _S.SNAPSHOT_REQUESTED:
            if stimulus is _I.SNAPSHOT:
                return "only one snapshot request is allowed on a stream; open another stream"
            return _TYPE_FIXED.format(SNAPSHOT_NAME)
        if self._state in _SUBSCRIBED:
            if stimulus in (_I.FULL_SUBSCRIPTION, _I.VIEWPORT_SUBSCRIPTION):
                return CHANGE_REFUSED
            return _TYPE_FIXED.format(SUBSCRIPTION_NAME)
        number = -1 if message is None else message.message_type
        return f"{self._label}: received a message with unhandled BarrageMessageType: {number}"

    @property
    def _label(self) -> str:
        return f"DoExchangeMarshaller{{{self._exchange_id}}}"

    # --- events -----------------------------------------------------------------------------------

    def _request_events(
        self, message: BarrageMessage | None, before: ExchangeState
    ) -> list[ServerEvent]:
        if isinstance(message, SubscriptionRequest):
            return [self._subscription_event(message, is_change=before in _SUBSCRIBED)]
        if isinstance(message, NewSessionRequest):
            return [SessionRequested(payload=message.payload)]
        if isinstance(message, RefreshSessionRequest):
            return [SessionRequested(session=message.session or b"")]
        if isinstance(message, SnapshotRequest):
            return [
                SnapshotRequested(
                    ticket=_checked_ticket(message.ticket),
                    columns=message.columns,
                    viewport=_viewport(message),
                    is_reverse=message.is_reverse,
                    options=message.options,
                )
            ]
        return []

    def _subscription_event(self, request: SubscriptionRequest, *, is_change: bool) -> ServerEvent:
        viewport = _viewport(request)
        if is_change and viewport is not None:
            return SubscriptionChanged(
                columns=request.columns, viewport=viewport, token=request.subscription_token
            )
        return SubscriptionRequested(
            ticket=_checked_ticket(request.ticket),
            columns=request.columns,
            viewport=viewport,
            is_reverse=request.is_reverse,
            options=request.options,
            token=request.subscription_token,
        )


_TYPE_FIXED = "Request type cannot be changed after initialization, expected {} metadata"


def _viewport(request: SubscriptionRequest | SnapshotRequest) -> Viewport | None:
    if request.viewport is None:
        return None
    return Viewport(positions=request.viewport, is_reverse=request.is_reverse)


def _checked_ticket(ticket: bytes | None) -> bytes:
    if ticket is None:
        raise RemoteProtocolError("Ticket not specified.")
    if not ticket:
        raise RemoteProtocolError("Ticket has zero bytes.")
    return ticket
