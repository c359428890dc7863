"""The receiving end of a stream: bodies by their tags, headers by their numbers, frames in order.

Source: Arrow's Dissociated IPC Protocol, client sequence. Nothing is assumed about the order in
which headers, bodies and the end come, nor about whether they share a connection.

Memory: bodies are fetched while less than the window is held (bytes and count). Past it, and only
while nothing can be handed out, the one body is fetched that the next message needs, so that a
window full of later bodies cannot stand in its way. What is not fetched stays with the sender, or
in UCX when it is small.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from barrage.errors import (
    BarrageError,
    BodyChannelError,
    ConnectionLostError,
    RemoteProtocolError,
    TransportError,
)
from barrage.supervision import Role, start_task
from barrage.transport.ucx.body_intake import RANGE_BYTES, BodyIntake
from barrage.transport.ucx.tagged_channel import ANY_TAG, note
from barrage.wire.dissociated.ranges import decode_ranges
from barrage.wire.dissociated.reassembly import Reassembly
from barrage.wire.dissociated.tags import BodyType
from barrage.wire.dissociated.untagged import EndMessage, decode_untagged
from barrage.wire.frame import FlightFrame
from barrage.wire.ipc import HEADER_DICTIONARY, HEADER_RECORD, open_message

READER = Role("barrage-ucx-read", "the stream whose body it reads")

if TYPE_CHECKING:
    import pyarrow as pa

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.ucx.tagged_channel import ProbedMessage, TaggedChannel
    from barrage.wire.dissociated.ranges import BodyRanges
    from barrage.wire.dissociated.tags import BodyTag

_log = logging.getLogger(__name__)

_BODY_LENGTH = 10
"""Where Arrow's Message has its bodyLength."""


class RangeReader(Protocol):
    """Gets bodies of type 1 out of the memory they lie in, and tells the server when it may have
    the memory back."""

    async def read(self, ranges: BodyRanges, header: bytes) -> pa.Buffer:
        """The packed body of a message with ``header``. RemoteProtocolError when the ranges do
        not fit the header or the memory."""
        ...


class _Listed(NamedTuple):
    """A body of type 1 that is still to be read."""

    ranges: BodyRanges
    header: bytes
    message_bytes: int


