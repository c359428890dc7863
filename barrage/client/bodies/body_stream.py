"""A DoExchange stream whose messages are whole, whatever way their bodies came.

Every message is decoded once and counted, as the server counts it. One whose body is elsewhere is
put together by a :class:`~barrage.wire.dissociated.reassembly.Reassembly`, from a body that is
fetched (shared memory) or that comes by itself under the number of its message. Whoever reads
cannot tell the difference.

Messages are read one after the other: a body is waited for before the next message is read, and
bodies are taken from where they come only while one is waited for. So what is ahead of its reader
stays where it is bounded: in the window of the server and of the connection.

Cost: an inline stream pays one call and one test per message.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from barrage.client.bodies.bodies import BodyCounter, BodyStatus
from barrage.client.bodies.own_cells import LentMemory
from barrage.errors import BodyChannelError, ConnectionLostError, RemoteProtocolError
from barrage.wire.dissociated.negotiation import HEADER, ClaimOutcome, printable
from barrage.wire.dissociated.reassembly import Reassembly
from barrage.wire.dissociated.tags import next_sequence
from barrage.wire.dissociated.ways import BodyWay
from barrage.wire.flight_data import decode_flight_data
from barrage.wire.ipc import HEADER_DICTIONARY, open_message

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    import pyarrow as pa

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.base import BodyReceiver, FrameStream
    from barrage.wire.frame import FlightFrame


_NOT_AGREED = "a body is said to be elsewhere, but the stream has no channel"


class BodyChannel(Protocol):
    """A channel that was prepared for a stream, as the stream sees it."""

    way: BodyWay

    def headers(self) -> dict[str, str]:
        """What claims it."""
        ...

    def open(self, write: Callable[[bytes], Awaitable[None]]) -> BodyReceiver:
        """The receiver of a stream that claims it; ``write`` sends a frame on that stream."""
        ...

    def accepted(self) -> None:
        """The server took the claim."""
        ...

    def refused(self, reason: str) -> None:
        """The server did not take the claim."""
        ...

    def failed(self, reason: str) -> None:
        """A body got lost here."""
        ...

    def broken(self) -> None:
        """The connection of the stream is lost; perhaps the server is another one now."""
        ...

    def discard(self) -> None:
        """No stream will claim it."""
        ...


class OfferedChannel:
    """What is to be had for one new stream: a channel, or the reason why bodies come inline. As a
    context manager it gives a channel back that no stream has taken."""

    __slots__ = ("_channel", "reason")

    def __init__(self, channel: BodyChannel | None, reason: str = "") -> None:
        self._channel = channel
        self.reason = reason

    @property
    def is_there(self) -> bool:
        """Whether there is a channel."""
        return self._channel is not None

    def headers(self) -> dict[str, str]:
        """What claims the channel."""
        return {} if self._channel is None else self._channel.headers()

    def take(self) -> BodyChannel | None:
        """The channel, which belongs to the caller now."""
        channel, self._channel = self._channel, None
        return channel

    def __enter__(self) -> OfferedChannel:
        return self

    def __exit__(self, *_: object) -> None:
        channel = self.take()
        if channel is not None:
            channel.discard()


class BodyStream:
    """One stream. Ends for good with the first error."""

    def __init__(
        self,
        stream: FrameStream,
        channel: BodyChannel | None,
        *,
        reason: str = "",
        limits: Limits,
        clock: Clock,
        counter: BodyCounter | None = None,
    ) -> None:
        """``reason`` says why there is no ``channel``; ``counter`` is told of every body."""
        self._stream = stream
        self._limits = limits
        self._counter = counter or BodyCounter()
        self._outside = None if channel is None else _Outside(self, channel, limits, clock=clock)
        self.status = BodyStatus(BodyWay.INLINE if channel is None else channel.way, reason)
        """The way bodies may come."""
        self.frame_bytes = 0
        """Size of the message read last, with its body."""

    async def read(self) -> FlightFrame | None:
        """The next message, whole; None when the server completed the call with OK.
        BodyChannelError when its body cannot be had."""
        if self._outside is not None:
            return await self._outside.read()
        buffer = await self._stream.read()
        if buffer is None:
            return None
        frame = decode_flight_data(buffer, self._limits)
        self.frame_bytes = len(buffer)
        if frame.body is not None:
            self._counter.count_inline(len(frame.body))
        if frame.body_reference is not None and frame.is_detached:
            raise BodyChannelError(_NOT_AGREED)
        return frame

    async def headers(self) -> Mapping[str, str]:
        """What the server sent ahead of its first message."""
        return await self._stream.headers()

    async def write(self, frame: bytes) -> None:
        """Send one frame."""
        await self._stream.write(frame)

    async def half_close(self) -> None:
        """Say that no more frames follow; bodies are given back by the end of the stream only."""
        if self._outside is not None:
            await self._outside.receiver.finish_writing()
        await self._stream.half_close()

    def cancel(self) -> None:
        """End the call now. Bodies that were handed out stay valid. Idempotent."""
        if self._outside is not None:
            self._outside.close()
        self._stream.cancel()

    def _refuse(self, reason: str) -> None:
        """The server did not take the claim: no body will come another way."""
        assert self._outside is not None
        self.status = BodyStatus(BodyWay.INLINE, reason)
        self._outside.close()
        self._outside = None

    def _go_inline(self, reason: str) -> None:
        """No more bodies will come another way; those that are out are still given back."""
        assert self._outside is not None
        self.status = BodyStatus(BodyWay.INLINE, reason)
        self._outside.receiver.finish_taking()

    @property
    def has_lent(self) -> bool:
        """Whether something that was handed out lies in memory of the server."""
        return self._outside is not None and self._outside.receiver.lent_count > 0

    def lent_memory(self) -> LentMemory:
        """Where that is; from any thread."""
        outside = self._outside
        return LentMemory(() if outside is None else outside.receiver.lent_ranges())


class _Outside:
    """The part of a stream that has a channel."""

    def __init__(
        self, owner: BodyStream, channel: BodyChannel, limits: Limits, *, clock: Clock
    ) -> None:
        self._owner = owner
        self._stream = owner._stream
        self._channel = channel
        self._limits = limits
        self._clock = clock
        self._counter = owner._counter
        self._parts = Reassembly(limits)
        self._sequence = 0
        self._is_settled = False
        self.receiver = channel.open(owner._stream.write)

    async def read(self) -> FlightFrame | None:
        try:
            buffer = await self._stream.read()
            if buffer is None:
                return None
            if not self._is_settled:
                await self._settle()
            return await self._complete(decode_flight_data(buffer, self._limits), len(buffer))
        except BodyChannelError as error:
            self._channel.failed(str(error))
            raise
        except ConnectionLostError:
            self._channel.broken()
            raise

    async def _settle(self) -> None:
        """The first message is here, so the server has said whether it took the claim."""
        self._is_settled = True
        outcome = ClaimOutcome.parse((await self._stream.headers()).get(HEADER))
        if outcome.way is self._channel.way:
            self._channel.accepted()
            return
        self._channel.refused(outcome.reason)
        self._owner._refuse(outcome.reason)

    async def _complete(self, frame: FlightFrame, size: int) -> FlightFrame:
        """``frame`` with its body. ``size`` is that of the message it came in."""
        if frame.inline_reason is not None:
            self._owner._go_inline(printable(frame.inline_reason.decode("ascii", "replace")))
        sequence, self._sequence = self._sequence, next_sequence(self._sequence)
        is_detached = frame.is_detached
        try:
            self._parts.receive_header(
                sequence, frame, expects_body=is_detached, now_ns=self._clock.monotonic_ns()
            )
        except RemoteProtocolError as error:
            raise BodyChannelError(str(error)) from error
        if not is_detached:
            (whole,) = self._parts.take()
            if whole.body is not None:
                self._counter.count_inline(len(whole.body))
            self._owner.frame_bytes = size
            return whole
        if self._owner.status.way is BodyWay.INLINE:
            raise BodyChannelError(_NOT_AGREED)
        assert frame.body_reference is not None
        body = self.receiver.resolve(
            sequence, frame.body_reference, is_kept=_is_dictionary(frame.header)
        )
        if body is not None:
            self._take_in(sequence, body)
            (whole,) = self._parts.take()
        else:
            whole = await self._awaited(sequence)
        assert whole.body is not None
        body_bytes = len(whole.body)
        if body is None:
            self.receiver.taken(sequence, body_bytes)
        self._counter.count(self._channel.way, body_bytes)
        self._owner.frame_bytes = size + body_bytes
        return whole

    def _take_in(self, sequence: int, body: pa.Buffer) -> None:
        try:
            self._parts.receive_body(sequence, body, self._clock.monotonic_ns())
        except RemoteProtocolError as error:
            raise BodyChannelError(str(error)) from error

    async def _awaited(self, sequence: int) -> FlightFrame:
        """The message whose body comes by itself, once it has; BodyChannelError when it does not in
        time."""
        seconds = self._limits.body_deadline_ns / 1e9
        try:
            async with asyncio.timeout(seconds):
                while not (whole := self._parts.take()):
                    self._take_in(*await self.receiver.receive())
        except TimeoutError:
            raise BodyChannelError(
                f"the body of message {sequence} did not come within {seconds:g} seconds"
            ) from None
        return whole[0]

    def close(self) -> None:
        self.receiver.close()


def _is_dictionary(header: bytes | None) -> bool:
    """Whether later messages will use this one's values."""
    return header is not None and open_message(header).kind == HEADER_DICTIONARY
