"""A source's side of one connection, without IO: bytes in gives events, calls queue bytes.

It keeps credits and which streams may be sent, and nothing of what was sent: whoever owns the data
sends again from the point a stream is opened at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow.compute as pc

from barrage.errors import LocalProtocolError, RemoteProtocolError
from barrage.proto.connector.session_states import (
    SOURCE_INPUT_OF_FRAME,
    SOURCE_TRANSITIONS,
    SenderInput,
    SenderState,
)
from barrage.wire.connector.codec import SHORT_BYTES_MAX, encode_frame, failure_reason
from barrage.wire.connector.frame_reader import ConnectorFrames
from barrage.wire.connector.frame_values import (
    DRAFT_VERSION,
    MESSAGE_ID_MAX,
    NONE_SEEN,
    PUBLISHED_VERSION,
    Ack,
    Dialect,
    EndedByError,
    EndOfStream,
    Frame,
    Hello,
    MessageFlag,
    Nack,
    Notify,
    NotifyAck,
    Restart,
    SentMessage,
    Welcome,
)
from barrage.wire.connector.message_run import HEAD_BYTES, encode_run

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.wire.payloads.payload_batch import PayloadBatch

_EOS = MessageFlag.EOS.value


@dataclass(frozen=True, slots=True)
class Welcomed:
    """Streams may be announced."""

    positions: tuple[tuple[int, int], ...]
    """Streams the worker knows, with the id it has; the draft alone tells them."""


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A stream may be sent, from after ``last``; from its beginning when that is None."""

    stream: int
    last: int | None


@dataclass(frozen=True, slots=True)
class StreamRefused:
    """A stream may not be sent now. Ask again after the next :class:`Acknowledged`."""

    stream: int


