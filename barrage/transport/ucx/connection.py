"""One connection: one worker with one endpoint, the same for both sides.

A worker of its own, because tags are matched per worker and all streams count from zero. Lengths of
tagged messages are for the owner to judge: :meth:`UcxConnection.probe` tells them before any memory
is taken. The owner must take or refuse *every* tagged message (probe with mask 0): what nobody
asks for is kept by the library without a bound.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from barrage.errors import ConnectionLostError, LocalProtocolError, TransportError
from barrage.transport.ucx import declarations as d
from barrage.transport.ucx.endpoints import client_endpoint, ipv4_of
from barrage.transport.ucx.worker import UcxWorker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from barrage.transport.ucx.context import UcxContext
    from barrage.transport.ucx.tagged_channel import ProbedMessage
    from barrage.wire.columns.base import BufferLike

CLOSE_SECONDS_MAX: Final = 1.0
"""How long a close waits for the endpoint before the worker goes anyway."""

REMOTE_KEY_BYTES_MAX: Final = 4096

_log = logging.getLogger(__name__)


class ErrorMode(IntEnum):
    """Whether endpoints notice a lost peer by themselves. The accepting side inherits it."""

    NONE = 0
    PEER = 1


class ConnectionState(Enum):
    OPEN = "open"
    LOST = "lost"
    CLOSING = "closing"
    CLOSED = "closed"


_TRANSITIONS: Final = {
    (ConnectionState.OPEN, ConnectionState.LOST),
    (ConnectionState.OPEN, ConnectionState.CLOSING),
    (ConnectionState.LOST, ConnectionState.CLOSING),
    (ConnectionState.CLOSING, ConnectionState.CLOSED),
}


class Probed(NamedTuple):
    """A tagged message that has come, or been announced, and waits for its memory."""

    tag: int
    length: int
    handle: Any


class Received(NamedTuple):
    """What a posted receive got."""

    tag: int
    length: int


class RemoteKey:
    """Access to memory of the peer, valid on one connection."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle


