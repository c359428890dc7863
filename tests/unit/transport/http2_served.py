"""A listener with behaviors of every kind, clients of gRPC for it, and sockets that are none."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import grpc.aio
import h2.config
import h2.connection
import h2.events
import numpy as np
import pyarrow as pa

from barrage.limits import Limits
from barrage.transport import registry
from barrage.transport.base import ListenOptions
from barrage.wire.message_parts import MessageParts
from tests.unit.transport.contract import TOLD_SECONDS
from tests.unit.transport.http2_peer import REQUEST

SERVICE = "test.Service"

PARTED = [
    MessageParts([]),
    MessageParts([b"head", np.arange(100_000), b"", pa.py_buffer(b"tail")]),
    MessageParts([np.full(200_000 + 7 * each, each, np.uint8) for each in range(12)]),
]
"""Messages in parts: none, small and large ones, and some of many frames."""


class Behaviors:
    """What the server does; notes what it is told."""

    def __init__(self):
        self.seen = {}
        self.started = self.cancelled = 0
        self.tried = []
        self.taken = []

    async def echo(self, request, context):
        self.seen = {
            "metadata": list(context.invocation_metadata()),
            "peer": context.peer(),
            "identity": context.peer_identity(),
        }
        return request

    async def refuse(self, request, context):
        await context.send_initial_metadata((("x-bytes-bin", b"\0\xff"),))
        await context.abort(
            grpc.StatusCode.NOT_FOUND,
            "100 % naïve\n\x7f→",
            (("x-trailer", "end"), ("x-end-bin", b"\xff" * 5)),
        )

    async def wait(self, request, context):
        self.started += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1

    async def count(self, request, context):
        for number in range(int(request)):
            yield b"%d" % number

    async def flood(self, request, context):
        while True:
            await context.write(bytes(256 * 1024))

    async def in_parts(self, request, context):
        for message in PARTED:
            await context.write_parts(message)
            await context.write(b"between")

    async def reversed(self, requests, context):
        async for request in requests:
            yield request[::-1]

    async def join(self, requests, context):
        return b"".join([request async for request in requests])

    async def try_many(self, request, context):
        """Small messages, none of which anybody waits for, until one is not taken at once."""
        sent = 1
        while context.post(bytes(1000), lambda: self.taken.append("posted")):
            sent += 1
        self.tried.append(sent)
        assert not self.taken
        await context.write(b"%d" % sent)
        assert self.taken == ["posted"]

    def handler(self):
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Echo": grpc.unary_unary_rpc_method_handler(self.echo),
                "Refuse": grpc.unary_unary_rpc_method_handler(self.refuse),
                "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
                "Count": grpc.unary_stream_rpc_method_handler(self.count),
                "Flood": grpc.unary_stream_rpc_method_handler(self.flood),
                "InParts": grpc.unary_stream_rpc_method_handler(self.in_parts),
                "Reversed": grpc.stream_stream_rpc_method_handler(self.reversed),
                "Join": grpc.stream_unary_rpc_method_handler(self.join),
                "TryMany": grpc.unary_stream_rpc_method_handler(self.try_many),
            },
        )


def listener_on(host="127.0.0.1", *, port=0, tls=None, keepalive_ms=30_000, **limits):
    options = ListenOptions(
        port=port,
        message_bytes_max=1 << 20,
        keepalive_ms=keepalive_ms,
        limits=Limits(**limits),
        tls=tls,
    )
    return registry.TRANSPORTS.find(registry.scheme_of(host)).listen(host, options)


@contextlib.asynccontextmanager
async def served(host="127.0.0.1", **options):
    behaviors = Behaviors()
    listener = listener_on(host, **options)
    listener.add_generic_rpc_handlers((behaviors.handler(),))
    listener.bind()
    await listener.start()
    try:
        yield listener, behaviors
    finally:
        await listener.stop(0)
        await listener.stop(0)
        assert listener.connections_count == 0
        assert listener.calls_count == 0


def run(scene, *arguments, **options):
    async def main():
        async with asyncio.timeout(TOLD_SECONDS), served(*arguments, **options) as made:
            await scene(*made)

    asyncio.run(main())


def with_client(scene, host="127.0.0.1", **options):
    """Run ``scene(channel, listener, behaviors)`` with a client of grpc.aio."""

    async def with_channel(listener, behaviors):
        target = listener.uri.removeprefix("grpc://")
        # A pool that channels share may hold a connection to who listened at that path before.
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(target, options=options) as channel:
            await scene(channel, listener, behaviors)

    run(with_channel, host, **options)


def unary(channel, method):
    return channel.unary_unary(f"/{SERVICE}/{method}")


@contextlib.asynccontextmanager
async def raw(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def greeted(writer, *changed, path=f"/{SERVICE}/Echo"):
    """A client that has asked for one call, with these headers in the place of the usual ones."""
    client = h2.connection.H2Connection(
        h2.config.H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
    )
    client.initiate_connection()
    headers = {**dict(REQUEST), ":path": path, **dict(changed)}
    client.send_headers(1, list(headers.items()))
    client.send_data(1, bytes(5), end_stream=True)
    writer.write(client.data_to_send())
    return client


async def answer_of(client, reader, writer):
    """All headers and trailers of call 1."""
    found = {}
    while True:
        for event in client.receive_data(await reader.read(65_536)):
            if isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
                found |= dict(event.headers)
            if isinstance(event, h2.events.StreamEnded):
                return found
        writer.write(client.data_to_send())


async def gone(reader):
    """What was said until the server closed."""
    heard = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65_536):
            heard += data
    return heard