class StreamReceiver:
    """Frames of one stream in order. Attach the connections, then call :meth:`next`.

    One connection may be attached for both, headers and bodies.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Clock,
        *,
        deadline_ns: int,
        window_bytes: int | None = None,
        first: int = 0,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._deadline_ns = deadline_ns
        self._window_bytes = limits.body_window_bytes if window_bytes is None else window_bytes
        # The window is kept by the intake, which lets one body more in than fits.
        self._reassembly = Reassembly(
            replace(
                limits,
                body_window_bytes=self._window_bytes + 2 * limits.message_bytes_max,
                body_window_count=limits.body_window_count + 2,
            ),
            first=first,
        )
        self._headers: dict[int, bytes] = {}
        """Headers whose bodies have not come yet."""
        self._ranges: dict[int, BodyRanges] = {}
        """Bodies of type 1 whose headers have not come yet."""
        self._listed: dict[int, _Listed] = {}
        """Bodies of type 1 that wait to be read, in the order in which they can be."""
        self._reader: RangeReader | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self._intake: BodyIntake | None = None
        self._ready: deque[FlightFrame] = deque()
        self._error: BarrageError | None = None
        self._lost: TransportError | None = None
        self._has_ended = False
        self._is_open = True
        self._progress_ns = clock.monotonic_ns()
        self._waiting: asyncio.Future[None] | None = None

    def attach(
        self, metadata: TaggedChannel, bodies: TaggedChannel, reader: RangeReader | None = None
    ) -> None:
        """Take headers from ``metadata`` and bodies from ``bodies``, which may be the same; bodies
        of type 1 through ``reader``."""
        self._reader = reader
        metadata.on_untagged = self._take_untagged
        if bodies is metadata:
            metadata.on_lost = self._lose
        else:
            metadata.on_lost = self._lose_metadata
            metadata.on_tagged = lambda: self._refuse_tagged(metadata)
            bodies.on_untagged = self._refuse_untagged
            bodies.on_lost = self._lose
        self._intake = BodyIntake(
            bodies,
            self._limits,
            on_body=self._take_body,
            on_failed=self._fail,
            window_bytes=self._window_bytes,
            needed=self._needed,
        )

    async def next(self) -> FlightFrame | None:
        """The next message; None after the last one.

        ConnectionLostError when a connection is lost first, BodyChannelError when nothing comes
        within the deadline, RemoteProtocolError when the peer breaks a rule.
        """
        self._progress_ns = self._clock.monotonic_ns()
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._reassembly.is_complete:
                return None
            self._raise_if_lost()
            await self._wait()
        frame = self._ready.popleft()
        assert self._intake is not None
        if frame.body is not None:
            self._intake.let_go(memoryview(frame.body).nbytes)
        self._go_on()
        return frame

    def close(self) -> None:
        """Take nothing any more. Idempotent."""
        self._is_open = False
        self._listed.clear()
        if self._intake is not None:
            self._intake.close()
        for task in self._reading:
            task.cancel()

    # --- what comes ---

    def _take_untagged(self, data: bytes | memoryview) -> None:
        if not self._is_open:
            return
        try:
            message = decode_untagged(bytes(data), self._limits)
            now_ns = self._clock.monotonic_ns()
            if isinstance(message, EndMessage):
                self._has_ended = True
                self._reassembly.receive_end(message.sequence)
            else:
                self._take_header(message.sequence, message.header, now_ns)
            self._advance(now_ns)
        except BarrageError as error:
            self._fail(error)

    def _refuse_tagged(self, channel: TaggedChannel) -> None:
        probed: ProbedMessage | None = channel.probe(0, ANY_TAG)
        if probed is not None:
            channel.discard(probed).add_done_callback(note)
            self._fail(RemoteProtocolError("a body on the connection for headers"))

    def _refuse_untagged(self, data: bytes | memoryview) -> None:
        self._fail(RemoteProtocolError("a header on the connection for bodies"))

    def _take_header(self, sequence: int, header: bytes, now_ns: int) -> None:
        expects_body = open_message(header).kind in (HEADER_RECORD, HEADER_DICTIONARY)
        frame = FlightFrame(header=header)
        self._reassembly.receive_header(sequence, frame, expects_body=expects_body, now_ns=now_ns)
        if not expects_body:
            return
        ranges = self._ranges.pop(sequence, None)
        if ranges is not None:
            self._list(sequence, ranges, header)
            return
        self._headers[sequence] = header

    def _take_body(self, tag: BodyTag, body: pa.Buffer) -> None:
        now_ns = self._clock.monotonic_ns()
        header = self._headers.pop(tag.sequence, None)
        if tag.body_type is BodyType.PACKED:
            self._reassembly.receive_body(tag.sequence, body, now_ns)
        else:
            self._take_ranges(tag.sequence, body, header)
        self._advance(now_ns)

    def _take_ranges(self, sequence: int, body: pa.Buffer, header: bytes | None) -> None:
        if self._reader is None:
            raise RemoteProtocolError(
                f"body {sequence} is a list of addresses, and the location named no memory"
            )
        ranges = decode_ranges(body, self._limits)
        if header is not None:
            self._list(sequence, ranges, header)
        elif sequence in self._ranges:
            raise RemoteProtocolError(f"two bodies have the number {sequence}")
        else:
            self._ranges[sequence] = ranges  # the intake lets in no more than the window

    def _list(self, sequence: int, ranges: BodyRanges, header: bytes) -> None:
        size = RANGE_BYTES * (1 + len(ranges.ranges))
        self._listed[sequence] = _Listed(ranges, header, size)

    def _start_reading(self) -> None:
        """Read what lies elsewhere, as far as the window goes; what a list stands for is not known
        before it has come. Past the window only what the next message needs."""
        assert self._intake is not None
        while self._listed:
            sequence = next(iter(self._listed))
            if not self._intake.has_room:
                sequence = self._reassembly.next_number
                if self._ready or self._reading or sequence not in self._listed:
                    return
            listed = self._listed.pop(sequence)
            body_bytes = open_message(listed.header).table.int64(_BODY_LENGTH)
            self._intake.resize(listed.message_bytes, body_bytes)
            task = start_task(READER, self._read(sequence, listed), on_death=self._fail)
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)

    async def _read(self, sequence: int, listed: _Listed) -> None:
        assert self._reader is not None
        try:
            body = await self._reader.read(listed.ranges, listed.header)
            self._reading.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            now_ns = self._clock.monotonic_ns()
            self._reassembly.receive_body(sequence, body, now_ns)
            self._advance(now_ns)
        except BarrageError as error:
            self._fail(error)
        except Exception as error:
            _log.exception("body %d could not be read", sequence)
            self._fail(BodyChannelError(f"body {sequence} could not be read: {error}"))

    def _advance(self, now_ns: int) -> None:
        self._progress_ns = now_ns
        self._ready += self._reassembly.take()
        self._go_on()
        self._wake()

    def _go_on(self) -> None:
        """Fetch and read what there is room for now."""
        if self._intake is not None:
            self._intake.pump()
            self._start_reading()

    def _needed(self) -> int | None:
        """The number without which nothing goes on; None while there is something to hand out."""
        return None if self._ready else self._reassembly.next_number

    # --- ends ---

    def _lose_metadata(self, error: TransportError) -> None:
        # Once the end is known the metadata connection has nothing more to give.
        if not self._has_ended:
            self._lose(error)

    def _lose(self, error: TransportError) -> None:
        # What has come may still be complete, be it taken or not.
        self._lost = self._lost or error
        self._wake()

    def _raise_if_lost(self) -> None:
        if self._lost is None:
            return
        assert self._intake is not None
        self._go_on()
        if not self._intake.is_busy and not self._reading:
            raise ConnectionLostError(
                f"the UCX connection of the stream is lost: {self._lost}; {self._missing()}"
            )

    def _fail(self, error: BarrageError) -> None:
        if self._error is None:
            self._error = error
            self.close()
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _wait(self) -> None:
        """Until something has come. BodyChannelError when that takes longer than the deadline."""
        left_ns = self._progress_ns + self._deadline_ns - self._clock.monotonic_ns()
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            # Not wait_for: it loses a cancellation that meets what it waits for.
            async with asyncio.timeout(max(left_ns, 0) / 1e9):
                await self._waiting
        except TimeoutError:
            raise BodyChannelError(
                f"nothing came over UCX for {self._deadline_ns / 1e9:.1f} s; {self._missing()}"
            ) from None
        finally:
            self._waiting = None

    def _missing(self) -> str:
        for sequence in self._headers:
            return f"the body of message {sequence} is missing"
        return "the end of the stream is missing" if self._has_ended else "a header is missing"
