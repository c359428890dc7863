"""What a server pays for a small message: many streams, written to in turn, by HTTP/2 of our own
and by grpc.aio.

64 streams on 4 connections get messages of 1 kB, one after the other. The client is a bare socket
that opens the streams and sends two WINDOW_UPDATEs for each message it gets, as busy clients do, so
that the server's CPU is what is measured. A second pair of lines is unary calls by a grpc client.
"""

from __future__ import annotations

import asyncio
import socket
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.settings

from barrage.transport.base import HttpServer, ListenOptions
from barrage.transport.over_grpc.grpc_transport import GRPC
from barrage.transport.over_http2.http2_frames import window_update
from benchmarks.processes import child
from benchmarks.report import compared, result

CONNECTIONS = 4
STREAMS = 16
MESSAGE = bytes(1024)
FRAME_BYTES = 9 + 5 + len(MESSAGE)
SERVICE = "bare.Writes"


def serve(pipe: Connection, http: HttpServer, rounds: int) -> None:
    """Write to all streams once they are there; tell microseconds of CPU for each message, those of
    the loop's thread and of the whole process. Then answer calls until told to stop, and tell those
    for each."""

    async def main() -> None:
        contexts: list[Any] = []
        all_there = asyncio.Event()
        over = asyncio.Event()
        calls = 0

        async def stream(_: bytes, context: Any) -> None:
            contexts.append(context)
            if len(contexts) == CONNECTIONS * STREAMS:
                all_there.set()
            await over.wait()

        async def unary(request: bytes, context: Any) -> bytes:
            nonlocal calls
            calls += 1
            return request

        options = ListenOptions(port=0, message_bytes_max=1 << 20, keepalive_ms=30_000, http=http)
        listener = GRPC.listen("127.0.0.1", options)
        listener.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    SERVICE,
                    {
                        "Stream": grpc.unary_stream_rpc_method_handler(stream),
                        "Unary": grpc.unary_unary_rpc_method_handler(unary),
                    },
                )
            ]
        )
        listener.bind()
        await listener.start()
        pipe.send(listener.port)
        await all_there.wait()
        began = time.thread_time(), time.process_time()
        for _ in range(rounds):
            for context in contexts:
                await context.write(MESSAGE)
        spent = time.thread_time() - began[0], time.process_time() - began[1]
        messages = rounds * CONNECTIONS * STREAMS
        pipe.send([seconds / messages * 1e6 for seconds in spent])
        over.set()
        started = time.process_time()
        await asyncio.to_thread(pipe.recv)
        pipe.send((time.process_time() - started) / max(calls, 1) * 1e6)
        await listener.stop(0)

    asyncio.run(main())


def read(pipe: Connection, port: int, rounds: int) -> None:
    """Open the streams and take what comes on them."""
    sockets = [_opened(port) for _ in range(CONNECTIONS)]
    for each in sockets:
        each.setblocking(False)
    left = [rounds * STREAMS * FRAME_BYTES] * CONNECTIONS
    owed = [0] * CONNECTIONS
    updates = window_update(0, FRAME_BYTES) + window_update(1, FRAME_BYTES)
    pipe.send(None)

    async def drain(at: int) -> None:
        loop = asyncio.get_running_loop()
        while left[at] > 0:
            data = await loop.sock_recv(sockets[at], 1 << 18)
            if not data:
                return
            left[at] -= len(data)
            owed[at] += len(data)
            count, owed[at] = divmod(owed[at], FRAME_BYTES)
            if count:
                await loop.sock_sendall(sockets[at], updates * count)

    async def main() -> None:
        await asyncio.gather(*(drain(at) for at in range(CONNECTIONS)))

    asyncio.run(main())


def _opened(port: int) -> socket.socket:
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    window = 1 << 30
    client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
    client.increment_flow_control_window(window)
    for number in range(STREAMS):
        stream_id = 2 * number + 1
        client.send_headers(
            stream_id,
            [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", f"/{SERVICE}/Stream"),
                (":authority", "bench"),
                ("content-type", "application/grpc"),
                ("te", "trailers"),
            ],
        )
        client.send_data(stream_id, bytes(5), end_stream=True)
    made = socket.create_connection(("127.0.0.1", port))
    made.sendall(client.data_to_send())
    return made


async def _call(port: int, count: int) -> float:
    """Milliseconds of one unary call, the median."""
    times = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/Unary")
        for _ in range(count):
            began = time.perf_counter()
            await call(MESSAGE)
            times.append(time.perf_counter() - began)
    return sorted(times)[count // 2] * 1e3


def measure(http: HttpServer, rounds: int, calls: int) -> tuple[float, float, float, float]:
    """Microseconds of the loop and of the process for a message, milliseconds of a unary call,
    microseconds of the process for one."""
    with child(serve, http, rounds) as server:
        port = server.ready
        with child(read, port, rounds):
            loop_us, process_us = server.pipe.recv()
        latency_ms = asyncio.run(_call(port, calls))
        server.pipe.send(None)
        return loop_us, process_us, latency_ms, server.pipe.recv()


def run(*, quick: bool = False) -> dict[str, Any]:
    rounds, calls = (300, 500) if quick else (3000, 5000)
    ours, theirs = measure("own", rounds, calls), measure("grpcio", rounds, calls)
    lines = (
        ("loop's CPU for a message of 1 kB to one of 64 streams", "µs", 0.25),
        ("process's CPU for the same", "µs", 0.5),
        ("unary call, median", "ms", 1.5),
        ("process's CPU for a unary call", "µs", 1.5),
    )
    return result(
        "small_writes",
        [
            compared(
                line, ours[at], unit, baseline="grpc.aio", baseline_value=theirs[at], at_most=bound
            )
            for at, (line, unit, bound) in enumerate(lines)
        ],
    )
