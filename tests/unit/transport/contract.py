"""A server of raw behaviors and a channel to it, by each transport: what the contract is run on."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from barrage.client.connection.address import parse_address
from barrage.client.synchronous.sync_loop import LoopThread
from barrage.limits import Limits
from barrage.transport import registry
from barrage.transport.base import ConnectOptions, FlightConnector, HttpServer, ListenOptions
from barrage.transport.flight_messages import FLIGHT
from barrage.transport.inproc.inproc_channel import InprocChannel
from barrage.transport.inproc.inproc_listener import InprocListener

SERVICE = FLIGHT.strip("/")
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
TOLD_SECONDS = 180
"""A hang, nothing else."""

_names = itertools.count()


class Peer:
    """What the server's behaviors note, and what they wait for."""

    def __init__(self) -> None:
        self.metadata: dict[str, str] = {}
        self.received: list[bytes] = []
        self.written = 0
        self.ended: asyncio.Future[str]
        self._may_go_on: asyncio.Event

    def go_on(self) -> None:
        """From any loop."""
        self.ended.get_loop().call_soon_threadsafe(self._may_go_on.set)

    async def exchange(self, _: Any, context: Any) -> None:
        """Say how the client's first word wants the call to go, and let it go so."""
        self.ended = asyncio.get_running_loop().create_future()
        self._may_go_on = asyncio.Event()
        self.metadata = dict(context.invocation_metadata())
        try:
            word = await context.read()
            await getattr(self, word.decode())(context)
        except asyncio.CancelledError:
            self.ended.set_result("cancelled")
            raise
        except grpc.aio.AbortError:
            self.ended.set_result("aborted")
            raise
        self.ended.set_result("returned")

    async def echo(self, context: Any) -> None:
        await context.send_initial_metadata((("x-first", "1"), ("authorization", "Bearer fresh")))
        while (message := await context.read()) is not grpc.aio.EOF:
            self.received.append(message)
            await context.write(message)
        await context.write(b"half-closed")

    async def refuse(self, context: Any) -> None:
        await context.write(b"one")
        await context.write(b"two")
        await context.abort(grpc.StatusCode.NOT_FOUND, "table 'x' not found")

    async def leave(self, context: Any) -> None:
        await context.write(b"bye")

    async def stay(self, context: Any) -> None:
        await context.write(b"here")
        await asyncio.Event().wait()

    async def flood(self, context: Any) -> None:
        for _ in range(10_000):
            await context.write(bytes(64 * 1024))
            self.written += 1

    async def swallow(self, context: Any) -> None:
        await context.write(b"here")
        await self._may_go_on.wait()
        while (message := await context.read()) is not grpc.aio.EOF:
            self.received.append(message)

    async def grow(self, context: Any) -> None:
        await context.write(bytes(MESSAGE_BYTES_MAX + 1))
        await asyncio.Event().wait()

    async def fail(self, _: Any) -> None:
        raise RuntimeError("an accident")

    async def unary(self, request: bytes, context: Any) -> bytes:
        if request == b"refuse":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        if request == b"wait":
            await asyncio.Event().wait()
        await context.send_initial_metadata((("authorization", "Bearer unary"),))
        return request[::-1]

    async def stream(self, request: bytes, context: Any) -> None:
        if request == b"wait":
            await asyncio.Event().wait()
        for number in range(int(request)):
            await context.write(str(number).encode())

    def handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "DoExchange": grpc.stream_stream_rpc_method_handler(self.exchange),
                "GetSchema": grpc.unary_unary_rpc_method_handler(self.unary),
                "DoGet": grpc.unary_stream_rpc_method_handler(self.stream),
            },
        )


@contextlib.asynccontextmanager
async def found_by_scheme(
    peer: Peer, host: str, *, http: HttpServer = "own"
) -> AsyncIterator[tuple[FlightConnector, Any]]:
    options = ListenOptions(
        port=0, message_bytes_max=MESSAGE_BYTES_MAX, keepalive_ms=30_000, http=http
    )
    listener = registry.TRANSPORTS.find(registry.scheme_of(host)).listen(host, options)
    listener.bind()
    listener.add_generic_rpc_handlers((peer.handler(),))
    await listener.start()
    address = parse_address(listener.uri)
    limits = Limits(message_bytes_max=MESSAGE_BYTES_MAX)
    channel = registry.TRANSPORTS.find(address.scheme).connect(
        address, ConnectOptions(limits=limits, authorization="Bearer first")
    )
    try:
        yield channel, lambda: listener.stop(0)
    finally:
        await channel.close()
        await listener.stop(0)


def over_grpc(peer: Peer) -> Any:
    return found_by_scheme(peer, "127.0.0.1")


def by_grpcio(peer: Peer) -> Any:
    return found_by_scheme(peer, "127.0.0.1", http="grpcio")


@contextlib.asynccontextmanager
async def over_unix(
    peer: Peer, *, http: HttpServer = "own"
) -> AsyncIterator[tuple[FlightConnector, Any]]:
    with tempfile.TemporaryDirectory() as directory:
        async with found_by_scheme(peer, f"unix://{directory}/s", http=http) as made:
            yield made


def unix_by_grpcio(peer: Peer) -> Any:
    return over_unix(peer, http="grpcio")


def inproc_channel(name: str) -> InprocChannel:
    limits = Limits(message_bytes_max=MESSAGE_BYTES_MAX)
    return InprocChannel(name, limits=limits, authorization="Bearer first")


def _listener(peer: Peer) -> InprocListener:
    made = InprocListener(f"contract-{next(_names)}", message_bytes_max=MESSAGE_BYTES_MAX)
    made.add_generic_rpc_handlers((peer.handler(),))
    return made


@contextlib.asynccontextmanager
async def on_one_loop(peer: Peer) -> AsyncIterator[tuple[InprocChannel, Any]]:
    listener = _listener(peer)
    await listener.start()
    channel = inproc_channel(listener.name)
    try:
        yield channel, lambda: listener.stop(0)
    finally:
        await channel.close()
        await listener.stop(0)


@contextlib.asynccontextmanager
async def on_two_loops(peer: Peer) -> AsyncIterator[tuple[InprocChannel, Any]]:
    listener, thread = _listener(peer), LoopThread("contract server")
    thread.call(listener.start(), TOLD_SECONDS)
    channel = inproc_channel(listener.name)

    async def stop() -> None:
        await asyncio.to_thread(thread.call, listener.stop(0), TOLD_SECONDS)

    try:
        yield channel, stop
    finally:
        await channel.close()
        await stop()
        await asyncio.to_thread(thread.close)


TRANSPORTS: dict[str, Callable[[Peer], Any]] = {
    "grpc": over_grpc,
    "grpc-by-grpcio": by_grpcio,
    "unix": over_unix,
    "unix-by-grpcio": unix_by_grpcio,
    "inproc": on_one_loop,
    "inproc-two-loops": on_two_loops,
}


async def until(condition: Callable[[], bool]) -> None:
    """Return when ``condition`` holds."""
    async with asyncio.timeout(TOLD_SECONDS):
        while not condition():  # noqa: ASYNC110 - what other loops do rings no bell here
            await asyncio.sleep(0.001)


async def settled(count: Callable[[], int]) -> int:
    """What ``count`` has come to when it does not grow any more over many turns of the loop."""
    seen, turns = -1, 0
    while turns < 50:
        now = count()
        seen, turns = (now, turns + 1) if now == seen else (now, 0)
        await asyncio.sleep(0.002)
    return seen
