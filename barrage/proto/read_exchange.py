"""A read by ticket on a DoExchange stream, without IO: what DoGet does, with a way back.

DoGet has no messages from the client, so a client that gets bodies outside the stream could not
say which it has done with. Such a read is an exchange with the header :data:`HEADER`: its first
message has a descriptor whose command is the ticket, later ones say which bodies are done with, and
the answer is that of DoGet, message for message.

A journal is watched that way, too: the client may ask whether it has been told all there is, by a
message whose metadata are some bytes of its own. The server sends them back, behind what it knew
when they came.

Where the claim of a body channel was taken, one more message follows the last rows: metadata
:data:`END` and nothing else. The client half-closes then, and the server completes the call, so
that nothing is written on a call that has ended.
"""

from __future__ import annotations

from enum import Enum, auto

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS, Limits
from barrage.proto.events import BodiesReleased, HalfClosed, NewsAsked, ReadRequested
from barrage.wire.dissociated.ranges import decode_addresses
from barrage.wire.flight_data import decode_flight_data, encode_flight_data
from barrage.wire.frame import FlightFrame

HEADER = "x-barrage-exchange"
"""Says what an exchange is that is no Barrage exchange."""

READ = "get"
"""Its value for a read."""

END = b"end"
"""Metadata of the message after the last rows."""

QUESTION_BYTES_MAX = 16
"""Longest metadata of a question."""


class ReadState(Enum):
    """Where one read stands, as far as its client's messages go."""

    OPENED = auto()
    """Nothing has come yet."""
    READING = auto()
    """The ticket has come."""
    FINISHING = auto()
    """The client has half-closed: it gives nothing back any more."""
    CLOSED = auto()
    """It half-closed without a ticket, or failed."""


class ReadInput(Enum):
    """Everything a client can send."""

    TICKET = "a ticket"
    RELEASED_BODIES = "bodies given back"
    QUESTION = "a question"
    HALF_CLOSE = "a half-close"
    OTHER = "a message that is no ticket, gives back no bodies and asks nothing"


_S, _I = ReadState, ReadInput

TRANSITIONS: dict[tuple[ReadState, ReadInput], ReadState] = {
    (_S.OPENED, _I.TICKET): _S.READING,
    (_S.OPENED, _I.HALF_CLOSE): _S.CLOSED,
    (_S.READING, _I.RELEASED_BODIES): _S.READING,
    (_S.READING, _I.QUESTION): _S.READING,
    (_S.READING, _I.HALF_CLOSE): _S.FINISHING,
    (_S.FINISHING, _I.HALF_CLOSE): _S.FINISHING,
    (_S.CLOSED, _I.HALF_CLOSE): _S.CLOSED,
}
"""Every legal step."""


def encode_read(descriptor: bytes) -> bytes:
    """The first message: ``descriptor`` is an encoded FlightDescriptor with the ticket as its
    command."""
    return encode_flight_data(FlightFrame(descriptor=descriptor))


def encode_end() -> bytes:
    """The message after the last rows."""
    return encode_flight_data(FlightFrame(metadata=END))


def encode_answer(question: bytes) -> bytes:
    """The message that sends a question back."""
    return encode_flight_data(FlightFrame(metadata=question))


def is_end(frame: FlightFrame) -> bool:
    """Whether a message says that there are no more rows."""
    return frame.header is None and frame.metadata == END


class ReadExchange:
    """The server's side of one read. A RemoteProtocolError leaves it CLOSED."""

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._state = ReadState.OPENED

    @property
    def state(self) -> ReadState:
        return self._state

    def receive_frame(
        self, buffer: bytes | memoryview
    ) -> ReadRequested | BodiesReleased | NewsAsked:
        """Take one message; RemoteProtocolError when it is malformed or must not come now."""
        try:
            frame = decode_flight_data(buffer, self._limits)
            kind = _classified(frame)
            self._step(kind)
            if frame.descriptor is not None:
                return ReadRequested(descriptor=frame.descriptor)
            if kind is ReadInput.QUESTION:
                assert frame.metadata is not None
                return NewsAsked(question=bytes(frame.metadata))
            return BodiesReleased(ids=decode_addresses(frame.released or b"", self._limits))
        except RemoteProtocolError:
            self._state = ReadState.CLOSED
            raise

    def receive_half_close(self) -> HalfClosed:
        """The client has sent its last message."""
        self._step(ReadInput.HALF_CLOSE)
        return HalfClosed()

    def _step(self, stimulus: ReadInput) -> None:
        following = TRANSITIONS.get((self._state, stimulus))
        if following is None:
            state = self._state.name.lower()
            raise RemoteProtocolError(f"{stimulus.value} on a read that is {state}")
        self._state = following


def _classified(frame: FlightFrame) -> ReadInput:
    if frame.is_release_only:
        return ReadInput.RELEASED_BODIES
    if frame.descriptor is not None:
        return ReadInput.TICKET
    asked = frame.metadata or b""
    is_question = frame == FlightFrame(metadata=asked) and 0 < len(asked) <= QUESTION_BYTES_MAX
    return ReadInput.QUESTION if is_question else ReadInput.OTHER
