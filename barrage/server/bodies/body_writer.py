"""Writing the frames of one stream whose bodies may leave it.

What is decided about each frame is decided by
:class:`barrage.proto.outgoing_bodies.OutgoingBodies`; here it is waited for, counted and told.

Cost of a frame whose body stays outside: a lease, and a message of a few hundred bytes.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from barrage.proto.outgoing_bodies import LOST, OutgoingBodies, OutgoingState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.proto.outgoing_bodies import Outgoing
    from barrage.server.bodies.body_frames import BodyFrame, Frame
    from barrage.server.bodies.body_outlets import Outlet


@dataclass(slots=True)
class BodyCounts:
    """Counted on the event loop. Bodies too small to leave their messages are not counted."""

    streams: int = 0
    """Open streams that have claimed this way."""

    bodies_out: int = 0
    bytes_out: int = 0
    bodies_inline: int = 0
    """Bodies that could have left the stream and did not."""
    bytes_inline: int = 0
    fallbacks: int = 0
    """Streams that went inline for good."""
    refusals: int = 0
    """Claims that were refused."""

    def outside(self, byte_count: int) -> None:
        self.bodies_out += 1
        self.bytes_out += byte_count

    def inline(self, byte_count: int) -> None:
        self.bodies_inline += 1
        self.bytes_inline += byte_count


log = logging.getLogger(__name__)

NANOS_PER_S = 1_000_000_000


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
        self._bodies: OutgoingBodies[BodyFrame] = OutgoingBodies(outlet, limits)
        self._counts = counts
        self._clock = clock
        self._on_close = on_close
        self._has_starved = False
        self._has_fallen_back = False
        self._waker: asyncio.Future[None] | None = None
        self.way = outlet.way
        """The way the bodies may take."""
        counts.streams += 1

    @property
    def state(self) -> OutgoingState:
        return self._bodies.state

    @property
    def pending_count(self) -> int:
        """Bodies that are out."""
        return self._bodies.window.pending_count

    @property
    def pending_bytes(self) -> int:
        return self._bodies.window.pending_bytes

    async def write(self, write: Callable[[bytes], Awaitable[None]], frame: Frame) -> None:
        """Write one frame with ``write``, its body inline or not; waits a little for room in the
        window."""
        while (outgoing := self._bodies.message(frame, self._clock.monotonic_ns())) is None:
            await self._credit()
        self._count(outgoing)
        await write(outgoing.message)

    def _count(self, outgoing: Outgoing) -> None:
        self._note_fallback()
        if outgoing.is_outside:
            self._counts.outside(outgoing.body_bytes)
        elif outgoing.body_bytes:
            self._counts.inline(outgoing.body_bytes)
            if self.state is OutgoingState.OUTSIDE:
                self._note_starved()

    def _note_starved(self) -> None:
        if not self._has_starved:
            self._has_starved = True
            log.info(
                "stream %d: %d bodies of %d bytes are out and not given back, some go inline",
                *(self._stream_id, self.pending_count, self.pending_bytes),
            )

    def _note_fallback(self) -> None:
        reason = self._bodies.inline_reason
        if not reason or self._has_fallen_back:
            return
        self._has_fallen_back = True
        self._counts.fallbacks += 1
        log.log(
            logging.INFO if reason == LOST else logging.WARNING,
            "stream %d: bodies by %s go inline from now on: %s",
            *(self._stream_id, self.way.value, reason),
        )

    async def _credit(self) -> None:
        """Until something is given back, the way is lost, or the time is up."""
        until_ns = self._bodies.window.wait_until_ns
        assert until_ns is not None
        loop = asyncio.get_running_loop()
        self._waker = loop.create_future()
        timeout_ns = until_ns - self._clock.monotonic_ns()
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
        self._bodies.released(ids, self._clock.monotonic_ns())
        self._note_fallback()
        self._wake()

    def check(self, now_ns: int) -> None:
        """Go on inline when the way is lost, or when the client has kept a body for too long."""
        self._bodies.check(now_ns)
        if self._bodies.inline_reason:
            self._note_fallback()
            self._wake()

    def close(self) -> None:
        """The stream has ended: nothing more is owed to its client. Idempotent."""
        if self.state is OutgoingState.CLOSED:
            return
        self._bodies.close()
        self._counts.streams -= 1
        self._wake()
        self._on_close(self)
