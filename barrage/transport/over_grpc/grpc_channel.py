"""The gRPC client transport: raw FlightData bytes over ``grpc.aio``, without generated stubs.

Identity serializers, because our codecs own the bytes; messages of 1-4 MiB move at 1.4-1.6 GB/s
this way. Every answer may carry a fresh ``authorization: Bearer`` header, which replaces the one
sent (this is how Deephaven hands out session tokens).
"""

from __future__ import annotations

import asyncio
import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from grpc import aio

from barrage.errors import ConnectionLostError, StatusCode, SubscriptionClosedError
from barrage.transport.base import INFORMATION_HEADERS
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.over_grpc.fork_guard import fork_guard
from barrage.transport.status import error_from_rpc, error_from_status
from barrage.transport.tls.client_tls import read_material
from barrage.transport.whole_reads import WholeReads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Mapping

    from barrage.transport.base import TLS

SETTLE_SECONDS_MAX = 0.2
"""How long closing waits for gRPC's last words about cancelled calls."""

_AUTHORIZATION = "authorization"
_GRPC_CALL_TASKS = "_AioCall."
_WRITE_MET_THE_END = "Internal error from Core"
_STATUS_POLL_SECONDS = 0.005
_STATUS_POLLS_MAX = 200

_EOF: Any = aio.EOF  # type: ignore[attr-defined]


def _channel_options(
    message_bytes_max: int, tls: TLS | None, connect_seconds_max: float | None
) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_send_message_length", message_bytes_max),
        # A dead peer is noticed even when nothing ticks.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.max_pings_without_data", 0),
        # Back-off between connection attempts is the subscription's business.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Our subscriptions are independent; a global pool would share one broken connection.
        ("grpc.use_local_subchannel_pool", 1),
    ]
    if connect_seconds_max is not None:
        # Its name says otherwise, but this is what one attempt to connect may take.
        milliseconds = max(int(connect_seconds_max * 1000), 1)
        options.append(("grpc.min_reconnect_backoff_ms", milliseconds))
    if tls is not None and tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return options


def _open_channel(target: str, options: list[tuple[str, Any]], tls: TLS | None) -> aio.Channel:
    if tls is None:
        return aio.insecure_channel(target, options=options)
    material = read_material(tls)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=material.ca,
        private_key=material.key,
        certificate_chain=material.certificate,
    )
    return aio.secure_channel(target, credentials, options=options)


@dataclass(slots=True)
class _StreamConnection:
    """A connection of its own for streams that last."""

    channel: aio.Channel
    streams: int = 0


