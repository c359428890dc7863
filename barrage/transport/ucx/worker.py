"""A UCX worker on an asyncio loop: it makes progress when its descriptor is readable, and after
every operation that was posted.

Everything runs on the loop's thread, but that a worker may be made on another. What libucp calls
back only leaves marks; their owners hear of them in :meth:`UcxWorker._deliver`, outside the
library, where they may post new operations. One turn does bounded work, so a peer that floods its
connection delays the loop by about ``TURN_NS_MAX`` and no more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from barrage.errors import ConnectionLostError, TransportError
from barrage.transport.ucx import declarations as d
from barrage.transport.ucx.port_filters import listening_ports, ports_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from ipaddress import IPv4Address

    from barrage.transport.ucx.context import UcxContext
    from barrage.transport.ucx.port_filters import ListeningPort

UNTAGGED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest untagged message; also most bytes of them kept for an owner that does not listen yet."""

UNTAGGED_COUNT_MAX: Final = 64 * 1024
"""Most untagged messages kept for such an owner: those without a byte count, too."""

TURN_NS_MAX: Final = 1_000_000
"""How long one worker keeps the loop; a single call of the library may add milliseconds."""

ABANDONED: Final[list[list[PostedOperation]]] = []
"""Memory of requests that neither end nor can be taken back, kept for the life of the process."""

_PROGRESS_PER_LOOK: Final = 16
_DRAIN_CALLS_MAX: Final = 10_000

_log = logging.getLogger(__name__)


class PostedOperation:
    """One request under way: its future, and what must live until the library is done with it."""

    __slots__ = ("came", "future", "is_posted", "keep", "number", "request", "result", "worker")

    def __init__(self, worker: UcxWorker, keep: Any, result: Any) -> None:
        self.worker = worker
        self.keep = keep
        self.result = result
        self.number = worker.library.next_number()
        self.request: Any = None
        self.is_posted = False
        self.future: asyncio.Future[Any] = worker.loop.create_future()
        self.came: tuple[int, int] | None = None

    def completed(self, status: int, came: tuple[int, int] | None) -> None:
        """Mark it; called by the library."""
        self.came = came
        self.worker.done.append((self, status))

    def finish(self, status: int) -> None:
        """Settle the future, unless its owner has cancelled it."""
        if status != d.Status.OK:
            self.fail(ConnectionLostError(f"UCX: {d.describe(status)}"))
        elif self._is_awaited:
            self.future.set_result(self.result if self.came is None else self._received())

    def fail(self, error: TransportError) -> None:
        """Settle the future with an error that need not be looked at."""
        if self._is_awaited:
            self.future.set_exception(error)
            self.future.exception()  # nobody has to await a send

    @property
    def _is_awaited(self) -> bool:
        """Whether somebody may still want to know; nobody does once the loop is closed."""
        return not self.future.done() and not self.worker.loop.is_closed()

    def _received(self) -> Any:
        assert self.came is not None
        return self.result(*self.came) if callable(self.result) else self.result


