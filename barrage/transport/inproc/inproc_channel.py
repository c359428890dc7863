"""The client's side of calls that do not go by gRPC, and of those within one process among them.

The calls, their headers, statuses, cancellation, half-close and back-pressure are those of
:mod:`barrage.transport.over_grpc.grpc_channel`; both pass the same contract
(``tests/unit/transport/contract.py``). ``inproc://name`` needs no socket and no encoding; every
call looks the server up by its name, so a client finds one that was started again.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

from barrage.errors import ConnectionLostError, StatusCode, SubscriptionClosedError
from barrage.transport.base import INFORMATION_HEADERS
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.inproc.inproc_call import SCHEME, InprocCall, acceptor_of
from barrage.transport.status import DeadlineError, error_from_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from barrage.errors import BarrageError
    from barrage.limits import Limits

_AUTHORIZATION = "authorization"


class CallChannel:
    """One client's way to one server, whatever carries the calls. Must be used on the event loop it
    was made on."""

    def __init__(
        self,
        target: str,
        *,
        limits: Limits,
        authorization: str | None = None,
        renewed_authorization: Callable[[], str] | None = None,
    ) -> None:
        self.target = target
        self._authorization = authorization
        self._renewed_authorization = renewed_authorization
        self._limits = limits
        self._calls: weakref.WeakSet[InprocCall] = weakref.WeakSet()
        self._is_closed = False

    @property
    def authorization(self) -> str | None:
        """The header of a call that begins now. AuthenticationError when it cannot be had."""
        if self._renewed_authorization is not None:
            return self._renewed_authorization()
        return self._authorization

    @authorization.setter
    def authorization(self, value: str | None) -> None:
        self._authorization = value

    def hand_over(self, call: InprocCall) -> None:
        """Let the server have a call that begins. ConnectionLostError when it cannot."""
        raise NotImplementedError

    def exchange(
        self, *, headers: Mapping[str, str] | None = None, table: str | None = None
    ) -> InprocStream:
        return self._stream(FLIGHT + "DoExchange", headers, table)

    def put(self, *, table: str | None = None) -> InprocStream:
        return self._stream(FLIGHT + "DoPut", None, table)

    def get(self, ticket: bytes, *, table: str | None = None) -> InprocStream:
        return self._asked(FLIGHT + "DoGet", ticket, table)

    async def unary(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> bytes:
        stream = self._asked(method, request, table)
        answer = b""
        try:
            async with asyncio.timeout(timeout):
                while (message := await stream.read()) is not None:
                    answer = message
        except TimeoutError:
            raise DeadlineError("Deadline Exceeded") from None
        finally:
            stream.cancel()
        return answer

    async def results(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> AsyncIterator[bytes]:
        stream = self._asked(method, request, table)
        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        try:
            while True:
                async with asyncio.timeout_at(until):
                    message = await stream.read()
                if message is None:
                    return
                yield message
        except TimeoutError:
            raise DeadlineError("Deadline Exceeded") from None
        finally:
            stream.cancel()

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for call in list(self._calls):
                call.cancel()

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def take_token(self, headers: Mapping[str, str], sent: str | None) -> None:
        """Use the token of an answer from now on, unless a newer one came since ``sent`` went
        out."""
        token = headers.get(_AUTHORIZATION, "")
        if self._authorization == sent and token.startswith("Bearer "):
            self._authorization = token

    def _asked(self, method: str, request: bytes, table: str | None) -> InprocStream:
        """A call with one request, which is on its way."""
        stream = self._stream(method, INFORMATION_HEADERS, table)
        stream.ask(request)
        return stream

    def _stream(
        self, method: str, headers: Mapping[str, str] | None, table: str | None
    ) -> InprocStream:
        if self._is_closed:
            raise SubscriptionClosedError("the session is closed")
        pairs = [(name.lower(), value) for name, value in (headers or {}).items()]
        authorization = self.authorization
        if authorization is not None:
            pairs.append((_AUTHORIZATION, authorization))
        call = InprocCall(method, tuple(pairs), window_bytes=self._limits.inproc_window_bytes)
        self._calls.add(call)
        try:
            self.hand_over(call)
        except ConnectionLostError as error:
            # As with a socket it is the first use of the stream that tells.
            call.finish(StatusCode.UNAVAILABLE, str(error))
        return InprocStream(self, call, table, message_bytes_max=self._limits.message_bytes_max)


class InprocChannel(CallChannel):
    """A client's way to the server of that name in this process."""

    def __init__(
        self,
        name: str,
        *,
        limits: Limits,
        authorization: str | None = None,
        renewed_authorization: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(
            f"{SCHEME}://{name}",
            limits=limits,
            authorization=authorization,
            renewed_authorization=renewed_authorization,
        )
        self._name = name

    def hand_over(self, call: InprocCall) -> None:
        acceptor_of(self._name).accept(call)


class InprocStream:
    """One streaming call as a :class:`barrage.transport.base.FrameStream`. A stream that nobody
    refers to any more is cancelled."""

    def __init__(
        self, channel: CallChannel, call: InprocCall, table: str | None, *, message_bytes_max: int
    ) -> None:
        self._channel = channel
        self._call = call
        self._table = table
        self._message_bytes_max = message_bytes_max
        self._write_lock = asyncio.Lock()
        self._sent = channel._authorization
        self._has_headers = False
        weakref.finalize(self, call.cancel).atexit = False

    def ask(self, request: bytes) -> None:
        """The only request of the call."""
        self._call.requests.put_last(request)

    async def read(self) -> bytes | None:
        message = await self._call.answers.read()
        if message is None:
            failure = self._failure()
            if failure is not None:
                raise failure
        elif len(message) > self._message_bytes_max:
            self._call.cancel(
                StatusCode.RESOURCE_EXHAUSTED,
                f"Received message larger than max ({len(message)} vs. {self._message_bytes_max})",
            )
            raise self._failure() or ConnectionLostError("the call has ended")
        if not self._has_headers:
            self._has_headers = True
            self._channel.take_token(await self.headers(), self._sent)
        return message

    async def headers(self) -> dict[str, str]:
        return dict(await self._call.headers())

    async def write(self, frame: bytes) -> None:
        # Frames of one stream go in the order of the calls, also when some have to wait.
        async with self._write_lock:
            is_taken = await self._call.requests.write(frame)
        if not is_taken:
            failure = self._failure()
            raise failure or error_from_status(StatusCode.INTERNAL, "the call has ended")

    async def half_close(self) -> None:
        self._call.requests.end()

    def cancel(self) -> None:
        self._call.cancel()

    def _failure(self) -> BarrageError | None:
        """What the status of the call stands for; None for OK."""
        code, details = self._call.status or (StatusCode.INTERNAL, "the call has no status")
        if code is None:
            return None
        if self._call.is_cancelled and code is StatusCode.CANCELLED:
            if self._channel.is_closed:
                return SubscriptionClosedError("the session is closed")
            return ConnectionLostError("the call was cancelled")
        return error_from_status(code, details, table=self._table)
