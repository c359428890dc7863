"""What runs at the other end, in a process of its own (spawned: UCX does not survive a fork)."""

from __future__ import annotations

import asyncio
import multiprocessing as mp
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pyarrow as pa

from barrage.errors import ConnectionLostError, TransportError
from barrage.transport.ucx import (
    ErrorMode,
    UcxConnection,
    UcxContext,
    UcxListener,
    UcxSettings,
    load_library,
)

READY_SECONDS_MAX = 60.0
_context = mp.get_context("spawn")


class Child:
    """A running child: what it said first, and a pipe for further words."""

    def __init__(self, process: Any, pipe: Connection) -> None:
        self.process = process
        self.pipe = pipe
        self.ready = self.receive()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def receive(self) -> Any:
        if not self.pipe.poll(READY_SECONDS_MAX):
            raise TimeoutError("the child says nothing")
        return self.pipe.recv()

    def ask(self, word: str) -> Any:
        self.pipe.send(word)
        return self.receive()

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    @property
    def ports(self) -> list[int]:
        """Every TCP port it listens on: the listener's, and those of its workers for data."""
        connections = psutil.Process(self.pid).net_connections(kind="tcp")
        return [each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN]

    @property
    def descriptor_count(self) -> int:
        return psutil.Process(self.pid).num_fds()

    @property
    def resident_bytes(self) -> int:
        return int(psutil.Process(self.pid).memory_info().rss)


@contextmanager
def child(target: Callable[..., None], *arguments: Any) -> Iterator[Child]:
    """Run ``target(pipe, *arguments)`` until the block ends."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield Child(process, ours)
    finally:
        with suppress(OSError):
            ours.send(None)
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
        ours.close()


class _Echo:
    """Sends back everything that comes, on every connection."""

    def __init__(self) -> None:
        self.connections: set[UcxConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def accept(self, connection: UcxConnection) -> None:
        self.connections.add(connection)

        def tagged() -> None:
            while (probed := connection.probe()) is not None:
                connection.receive(probed).add_done_callback(partial(back, probed.tag))

        def back(tag: int, came: asyncio.Future[pa.Buffer]) -> None:
            with suppress(ConnectionLostError):
                connection.send_tagged(tag, came.result())

        def untagged(message: bytes | memoryview) -> None:
            connection.send_untagged(message)

        connection.on_tagged = tagged
        connection.on_untagged = untagged
        connection.on_lost = lambda _: self._close(connection)

    def _close(self, connection: UcxConnection) -> None:
        self.connections.discard(connection)
        task = asyncio.ensure_future(connection.close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def echo_server(pipe: Connection, connections_max: int = 256) -> None:
    """Listens, says its port, and echoes until it is told None."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        context = UcxContext(load_library(), UcxSettings())
        echo = _Echo()
        listener = UcxListener(
            context, "127.0.0.1", 0, on_connection=echo.accept, connections_max=connections_max
        )
        pipe.send(listener.port)
        ended = asyncio.Event()

        def heard() -> None:
            try:
                word = pipe.recv()
            except EOFError:
                word = None
            if word is None:
                loop.remove_reader(pipe.fileno())
                ended.set()
            else:
                pipe.send(listener.connection_count)

        loop.add_reader(pipe.fileno(), heard)
        await ended.wait()
        context.close()

    asyncio.run(serve())


def canary_server(pipe: Connection, settings: UcxSettings) -> None:
    """Says its port and where some memory is that it offers nobody; answers with what is there."""

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        context = UcxContext(load_library(), settings)
        echo = _Echo()
        listener = UcxListener(context, "127.0.0.1", 0, on_connection=echo.accept)
        canary = pa.allocate_buffer(4096)
        memoryview(canary).cast("B")[:] = b"c" * 4096
        pipe.send((listener.port, canary.address))
        while await loop.run_in_executor(None, pipe.recv) is not None:
            pipe.send(canary.to_pybytes())
        context.close()

    asyncio.run(serve())


def flooding_client(pipe: Connection, port: int, size: int) -> None:
    """Connects and sends as fast as it can until the connection is closed."""

    async def flood() -> None:
        context = UcxContext(load_library(), UcxSettings())
        pipe.send("started")
        connection = await UcxConnection.connect(context, "127.0.0.1", port, timeout=30)
        message = bytes(size)
        try:
            while True:
                for _ in range(20):
                    connection.send_untagged(message)
                await connection.send_tagged(7, message)
        except TransportError:
            pass
        finally:
            await connection.close()
            context.close()

    asyncio.run(flood())


def silent_client(pipe: Connection, port: int, error_mode: ErrorMode) -> None:
    """Connects, and then takes nothing."""

    async def stay() -> None:
        context = UcxContext(load_library(), UcxSettings())
        pipe.send("started")
        connection = await UcxConnection.connect(
            context, "127.0.0.1", port, timeout=30, error_mode=error_mode
        )
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await connection.close()
        context.close()

    asyncio.run(stay())
