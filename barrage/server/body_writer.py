"""Writing the frames of one stream whose bodies may leave it.

Every frame is counted, as the client counts it; the count is the number of its body. A frame goes
inline when its body is small, when the client has too much it has not given back, and for good when
the way out is lost or the client has kept a body for too long. The window of bodies that are out is
:class:`barrage.proto.body_window.BodyWindow`.

Cost of a frame whose body stays outside: a lease, and a message of a few hundred bytes.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, auto
from typing import TYPE_CHECKING

from barrage.errors import BarrageError
from barrage.proto.body_window import Admission, BodyWindow
from barrage.wire.dissociated.negotiation import printable
from barrage.wire.dissociated.tags import next_sequence
from barrage.wire.flight_data import with_inline_reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.server.body_counts import BodyCounts
    from barrage.server.body_frames import Frame, OutsideFrame
    from barrage.server.body_outlets import Outlet
    from barrage.wire.dissociated.ways import BodyWay

log = logging.getLogger(__name__)

NANOS_PER_S = 1_000_000_000


class WriterState(Enum):
    """Where the bodies of a stream go."""

    OUTSIDE = auto()
    """Out, as far as the window allows."""
    INLINE = auto()
    """Into their messages, from now on."""
    CLOSED = auto()
    """Nowhere: the stream has ended."""


_S = WriterState
TRANSITIONS: dict[WriterState, tuple[WriterState, ...]] = {
    _S.OUTSIDE: (_S.INLINE, _S.CLOSED),
    _S.INLINE: (_S.CLOSED,),
    _S.CLOSED: (),
}


class BodyWriter:
    """One stream's frames. Runs on the event loop; frames are written one after the other."""

    def __init__(
        self,
        stream_id: int,
        outlet: Outlet,
        counts: BodyCounts,
        *,
        limits: Limits,
        clock: Clock,
        on_close: Callable[[BodyWriter], None],
    ) -> None:
        self._stream_id = stream_id
        self._outlet = outlet
        self._counts = counts
        self._window = BodyWindow(limits)
        self._lease_ns_max = limits.body_lease_ns_max
        self._clock = clock
        self._on_close = on_close
        self._state = WriterState.OUTSIDE
        self._sequence = 0
        self._has_starved = False
        self._untold_reason = ""
        """Why bodies go inline from now on, until the client has been told."""
        self._waker: asyncio.Future[None] | None = None
        counts.streams += 1

    @property
    def way(self) -> BodyWay:
        """The way the bodies may take."""
        return self._outlet.way

    @property
    def state(self) -> WriterState:
        return self._state

    @property
    def pending_count(self) -> int:
        """Bodies that are out."""
        return self._window.pending_count

    @property
    def pending_bytes(self) -> int:
        return self._window.pending_bytes

    async def write(self, write: Callable[[bytes], Awaitable[None]], frame: Frame) -> None:
        """Write one frame with ``write``, its body inline or not; waits a little for room in the
        window."""
        sequence = self._sequence
        self._sequence = next_sequence(sequence)
        message = frame if isinstance(frame, bytes) else await self._message(sequence, frame)
        if self._untold_reason:
            message = with_inline_reason(message, self._untold_reason)
            self._untold_reason = ""
        await write(message)

    async def _message(self, sequence: int, frame: Frame) -> bytes:
        assert not isinstance(frame, bytes)
        if not await self._is_admitted(frame):
            self._counts.inline(frame.body_bytes)
            return frame.inline()
        now_ns = self._clock.monotonic_ns()
        try:
            number, message = self._outlet.send(sequence, frame)
        except BarrageError as error:
            self._go_inline(str(error))
            self._counts.inline(frame.body_bytes)
            return frame.inline()
        self._window.sent(number, frame.body_bytes, now_ns)
        self._counts.outside(frame.body_bytes)
        return message

    async def _is_admitted(self, frame: OutsideFrame) -> bool:
        """Whether the body may go out, after the wait the window asks for."""
        while True:
            now_ns = self._clock.monotonic_ns()
            self.check(now_ns)
            if self._state is not WriterState.OUTSIDE:
                return False
            admission = self._window.admit(frame.body_bytes, now_ns)
            until_ns = self._window.wait_until_ns
            if admission is Admission.INLINE:
                self._note_starved()
            if admission is not Admission.WAIT or until_ns is None:
                return admission is Admission.NOW
            await self._credit(until_ns - now_ns)

    def _note_starved(self) -> None:
        if not self._has_starved:
            self._has_starved = True
            log.info(
                "stream %d: %d bodies of %d bytes are out and not given back, some go inline",
                *(self._stream_id, self._window.pending_count, self._window.pending_bytes),
            )

    async def _credit(self, timeout_ns: int) -> None:
        """Until something is given back, the way is lost, or the time is up."""
        loop = asyncio.get_running_loop()
        self._waker = loop.create_future()
        timer = loop.call_later(max(timeout_ns, 0) / NANOS_PER_S, self._wake)
        try:
            await self._waker
        finally:
            timer.cancel()
            self._waker = None

    def _wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    def released(self, ids: Sequence[int]) -> None:
        """The client has given these bodies back. What it never had does not count."""
        now_ns = self._clock.monotonic_ns()
        if self._state is WriterState.OUTSIDE:
            self._outlet.release(ids)
        self._window.released(ids, now_ns)
        self.check(now_ns)
        self._wake()

    def check(self, now_ns: int) -> None:
        """Go on inline when the way is lost, or when the client has kept a body for too long."""
        if self._state is not WriterState.OUTSIDE:
            return
        if self._outlet.is_lost:
            # Also how a client looks that closes, until its stream ends a moment later.
            self._go_inline("its connection is lost", logging.INFO)
        elif self._window.is_overdue(now_ns):
            seconds = self._lease_ns_max / NANOS_PER_S
            self._go_inline(f"a body was not given back within {seconds:g} s")

    def _go_inline(self, reason: str, level: int = logging.WARNING) -> None:
        log.log(
            level,
            "stream %d: bodies by %s go inline from now on: %s",
            *(self._stream_id, self.way.value, reason),
        )
        self._move(WriterState.INLINE)
        self._untold_reason = printable(reason)
        self._counts.fallbacks += 1
        self._window.abandon()
        self._outlet.close()
        self._wake()

    def close(self) -> None:
        """The stream has ended: nothing more is owed to its client. Idempotent."""
        if self._state is WriterState.CLOSED:
            return
        self._move(WriterState.CLOSED)
        self._counts.streams -= 1
        self._outlet.close()
        self._wake()
        self._on_close(self)

    def _move(self, state: WriterState) -> None:
        assert state in TRANSITIONS[self._state], (self._state, state)
        self._state = state
