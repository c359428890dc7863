"""Bodies of type 1 on the client's side: out of shared memory of this host, or out of the server's
memory by UCX.

Source: Arrow's Dissociated IPC Protocol (``remote_handle``, ``free_data``). The list of a body is
checked against the header of its message before anything is touched. Our own server packs the
buffers of a body as they would travel, so its memory is used as it is; from shared memory other
arrangements are refused, from remote memory they are read one by one.

Shared memory is lent to the arrays without a copy as long as little of the window is lent; past
that it is copied and given back at once, so that a consumer who keeps arrays does not stall its own
stream. What is still lent when the connection ends stays readable: the server does not use memory
again that somebody has a lock on.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrage.errors import RemoteProtocolError, TransportError
from barrage.wire.dissociated.lending import Lending, Window
from barrage.wire.dissociated.ranges import RangePlan, encode_addresses, plan_ranges
from barrage.wire.ipc import decode_batch_header, open_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from barrage.limits import Limits
    from barrage.transport.shared_memory import ArenaMapping
    from barrage.transport.ucx.connection import RemoteKey, UcxConnection
    from barrage.transport.ucx.tagged_channel import TaggedChannel
    from barrage.wire.dissociated.ranges import BodyRanges

_BODY_LENGTH = 10
"""Where Arrow's Message has its bodyLength."""


class ReleaseSender:
    """Tells the server which addresses are done with, those of one turn of the loop together."""

    def __init__(self, channel: TaggedChannel, free_data: int, limits: Limits) -> None:
        self._channel = channel
        self._free_data = free_data
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._addresses: list[int] = []
        self._sending: set[asyncio.Future[None]] = set()
        self._is_open = True
        self.released_count = 0

    def release(self, addresses: Sequence[int]) -> None:
        """On the loop: have ``addresses`` sent."""
        if not self._is_open or not addresses:
            return
        if not self._addresses:
            self._loop.call_soon(self._send)
        self._addresses += addresses

    def close(self) -> None:
        """Send what is waiting, and nothing later."""
        self._send()
        self._is_open = False

    def _send(self) -> None:
        if not self._is_open:
            return
        addresses, self._addresses = self._addresses, []
        step = self._limits.body_ranges_max
        for start in range(0, len(addresses), step):
            piece = addresses[start : start + step]
            try:
                sending = self._channel.send_tagged(self._free_data, encode_addresses(piece))
            except TransportError:
                self._is_open = False  # The server takes everything back by itself.
                return
            self.released_count += len(piece)
            self._sending.add(sending)
            sending.add_done_callback(self._sent)

    def _sent(self, sending: asyncio.Future[None]) -> None:
        self._sending.discard(sending)
        if not sending.cancelled() and sending.exception() is not None:
            self._is_open = False


class SharedMemoryReader:
    """Reads bodies out of an arena that the server named by ``remote_handle``."""

    def __init__(self, mapping: ArenaMapping, releases: ReleaseSender, limits: Limits) -> None:
        self._mapping = mapping
        self._releases = releases
        self._window = Window(limits.body_window_bytes, limits.body_window_count)
        self._lending = Lending()
        self._loop = asyncio.get_running_loop()
        self.copied_count = 0

    @property
    def lent_count(self) -> int:
        """Bodies that were lent and are not back."""
        return self._lending.count

    async def read(self, ranges: BodyRanges, header: bytes) -> pa.Buffer:
        """The body, lent or copied. RemoteProtocolError, BodyChannelError."""
        body_bytes, plans = _planned(ranges, header)
        addresses = tuple({plan.address for plan in plans})
        base = _packed_at(plans)
        if base is None:
            raise RemoteProtocolError("the buffers of a body in shared memory do not lie together")
        if not plans:
            return pa.py_buffer(b"")
        reference = self._mapping.reference_at(base, body_bytes)
        if not self._window.can_lend(self._lending, body_bytes):
            body = self._mapping.copy(reference)
            self.copied_count += 1
            self._releases.release(addresses)
            return body

        def back(_: int) -> None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_back, body_bytes, addresses)

        body = self._mapping.borrow(reference, back)
        self._lending.lend(body_bytes)
        return body

    def _take_back(self, body_bytes: int, addresses: tuple[int, ...]) -> None:
        self._lending.take_back(body_bytes)
        self._releases.release(addresses)


class RemoteMemoryReader:
    """Reads bodies by UCX out of memory that the server packed a key for."""

    def __init__(self, connection: UcxConnection, key: RemoteKey, releases: ReleaseSender) -> None:
        self._connection = connection
        self._key = key
        self._releases = releases

    async def read(self, ranges: BodyRanges, header: bytes) -> pa.Buffer:
        """The body in memory of our own; the server has its memory back. RemoteProtocolError,
        TransportError."""
        body_bytes, plans = _planned(ranges, header)
        body = pa.allocate_buffer(body_bytes)
        pieces = _joined(plans) if _packed_at(plans) is not None else plans
        _clear_around(body, pieces)
        await _all([self._connection.get(self._key, at.address, _part(body, at)) for at in pieces])
        self._releases.release(tuple({plan.address for plan in plans}))
        return body


def _planned(ranges: BodyRanges, header: bytes) -> tuple[int, list[RangePlan]]:
    """Length of the body and where its ranges belong."""
    body_bytes = open_message(header).table.int64(_BODY_LENGTH)
    buffers = decode_batch_header(header, body_bytes).buffers
    return body_bytes, plan_ranges(ranges, buffers, body_bytes)


def _packed_at(plans: Iterable[RangePlan]) -> int | None:
    """Where the whole body lies when its buffers lie as they would travel."""
    bases = {plan.address - plan.offset for plan in plans} or {0}
    base = bases.pop()
    return None if bases or base < 0 else base


def _joined(plans: Sequence[RangePlan]) -> list[RangePlan]:
    """One range from the first buffer to the end of the last; nothing around them is known to be
    the server's to give."""
    if not plans:
        return []
    first = min(plans, key=lambda plan: plan.offset)
    stop = max(plan.offset + plan.length for plan in plans)
    return [RangePlan(first.address, first.offset, stop - first.offset)]


def _clear_around(body: pa.Buffer, pieces: Sequence[RangePlan]) -> None:
    """Zero what will not be read, the padding; all of it when there are several pieces."""
    view = memoryview(body).cast("B")  # Arrow's is of signed bytes, which takes no others
    if len(pieces) != 1:
        view[:] = bytes(len(view))
        return
    [piece] = pieces
    stop = piece.offset + piece.length
    view[: piece.offset] = bytes(piece.offset)
    view[stop:] = bytes(len(view) - stop)


def _part(body: pa.Buffer, plan: RangePlan) -> pa.Buffer:
    part: pa.Buffer = body.slice(plan.offset, plan.length)
    return part


async def _all(futures: list[asyncio.Future[Any]]) -> None:
    for done in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done
