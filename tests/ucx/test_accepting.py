"""Accepting happens beside the event loop, whoever connects and however it ends."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

import barrage
from barrage.errors import TransportError
from barrage.transport.ucx import (
    UcxConnection,
    UcxContext,
    UcxLibrary,
    UcxSettings,
    acceptance,
    load_library,
)
from barrage.wire.dissociated.ways import BodyWay
from tests.ucx.children import Child, child, echo_server
from tests.ucx.test_connecting_together import asking
from tests.ucx.test_processes import echoed_now, handshake

RESET = struct.pack("ii", 1, 0)
"""SO_LINGER without time: closing resets the connection."""


def test_a_server_answers_while_it_accepts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By count: each connection is accepted only when three more calls have been answered."""
    accept, threads = acceptance.accepted_endpoint, []
    monkeypatch.setattr("barrage.client.bodies.body_routes.CONNECT_SECONDS_MAX", 60.0)
    with barrage.Server(bodies="ucx") as server:
        server.create_table("t", data={"x": np.arange(50_000)})
        with asking(f"grpc://{server.uri.rpartition('/')[2]}") as answers:

            def waiting(worker: Any, request: Any) -> Any:
                threads.append(threading.current_thread().name)
                enough, deadline = len(answers) + 3, time.monotonic() + 60
                while len(answers) < enough and time.monotonic() < deadline:
                    time.sleep(0.001)
                assert len(answers) >= enough, "nobody is answered while a client is accepted"
                return accept(worker, request)

            monkeypatch.setattr(acceptance, "accepted_endpoint", waiting)
            for _ in range(3):
                with (
                    barrage.connect(server.uri, bodies="ucx") as session,
                    session.table("t").subscribe() as live,
                ):
                    live.wait_ready(60)
                    assert live.bodies.way is BodyWay.UCX
    assert len(threads) == 3
    assert all(name.startswith(acceptance.THREAD) for name in threads)


def test_a_flood_of_requests_is_answered_and_forgotten(library: UcxLibrary) -> None:
    """Requests to connect that name nobody, from sockets that are reset at once or later."""
    if library.is_asserting:
        pytest.skip("this release ends the process, which is why strangers cannot connect")
    first = handshake(library)
    with barrage.Server(bodies="ucx") as server:
        server.create_table("t", data={"x": np.arange(50_000)})
        streams = server._app.bodies._servers[BodyWay.UCX].streams

        async def offer() -> None:
            streams.offer(lambda *_: None, lifetime_ns=600_000_000_000)

        asyncio.run_coroutine_threadsafe(offer(), server._loop).result(60)
        with asking(f"grpc://{server.uri.rpartition('/')[2]}") as answers:
            flooders = [
                threading.Thread(target=flood, args=(streams.port, first, seed))
                for seed in range(4)
            ]
            before = len(answers)
            for each in flooders:
                each.start()
            for each in flooders:
                each.join()
            returns(lambda: len(answers) > before)
            returns(lambda: streams.connection_count == 0)
        with (
            barrage.connect(server.uri, bodies="ucx") as session,
            session.table("t").subscribe() as live,
        ):
            live.wait_ready(60)
            assert live.to_arrow().num_rows == 50_000


def flood(port: int, request: bytes, seed: int) -> None:
    draw = random.Random(seed)
    held: list[socket.socket] = []
    for _ in range(50):
        peer = socket.create_connection(("127.0.0.1", port), timeout=60)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        peer.sendall(request[: draw.choice([len(request), draw.randrange(len(request))])])
        held.append(peer)
        if draw.random() < 0.5:
            held.pop(draw.randrange(len(held))).close()
    for peer in held:
        peer.close()


def returns(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def connecting_client(pipe: Connection, port: int) -> None:
    """Connects over and over, until it is killed."""

    async def connect() -> None:
        context = UcxContext(load_library(), UcxSettings())
        pipe.send("started")
        while True:
            try:
                connection = await UcxConnection.connect(context, "127.0.0.1", port, timeout=60)
            except TransportError:
                continue
            await connection.close()

    asyncio.run(connect())


def accepted_once(server: Child) -> bool:
    return bool(server.ask("connections"))


def test_peers_that_are_killed_while_they_connect_leave_nothing(library: UcxLibrary) -> None:
    with child(echo_server) as server:
        assert echoed_now(library, server.ready, b"before") == b"before"
        returns(lambda: not accepted_once(server))
        before = server.descriptor_count
        for _ in range(4):
            with child(connecting_client, server.ready) as client:
                returns(lambda: accepted_once(server))
                client.kill()
        if library.is_asserting and not server.process.is_alive():
            return  # Which is why the port is closed to whom nothing is offered.
        returns(lambda: not accepted_once(server))
        returns(lambda: server.descriptor_count <= before)
        assert echoed_now(library, server.ready, b"after") == b"after"