class UcxConnection:
    """Sends and receives on a running asyncio loop. All calls on the loop's thread."""

    def __init__(self, worker: UcxWorker, make_endpoint: Callable[[], Any]) -> None:
        """``worker`` is taken over, and destroyed when there is no endpoint to be had."""
        self._worker = worker
        self._library = worker.library
        self._functions = worker.library.functions
        self._ffi = worker.library.ffi
        self._void = self._ffi.typeof("void *")
        self._info = self._ffi.new("ucp_tag_recv_info_t *")
        self._on_untagged: Callable[[bytes | memoryview], None] | None = None
        self._on_lost: Callable[[TransportError], None] | None = None
        self.on_tagged: Callable[[], None] | None = None
        """Called after progress: tagged messages may be there."""
        self.on_closed: Callable[[], None] | None = None
        """Called once, when nothing of it is left; for whoever counts connections. That can be some
        time after :meth:`close` when the peer has no error mode and takes nothing."""
        self.state = ConnectionState.OPEN
        self.lost: TransportError | None = None
        """Why the connection was lost, once it was."""
        self._is_lost_told = False
        self._remote_keys: list[RemoteKey] = []
        self._is_flushed = False
        self._closed: asyncio.Future[None] = worker.loop.create_future()
        try:
            self._endpoint: Any = make_endpoint()
        except BaseException:
            worker.destroy()
            raise
        worker.deliver = self._deliver
        worker.on_destroyed = self._freed
        worker.abort = self.abort

    @classmethod
    async def connect(
        cls,
        context: UcxContext,
        host: str,
        port: int,
        *,
        timeout: float,
        error_mode: ErrorMode = ErrorMode.PEER,
    ) -> UcxConnection:
        """Connect to a listener. ``timeout`` in seconds. TransportError when nobody answers there,
        or with another release or other settings; IPv6 is refused."""
        context.check_usable()
        connection: UcxConnection | None = None
        try:
            async with asyncio.timeout(timeout):
                address = await ipv4_of(host)
                worker = UcxWorker(context, is_guarded=True)
                connection = cls(
                    worker, lambda: client_endpoint(worker, address, port, error_mode=error_mode)
                )
                await connection.flush()
        except BaseException as error:
            # Also when it was there already, and the time was over in the same moment.
            if connection is not None:
                await connection.close()
            if not isinstance(error, TransportError | TimeoutError):
                raise
            reason = f"no answer in {timeout:g} s" if isinstance(error, TimeoutError) else error
            raise TransportError(f"cannot connect to UCX at {host}:{port}: {reason}") from error
        return connection

    # --- sending ----------------------------------------------------------------------------------

    def send_untagged(self, data: BufferLike) -> asyncio.Future[None]:
        """Send one untagged message; the future is done when ``data`` may be reused."""
        worker = self._ready()
        keep = self._ffi.from_buffer(data)
        operation = worker.begin(worker.send_untagged_params, keep)
        pointer = self._functions.ucp_am_send_nbx(
            self._endpoint, 0, self._ffi.NULL, 0, keep, len(keep), worker.send_untagged_params
        )
        return worker.posted(operation, pointer)

    def send_tagged(
        self, tag: int, buffers: BufferLike | Sequence[BufferLike], *, synchronous: bool = False
    ) -> asyncio.Future[None]:
        """Send one tagged message, made of ``buffers`` one after the other.

        Buffers are kept alive, and must not change, until the future is done. Large ones only get
        there when the peer has asked for them; with ``synchronous`` all do.
        """
        worker = self._ready()
        each: Sequence[Any] = buffers if isinstance(buffers, list | tuple) else (buffers,)
        parts = [part for part in map(self._ffi.from_buffer, each) if len(part)]
        send = (
            self._functions.ucp_tag_send_sync_nbx
            if synchronous
            else self._functions.ucp_tag_send_nbx
        )
        if len(parts) > 1:
            vector = self._vector(parts)
            params, target, count = worker.send_iov_params, vector, len(parts)
            keep: Any = (vector, parts)
        else:
            keep = parts[0] if parts else self._ffi.new("char[1]")
            params, target, count = worker.send_params, keep, len(keep) if parts else 0
        operation = worker.begin(params, keep)
        return worker.posted(operation, send(self._endpoint, target, count, tag, params))

    def _vector(self, parts: Sequence[Any]) -> Any:
        vector = self._ffi.new("ucp_dt_iov_t[]", len(parts))
        for index, part in enumerate(parts):
            entry = vector[index]
            entry.buffer = part
            entry.length = len(part)
        return vector

    # --- receiving --------------------------------------------------------------------------------

    @property
    def on_untagged(self) -> Callable[[bytes | memoryview], None] | None:
        """Called with each untagged message; what came before it was set comes then."""
        return self._on_untagged

    @on_untagged.setter
    def on_untagged(self, listener: Callable[[bytes | memoryview], None] | None) -> None:
        self._on_untagged = listener
        self._worker.wake()

    @property
    def on_lost(self) -> Callable[[TransportError], None] | None:
        """Called once when the peer is gone, after everything it sent before has been delivered;
        also when it went before this was set. The connection is still to be closed."""
        return self._on_lost

    @on_lost.setter
    def on_lost(self, listener: Callable[[TransportError], None] | None) -> None:
        self._on_lost = listener
        if self.lost is not None:
            self._worker.loop.call_soon(self._tell_lost)

    def probe(self, tag: int = 0, mask: int = 0) -> Probed | None:
        """The next message whose tag agrees with ``tag`` in the bits of ``mask``, taken out of the
        queue: it must be received or discarded. Nothing is allocated for it yet."""
        handle = self._functions.ucp_tag_probe_nb(self._worker.handle, tag, mask, 1, self._info)
        if not handle:
            return None
        return Probed(self._info.sender_tag, self._info.length, handle)

    def receive(
        self, probed: ProbedMessage, into: pa.Buffer | None = None
    ) -> asyncio.Future[pa.Buffer]:
        """Receive what was probed here, into memory of its length or into ``into``."""
        assert isinstance(probed, Probed)
        worker = self._worker
        buffer = pa.allocate_buffer(probed.length) if into is None else into
        if buffer.size < probed.length or not buffer.is_mutable:
            raise LocalProtocolError(
                f"a message of {probed.length} bytes needs that much writable memory"
            )
        operation = worker.begin(worker.receive_params, buffer, buffer)
        return worker.posted(operation, self._receive(probed, buffer.address, probed.length))

    def discard(self, probed: ProbedMessage) -> asyncio.Future[None]:
        """Drop what was probed; only its beginning is looked at by the library."""
        assert isinstance(probed, Probed)
        worker = self._worker
        scratch = self._ffi.new("char[1]")
        operation = worker.begin(worker.receive_params, scratch)
        return worker.posted(operation, self._receive(probed, scratch, 0))

    def _receive(self, probed: Probed, target: Any, length: int) -> Any:
        return self._functions.ucp_tag_msg_recv_nbx(
            self._worker.handle,
            self._ffi.cast(self._void, target),
            length,
            probed.handle,
            self._worker.receive_params,
        )

    def receive_posted(self, tag: int, mask: int, buffer: pa.Buffer) -> asyncio.Future[Received]:
        """Receive the next message that agrees, into ``buffer``. Cancelling the future calls it
        off; a longer message fails it. It stays while the peer is silent."""
        worker = self._ready()
        if not buffer.is_mutable:
            raise LocalProtocolError("a receive needs writable memory")
        operation = worker.begin(worker.post_params, buffer, Received)
        operation.is_posted = True
        pointer = self._functions.ucp_tag_recv_nbx(
            worker.handle,
            self._ffi.cast(self._void, buffer.address),
            buffer.size,
            tag,
            mask,
            worker.post_params,
        )
        future = worker.posted(operation, pointer)
        future.add_done_callback(lambda _: worker.cancel(operation))
        return future

    def seal(self) -> None:
        """Let nobody open further connections for data, once the peer has all it needs."""
        self._worker.restrict(())

    # --- memory of the peer -----------------------------------------------------------------------

    def flush(self) -> asyncio.Future[None]:
        """Done when all that was sent has left, and the connection is set up."""
        worker = self._ready()
        operation = worker.begin(worker.close_params, None)
        pointer = self._functions.ucp_ep_flush_nbx(self._endpoint, worker.close_params)
        future = worker.posted(operation, pointer)
        if future.done():
            self._flushed(future)
        else:
            future.add_done_callback(self._flushed)
        return future

    def _flushed(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._is_flushed = True

    def unpack_key(self, packed: bytes) -> RemoteKey:
        """The key a peer has packed for its memory. LocalProtocolError before the first
        :meth:`flush` is done: a key unpacked earlier crashes the library."""
        self._ready()
        if not self._is_flushed:
            raise LocalProtocolError("flush the connection before unpacking a key")
        if not packed or len(packed) > REMOTE_KEY_BYTES_MAX:
            raise TransportError(f"a remote key of {len(packed)} bytes is not one")
        # The library is not told the length, so what follows a truncated key must be readable.
        padded = self._ffi.new("char[]", 2 * REMOTE_KEY_BYTES_MAX)
        self._ffi.memmove(padded, packed, len(packed))
        out = self._ffi.new("void **")
        status = self._functions.ucp_ep_rkey_unpack(self._endpoint, padded, out)
        self._library.check("use the key of remote memory", status)
        key = RemoteKey(out[0])
        self._remote_keys.append(key)
        return key

    def get(self, key: RemoteKey, address: int, into: pa.Buffer) -> asyncio.Future[pa.Buffer]:
        """Read memory of the peer from ``address`` on into all of ``into``. The owner has checked
        the range."""
        worker = self._ready()
        if not worker.context.settings.rma:
            raise LocalProtocolError("reading memory of a peer needs UcxSettings(rma=True)")
        operation = worker.begin(worker.send_params, (into, key), into)
        pointer = self._functions.ucp_get_nbx(
            self._endpoint,
            self._ffi.cast(self._void, into.address),
            into.size,
            address,
            key.handle,
            worker.send_params,
        )
        return worker.posted(operation, pointer)

    # --- end --------------------------------------------------------------------------------------

    async def close(self, force: bool = True) -> None:
        """Close, and free everything: pending futures fail, posted receives are called off.

        Without ``force`` what was sent is given ``CLOSE_SECONDS_MAX`` to get there. Idempotent.
        """
        if self.state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            await asyncio.shield(self._closed)
            return
        was_lost = self.state is ConnectionState.LOST
        self._become(ConnectionState.CLOSING)
        try:
            if not self._worker.is_destroyed and not self._worker.context.is_poisoned:
                await self._close_endpoint(force=force or was_lost)
        finally:
            self._worker.end()
            self._become(ConnectionState.CLOSED)
            self._tell_closed()

    def abort(self) -> None:
        """Close at once, without waiting for anything. Idempotent."""
        if self.state is ConnectionState.CLOSED:
            return
        if self.state is not ConnectionState.CLOSING:
            self._become(ConnectionState.CLOSING)
            if not self._worker.is_destroyed and not self._worker.context.is_poisoned:
                self._begin_close(force=True)
            self._become(ConnectionState.CLOSED)
            self._tell_closed()
        self._worker.destroy()

    async def _close_endpoint(self, *, force: bool) -> None:
        worker = self._worker
        if not force:
            # Closing flushes what has left, not what waits for the peer to ask for it.
            await worker.sent(timeout=CLOSE_SECONDS_MAX)
            if worker.is_destroyed:
                return
            force = self.lost is not None or worker.is_sending
        future = self._begin_close(force=force)
        if future is not None:
            await asyncio.wait([future], timeout=CLOSE_SECONDS_MAX)

    def _begin_close(self, *, force: bool) -> asyncio.Future[None] | None:
        """Done when the endpoint is closed; None when it goes with its worker."""
        worker = self._worker
        worker.cancel_posted()
        for key in self._remote_keys:
            self._functions.ucp_rkey_destroy(key.handle)
        self._remote_keys.clear()
        future = self._post_close(force=force)
        if not (force and future.done() and future.exception() is not None):
            return future
        # An endpoint without an error mode refuses force, and closing it in the ordinary way with
        # requests under way waits for them.
        if worker.is_sending:
            worker.must_linger = worker.library.is_asserting and not worker.failure
            return None
        return self._post_close(force=False)

    def _post_close(self, *, force: bool) -> asyncio.Future[None]:
        params = self._worker.force_params if force else self._worker.close_params
        operation = self._worker.begin(params, None)
        return self._worker.posted(
            operation, self._functions.ucp_ep_close_nbx(self._endpoint, params)
        )

    def _tell_closed(self) -> None:
        """Let who waits in :meth:`close` go on; nobody does when the loop is closed."""
        if not self._worker.loop.is_closed():
            self._closed.set_result(None)

    def _freed(self) -> None:
        if self.on_closed is not None:
            self.on_closed()

    def _ready(self) -> UcxWorker:
        """The worker, while something can be sent. ConnectionLostError afterwards."""
        if self.lost is not None:
            raise ConnectionLostError(str(self.lost))
        if self.state is not ConnectionState.OPEN:
            raise ConnectionLostError("the UCX connection is closed")
        self._worker.context.check_usable()
        return self._worker

    def _become(self, state: ConnectionState) -> None:
        assert (self.state, state) in _TRANSITIONS, (self.state, state)
        self.state = state

    # --- events -----------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Tell the owner what came; then, if so, that the peer is gone."""
        worker = self._worker
        is_failed = bool(worker.failure or worker.error) and self.state is ConnectionState.OPEN
        if is_failed and not worker.error:
            worker.drain()
        try:
            self._deliver_messages()
        except Exception as error:
            _log.warning("a UCX connection is given up: %s", error, exc_info=True)
            if worker.error is None:
                worker.error = ConnectionLostError(f"the UCX connection is given up: {error}")
            is_failed = self.state is ConnectionState.OPEN
        if is_failed and self.state is ConnectionState.OPEN:
            self._fail()

    def _deliver_messages(self) -> None:
        if self.state not in (ConnectionState.OPEN, ConnectionState.LOST):
            return
        if self._on_untagged is not None and self._worker.untagged:
            for message in self._worker.take_untagged():
                self._on_untagged(message)
        if self.on_tagged is not None and not self._worker.is_destroyed:
            self.on_tagged()

    def _fail(self) -> None:
        worker = self._worker
        self._become(ConnectionState.LOST)
        self.lost = worker.error or ConnectionLostError(
            f"the UCX connection is lost: {d.describe(worker.failure)}"
        )
        worker.cancel_posted()
        worker.fail_pending(self.lost)
        worker.loop.call_soon(self._tell_lost)  # after the callbacks of what has just come

    def _tell_lost(self) -> None:
        if self._on_lost is not None and self.lost is not None and not self._is_lost_told:
            self._is_lost_told = True
            self._on_lost(self.lost)
