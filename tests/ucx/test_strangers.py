"""Whoever has been offered nothing cannot say a word to UCX, and whoever says nothing sensible is
ended: processors, descriptors and other clients notice nothing."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import barrage
from barrage.transport.ucx import (
    UcxConnection,
    UcxContext,
    UcxLibrary,
    UcxSettings,
    load_library,
)
from barrage.wire.dissociated.ways import BodyWay
from tests.ucx.children import Child, child, echo_server
from tests.ucx.pair import Inbox, until

ROWS = 50_000
SPINNING = bytes(2100)
"""Followed by the end of the connection: UCX 1.22 spins, 1.13 ends the process."""


class Unset(UcxSettings):
    """What a client has whose user has set nothing."""

    def entries(self, version: tuple[int, int, int] = (1, 22, 0)) -> dict[str, str]:
        return {}


@pytest.fixture
def server() -> Iterator[barrage.Server]:
    with barrage.Server(bodies="ucx") as running:
        running.create_table("t", data={"x": np.arange(ROWS)})
        yield running


def knock(port: int, message: bytes = b"", seconds: float = 0.3) -> socket.socket | None:
    """A connection that has sent something, None when there is none to be had."""
    try:
        connection = socket.create_connection(("127.0.0.1", port), timeout=seconds)
    except OSError:
        return None
    connection.sendall(message)
    return connection


def test_nobody_can_connect_to_whom_nothing_is_offered(
    server: barrage.Server,
) -> None:
    port = server._app.bodies._servers[BodyWay.UCX].streams.port
    for message in (b"", SPINNING, random.Random(1).randbytes(61)):
        assert knock(port, message) is None
    with (
        barrage.connect(server.uri, bodies="ucx") as session,
        session.table("t").subscribe() as live,
    ):
        live.wait_ready(60)
        assert live.bodies.way is BodyWay.UCX
        assert live.to_arrow().num_rows == ROWS


def run(scenario: object) -> None:
    asyncio.run(asyncio.wait_for(scenario, 120))


def returns_to(server: Child, count: int) -> bool:
    """Whether the server has so many descriptors again, before long."""
    deadline = time.monotonic() + 60
    while server.descriptor_count != count and time.monotonic() < deadline:
        time.sleep(0.05)
    return server.descriptor_count == count


def test_who_says_nothing_is_ended(library: UcxLibrary) -> None:
    async def scenario(server: Child) -> None:
        context = UcxContext(library, UcxSettings())
        client = await UcxConnection.connect(context, "127.0.0.1", server.ready, timeout=60)
        inbox = Inbox(client)
        await client.send_tagged(1, b"hello")
        await until(lambda: inbox.tagged)
        before = server.descriptor_count
        silent = [knock(server.ready, b"\x01" * (each % 8), 60) for each in range(50)]
        assert None not in silent
        assert await asyncio.to_thread(returns_to, server, before + 50)
        assert await asyncio.to_thread(returns_to, server, before)
        # A connection that means it stays.
        await client.send_tagged(1, b"still here")
        await until(lambda: len(inbox.tagged) == 2)
        for each in silent:
            each.close()
        await client.close()
        context.close()

    with child(echo_server) as server:
        run(scenario(server))


def test_a_peer_that_goes_in_the_wrong_moment_costs_nothing_for_long(library: UcxLibrary) -> None:
    if library.is_asserting:
        pytest.skip("this release ends the process, which is why strangers cannot connect")
    with child(echo_server) as server:
        before = server.descriptor_count
        for _ in range(5):
            connection = knock(server.ready, SPINNING, 60)
            assert connection is not None
            connection.close()
        assert returns_to(server, before + 5)
        assert returns_to(server, before)
        # A thread that spins makes no voluntary switch; all of these wait for something.
        states = [Path(f"/proc/{server.pid}/task/{each.id}/stat") for each in threads(server)]
        deadline = time.monotonic() + 60
        while any(state.read_text().rpartition(")")[2].split()[0] == "R" for state in states):
            assert time.monotonic() < deadline, "a thread runs and runs"
            time.sleep(0.05)


def threads(server: Child) -> list[Any]:
    return list(psutil.Process(server.pid).threads())


def test_a_thousand_connections_leave_nothing() -> None:
    """Silent ones, such as send a part, and such as go at once; counted, whatever time it takes."""
    random_bytes = random.Random(7)
    with child(echo_server) as server:
        before = server.descriptor_count
        for _ in range(5):
            opened = [
                knock(server.ready, random_bytes.randbytes(number % 8), 60) for number in range(200)
            ]
            assert None not in opened
            for each in opened[::2]:
                each.close()
            assert returns_to(server, before)
            for each in opened[1::2]:
                each.close()
        assert server.ask("connections") == 0


def default_client(pipe: Connection, port: int, devices: str | None) -> None:
    """Sends a message with the settings of UCX itself, and says how much came back."""
    if devices is not None:
        os.environ["UCX_NET_DEVICES"] = devices

    async def talk() -> int:
        context = UcxContext(load_library(), Unset())
        client = await UcxConnection.connect(context, "127.0.0.1", port, timeout=60)
        inbox = Inbox(client)
        client.send_tagged(5, bytes(2_000_000))
        await until(lambda: inbox.tagged)
        await client.close()
        context.close()
        return len(inbox.tagged[0][1])

    pipe.send("started")
    pipe.send(asyncio.run(talk()))


@pytest.mark.parametrize("devices", [None, "lo"])
def test_clients_with_the_settings_of_ucx_itself_can_connect(
    library: UcxLibrary, devices: str | None
) -> None:
    """They need no UCX_CM_USE_ALL_DEVICES=n. In processes of their own: 1.13 ended the client,
    since it was sent segments it had no room for."""
    with child(echo_server) as server, child(default_client, server.ready, devices) as client:
        assert client.receive() == 2_000_000
        assert server.process.is_alive()


def unlike_client(pipe: Connection, port: int) -> None:
    """Connects with another CM_USE_ALL_DEVICES than the server's."""

    async def connect() -> None:
        context = UcxContext(load_library(), UcxSettings(all_devices=False))
        client = await UcxConnection.connect(context, "127.0.0.1", port, timeout=60)
        inbox = Inbox(client)
        client.send_tagged(5, bytes(2_000_000))
        await until(lambda: inbox.tagged or client.lost)
        sys.exit(0 if inbox.tagged else 1)

    pipe.send("started")
    asyncio.run(connect())


def test_a_client_with_other_devices_ends_no_server(library: UcxLibrary) -> None:
    """It is refused by 1.22, and 1.13 ends its process."""
    with child(echo_server) as server:
        with child(unlike_client, server.ready) as client:
            client.process.join(60)
            assert client.process.exitcode not in (None, 0)
        with child(default_client, server.ready, None) as client:
            assert client.receive() == 2_000_000
        assert server.process.is_alive()
