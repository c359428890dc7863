"""Headers and bodies that come apart, put together again in their order.

Headers arrive under their sequence number, bodies under theirs, each in any order; complete
messages leave in sequence, body attached. Serves streams of Barrage (headers come in order on the
stream, bodies from elsewhere) and plain dissociated streams (everything in any order, an end that
may overtake) alike.

Bounded: numbers may run ahead of what was handed out by ``AHEAD_MAX``; bodies that come before
their turn fit the body window of :class:`~barrage.limits.Limits`; the messages that wait for bodies
have no more bytes than that window and one message.
Cost: a few dictionary operations per message, no copies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from barrage.errors import RemoteProtocolError
from barrage.limits import DEFAULT_LIMITS
from barrage.wire.dissociated.tags import SEQUENCE_MASK, distance, next_sequence
from barrage.wire.flatbuf import root_table

if TYPE_CHECKING:
    from barrage.limits import Limits
    from barrage.wire.columns.base import BufferLike
    from barrage.wire.frame import FlightFrame

AHEAD_MAX = 16 * 1024
"""How far a number may be ahead of the next one to hand out; serial numbers need far less than half
of their circle under way."""

_BODY_LENGTH_SLOT = 10
"""Message.bodyLength in Arrow's Message.fbs."""


class _Header(NamedTuple):
    """A message that has come."""

    frame: FlightFrame
    body_bytes: int | None
    """What its body must have; None when no body is to come."""