class GrpcChannel:
    """One gRPC channel. Must be used on the event loop it was made on.

    A server may limit the streams of one connection; gRPC then keeps further calls waiting without
    a word, for ever if the streams last. So with ``streams_per_connection_max`` exchanges go over
    connections of their own, as many as they need, and all other calls find theirs free.
    """

    def __init__(
        self,
        target: str,
        *,
        message_bytes_max: int,
        authorization: str | None = None,
        renewed_authorization: Callable[[], str] | None = None,
        tls: TLS | None = None,
        streams_per_connection_max: int | None = None,
        connect_seconds_max: float | None = None,
    ) -> None:
        self.message_bytes_max = message_bytes_max
        options = _channel_options(message_bytes_max, tls, connect_seconds_max)
        self._open_another = partial(_open_channel, target, options, tls)
        self._channel = self._open_another()
        fork_guard.opened(self)
        self._streams_max = streams_per_connection_max
        self._stream_connections: list[_StreamConnection] = []
        self.target = target
        self._authorization = authorization
        self._renewed_authorization = renewed_authorization
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

    def exchange(
        self, *, headers: Mapping[str, str] | None = None, table: str | None = None
    ) -> GrpcStream:
        self._check_open()
        connection = self._connection_for_stream()
        method: Any = connection.channel.stream_stream(FLIGHT + "DoExchange", None, None)
        call = method(metadata=self._metadata(headers))
        connection.streams += 1
        call.add_done_callback(partial(_count_end, connection))
        return GrpcStream(self, call, table)

    def _connection_for_stream(self) -> _StreamConnection:
        if self._streams_max is None:
            return _StreamConnection(self._channel)
        for connection in self._stream_connections:
            if connection.streams < self._streams_max:
                return connection
        self._stream_connections.append(_StreamConnection(self._open_another()))
        return self._stream_connections[-1]

    def put(self, *, table: str | None = None) -> GrpcStream:
        call = self._stream_stream("DoPut")(metadata=self._metadata(None))
        return GrpcStream(self, call, table)

    def get(self, ticket: bytes, *, table: str | None = None) -> GrpcStream:
        self._check_open()
        method = self._channel.unary_stream(FLIGHT + "DoGet", None, None)
        return GrpcStream(self, method(ticket, metadata=self._metadata(None)), table)

    async def unary(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> bytes:
        self._check_open()
        sent = self._authorization
        call = self._channel.unary_unary(method, None, None)(
            request, timeout=timeout, metadata=self._metadata(INFORMATION_HEADERS)
        )
        try:
            answer = await call
            self._take_token(await call.initial_metadata(), sent)
        except aio.AioRpcError as error:
            raise error_from_rpc(error, table=table) from error
        except asyncio.CancelledError:
            self._raise_if_closed(call)
            raise
        return bytes(answer)

    async def results(
        self, method: str, request: bytes, *, timeout: float | None, table: str | None = None
    ) -> AsyncIterator[bytes]:
        self._check_open()
        call = self._channel.unary_stream(method, None, None)(
            request, timeout=timeout, metadata=self._metadata(None)
        )
        stream = GrpcStream(self, call, table)
        try:
            while (message := await stream.read()) is not None:
                yield message
        finally:
            stream.cancel()

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for connection in self._stream_connections:
                await connection.channel.close(grace=None)
            await self._channel.close(grace=None)
            fork_guard.closed(self)
            await _settle_cancelled_calls()

    def _stream_stream(self, method: str) -> Any:
        self._check_open()
        return self._channel.stream_stream(FLIGHT + method, None, None)

    def _metadata(self, headers: Mapping[str, str] | None) -> list[tuple[str, str]]:
        pairs = list((headers or {}).items())
        authorization = self.authorization
        if authorization is not None:
            pairs.append((_AUTHORIZATION, authorization))
        return pairs

    def _take_token(self, metadata: Any, sent: str | None) -> None:
        """Use the token of an answer from now on, unless a newer one came since ``sent`` went out:
        answers overtake each other, and one of an ended session must not bring its token back."""
        if self._authorization != sent:
            return
        for key, value in metadata or ():
            if key == _AUTHORIZATION and str(value).startswith("Bearer "):
                self._authorization = str(value)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SubscriptionClosedError("the session is closed")

    def _raise_if_closed(self, call: Any) -> None:
        """grpc turns a call that another task cancelled into CancelledError; that is not a
        cancelled task."""
        task = asyncio.current_task()
        if task is None or task.cancelling():
            return
        if self._is_closed:
            raise SubscriptionClosedError("the session is closed")
        if call.cancelled():
            raise ConnectionLostError("the call was cancelled")


def _count_end(connection: _StreamConnection, call: Any) -> None:
    connection.streams -= 1


async def _settle_cancelled_calls() -> None:
    """Wait until gRPC has told this loop how its cancelled calls ended.

    gRPC hands the events of all loops of a process to whichever loop wakes first. If this loop were
    closed before its last ones, another loop (that of a server in this process, say) would print
    "Event loop is closed". gRPC has no call for this; its tasks are known by their names, and those
    of other channels on this loop are why the wait is short.
    """
    pending = [
        task
        for task in asyncio.all_tasks()
        if getattr(task.get_coro(), "__qualname__", "").startswith(_GRPC_CALL_TASKS)
    ]
    if pending:
        await asyncio.wait(pending, timeout=SETTLE_SECONDS_MAX)


class GrpcStream:
    """One streaming call as a :class:`barrage.transport.base.FrameStream`."""

    def __init__(self, channel: GrpcChannel, call: Any, table: str | None) -> None:
        self._channel = channel
        self._call = call
        self._reads = WholeReads[Any](call.read)
        self._table = table
        self._write_lock = asyncio.Lock()
        self._peers_end: aio.AioRpcError | None = None
        self._sent: str | None = channel._authorization
        self._has_headers = False
        call.add_done_callback(partial(_note_end_of, weakref.WeakMethod(self._note_end)))

    async def read(self) -> bytes | None:
        try:
            message = await self._reads.read()
            if message is not _EOF:
                if not self._has_headers:
                    self._has_headers = True
                    self._channel._take_token(await self._call.initial_metadata(), self._sent)
                return message  # type: ignore[no-any-return]
            code = await self._call.code()
            if code is not grpc.StatusCode.OK:
                failure = await self._peers_word(await self._failure())
                raise error_from_rpc(failure, table=self._table)
        except aio.AioRpcError as error:
            raise error_from_rpc(await self._peers_word(error), table=self._table) from error
        except asyncio.CancelledError:
            self._channel._raise_if_closed(self._call)
            raise
        return None

    async def headers(self) -> dict[str, str]:
        try:
            metadata = await self._call.initial_metadata()
        except aio.AioRpcError as error:
            raise error_from_rpc(await self._peers_word(error), table=self._table) from error
        except asyncio.CancelledError:
            self._channel._raise_if_closed(self._call)
            raise
        return {key: value for key, value in metadata or () if isinstance(value, str)}

    async def write(self, frame: bytes) -> None:
        most = self._channel.message_bytes_max
        if len(frame) > most:
            # gRPC would call it an internal error, as it does a connection that is cut.
            text = f"Sent message larger than max ({len(frame)} vs. {most})"
            raise error_from_status(StatusCode.RESOURCE_EXHAUSTED, text, table=self._table)
        try:
            # gRPC refuses a second write before the first is taken.
            async with self._write_lock:
                await self._call.write(frame)
        except aio.AioRpcError as error:
            raise error_from_rpc(await self._peers_word(error), table=self._table) from error
        except asyncio.InvalidStateError as error:
            raise error_from_rpc(await self._failure(), table=self._table) from error
        except asyncio.CancelledError:
            self._channel._raise_if_closed(self._call)
            raise

    async def half_close(self) -> None:
        try:
            await self._call.done_writing()
        except aio.AioRpcError as error:
            raise error_from_rpc(await self._peers_word(error), table=self._table) from error
        except asyncio.InvalidStateError:
            # The peer ended the call first; reading says how.
            return

    def cancel(self) -> None:
        self._call.cancel()

    async def _failure(self) -> aio.AioRpcError:
        return aio.AioRpcError(
            await self._call.code(),
            await self._call.initial_metadata(),
            await self._call.trailing_metadata(),
            await self._call.details(),
            None,
        )

    async def _peers_word(self, error: aio.AioRpcError) -> aio.AioRpcError:
        """How the peer ended the call.

        A write that meets a call the peer has just ended makes gRPC say INTERNAL in place of the
        peer's status, which has either come already (and was noted) or is about to.
        """
        for _ in range(_STATUS_POLLS_MAX):
            if error.details() != _WRITE_MET_THE_END:
                break
            if self._peers_end is not None:
                return self._peers_end
            await asyncio.sleep(_STATUS_POLL_SECONDS)
        return error

    def _note_end(self, call: Any) -> None:
        """The call has a status. None of these coroutines waits for anything any more."""
        details = _result_of(call.details())
        if details != _WRITE_MET_THE_END:
            self._peers_end = aio.AioRpcError(
                _result_of(call.code()),
                _result_of(call.initial_metadata()),
                _result_of(call.trailing_metadata()),
                details=details,
                debug_error_string=None,
            )


def _note_end_of(stream: weakref.WeakMethod[Callable[[Any], None]], call: Any) -> None:
    """A call must not keep its stream alive."""
    note = stream()
    if note is not None:
        note(call)


def _result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    coroutine.close()
    raise AssertionError("a finished call has its status")
