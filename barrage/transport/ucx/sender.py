"""The sending end of a stream: headers on one connection, bodies on another, or both on one.

Source: Arrow's Dissociated IPC Protocol, server sequence. Bodies are sent synchronously, which is
done when the client has matched them: so many of them, bytes and count, are under way at a time.
A body past the window is kept back while headers go on for a while, because a client may want to
see many of them first, or ask for bodies in an order of its own.

Memory: bodies are slices of the columns, so what is kept back costs nothing but their references.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from barrage.errors import TransportError
from barrage.wire.dissociated.ranges import BodyRange, decode_addresses, encode_ranges
from barrage.wire.dissociated.tags import BodyType, encode_tag, next_sequence
from barrage.wire.dissociated.untagged import encode_end_message, encode_header_message
from barrage.wire.ipc import decode_batch_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from barrage.clock import Clock
    from barrage.limits import Limits
    from barrage.transport.ucx.stream_server import ServedConnection
    from barrage.wire.columns.base import BufferLike

HEADERS_AHEAD_MAX = 1024
"""Headers sent whose bodies are not under way yet; also how many may be under way themselves past
the window."""

_PAUSE_EVERY = 16
"""Messages between two looks at what else the loop has to do."""


class StreamMessage(NamedTuple):
    """One message of a stream: a bare Arrow header and, unless it is a schema, its body in
    pieces."""

    header: bytes
    parts: Sequence[BufferLike] | None = None
    body_bytes: int = 0


@dataclass(slots=True)
class SentBodies:
    """What became of the bodies of streams."""

    count: int = 0
    byte_count: int = 0
    pending_count: int = 0
    """Bodies their clients have not matched yet, or were lent and have not given back."""
    pending_bytes: int = 0

    def begin(self, byte_count: int) -> None:
        """A body is on its way."""
        self.count += 1
        self.byte_count += byte_count
        self.pending_count += 1
        self.pending_bytes += byte_count

    def end(self, byte_count: int) -> None:
        """It is there, or given back, or its client has gone."""
        self.pending_count -= 1
        self.pending_bytes -= byte_count


class LentBody(NamedTuple):
    """A body that lies where the client can read it."""

    address: int
    length: int
    take_back: Callable[[], None]


class BodyLender(Protocol):
    """Memory for bodies of type 1, for one stream."""

    def has_room(self, byte_count: int) -> bool:
        """Whether the client has given back enough for another body."""
        ...

    def lend(self, parts: Sequence[BufferLike], byte_count: int) -> LentBody | None:
        """Put a body there; None when there is no room, and the body goes as type 0."""
        ...

    def close(self) -> None:
        """The client is gone, with whatever it did not give back."""
        ...


class _Pending(NamedTuple):
    sequence: int
    message: StreamMessage


class StreamSender:
    """Sends one stream to one client. ``metadata`` or ``bodies`` is None when another server sends
    that half."""

    def __init__(
        self,
        messages: Iterable[StreamMessage],
        *,
        metadata: ServedConnection | None,
        bodies: ServedConnection | None,
        limits: Limits,
        clock: Clock,
        lender: BodyLender | None = None,
        free_data: int | None = None,
        first: int = 0,
        sent: SentBodies | None = None,
    ) -> None:
        self._sent = SentBodies() if sent is None else sent
        self._messages = messages
        self._metadata = metadata
        self._bodies = bodies
        self._limits = limits
        self._clock = clock
        self._lender = lender
        self._next = first
        self._kept_back: deque[_Pending] = deque()
        self._bytes_kept_back = 0
        self._under_way: dict[asyncio.Future[None], int] = {}
        self._bytes_under_way = 0
        self._lent: dict[int, _LentBuffers] = {}
        self._error: TransportError | None = None
        self._changed = asyncio.Event()
        self._progress_ns = clock.monotonic_ns()
        self.lent_count = 0
        """Bodies that went as type 1."""
        for connection in {id(c): c for c in (metadata, bodies) if c is not None}.values():
            connection.when_lost(self._lose)
        if bodies is not None and lender is not None and free_data is not None:
            bodies.route(free_data, self._take_back, bytes_max=8 * limits.body_ranges_max)

    async def run(self) -> None:
        """Send everything, then wait until the client has what it was lent given back and gone.
        The connections are to be closed then. TransportError when it goes before it has
        everything, or takes nothing for too long."""
        try:
            await self._send_all()
            await self._end()
            while self._kept_back:
                self._raise_if_lost()
                await self._wait_for_lender()
                await self._until(lambda: self._has_room or not self._kept_back)
            await self._until(lambda: not self._under_way)
            await self._until_gone()
        finally:
            self._release_all()

    # --- sending ---

    async def _send_all(self) -> None:
        for count, message in enumerate(self._messages):
            if count % _PAUSE_EVERY == 0:
                await asyncio.sleep(0)
            if message.parts is not None:
                await self._make_room()
            self._raise_if_lost()
            pending = _Pending(self._next, message)
            self._next = next_sequence(self._next)
            if self._metadata is not None:
                header = encode_header_message(pending.sequence, message.header)
                self._follow(self._metadata.send_untagged(header), len(header))
            if self._bodies is not None and message.parts is not None:
                self._kept_back.append(pending)
                self._bytes_kept_back += message.body_bytes
                self._post_bodies()

    async def _make_room(self) -> None:
        """Wait a little for the window, and for as long as it takes when too much is kept back."""
        await self._wait_for_lender()
        if self._has_room and not self._kept_back:
            return
        if self._may_run_ahead:
            await self._wait(self._limits.body_wait_ns_max)
            return
        await self._until(lambda: self._may_run_ahead or self._has_room)

    @property
    def _may_run_ahead(self) -> bool:
        """Whether another header may be sent while the window is full."""
        return (
            self._metadata is not None
            and len(self._kept_back) < HEADERS_AHEAD_MAX
            and len(self._under_way) < self._limits.body_window_count + HEADERS_AHEAD_MAX
            and self._bytes_kept_back < self._limits.body_arena_bytes
        )

    @property
    def _has_room(self) -> bool:
        return (
            self._bytes_under_way < self._limits.body_window_bytes
            and len(self._under_way) < self._limits.body_window_count
        )

    async def _wait_for_lender(self) -> None:
        """Give the client a little time to give back what it was lent, then send bytes instead."""
        until_ns = self._clock.monotonic_ns() + self._limits.body_wait_ns_max
        while self._kept_back and self._has_room and self._error is None:
            left_ns = until_ns - self._clock.monotonic_ns()
            if left_ns <= 0:
                self._post_bodies(is_lending=False)
                return
            await self._wait(left_ns)

    def _post_bodies(self, *, is_lending: bool = True) -> None:
        """Send what was kept back, as far as the window goes; and while ``is_lending`` as far as
        there is memory to lend."""
        try:
            while self._kept_back and self._has_room and self._error is None:
                message = self._kept_back[0].message
                if is_lending and self._would_lend(message) and not self._can_lend(message):
                    return
                self._bytes_kept_back -= message.body_bytes
                self._post(*self._kept_back.popleft())
                is_lending = True
        except TransportError as error:
            self._lose(error)

    def _would_lend(self, message: StreamMessage) -> bool:
        """Small bodies cost less as bytes than as a loan, and those past the window never fit."""
        limits = self._limits
        is_worth_it = limits.body_inline_bytes_max < message.body_bytes <= limits.body_window_bytes
        return self._lender is not None and is_worth_it

    def _can_lend(self, message: StreamMessage) -> bool:
        return self._lender is not None and self._lender.has_room(message.body_bytes)

    def _post(self, sequence: int, message: StreamMessage) -> None:
        assert self._bodies is not None
        assert message.parts is not None
        lent = self._lend(message)
        if lent is not None:
            ranges = encode_ranges(lent, message.body_bytes)
            tag = encode_tag(BodyType.RANGES, sequence)
            self._follow(self._bodies.send_tagged(tag, ranges, synchronous=True), len(ranges))
            return
        tag = encode_tag(BodyType.PACKED, sequence)
        sending = self._bodies.send_tagged(tag, message.parts, synchronous=True)
        self._sent.begin(message.body_bytes)
        sending.add_done_callback(lambda _: self._sent.end(message.body_bytes))
        self._follow(sending, message.body_bytes)

    def _follow(self, sending: asyncio.Future[None], byte_count: int) -> None:
        self._under_way[sending] = byte_count
        self._bytes_under_way += byte_count
        sending.add_done_callback(self._finish)

    def _finish(self, sending: asyncio.Future[None]) -> None:
        self._bytes_under_way -= self._under_way.pop(sending, 0)
        error = None if sending.cancelled() else sending.exception()
        if error is not None:
            self._lose(TransportError(f"a message could not be sent: {error}"))
            return
        self._advance()
        self._post_bodies()

    async def _end(self) -> None:
        """The end of the headers. It waits a little until they have left; it may overtake them all
        the same, and the client knows that."""
        if self._metadata is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.body_wait_ns_max / 1e9):
                await self._metadata.flush()
        end = encode_end_message(self._next)
        self._follow(self._metadata.send_untagged(end), len(end))

    async def _until_gone(self) -> None:
        """The client closes when it has everything; what is lent may take it longer."""
        while self._error is None:
            if not await self._wait(self._limits.stall_ns_max) and not self._lent:
                return

    # --- lending ---

    def _lend(self, message: StreamMessage) -> list[BodyRange] | None:
        if self._lender is None or not self._would_lend(message):
            return None
        assert message.parts is not None
        lent = self._lender.lend(message.parts, message.body_bytes)
        if lent is None:
            return None
        buffers = decode_batch_header(message.header, message.body_bytes).buffers
        ranges = [
            BodyRange(lent.address + offset, length)
            for offset, length in zip(buffers[::2], buffers[1::2], strict=True)
        ]
        addresses = {each.address for each in ranges if each.length}
        held = _LentBuffers(
            len(addresses), message.body_bytes, lent.take_back, since_ns=self._clock.monotonic_ns()
        )
        self._lent.update(dict.fromkeys(addresses, held))
        self._sent.begin(message.body_bytes)
        self.lent_count += 1
        return ranges

    def _take_back(self, message: pa.Buffer) -> None:
        """``free_data``: addresses of buffers the client has done with; unknown ones, and such that
        were given back before, do not matter."""
        for address in decode_addresses(memoryview(message), self._limits):
            held = self._lent.pop(address, None)
            if held is not None:
                if held.count_down():
                    self._sent.end(held.byte_count)
                self._advance()
        self._post_bodies()

    def _release_all(self) -> None:
        for held in set(self._lent.values()):
            self._sent.end(held.byte_count)
        self._lent.clear()
        if self._lender is not None:
            self._lender.close()

    # --- waiting ---

    def _lose(self, error: TransportError) -> None:
        if self._error is None:
            self._error = error
        self._changed.set()

    def _raise_if_lost(self) -> None:
        if self._error is not None:
            raise TransportError(f"the client of a UCX stream is gone: {self._error}")

    def _advance(self) -> None:
        self._progress_ns = self._clock.monotonic_ns()
        self._changed.set()

    async def _wait(self, patience_ns: int) -> bool:
        """Whether something changed within ``patience_ns``. TransportError when the client has
        kept a body for too long."""
        oldest = next(iter(self._lent.values()), None)
        if oldest is not None:
            age_ns = self._clock.monotonic_ns() - oldest.since_ns
            if age_ns >= self._limits.body_lease_ns_max:
                raise TransportError(f"a client kept a body for {age_ns / 1e9:.0f} s")
            patience_ns = min(patience_ns, self._limits.body_lease_ns_max - age_ns)
        self._changed.clear()
        try:
            # Not wait_for: it loses a cancellation that meets the change, and who cancels waits.
            async with asyncio.timeout(patience_ns / 1e9):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._raise_if_lost()
            await self._wait(self._limits.stall_ns_max)
            silence_ns = self._clock.monotonic_ns() - self._progress_ns
            if silence_ns >= self._limits.stall_ns_max:
                raise TransportError(f"a client took nothing for {silence_ns / 1e9:.0f} s")


class _LentBuffers:
    """One lent body: it is back when all its buffers are."""

    __slots__ = ("_count", "_take_back", "byte_count", "since_ns")

    def __init__(
        self, count: int, byte_count: int, take_back: Callable[[], None], *, since_ns: int
    ) -> None:
        self._count = count
        self._take_back = take_back
        self.byte_count = byte_count
        self.since_ns = since_ns

    def count_down(self) -> bool:
        """Whether that was the last of its buffers."""
        self._count -= 1
        if self._count:
            return False
        self._take_back()
        return True
