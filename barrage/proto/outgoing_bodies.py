"""The frames of one stream whose bodies may leave it: which go whole, and which without their body.

Every frame is counted, as the client counts it; the count is the number of its body. A frame goes
whole when its body is small or the client has too much it has not given back, and all of them do
for good when the way out is lost or the client has kept a body for too long; the frame after that
says why. No clock, no waiting: the time comes in, and who drives it waits for credit.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from barrage.errors import BarrageError
from barrage.proto.body_window import Admission, BodyWindow
from barrage.wire.dissociated.negotiation import printable
from barrage.wire.dissociated.tags import next_sequence
from barrage.wire.flight_data import with_inline_reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from barrage.limits import Limits

LOST = "its connection is lost"
"""The reason when the client can get nothing out there any more. So it also looks when it closes,
until its stream ends a moment later."""


class FrameWithBody(Protocol):
    """A frame whose body is apart from it."""

    body_bytes: int

    def inline(self) -> bytes:
        """The whole message."""
        ...


FrameT = TypeVar("FrameT", bound=FrameWithBody)
OutgoingT = TypeVar("OutgoingT", bound=FrameWithBody, contravariant=True)


class BodyOutlet(Protocol[OutgoingT]):
    """The way out."""

    @property
    def is_lost(self) -> bool:
        """Whether the client can get nothing here any more."""
        ...

    def send(self, sequence: int, frame: OutgoingT) -> tuple[int, bytes]:
        """Let the body of frame number ``sequence`` go; the number under which it is given back,
        and the message for the stream. BarrageError when it cannot go."""
        ...

    def release(self, ids: Sequence[int]) -> None:
        """The client has given these back; unknown ones do not matter."""
        ...

    def close(self) -> None:
        """The stream sends no more here. Idempotent."""
        ...


class OutgoingState(Enum):
    """Where the bodies of a stream go."""

    OUTSIDE = auto()
    """Out, as far as the window allows."""
    INLINE = auto()
    """Into their messages, from now on."""
    CLOSED = auto()
    """Nowhere: the stream has ended."""


_S = OutgoingState
TRANSITIONS: dict[OutgoingState, tuple[OutgoingState, ...]] = {
    _S.OUTSIDE: (_S.INLINE, _S.CLOSED),
    _S.INLINE: (_S.CLOSED,),
    _S.CLOSED: (),
}


class Outgoing(NamedTuple):
    """What goes out on the stream for one frame."""

    message: bytes
    body_bytes: int
    """Of a body that could have left; 0 when there was none."""
    is_outside: bool
    """Whether it has."""


class OutgoingBodies(Generic[FrameT]):
    """The bodies of one stream with a way out."""

    def __init__(self, outlet: BodyOutlet[FrameT], limits: Limits, *, first: int = 0) -> None:
        """``first``: the number of the first frame."""
        self._outlet = outlet
        self._lease_ns_max = limits.body_lease_ns_max
        self._sequence = first
        self._state = OutgoingState.OUTSIDE
        self._untold_reason = ""
        self.window = BodyWindow(limits)
        """What is out; to be read."""
        self.inline_reason = ""
        """Why bodies go into their messages from now on; empty as long as they do not."""

    @property
    def state(self) -> OutgoingState:
        return self._state

    def message(self, frame: bytes | FrameT, now_ns: int) -> Outgoing | None:
        """What goes out for ``frame``, the next one; ``bytes`` are a message without a body apart.
        None: wait for credit and ask again, at ``window.wait_until_ns`` at the latest."""
        if isinstance(frame, bytes):
            outgoing = Outgoing(frame, 0, is_outside=False)
        else:
            admission = self._admission(frame, now_ns)
            if admission is Admission.WAIT:
                return None
            message = self._sent(frame, now_ns) if admission is Admission.NOW else None
            whole = frame.inline() if message is None else message
            outgoing = Outgoing(whole, frame.body_bytes, is_outside=message is not None)
        self._sequence = next_sequence(self._sequence)
        if self._untold_reason:
            told = with_inline_reason(outgoing.message, self._untold_reason)
            self._untold_reason = ""
            return outgoing._replace(message=told)
        return outgoing

    def _admission(self, frame: FrameT, now_ns: int) -> Admission:
        self.check(now_ns)
        if self._state is not OutgoingState.OUTSIDE:
            return Admission.INLINE
        return self.window.admit(frame.body_bytes, now_ns)

    def _sent(self, frame: FrameT, now_ns: int) -> bytes | None:
        """The message for the stream; None when the body could not go."""
        try:
            number, message = self._outlet.send(self._sequence, frame)
        except BarrageError as error:
            self._go_inline(str(error))
            return None
        self.window.sent(number, frame.body_bytes, now_ns)
        return message

    def released(self, ids: Sequence[int], now_ns: int) -> None:
        """The client has given these bodies back. What it never had does not count."""
        if self._state is OutgoingState.OUTSIDE:
            self._outlet.release(ids)
        self.window.released(ids, now_ns)
        self.check(now_ns)

    def check(self, now_ns: int) -> None:
        """Go on inline when the way is lost, or when the client has kept a body for too long."""
        if self._state is not OutgoingState.OUTSIDE:
            return
        if self._outlet.is_lost:
            self._go_inline(LOST)
        elif self.window.is_overdue(now_ns):
            self._go_inline(f"a body was not given back within {self._lease_ns_max / 1e9:g} s")

    def _go_inline(self, reason: str) -> None:
        self._move(OutgoingState.INLINE)
        self.inline_reason = self._untold_reason = printable(reason)
        self.window.abandon()
        self._outlet.close()

    def close(self) -> None:
        """The stream has ended: nothing more is owed to its client. Idempotent."""
        if self._state is not OutgoingState.CLOSED:
            self._move(OutgoingState.CLOSED)
            self._outlet.close()

    def _move(self, state: OutgoingState) -> None:
        assert state in TRANSITIONS[self._state], (self._state, state)
        self._state = state

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        self.window.validate()
        assert not self._untold_reason or self._untold_reason == self.inline_reason
        assert bool(self.inline_reason) or self._state is not OutgoingState.INLINE
