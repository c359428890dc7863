"""Bodies of one Barrage stream over one UCX connection: sent under the number of their message.

The messages themselves stay on DoExchange; what is unreleased is bounded there, by the window of
the stream (docs/transports.md). Only bodies of type 0 travel here, always from server to client.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from barrage.errors import BodyChannelError, TransportError
from barrage.limits import DEFAULT_LIMITS
from barrage.transport.ucx.body_intake import BodyIntake
from barrage.wire.dissociated.tags import BodyTag, BodyType, encode_tag

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from barrage.limits import Limits
    from barrage.transport.ucx.stream_server import ServedConnection
    from barrage.transport.ucx.tagged_channel import TaggedChannel
    from barrage.wire.dissociated.detached import DetachedFrame


class UcxBodySender:
    """The server's end. ``on_lost`` is called once when the client is gone."""

    def __init__(
        self,
        connection: ServedConnection,
        *,
        on_lost: Callable[[TransportError], None] | None = None,
    ) -> None:
        self._connection = connection
        self._on_lost = on_lost
        self._sending: set[asyncio.Future[None]] = set()
        self.sent_count = 0
        self.sent_bytes = 0
        self.is_lost = False
        connection.when_lost(self._lose)

    def send(self, sequence: int, frame: DetachedFrame) -> None:
        """Send the body of message ``sequence``; its parts are kept until they have left.
        BodyChannelError when the client is gone."""
        if self.is_lost:
            raise BodyChannelError("the UCX connection of the stream is lost")
        tag = encode_tag(BodyType.PACKED, sequence)
        try:
            sending = self._connection.send_tagged(tag, frame.parts)
        except TransportError as error:
            self._lose(error)
            raise BodyChannelError(f"cannot send over UCX: {error}") from error
        self.sent_count += 1
        self.sent_bytes += frame.body_bytes
        self._sending.add(sending)
        sending.add_done_callback(self._finish)

    def _finish(self, sending: asyncio.Future[None]) -> None:
        self._sending.discard(sending)
        if sending.cancelled():
            return
        error = sending.exception()
        if error is not None:
            self._lose(TransportError(f"a body could not be sent: {error}"))

    def _lose(self, error: TransportError) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        if self._on_lost is not None:
            self._on_lost(error)

    def close(self) -> None:
        """End the connection. Idempotent; ``on_lost`` is not called."""
        self._on_lost = None
        self._connection.close_soon()


class UcxBodyReceiver:
    """The client's end."""

    def __init__(self, connection: TaggedChannel, limits: Limits = DEFAULT_LIMITS) -> None:
        self._connection = connection
        self._bodies: deque[tuple[int, pa.Buffer]] = deque()
        self._error: BodyChannelError | None = None
        self._waiting: asyncio.Future[None] | None = None
        connection.on_lost = self._lose
        connection.on_untagged = self._refuse_untagged
        self._intake = BodyIntake(
            connection,
            limits,
            on_body=self._take,
            on_failed=self._lose,
            window_bytes=limits.body_window_bytes,
        )

    async def receive(self) -> tuple[int, pa.Buffer]:
        """The next body that has come and the number of its message, in any order; by one caller
        at a time. BodyChannelError when the connection is lost or the server breaks a rule."""
        while not self._bodies:
            if self._error is not None:
                raise self._error
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        sequence, body = self._bodies.popleft()
        self._intake.let_go(body.size)
        self._intake.pump()
        return sequence, body

    async def close(self) -> None:
        """End the connection; whoever waits gets BodyChannelError. Idempotent."""
        self._lose(TransportError("closed"))
        self._intake.close()
        await self._connection.close()

    def _take(self, tag: BodyTag, body: pa.Buffer) -> None:
        if tag.body_type is not BodyType.PACKED:
            self._lose(TransportError("body of a type that was not agreed upon"))
            return
        self._bodies.append((tag.sequence, body))
        self._wake()

    def _refuse_untagged(self, data: bytes | memoryview) -> None:
        self._lose(TransportError(f"untagged message of {len(data)} bytes on a body channel"))

    def _lose(self, error: Exception) -> None:
        if self._error is None:
            self._error = BodyChannelError(f"the UCX connection of the stream is lost: {error}")
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
