"""A listener that stops while somebody comes leaves nothing open, whichever turn of the loop it
is."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest

from barrage.limits import Limits
from barrage.server.operations.metrics_listener import MetricsListener
from barrage.transport.sockets.servers import close_servers
from tests.unit.transport.grpc_web_served import web_listener
from tests.unit.transport.http2_served import listener_on
from tests.unit.transport.tls_scene import server_tls


async def grpc(folder, come, *, is_tls):
    listener = listener_on(tls=server_tls(folder) if is_tls else None)
    listener.bind()
    await listener.start()
    await come(listener.port)
    await listener.stop(0)


async def pages(folder, come, *, is_tls):
    async with web_listener(folder, is_tls=is_tls) as (listener, _, _):
        await come(listener.port)


async def metrics(folder, come, *, is_tls):
    listener = MetricsListener(None, Limits())
    await listener.start("127.0.0.1", 0)
    await come(listener.port)
    await listener.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize(
    ("listen", "is_tls"),
    [(grpc, False), (grpc, True), (pages, False), (pages, True), (metrics, False)],
)
def test_nothing_is_left_open(listen, is_tls, turns, tmp_path):
    clients = []

    async def come(port):
        clients.append(socket.create_connection(("127.0.0.1", port)))
        for _ in range(turns):
            await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(listen(tmp_path, come, is_tls=is_tls))
        gc.collect()
    assert [str(each.message) for each in caught] == []
    for client in clients:
        client.close()


@pytest.mark.parametrize("is_tls", [False, True])
def test_two_may_stop_it_at_once(is_tls, tmp_path):
    async def scene():
        listener = listener_on(tls=server_tls(tmp_path) if is_tls else None)
        listener.bind()
        await listener.start()
        await asyncio.gather(listener.stop(0), listener.stop(0))

    asyncio.run(scene())


def test_a_stop_that_is_cancelled_leaves_nothing_listening():
    async def scene():
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        closing = asyncio.create_task(close_servers([server]))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert closing.cancelled()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))

    asyncio.run(scene())