@dataclass(frozen=True, slots=True)
class StreamRewound:
    """A stream is to be announced again and sent from after ``last``."""

    stream: int
    last: int | None


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Streams, each with the last id that is safe; and there may be more credits."""

    positions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RestartAsked:
    """Connect again, to ``address`` unless it is empty. Nothing past the last acknowledgement may
    be taken for safe."""

    address: str


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """The worker ended the session by ERROR."""

    message: str


SourceEvent: TypeAlias = (
    Welcomed
    | StreamOpened
    | StreamRefused
    | StreamRewound
    | Acknowledged
    | RestartAsked
    | WorkerFailed
)


class SourceSession:
    """One connection to a worker. Methods raise LocalProtocolError for what the protocol forbids
    now, :meth:`receive_data` RemoteProtocolError for what the worker got wrong."""

    def __init__(self, *, limits: Limits, dialect: Dialect = Dialect.PUBLISHED) -> None:
        self._dialect = dialect
        self._reader = ConnectorFrames(dialect, limits.connector_frame_bytes_max)
        self._frame_bytes_max = limits.connector_frame_bytes_max
        self._state = SenderState.NEW
        self._outgoing = bytearray()
        self._open: set[int] = set()
        self._asked: dict[int, int] = {}
        """Stream to the point it was announced with."""
        self.credits = 0
        """Messages and announcements that may be sent. Announcements may go below."""

    @property
    def state(self) -> SenderState:
        return self._state

    @property
    def has_ended(self) -> bool:
        return self._state is SenderState.ENDED

    def is_open(self, stream: int) -> bool:
        """Whether messages of the stream may be sent, given credits."""
        return stream in self._open

    def data_to_send(self) -> bytes:
        """What is to be sent, once."""
        data = bytes(self._outgoing)
        self._outgoing.clear()
        return data

    # --- what the source does ---

    def greet(self, program: str, *, instance: str = "", cookie: str = "") -> None:
        version = PUBLISHED_VERSION if self._dialect is Dialect.PUBLISHED else DRAFT_VERSION
        hello = Hello(version=version, cookie=cookie, program=program, instance=instance)
        self._send(hello, SenderInput.GREET)

    def announce(self, stream: int, name: bytes, *, last: int | None = None) -> list[SourceEvent]:
        """NOTIFY; ``last`` is the id the source believes the worker to have. In the draft, which
        has no answer, the stream is open at once."""
        if stream in self._open or stream in self._asked:
            raise LocalProtocolError(f"stream {stream} is announced already")
        none = NONE_SEEN if self._dialect is Dialect.PUBLISHED else 0
        point = none if last is None else last
        self._send(Notify(stream=stream, name=name, point=point), SenderInput.SEND)
        self.credits -= 1
        if self._dialect is Dialect.DRAFT:
            self._open.add(stream)
            return [StreamOpened(stream, last)]
        self._asked[stream] = point
        return []

    def send(self, message: SentMessage) -> None:
        """A message of an open stream, which takes a credit."""
        if message.stream not in self._open:
            raise LocalProtocolError(f"stream {message.stream} is not open")
        if self.credits < 1:
            raise LocalProtocolError("there are no credits: wait for Acknowledged")
        if message.id > MESSAGE_ID_MAX:
            raise LocalProtocolError(f"a message's id is at most {MESSAGE_ID_MAX}")
        self._send(message, SenderInput.SEND)
        self.credits -= 1
        if message.flags & _EOS:
            self._open.discard(message.stream)

    def send_run(self, stream: int, batch: PayloadBatch) -> None:
        """Messages of one open stream, which take a credit each. Published dialect."""
        if stream not in self._open:
            raise LocalProtocolError(f"stream {stream} is not open")
        if self.credits < len(batch):
            raise LocalProtocolError(f"there are no credits for {len(batch)} messages")
        if self._dialect is not Dialect.PUBLISHED:
            raise LocalProtocolError("the draft sends its messages one by one")
        if not len(batch):
            return
        sizes = [
            pc.max(pc.binary_length(each)).as_py() or 0 for each in (batch.keys, batch.payloads)
        ]
        if sizes[0] > SHORT_BYTES_MAX:
            raise LocalProtocolError(f"a key has at most {SHORT_BYTES_MAX} bytes")
        if pc.max(batch.ids).as_py() > MESSAGE_ID_MAX:
            raise LocalProtocolError(f"a message's id is at most {MESSAGE_ID_MAX}")
        if sum(sizes) + HEAD_BYTES - 4 > self._frame_bytes_max:
            raise LocalProtocolError(f"a frame has at most {self._frame_bytes_max} bytes")
        self._move(SenderInput.SEND)
        self._outgoing += encode_run(stream, batch)
        self.credits -= len(batch)

    def end(self, stream: int) -> None:
        """The stream ends. It is safe as a whole once its last id is acknowledged. Published
        dialect; in the draft the last message has a flag."""
        if stream not in self._open:
            raise LocalProtocolError(f"stream {stream} is not open")
        self._send(EndOfStream(stream), SenderInput.SEND)
        self._open.discard(stream)

    def fail(self, reason: str) -> None:
        """Tell the worker that the source ends by an error."""
        self._send(EndedByError(failure_reason(reason)), SenderInput.FAIL)

    def close(self) -> None:
        """The connection has ended. Idempotent."""
        self._move(SenderInput.CLOSE)
        self._open.clear()
        self._asked.clear()

    # --- what comes ---

    def receive_data(self, data: bytes) -> list[SourceEvent]:
        """What bytes of the worker mean. Nothing once the session has ended."""
        events: list[SourceEvent] = []
        if self.has_ended:
            return events
        self._reader.feed(data)
        try:
            while not self.has_ended and (frame := self._reader.next_frame()) is not None:
                events += self._receive(frame)
        except RemoteProtocolError:
            self.close()
            raise
        return events

    def _receive(self, frame: Frame) -> list[SourceEvent]:
        happened = SOURCE_INPUT_OF_FRAME[type(frame)]
        if (self._state, happened) not in SOURCE_TRANSITIONS:
            raise RemoteProtocolError(
                f"{type(frame).__name__} is not for a source whose session is {self._state.name}"
            )
        self._move(happened)
        if isinstance(frame, Welcome):
            self.credits += frame.credits
            return [Welcomed(frame.positions)]
        if isinstance(frame, Ack):
            self.credits += frame.credits
            return [Acknowledged(frame.positions)]
        if isinstance(frame, NotifyAck):
            return [self._answered(frame)]
        if isinstance(frame, Nack):
            self.credits += frame.credits
            self._open.discard(frame.stream)
            return [StreamRewound(frame.stream, frame.point or None)]
        if isinstance(frame, Restart):
            return [RestartAsked(frame.address)]
        assert isinstance(frame, EndedByError)
        return [WorkerFailed(frame.message)]

    def _answered(self, frame: NotifyAck) -> SourceEvent:
        if self._asked.pop(frame.stream, None) is None:
            raise RemoteProtocolError(f"stream {frame.stream} was not announced")
        if not frame.is_accepted:
            return StreamRefused(frame.stream)
        self._open.add(frame.stream)
        return StreamOpened(frame.stream, None if frame.point == NONE_SEEN else frame.point)

    def _send(self, frame: Frame, happened: SenderInput) -> None:
        encoded = encode_frame(frame, self._dialect)
        if len(encoded) - 4 > self._frame_bytes_max:
            raise LocalProtocolError(f"a frame has at most {self._frame_bytes_max} bytes")
        self._move(happened)
        self._outgoing += encoded

    def _move(self, happened: SenderInput) -> None:
        state = SOURCE_TRANSITIONS.get((self._state, happened))
        if state is None:
            raise LocalProtocolError(f"{happened.name} is not for a session {self._state.name}")
        self._state = state
