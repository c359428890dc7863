"""One call that travels on a WebSocket, as the context its behavior has.

What the client has sent and nobody has read waits here, and so does what the behavior has sent and
the socket has no room for. Who carries the call says what room is: see the two protocols.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from barrage.transport.call_running import END_OF_REQUESTS, status_of
from barrage.transport.over_http2.http2_stream import MESSAGE_OVERHEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn, Protocol

    from barrage.errors import StatusCode
    from barrage.transport.base import PeerIdentity

    Metadata = tuple[tuple[str, str | bytes], ...]

    class SocketCarrier(Protocol):
        """The socket of the call, and what is spoken on it."""

        peer: str
        identity: PeerIdentity

        @property
        def is_clogged(self) -> bool:
            """Whether the socket takes nothing for now."""
            ...

        def taken(self, size: int) -> None:
            """So many bytes of the client's have been read, or never will be."""
            ...

        def blocked(self, call: SocketCall) -> None:
            """It has something to send as soon as there is room."""
            ...


_GONE = "the client has gone"


def held_bytes(message: bytes) -> int:
    """What a message holds that waits to be read: one without bytes is no less an object."""
    return len(message) + MESSAGE_OVERHEAD_BYTES


class SocketCall:
    """On the loop of its socket. How its answers look is for each protocol to say."""

    def __init__(
        self, carrier: SocketCarrier, stream: int, *, method: str, metadata: Metadata
    ) -> None:
        """``stream``: its number on the socket."""
        self.stream = stream
        self.method = method
        self.is_cancelled = False
        self.headers_sent = False
        self.messages_accepted = 0
        """Messages its behavior has sent, those that wait included."""
        self._metadata = metadata
        self._carrier = carrier
        self._loop = asyncio.get_running_loop()
        self._requests: deque[bytes] = deque()
        self._unread_bytes = 0
        self._is_half_closed = False
        self._is_over = False
        self._readers: set[asyncio.Future[None]] = set()
        self._waiting: deque[tuple[bytes, Callable[[bool], None]]] = deque()
        """Messages the socket has no room for, each with whom to tell whether it was taken."""
        self._end: tuple[StatusCode | None, str, Metadata] | None = None
        self._task: asyncio.Task[None] | None = None
        self._deserialize: Any = None
        self._serialize: Any = None

    # --- what behaviors see -----------------------------------------------------------------------

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return self._carrier.peer

    def peer_identity(self) -> PeerIdentity:
        return self._carrier.identity

    async def read(self) -> Any:
        while not self._requests:
            if self._is_half_closed or self._is_over:
                return END_OF_REQUESTS
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._readers.add(waiter)
            try:
                await waiter
            finally:
                self._readers.discard(waiter)
        message = self._requests.popleft()
        size = min(held_bytes(message), self._unread_bytes)
        self._unread_bytes -= size
        self._carrier.taken(size)
        if self._requests:
            # Who sends faster than it is answered takes turns with everybody else.
            await asyncio.sleep(0)
        return message if self._deserialize is None else self._deserialize(message)

    def post(self, message: Any, on_taken: Callable[[], None]) -> bool:
        """Send one message; whether it was taken at once. Otherwise it waits behind those before
        it, and ``on_taken`` is called when it is taken. InternalError of gRPC when the client has
        gone."""
        data = self._ready(message)
        if self._try_send(data):
            return True
        self._wait(data, lambda is_taken: on_taken() if is_taken else None)
        return False

    async def write(self, message: Any) -> None:
        data = self._ready(message)
        if self._try_send(data):
            return
        taken: asyncio.Future[bool] = self._loop.create_future()

        def tell(is_taken: bool) -> None:
            if not taken.done():
                taken.set_result(is_taken)

        self._wait(data, tell)
        try:
            if not await taken:
                raise grpc.aio.InternalError(_GONE)
        except asyncio.CancelledError:
            self._withdraw(tell)
            raise

    def _ready(self, message: Any) -> bytes:
        if self._is_over:
            raise grpc.aio.InternalError(_GONE)
        self.messages_accepted += 1
        self._open(())
        data: bytes = message if self._serialize is None else self._serialize(message)
        return data

    def _open(self, headers: Metadata) -> None:
        if not self.headers_sent:
            self.headers_sent = True
            self.put_headers(headers)

    async def send_initial_metadata(self, metadata: Iterable[tuple[str, str]]) -> None:
        if self._is_over or self.headers_sent:
            raise grpc.aio.InternalError("the headers are out, or the call is over")
        self._open(tuple((name.lower(), value) for name, value in metadata))

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, str | bytes]] = (),
    ) -> NoReturn:
        """End the call with this status."""
        self._finish(status_of(code), details, tuple(trailing_metadata))
        raise grpc.aio.AbortError(details)

    # --- what runs it -----------------------------------------------------------------------------

    def use(self, handler: Any) -> None:
        self._deserialize = handler.request_deserializer
        self._serialize = handler.response_serializer

    def runs_as(self, task: asyncio.Task[None]) -> None:
        """Whom to cancel when the client ends the call."""
        self._task = task

    def finish(self, code: StatusCode | None, details: str = "") -> None:
        """The call has ended; None is OK. Only the first time counts."""
        self._finish(code, details, ())

    def _finish(self, code: StatusCode | None, details: str, trailers: Metadata) -> None:
        """An end that is well comes after what was sent before it; another one overtakes it."""
        if self._is_over:
            return
        self._is_over = True
        if code is None and self._waiting:
            self._end = (code, details, trailers)
            return
        self._let_go()
        self.put_end(code, details, trailers)

    def end_with(self, code: StatusCode, details: str) -> None:
        """End it from outside of its behavior."""
        self.finish(code, details)
        self._cancel()

    def cut(self) -> None:
        """The client has ended it, or is gone. Idempotent."""
        self.is_cancelled = True
        self._is_over = True
        self._end = None
        self._let_go()
        self._cancel()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _let_go(self) -> None:
        """Wake whoever waits for the client."""
        waiting, self._waiting = self._waiting, deque()
        for _, tell in waiting:
            tell(False)
        self._requests.clear()
        unread, self._unread_bytes = self._unread_bytes, 0
        self._carrier.taken(unread)
        self._wake()

    # --- what comes -------------------------------------------------------------------------------

    @property
    def is_half_closed(self) -> bool:
        """Whether the client has said that it sends nothing more."""
        return self._is_half_closed

    def feed(self, message: bytes) -> bool:
        """A message of the client has come; whether somebody may read it."""
        if self._is_over or self._is_half_closed:
            return False
        self._requests.append(message)
        self._unread_bytes += held_bytes(message)
        self._wake()
        return True

    def half_close(self) -> None:
        """The client sends nothing more."""
        self._is_half_closed = True
        self._wake()

    def ask(self, message: bytes) -> None:
        """The only message of the client there will be, which somebody else has made."""
        self._requests.append(message)
        self.half_close()

    def _wake(self) -> None:
        for waiter in self._readers:
            if not waiter.done():
                waiter.set_result(None)

    # --- what goes --------------------------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether a message can go out now."""
        return not self._carrier.is_clogged

    def put_headers(self, headers: Metadata) -> None:
        """What goes ahead of the first message."""

    def put(self, data: bytes) -> None:
        """One message, for which there is room."""
        raise NotImplementedError

    def put_end(self, code: StatusCode | None, details: str, trailers: Metadata) -> None:
        """How the call has ended."""
        raise NotImplementedError

    def _try_send(self, data: bytes) -> bool:
        if self._waiting or not self.has_room():
            return False
        self.put(data)
        return True

    def _wait(self, data: bytes, tell: Callable[[bool], None]) -> None:
        self._waiting.append((data, tell))
        self._carrier.blocked(self)

    def _withdraw(self, tell: Callable[[bool], None]) -> None:
        self._waiting = deque(pair for pair in self._waiting if pair[1] is not tell)

    def go_on(self) -> bool:
        """Send what waits, as far as there is room; whether something waits still."""
        while self._waiting and self.has_room():
            data, tell = self._waiting.popleft()
            self.put(data)
            tell(True)
        if self._waiting:
            return True
        if self._end is not None:
            end, self._end = self._end, None
            self.put_end(*end)
        return False