class Reassembly:
    """One stream. Whatever breaks its rules raises RemoteProtocolError; it is of no use then.

    Invariants: every number held is one of the next ``AHEAD_MAX``; a body is held under a number at
    most once; what leaves, leaves in order and complete.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, *, first: int = 0) -> None:
        self._limits = limits
        self._next = first & SEQUENCE_MASK
        self._end: int | None = None
        self._headers: dict[int, _Header] = {}
        self._header_bytes = 0
        self._bodies: dict[int, BufferLike] = {}
        self._body_bytes = 0
        self._missing_since: dict[int, int] = {}
        """Since when headers wait for their bodies, in the order in which they came."""

    # --- what arrives -----------------------------------------------------------------------------

    def receive_header(
        self, sequence: int, frame: FlightFrame, *, expects_body: bool, now_ns: int
    ) -> None:
        """A message without its body, or, unless ``expects_body``, one that is complete."""
        self._check_number(sequence, "header")
        if sequence in self._headers:
            raise RemoteProtocolError(f"two headers have the number {sequence}")
        body_bytes = _body_length(frame, self._limits) if expects_body else None
        early = self._bodies.get(sequence)
        if early is not None:
            _check_body(sequence, body_bytes, early)
        byte_count = _frame_bytes(frame)
        limit = self._limits.body_window_bytes + self._limits.message_bytes_max
        if self._header_bytes + byte_count > limit:
            raise RemoteProtocolError(f"messages that wait for bodies have over {limit} bytes")
        self._header_bytes += byte_count
        self._headers[sequence] = _Header(frame, body_bytes)
        if body_bytes is not None and early is None:
            self._missing_since[sequence] = now_ns

    def receive_body(self, sequence: int, body: BufferLike, now_ns: int) -> None:
        """The body of the message with that number, which may still be to come."""
        self._check_number(sequence, "body")
        if sequence in self._bodies:
            raise RemoteProtocolError(f"two bodies have the number {sequence}")
        header = self._headers.get(sequence)
        if header is not None:
            _check_body(sequence, header.body_bytes, body)
        byte_count = memoryview(body).nbytes
        if not self.has_room(sequence, byte_count):
            raise RemoteProtocolError(
                f"{len(self._bodies) + 1} bodies of {self._body_bytes + byte_count} bytes came "
                "before their turn, which is past the window"
            )
        self._bodies[sequence] = body
        self._body_bytes += byte_count
        self._missing_since.pop(sequence, None)

    def receive_end(self, sequence: int) -> None:
        """No message has ``sequence`` or a later number; earlier ones may still come."""
        if self._end is not None:
            raise RemoteProtocolError("a stream ended twice")
        if distance(self._next, sequence) > AHEAD_MAX:
            raise RemoteProtocolError(
                f"the stream ends before {sequence}, which is far from {self._next}"
            )
        self._end = sequence
        for held in (*self._headers, *self._bodies):
            self._check_number(held, "message")

    # --- what leaves ------------------------------------------------------------------------------

    def take(self) -> list[FlightFrame]:
        """Complete messages whose turn it is, in order, each once."""
        taken: list[FlightFrame] = []
        while True:
            header = self._headers.get(self._next)
            if header is None or (header.body_bytes is not None and self._next not in self._bodies):
                return taken
            del self._headers[self._next]
            self._header_bytes -= _frame_bytes(header.frame)
            frame = header.frame
            if header.body_bytes is not None:
                body = self._bodies.pop(self._next)
                self._body_bytes -= memoryview(body).nbytes
                frame = replace(frame, body=body, body_reference=None)
            taken.append(frame)
            self._next = next_sequence(self._next)

    @property
    def is_complete(self) -> bool:
        """The end has come and everything before it was taken."""
        return self._end == self._next

    @property
    def next_number(self) -> int:
        """Number of the message that leaves next."""
        return self._next

    @property
    def waiting_since_ns(self) -> int | None:
        """When the oldest header whose body is missing came; None when none is."""
        return next(iter(self._missing_since.values()), None)

    @property
    def pending_count(self) -> int:
        """Numbers of which anything is held."""
        return len(self._headers.keys() | self._bodies.keys())

    @property
    def is_crowded(self) -> bool:
        """So much waits for bodies that its reader should rest: half of what would be refused."""
        return (
            2 * len(self._headers) > AHEAD_MAX
            or self._header_bytes > self._limits.body_window_bytes
        )

    def has_room(self, sequence: int, byte_count: int) -> bool:
        """Whether that body may come now: it fits the window, or it is the one whose turn it is."""
        if sequence == self._next:
            return byte_count <= self._limits.message_bytes_max
        return (
            len(self._bodies) < self._limits.body_window_count
            and self._body_bytes + byte_count <= self._limits.body_window_bytes
        )

    def validate(self) -> None:
        """Check the invariants; for tests and simulation."""
        held = [*self._headers, *self._bodies]
        assert all(distance(self._next, number) < AHEAD_MAX for number in held)
        sizes = (memoryview(body).nbytes for body in self._bodies.values())
        assert self._body_bytes == sum(sizes)
        frames = (header.frame for header in self._headers.values())
        assert self._header_bytes == sum(map(_frame_bytes, frames))
        missing = {
            number
            for number, header in self._headers.items()
            if header.body_bytes is not None and number not in self._bodies
        }
        assert missing == self._missing_since.keys()

    def _check_number(self, sequence: int, what: str) -> None:
        ahead = distance(self._next, sequence)
        if ahead >= AHEAD_MAX:
            raise RemoteProtocolError(
                f"{what} {sequence} is not one of the {AHEAD_MAX} from {self._next} on"
            )
        if self._end is not None and ahead >= distance(self._next, self._end):
            raise RemoteProtocolError(f"{what} {sequence} of a stream that ends before {self._end}")


def _body_length(frame: FlightFrame, limits: Limits) -> int:
    """What the Arrow header says its body has."""
    if frame.header is None:
        raise RemoteProtocolError("a message without Arrow header has a body elsewhere")
    length = root_table(frame.header).int64(_BODY_LENGTH_SLOT)
    if not 0 <= length <= limits.message_bytes_max:
        raise RemoteProtocolError(
            f"a body of {length} bytes, the limit is {limits.message_bytes_max} bytes"
        )
    return length


def _check_body(sequence: int, body_bytes: int | None, body: BufferLike) -> None:
    if body_bytes is None:
        raise RemoteProtocolError(f"message {sequence} has no body elsewhere, but one came")
    byte_count = memoryview(body).nbytes
    if byte_count != body_bytes:
        raise RemoteProtocolError(
            f"body {sequence} has {byte_count} bytes, its header says {body_bytes}"
        )


def _frame_bytes(frame: FlightFrame) -> int:
    """Bytes that are held with a message."""
    fields = (
        frame.descriptor,
        frame.header,
        frame.metadata,
        frame.body,
        frame.body_reference,
        frame.released,
        frame.inline_reason,
    )
    return sum(len(field) for field in fields if field is not None)
