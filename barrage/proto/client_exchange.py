"""The client's side of one DoExchange (or DoGet) stream, without IO.

Requests go in as calls and come out as FlightData bytes; received FlightData goes in, events come
out. The rules: barrage-wire.md sections 3.2 to 3.5, 7 and 10.

Readiness (section 10): neither requests nor answers are numbered and a server may skip requests, so
a snapshot is matched by what it echoes: viewport, direction, columns. One that equals a request not
answered yet answers it and all earlier ones; one that equals none is a part of a growing state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from barrage.errors import (
    BarrageError,
    ConnectionLostError,
    LocalProtocolError,
    RemoteProtocolError,
)
from barrage.limits import DEFAULT_LIMITS
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.proto.client_events import ClientEvent, ExchangeEnded, SchemaArrived, UpdateArrived
from barrage.wire.flight_data import decode_flight_data, encode_flight_data
from barrage.wire.frame import FlightFrame
from barrage.wire.messages import (
    SnapshotOptions,
    SnapshotRequest,
    SubscriptionOptions,
    SubscriptionRequest,
)
from barrage.wire.metadata import encode_wrapper
from barrage.wire.revision import WireRevision
from barrage.wire.updates.update_assembler import SchemaReceived, UpdateAssembler

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.model.viewport import ColumnSet, Viewport
    from barrage.rowset import RowSet


SETTINGS_MAX = 256
"""Earlier requests whose late answers are recognised."""


class ClientState(Enum):
    """Where the exchange stands."""

    IDLE = "idle"
    REQUESTED = "requested"
    """A subscription was asked for; the schema is not here yet."""
    RESUMING = "resuming"
    """The state of before the stream is held; what was missed is still to come."""
    GROWING = "growing"
    """The state is handed out in parts; it is not consistent yet."""
    CHANGING = "changing"
    """The state is that of an earlier request; a later one is not answered yet."""
    LIVE = "live"
    SNAPSHOT_REQUESTED = "snapshot requested"
    RECEIVING = "receiving"
    """A one-shot snapshot is under way."""
    ENDED = "ended"


class Stimulus(Enum):
    """What can happen to an exchange."""

    SUBSCRIBE = "subscribe"
    CHANGE = "change"
    TAKE_SNAPSHOT = "take snapshot"
    SCHEMA = "schema"
    PART = "part of a snapshot"
    ANSWER = "answer to the last request"
    EARLIER_ANSWER = "answer to an earlier request"
    DELTA = "delta"
    RESUME = "the state held is resumed"
    CAUGHT_UP = "the last delta that was missed"


_S, _I = ClientState, Stimulus

TRANSITIONS: dict[tuple[ClientState, Stimulus], ClientState] = {
    (_S.IDLE, _I.SUBSCRIBE): _S.REQUESTED,
    (_S.IDLE, _I.TAKE_SNAPSHOT): _S.SNAPSHOT_REQUESTED,
    (_S.REQUESTED, _I.SCHEMA): _S.GROWING,
    (_S.REQUESTED, _I.CHANGE): _S.REQUESTED,
    (_S.GROWING, _I.RESUME): _S.RESUMING,
    (_S.RESUMING, _I.DELTA): _S.RESUMING,
    (_S.RESUMING, _I.CAUGHT_UP): _S.LIVE,
    (_S.GROWING, _I.CHANGE): _S.GROWING,
    (_S.GROWING, _I.PART): _S.GROWING,
    (_S.GROWING, _I.DELTA): _S.GROWING,
    (_S.GROWING, _I.ANSWER): _S.LIVE,
    (_S.GROWING, _I.EARLIER_ANSWER): _S.CHANGING,
    (_S.CHANGING, _I.CHANGE): _S.CHANGING,
    (_S.CHANGING, _I.PART): _S.GROWING,
    (_S.CHANGING, _I.DELTA): _S.CHANGING,
    (_S.CHANGING, _I.ANSWER): _S.LIVE,
    (_S.CHANGING, _I.EARLIER_ANSWER): _S.CHANGING,
    (_S.LIVE, _I.CHANGE): _S.CHANGING,
    (_S.LIVE, _I.PART): _S.GROWING,
    (_S.LIVE, _I.DELTA): _S.LIVE,
    (_S.LIVE, _I.ANSWER): _S.LIVE,
    (_S.LIVE, _I.EARLIER_ANSWER): _S.CHANGING,
    (_S.SNAPSHOT_REQUESTED, _I.SCHEMA): _S.RECEIVING,
    (_S.RECEIVING, _I.PART): _S.RECEIVING,
}
"""Every legal step. Besides, a stream may end in every state, which leads to ENDED."""

_CONSISTENT = frozenset({ClientState.RESUMING, ClientState.CHANGING, ClientState.LIVE})
_OURS = frozenset({Stimulus.SUBSCRIBE, Stimulus.CHANGE, Stimulus.TAKE_SNAPSHOT, Stimulus.RESUME})
_ONE_SHOT = frozenset({ClientState.SNAPSHOT_REQUESTED, ClientState.RECEIVING})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """What a snapshot echoes: one request in the form in which answers are compared."""

    positions: RowSet | None
    is_reverse: bool
    columns: ColumnSet | None
    """None: all columns."""


class ClientExchange:
    """One stream. All row and column sizes of what is received are checked by the codecs below
    it."""

    def __init__(
        self,
        *,
        revision: WireRevision = WireRevision.R1_0_0,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        self._revision = revision
        self._limits = limits
        self._state = ClientState.IDLE
        self._ticket = b""
        self._options = SubscriptionOptions()
        self._assembler: UpdateAssembler | None = None
        self._column_count = 0
        self._unanswered: deque[_Setting] = deque()
        self._asked: deque[_Setting] = deque(maxlen=SETTINGS_MAX)
        self._wanted: _Setting | None = None
        self._has_snapshot = False
        self._missed = 0
        self._is_half_closed = False

    @property
    def state(self) -> ClientState:
        return self._state

    @property
    def is_consistent(self) -> bool:
        """The rows received so far are complete for some request."""
        return self._state in _CONSISTENT

    @property
    def is_viewport(self) -> bool:
        """Whether the subscription has a viewport; it keeps one for all its life."""
        return self._wanted is not None and self._wanted.positions is not None

    @property
    def has_view_positions(self) -> bool:
        """Whether updates come as ViewUpdate; the 2020 draft's viewports are in row keys."""
        return self.is_viewport and self._revision.has_view_positions

    # --- requests -------------------------------------------------------------------------------

    def subscribe(
        self,
        ticket: bytes,
        *,
        columns: ColumnSet | None = None,
        viewport: Viewport | None = None,
        options: SubscriptionOptions | None = None,
        token: bytes | None = None,
    ) -> bytes:
        """The frame that opens a subscription: app_metadata only, as real clients send it."""
        self._step(Stimulus.SUBSCRIBE)
        self._ticket = ticket
        self._options = options or self._options
        frame = self._request(columns, viewport, token)
        self._assembler = UpdateAssembler(
            limits=self._limits,
            revision=self._revision,
            is_viewport=self.has_view_positions,
            columns_as_list=self._options.columns_as_list,
            use_deephaven_nulls=self._options.use_deephaven_nulls,
            # Dictionaries change from update to update; a replica needs one type of plain cells.
            decodes_encodings=True,
        )
        return frame

    def change(
        self,
        *,
        columns: ColumnSet | None,
        viewport: Viewport | None,
        token: bytes | None = None,
    ) -> bytes:
        """The frame that changes columns and viewport; LocalProtocolError for a subscription
        without viewport."""
        if self._wanted is None or self._wanted.positions is None or viewport is None:
            raise LocalProtocolError(
                "only a subscription with a viewport can change; close it and subscribe again"
            )
        self._step(Stimulus.CHANGE)
        return self._request(columns, viewport, token)

    def resume(self, updates: int = 1) -> None:
        """The server goes on from the state the caller holds: no snapshot will come, but
        ``updates`` deltas with what was missed. After the schema and before them."""
        self._step(Stimulus.RESUME)
        self._has_snapshot = True
        self._missed = max(updates, 1)
        self._unanswered.clear()
        assert self._assembler is not None
        assert self._wanted is not None
        self._assembler.resume(self._wanted.columns)

    def take_snapshot(
        self,
        ticket: bytes,
        *,
        columns: ColumnSet | None = None,
        viewport: Viewport | None = None,
        options: SnapshotOptions | None = None,
    ) -> bytes:
        """The frame that asks for a one-shot snapshot. Half-close after it; only one fits on a
        stream."""
        self._step(Stimulus.TAKE_SNAPSHOT)
        options = options or SnapshotOptions()
        self._expect_one_shot(options)
        request = SnapshotRequest(
            ticket=ticket,
            columns=columns,
            viewport=None if viewport is None else viewport.positions,
            is_reverse=viewport is not None and viewport.is_reverse,
            options=options,
        )
        return self._encode(request)

    def half_close(self) -> None:
        """Note that the request side is closed; a one-shot exchange then ends when the answer is
        complete."""
        self._is_half_closed = True

    def _expect_one_shot(self, options: SnapshotOptions) -> None:
        self._assembler = UpdateAssembler(
            limits=self._limits,
            revision=self._revision,
            use_deephaven_nulls=options.use_deephaven_nulls,
        )

    def _request(
        self, columns: ColumnSet | None, viewport: Viewport | None, token: bytes | None
    ) -> bytes:
        request = SubscriptionRequest(
            ticket=self._ticket,
            columns=columns,
            viewport=None if viewport is None else viewport.positions,
            is_reverse=viewport is not None and viewport.is_reverse,
            options=self._options,
            subscription_token=token,
        )
        frame = self._encode(request)
        self._wanted = _Setting(
            positions=request.viewport, is_reverse=request.is_reverse, columns=columns
        )
        self._unanswered.append(self._wanted)
        self._asked.append(self._wanted)
        return frame

    def _encode(self, request: SubscriptionRequest | SnapshotRequest) -> bytes:
        return encode_flight_data(FlightFrame(metadata=encode_wrapper(request, self._revision)))

    # --- what the server sends ------------------------------------------------------------------

    def receive_frame(self, buffer: bytes | memoryview) -> list[ClientEvent]:
        """Take one FlightData. RemoteProtocolError ends the exchange and is raised."""
        self._check_open()
        try:
            frame = decode_flight_data(buffer, self._limits)
        except BarrageError:
            self._state = ClientState.ENDED
            raise
        return self.receive(frame)

    def receive(self, frame: FlightFrame) -> list[ClientEvent]:
        """Take one message whose body is there, however it came; the rest is as for
        :meth:`receive_frame`."""
        assembler = self._check_open()
        try:
            if frame.is_detached:
                raise RemoteProtocolError("a message's body travels outside a stream that has none")
            return self._receive(assembler.receive_frame(frame))
        except BarrageError:
            self._state = ClientState.ENDED
            raise

    def receive_end(self, error: BarrageError | None) -> list[ClientEvent]:
        """The call ended; ``error`` None means with status OK."""
        if self._state is ClientState.ENDED:
            return []
        is_answered = self._state is ClientState.RECEIVING
        self._state = ClientState.ENDED
        if error is None and not is_answered:
            # A subscription is never completed by its server (section 3.5).
            error = ConnectionLostError("the server ended the stream")
        elif (
            error is None and self._assembler is not None and not self._assembler.is_between_updates
        ):
            error = RemoteProtocolError("the stream ended in the middle of an update")
        return [ExchangeEnded(error=error)]

    def abandon(self) -> None:
        """Nothing more is received. What has come of an update is let go, which may be lent, even
        when somebody keeps the exchange: an error's traceback does."""
        self._state = ClientState.ENDED
        self._assembler = None

    def _check_open(self) -> UpdateAssembler:
        if self._assembler is None or self._state is ClientState.ENDED:
            raise RemoteProtocolError(f"a frame arrived while {self._state.value}")
        return self._assembler

    def _receive(
        self, received: SchemaReceived | FullUpdate | ViewUpdate | None
    ) -> list[ClientEvent]:
        if received is None:
            return []
        if isinstance(received, SchemaReceived):
            self._step(Stimulus.SCHEMA)
            self._column_count = len(received.schema)
            return [SchemaArrived(schema=received.schema)]
        self._check_kind(received)
        self._step(self._stimulus_of(received))
        return [
            UpdateArrived(
                message=received,
                is_consistent=self._state in _CONSISTENT,
                is_current=self._state is ClientState.LIVE,
            )
        ]

    def _check_kind(self, received: FullUpdate | ViewUpdate) -> None:
        if isinstance(received, ViewUpdate) != self.has_view_positions:
            raise RemoteProtocolError(
                "an update speaks row keys where positions belong, or the reverse"
            )

    def _stimulus_of(self, message: FullUpdate | ViewUpdate) -> Stimulus:
        if self._state in _ONE_SHOT:
            return Stimulus.PART
        if not message.is_snapshot:
            if not self._has_snapshot:
                raise RemoteProtocolError("a subscription must begin with a snapshot, got a delta")
            if self._state is ClientState.RESUMING:
                self._missed -= 1
                return Stimulus.DELTA if self._missed else Stimulus.CAUGHT_UP
            return Stimulus.DELTA
        self._has_snapshot = True
        return self._match(message)

    def _match(self, message: FullUpdate | ViewUpdate) -> Stimulus:
        """Which request a snapshot answers, newest first."""
        echoed = self._comparable(
            _Setting(
                positions=message.effective_viewport,
                is_reverse=message.is_effective_reverse,
                columns=message.effective_columns,
            )
        )
        if self._wanted is not None and echoed == self._comparable(self._wanted):
            self._unanswered.clear()
            return Stimulus.ANSWER
        for index in range(len(self._unanswered) - 1, -1, -1):
            if echoed == self._comparable(self._unanswered[index]):
                for _ in range(index + 1):
                    self._unanswered.popleft()
                return Stimulus.EARLIER_ANSWER
        if any(echoed == self._comparable(setting) for setting in self._asked):
            # The same setting was asked for twice, and the answer to the first was taken for that
            # to the second, with everything in between.
            return Stimulus.EARLIER_ANSWER
        return Stimulus.PART

    def _comparable(self, setting: _Setting) -> _Setting:
        """All columns counts as no column set; the 2020 draft knows no direction."""
        columns = setting.columns
        if columns is not None and columns[: self._column_count] == tuple(
            range(self._column_count)
        ):
            columns = None
        is_reverse = setting.is_reverse and self._revision.has_reverse_viewport
        return _Setting(positions=setting.positions, is_reverse=is_reverse, columns=columns)

    def _step(self, stimulus: Stimulus) -> None:
        after = TRANSITIONS.get((self._state, stimulus))
        if after is None:
            text = f"{stimulus.value} while {self._state.value}"
            if stimulus in _OURS:
                raise LocalProtocolError(text)
            raise RemoteProtocolError(text)
        self._state = after