class UcxWorker:
    """Owns one worker of the library. ``deliver`` is called after progress; ``failure`` is the
    status of the first error of its endpoint."""

    def __init__(
        self,
        context: UcxContext,
        *,
        untagged_bytes_max: int = UNTAGGED_BYTES_MAX,
        is_guarded: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """``is_guarded``: its ports for data can be restricted (:meth:`restrict`). ``loop`` is
        given by another thread: nothing runs before :meth:`start`, on the loop's thread."""
        self.context = context
        self.library = context.library
        self.loop = asyncio.get_running_loop() if loop is None else loop
        self.untagged_bytes_max = untagged_bytes_max
        self.number = self.library.next_number()
        self.deliver: Callable[[], None] = _nothing
        self.on_destroyed: Callable[[], None] = _nothing
        self.abort: Callable[[], None] = self.destroy
        """What closes it, with what its owner has upon it, at once."""
        self.must_linger = False
        """Whether it must not be destroyed while requests are under way: old releases end the
        process over one that waits in its endpoint."""
        self.failure = 0
        self.error: TransportError | None = None
        self.requests_to_connect: list[Any] = []
        self.untagged: list[bytes | memoryview] = []
        self.untagged_bytes = 0
        self.done: list[tuple[PostedOperation, int]] = []
        self.operations: dict[int, PostedOperation] = {}
        self._fetches: list[tuple[Any, int]] = []
        self._is_woken = False
        self._is_lent = False
        ffi = self.library.ffi
        self._functions = self.library.functions
        self._cast = ffi.cast
        self._pointer_number = ffi.typeof("uintptr_t")
        self._void = ffi.typeof("void *")
        self._ports: list[ListeningPort] = []
        listening = listening_ports() if is_guarded else {}
        self._handle: Any = self._create()
        try:
            if is_guarded:
                self._ports = ports_of(self._address(), listening)
            self._descriptor = self._open_descriptor()
            self._listen_to_untagged()
        except BaseException:
            self._functions.ucp_worker_destroy(self._handle)
            raise
        self._make_params()
        self.library.workers[self.number] = self
        if loop is None:
            self.start()

    def start(self) -> None:
        """Make progress from now on. On the loop's thread."""
        self.context.workers.add(self)
        self.loop.add_reader(self._descriptor, self._pump)
        self.wake()

    def lend(self) -> None:
        """Make no progress: another thread has the library's worker until :meth:`take_back`."""
        self._is_lent = True
        self.loop.remove_reader(self._descriptor)

    def take_back(self) -> None:
        """The other thread is done with it."""
        self._is_lent = False
        if self._handle is not None and not self.context.is_poisoned:
            self.loop.add_reader(self._descriptor, self._pump)
            self.wake()

    def _create(self) -> Any:
        ffi = self.library.ffi
        params = ffi.new("ucp_worker_params_t *")
        params.field_mask = d.WORKER_THREAD_MODE | d.WORKER_FLAGS
        params.thread_mode = d.THREAD_MODE_SERIALIZED
        params.flags = d.WORKER_IGNORE_REQUEST_LEAK
        worker = ffi.new("void **")
        status = self._functions.ucp_worker_create(self.context.handle, params, worker)
        self.library.check("make a worker", status)
        return worker[0]

    def _address(self) -> bytes:
        """What peers would have to know of it, in the library's form."""
        ffi = self.library.ffi
        address, length = ffi.new("void **"), ffi.new("size_t *")
        status = self._functions.ucp_worker_get_address(self._handle, address, length)
        self.library.check("tell the address of a worker", status)
        try:
            return bytes(ffi.buffer(address[0], length[0]))
        finally:
            self._functions.ucp_worker_release_address(self._handle, address[0])

    def restrict(self, hosts: Iterable[IPv4Address] | None) -> None:
        """Let only ``hosts`` connect to its ports for data from now on, None: everybody; what is
        connected stays. Where the system has no such filters the ports stay as they are, and the
        log says so."""
        if self._handle is None or self.context.is_poisoned:
            return
        try:
            for port in self._ports:
                port.restrict(hosts)
        except TransportError as error:
            _log.warning("ports of UCX can be reached by anybody: %s", error)
            self._ports.clear()

    def _open_descriptor(self) -> int:
        out = self.library.ffi.new("int *")
        status = self._functions.ucp_worker_get_efd(self._handle, out)
        self.library.check("open the descriptor of a worker", status)
        return int(out[0])

    def _listen_to_untagged(self) -> None:
        """On every worker at once: UCX 1.13 crashes on an active message nobody has asked for."""
        params = self.library.ffi.new("ucp_am_handler_param_t *")
        params.field_mask = d.AM_HANDLER_FIELDS
        params.id = 0
        params.cb = self._cast(self._void, self.library.on_untagged)
        params.arg = self._cast(self._void, self.number)
        status = self._functions.ucp_worker_set_am_recv_handler(self._handle, params)
        self.library.check("listen to untagged messages", status)

    def _make_params(self) -> None:
        """The parameters of each kind of request; the library copies them in every call."""

        def params(callback: Any, mask: int = 0) -> Any:
            made = self.library.ffi.new("ucp_request_param_t *")
            made.op_attr_mask = d.OP_CALLBACK | d.OP_USER_DATA | mask
            made.cb = self._cast(self._void, callback)
            return made

        library = self.library
        self.send_params = params(library.on_sent)
        self.send_iov_params = params(library.on_sent, d.OP_DATATYPE)
        self.send_iov_params.datatype = d.DATATYPE_IOV
        self.send_untagged_params = params(library.on_sent, d.OP_FLAGS)
        self.send_untagged_params.flags = d.AM_SEND_REPLY
        self.receive_params = params(library.on_received)
        self.post_params = params(library.on_received, d.OP_NO_IMMEDIATE)
        self.fetch_params = params(library.on_fetched)
        self.close_params = params(library.on_sent)
        self.force_params = params(library.on_sent, d.OP_FLAGS)
        self.force_params.flags = d.CLOSE_FORCE

    # --- operations -------------------------------------------------------------------------------

    @property
    def handle(self) -> Any:
        """The library's worker. TransportError after :meth:`destroy` and after a fork."""
        if self._handle is None:
            raise ConnectionLostError("the UCX connection is closed")
        self.context.check_usable()
        return self._handle

    @property
    def is_destroyed(self) -> bool:
        """Whether the library's worker is gone."""
        return self._handle is None

    def begin(self, params: Any, keep: Any, result: Any = None) -> PostedOperation:
        """An operation about to be posted with ``params``. ``keep`` lives until it is complete;
        ``result`` is what its future becomes, or makes that of tag and length of what came."""
        operation = PostedOperation(self, keep, result)
        params.user_data = self._cast(self._void, operation.number)
        self.library.operations[operation.number] = operation
        return operation

    def posted(self, operation: PostedOperation, pointer: Any) -> asyncio.Future[Any]:
        """The future of an operation, given what the library answered to it."""
        self.wake()
        value = int(self._cast(self._pointer_number, pointer))
        if value and value < d.ERROR_POINTERS_FIRST:
            operation.request = pointer
            self.operations[operation.number] = operation
        else:
            del self.library.operations[operation.number]
            operation.finish(value - 2**64 if value else d.Status.OK)
        return operation.future

    def cancel(self, operation: PostedOperation) -> None:
        """Give up a posted receive; it completes as cancelled, or with what came meanwhile."""
        if operation.number not in self.operations or self.context.is_poisoned:
            return
        if self._handle is not None:
            self._functions.ucp_request_cancel(self._handle, operation.request)
            self.wake()

    def cancel_posted(self) -> None:
        """Give up all posted receives: they outlive their peer otherwise."""
        for operation in list(self.operations.values()):
            if operation.is_posted:
                self.cancel(operation)

    @property
    def is_sending(self) -> bool:
        """Whether anything but posted receives is under way."""
        return any(not operation.is_posted for operation in self.operations.values())

    async def sent(self, *, timeout: float) -> None:
        """Wait until nothing but posted receives is under way, at most ``timeout`` seconds."""
        futures = [each.future for each in self.operations.values() if not each.is_posted]
        if futures:
            await asyncio.wait(futures, timeout=timeout)

    def fail_pending(self, error: TransportError) -> None:
        """Settle all futures; memory stays with the operations, which the library may not be done
        with."""
        for operation in list(self.operations.values()):
            operation.fail(error)

    # --- progress ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make progress soon, once; never again when the loop is closed."""
        if not self._is_woken and not self.loop.is_closed():
            self._is_woken = True
            self.loop.call_soon(self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self._pump()

    def _pump(self) -> None:
        """Progress until nothing is left or the turn is over."""
        if self._handle is None or self._is_lent:
            return
        if self.context.is_poisoned:
            self.loop.remove_reader(self._descriptor)
            return
        progress = self._functions.ucp_worker_progress
        end_ns = time.monotonic_ns() + TURN_NS_MAX
        while True:
            is_idle = is_over = False
            for _ in range(_PROGRESS_PER_LOOK):
                is_idle = progress(self._handle) == 0
                is_over = time.monotonic_ns() >= end_ns  # one call may take milliseconds
                if is_idle or is_over:
                    break
            self._settle()
            self.deliver()
            if self._handle is None or self._is_lent:
                return
            if is_idle and self._is_armed():
                return
            if is_over:
                self.wake()
                return

    def _is_armed(self) -> bool:
        """Whether the descriptor will fire at the next event; not while events are there."""
        status = self._functions.ucp_worker_arm(self._handle)
        if status not in (d.Status.OK, d.Status.BUSY) and not self.failure:
            self.failure = status
            self.wake()
        return bool(status != d.Status.BUSY)

    def drain(self) -> None:
        """Progress until nothing is left: what a peer sent before it went is still to be read."""
        for _ in range(_DRAIN_CALLS_MAX):
            if self._functions.ucp_worker_progress(self.handle) == 0:
                break
        self._settle()

    def _settle(self) -> None:
        """Complete what the library has marked."""
        done, self.done = self.done, []
        for operation, status in done:
            if self.library.operations.pop(operation.number, None) is None:
                continue
            self.operations.pop(operation.number, None)
            self._functions.ucp_request_free(operation.request)
            operation.finish(status)
        fetches, self._fetches = self._fetches, []
        for data, length in fetches:
            self._fetch(data, length)

    # --- untagged messages ------------------------------------------------------------------------

    def untagged_came(self, data: Any, length: int, is_rendezvous: bool) -> int:
        """Take an untagged message, or note that it is to be fetched; called by the library."""
        if is_rendezvous:
            self._fetches.append((data, length))
            return int(d.Status.IN_PROGRESS)
        if self._admit(length):
            ffi = self.library.ffi
            self.untagged.append(bytes(ffi.buffer(data, length)) if length else b"")
        return int(d.Status.OK)

    def _admit(self, length: int) -> bool:
        """Whether that many more bytes may wait for the owner; the connection fails if not."""
        if self.error is not None:
            return False
        if self.untagged_bytes + length > self.untagged_bytes_max:
            self.error = ConnectionLostError(
                f"untagged messages of {self.untagged_bytes + length} bytes wait, the limit is "
                f"{self.untagged_bytes_max} bytes"
            )
            return False
        if len(self.untagged) >= UNTAGGED_COUNT_MAX:
            self.error = ConnectionLostError(
                f"untagged messages wait, the limit is {UNTAGGED_COUNT_MAX} messages"
            )
            return False
        self.untagged_bytes += length
        return True

    def take_untagged(self) -> list[bytes | memoryview]:
        """What came, in order of completion."""
        taken, self.untagged = self.untagged, []
        self.untagged_bytes -= sum(len(message) for message in taken)
        return taken

    def _fetch(self, data: Any, length: int) -> None:
        """Get a long untagged message, whose sender waits for that."""
        if not self._admit(length):
            self._functions.ucp_am_data_release(self._handle, data)
            return
        buffer = pa.allocate_buffer(length)
        operation = self.begin(self.fetch_params, buffer, buffer)
        pointer = self._functions.ucp_am_recv_data_nbx(
            self._handle, data, self._cast(self._void, buffer.address), length, self.fetch_params
        )
        future = self.posted(operation, pointer)
        future.add_done_callback(self._fetched)

    def _fetched(self, future: asyncio.Future[pa.Buffer]) -> None:
        if not future.cancelled() and future.exception() is None:
            self.untagged.append(memoryview(future.result()))
            self.wake()

    # --- end --------------------------------------------------------------------------------------

    def end(self) -> None:
        """Settle what is under way, and destroy the library's worker now or, when it must linger,
        as soon as its requests are complete. Endpoints should be closed before. Idempotent."""
        if not self.must_linger:
            self.destroy()
            return
        self.fail_pending(ConnectionLostError("the UCX connection is closed"))
        self.deliver = self._destroy_when_done
        self.wake()

    def _destroy_when_done(self) -> None:
        if self.failure or not self.is_sending:
            self.must_linger = False
            self.destroy()

    def destroy(self) -> None:
        """Destroy the library's worker and settle what was under way. Idempotent."""
        if self._handle is None:
            return
        self.library.workers.pop(self.number, None)
        self.context.workers.discard(self)
        if not self.context.is_poisoned:
            self.loop.remove_reader(self._descriptor)
            self._free()
        self._handle = None
        self.fail_pending(self.error or ConnectionLostError("the UCX connection is closed"))
        for number in self.operations:
            self.library.operations.pop(number, None)
        self.operations.clear()
        self.done.clear()
        self.on_destroyed()

    def _free(self) -> None:
        """Give everything back to the library."""
        if self.must_linger:
            self.context.has_abandoned = True
            ABANDONED.append(list(self.operations.values()))
            return
        fetches, self._fetches = self._fetches, []
        for data, _ in fetches:
            self._functions.ucp_am_data_release(self._handle, data)
        self._settle()
        for operation in self.operations.values():
            self._functions.ucp_request_free(operation.request)
        self._functions.ucp_worker_destroy(self._handle)


def _nothing() -> None:
    """Nobody to deliver to yet."""
