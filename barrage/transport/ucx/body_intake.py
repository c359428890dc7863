"""Bodies taken off one connection by their tags, no more of them than the window at a time.

Lengths and tags are checked before memory is taken for a body.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from barrage.errors import BarrageError, ConnectionLostError, RemoteProtocolError
from barrage.transport.ucx.tagged_channel import ANY_TAG, note
from barrage.wire.dissociated.tags import SEQUENCE_MASK, BodyTag, BodyType, decode_tag

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.limits import Limits
    from barrage.transport.ucx.tagged_channel import ProbedMessage, TaggedChannel

RANGE_BYTES = 16
"""What one buffer takes in a body of type 1, and what precedes them all."""


class BodyIntake:
    """Takes tagged bodies off one connection, at most ``window_bytes`` of them at a time.

    Raises nothing: what a peer does wrong, and the loss of the connection, goes to ``on_failed``.
    """

    def __init__(
        self,
        channel: TaggedChannel,
        limits: Limits,
        *,
        on_body: Callable[[BodyTag, pa.Buffer], None],
        on_failed: Callable[[BarrageError], None],
        window_bytes: int,
        needed: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._channel = channel
        self._limits = limits
        self._on_body = on_body
        self._on_failed = on_failed
        self._window_bytes = window_bytes
        self._needed = needed
        self._receiving: set[asyncio.Future[pa.Buffer]] = set()
        self._is_open = True
        self.held_bytes = 0
        """Bytes that are being fetched, or were and are not let go."""
        self.held_count = 0
        """Bodies of which that is true."""
        channel.on_tagged = self.pump
        self.pump()

    def pump(self) -> None:
        """Fetch what may be fetched."""
        try:
            while self._is_open and (probed := self._probe()) is not None:
                self._fetch(self._checked_tag(probed), probed)
        except BarrageError as error:
            self.close()
            self._on_failed(error)

    @property
    def is_busy(self) -> bool:
        """Whether anything is being fetched."""
        return bool(self._receiving)

    def resize(self, byte_count: int, now: int) -> None:
        """A body turned out to have ``now`` bytes instead of the ``byte_count`` of its message."""
        self.held_bytes += now - byte_count

    def let_go(self, byte_count: int) -> None:
        """The owner has done with a body of so many bytes; it is to call :meth:`pump` then."""
        self.held_bytes -= byte_count
        self.held_count -= 1

    def close(self) -> None:
        """Fetch nothing any more; what is under way is forgotten when it comes. Idempotent."""
        self._is_open = False

    @property
    def has_room(self) -> bool:
        """Whether less than the window is held."""
        return (
            self.held_bytes < self._window_bytes
            and self.held_count < self._limits.body_window_count
        )

    def _probe(self) -> ProbedMessage | None:
        if self.has_room:
            probed: ProbedMessage | None = self._channel.probe(0, ANY_TAG)
            return probed
        needed = None if self._receiving else self._needed()
        probed = None if needed is None else self._channel.probe(needed, SEQUENCE_MASK)
        return probed

    def _fetch(self, tag: BodyTag, probed: ProbedMessage) -> None:
        self.held_bytes += probed.length
        self.held_count += 1
        receiving = self._channel.receive(probed)
        self._receiving.add(receiving)
        receiving.add_done_callback(lambda done: self._fetched(done, tag))

    def _checked_tag(self, probed: ProbedMessage) -> BodyTag:
        """RemoteProtocolError when this is no body, or one that is too long; it is dropped then."""
        try:
            tag = decode_tag(probed.tag)
            length_max = self._limits.message_bytes_max
            if tag.body_type is BodyType.RANGES:
                length_max = RANGE_BYTES * (1 + self._limits.body_ranges_max)
            if probed.length > length_max:
                raise RemoteProtocolError(
                    f"body {tag.sequence} has {probed.length} bytes, the limit is {length_max} "
                    "bytes"
                )
        except RemoteProtocolError:
            self._channel.discard(probed).add_done_callback(note)
            raise
        return tag

    def _fetched(self, done: asyncio.Future[pa.Buffer], tag: BodyTag) -> None:
        self._receiving.discard(done)
        if not self._is_open:
            return
        error = done.exception()
        try:
            if error is not None:
                raise ConnectionLostError(f"body {tag.sequence} could not be fetched: {error}")
            self._on_body(tag, done.result())
        except BarrageError as failure:
            self.close()
            self._on_failed(failure)
