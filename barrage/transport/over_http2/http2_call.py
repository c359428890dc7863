"""One call of an HTTP/2 connection, as the context its behavior has."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from barrage.errors import StatusCode
from barrage.transport.call_running import END_OF_REQUESTS, status_of
from barrage.transport.over_http2.grpc_headers import answer_headers, status_trailers, web_trailers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn, Protocol

    from barrage.transport.base import PeerIdentity
    from barrage.transport.over_http2.grpc_headers import Metadata, RequestHead
    from barrage.transport.over_http2.http2_connection import Http2Connection
    from barrage.transport.over_http2.http2_stream import Http2Stream
    from barrage.wire.message_parts import MessageParts

    class CallCarrier(Protocol):
        """The connection of the call, with its socket."""

        peer: str
        identity: PeerIdentity
        core: Http2Connection

        def flush_soon(self) -> None:
            """There is something to send."""
            ...

        def flush(self) -> None:
            """Send it now, as far as the socket takes it."""
            ...

        def forget(self, stream: Http2Stream) -> None:
            """The call is over."""
            ...


_GONE = "the client has gone"


class Http2Call:
    """A call while its behavior runs. On the loop of its connection."""

    def __init__(self, carrier: CallCarrier, stream: Http2Stream, head: RequestHead) -> None:
        self.method = head.method
        self.is_cancelled = False
        self._head = head
        self._carrier = carrier
        self._core = carrier.core
        self._stream = stream
        self._is_over = False
        self._deserialize: Any = None
        self._serialize: Any = None
        self._readers: set[asyncio.Future[None]] = set()
        self._writers: set[asyncio.Future[bool]] = set()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        if head.timeout_s is not None:
            self._deadline = self._loop.call_later(head.timeout_s, self._expire)

    # --- what behaviors see -----------------------------------------------------------------------

    def invocation_metadata(self) -> Metadata:
        return self._head.metadata

    def peer(self) -> str:
        return self._carrier.peer

    def peer_identity(self) -> PeerIdentity:
        return self._carrier.identity

    async def read(self) -> Any:
        while True:
            message = self._core.take(self._stream)
            if message is not None:
                break
            if self._stream.is_remote_ended or self._stream.is_closed or self._is_over:
                return END_OF_REQUESTS
            self._core.want(self._stream)
            if self._core.out_bytes:
                self._carrier.flush_soon()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._readers.add(waiter)
            try:
                await waiter
            finally:
                self._readers.discard(waiter)
        if self._core.out_bytes:
            self._carrier.flush_soon()
        return message if self._deserialize is None else self._deserialize(message)

    def post(self, message: Any, on_taken: Callable[[], None]) -> bool:
        """Send one message; whether it was taken at once. Otherwise it waits behind those before
        it, and ``on_taken`` is called when it is taken. InternalError of gRPC when the client has
        gone."""
        if self._is_over:
            raise grpc.aio.InternalError(_GONE)
        data = message if self._serialize is None else self._serialize(message)
        if self._try_send(data):
            return True
        self._core.queue(self._stream, data, on_taken)
        return False

    async def write(self, message: Any) -> None:
        if self._is_over:
            raise grpc.aio.InternalError(_GONE)
        data = message if self._serialize is None else self._serialize(message)
        if not self._try_send(data):
            await self._write_in_turn(data)

    async def write_parts(self, message: MessageParts) -> None:
        """The same for a message of which nothing is to be copied."""
        if self._is_over:
            raise grpc.aio.InternalError(_GONE)
        if not self._stream.is_answered:
            self._core.respond(self._stream, answer_headers(self._head, ()))
        await self._write_in_turn(message)

    async def _write_in_turn(self, data: bytes | MessageParts) -> None:
        taken: asyncio.Future[bool] = self._loop.create_future()
        self._writers.add(taken)
        resolve = partial(_resolve, taken)
        self._core.queue(self._stream, data, resolve)
        self._carrier.flush()
        try:
            if not await taken:
                raise grpc.aio.InternalError(_GONE)
        except asyncio.CancelledError:
            self._core.withdraw(self._stream, resolve)
            raise
        finally:
            self._writers.discard(taken)

    def _try_send(self, data: bytes) -> bool:
        if not self._stream.is_answered:
            self._core.respond(self._stream, answer_headers(self._head, ()))
        is_sent = self._core.try_send(self._stream, data)
        self._carrier.flush_soon()
        return is_sent

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str]]) -> None:
        if self._is_over or self._stream.is_answered:
            raise grpc.aio.InternalError("the headers are out, or the call is over")
        self._core.respond(self._stream, answer_headers(self._head, metadata))
        self._carrier.flush_soon()

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str]] = (),
    ) -> NoReturn:
        """End the call with this status."""
        self.finish(status_of(code), details, trailing_metadata)
        raise grpc.aio.AbortError(details)

    # --- what runs it -----------------------------------------------------------------------------

    def use(self, handler: Any) -> None:
        self._deserialize = handler.request_deserializer
        self._serialize = handler.response_serializer

    def runs_as(self, task: asyncio.Task[None]) -> None:
        """Whom to cancel when the client ends the call."""
        self._task = task

    def finish(
        self,
        code: StatusCode | None,
        details: str = "",
        metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> None:
        """The call has ended; None is OK. What was sent before can still be read."""
        if self._is_over:
            return
        is_answered = self._stream.is_answered
        ahead = [] if is_answered else self._head.answer
        trailers = status_trailers(code, details, metadata, ahead=ahead)
        self._end()
        if code is not None:
            self._core.forget_queued(self._stream)
        if is_answered and self._head.is_web:
            self._core.end_with(self._stream, web_trailers(trailers))
        else:
            self._core.end(self._stream, trailers)
        self._carrier.forget(self._stream)
        self._carrier.flush_soon()

    def end_with(self, code: StatusCode, details: str) -> None:
        """End it from outside of its behavior."""
        self.finish(code, details)
        self._cancel()

    def cut(self) -> None:
        """The stream is gone."""
        self.is_cancelled = True
        self._end()
        self._cancel()

    def wake(self) -> None:
        """Something has come."""
        for waiter in self._readers:
            if not waiter.done():
                waiter.set_result(None)

    def _end(self) -> None:
        self._is_over = True
        if self._deadline is not None:
            self._deadline.cancel()
        self.wake()
        for taken in self._writers:
            if not taken.done():
                # Not the error itself: kept by a future that its own frames name, it is a cycle.
                taken.set_result(False)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _expire(self) -> None:
        self.end_with(StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")


def _resolve(taken: asyncio.Future[bool]) -> None:
    if not taken.done():
        taken.set_result(True)
