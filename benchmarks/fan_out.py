"""Fan-out: how many 50-row viewport subscribers of one ticking table are served within one tick.

A keyed table of 10^5 rows x 10 columns in which a tenth of the rows change in every tick. All
viewports identical, then all different, at 1 Hz and 10 Hz. The load is a raw grpc.aio process that
counts messages and reads the commit time out of one in ten; it shares the machine with the server.
Reported: the largest N whose p99 from commit to arrival is under one tick with no update missing,
and the server's CPU per message. The baseline of the CPU line is what a bare grpc.aio server
spends to write one message of the same size.
"""

from __future__ import annotations

import asyncio
import json
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np
import pyarrow as pa

import barrage
from barrage import wire
from benchmarks import shapes
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result

ROWS = 100_000
ROWS_SHOWN = 50
EXCHANGE = "/arrow.flight.protocol.FlightService/DoExchange"
SAMPLE_EVERY = 10
OPENED_TOGETHER = 200
"""gRPC refuses calls when thousands wait to be accepted."""
COUNTS = (100, 200, 500, 1000, 2000, 4000)


def serve(pipe: Connection) -> None:
    """Words are (hertz, seconds): tick that long, answer the ticks made."""
    with barrage.Server() as server:
        table = server.create_table("keyed", shapes.SCHEMA, key=["id"], data=shapes.batch(0, ROWS))
        draw = np.random.default_rng(3)
        changes = []
        for seed in range(20):
            ids = np.sort(draw.choice(ROWS, ROWS // 10, replace=False))
            part = shapes.batch(0, len(ids), seed=seed + 1)
            changes.append(part.set_column(0, "id", pa.array(ids)))
        pipe.send(server.uri)
        word = pipe.recv()
        while word is not None:
            hertz, seconds = word
            started = time.perf_counter()
            for tick in range(int(hertz * seconds)):
                pause = started + tick / hertz - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                table.upsert(changes[tick % len(changes)])
            pipe.send(int(hertz * seconds))
            word = pipe.recv()


def request_bytes(start: int, interval_ms: int) -> bytes:
    """A subscription request for one viewport as a FlightData message."""
    request = wire.SubscriptionRequest(
        ticket=b"s/keyed",
        columns=None,
        viewport=barrage.RowSet.of_span(start, start + ROWS_SHOWN),
        is_reverse=False,
        options=wire.SubscriptionOptions(
            min_update_interval_ms=interval_ms, use_deephaven_nulls=True
        ),
        subscription_token=None,
    )
    metadata = wire.encode_wrapper(request, wire.WireRevision.R1_0_0)
    return wire.encode_flight_data(
        wire.FlightFrame(descriptor=None, header=None, metadata=metadata, body=None)
    )


class Load:
    """N streams in one process; counts messages and samples the delay from commit to arrival."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(
            address, options=[("grpc.max_receive_message_length", -1)]
        )
        self.calls: list[Any] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.messages = 0
        self.bytes = 0
        self.delays: list[float] = []

    async def open(self, count: int, *, is_different: bool, interval_ms: int) -> None:
        stride = (ROWS - ROWS_SHOWN) // count
        starts = [number * stride if is_different else 0 for number in range(count)]
        for first in range(0, count, OPENED_TOGETHER):
            portion = starts[first : first + OPENED_TOGETHER]
            await asyncio.gather(*(self.open_one(start, interval_ms) for start in portion))
        self.tasks = [asyncio.create_task(self.follow(call)) for call in self.calls]

    async def open_one(self, start: int, interval_ms: int) -> None:
        """Subscribe and wait for the schema and the first snapshot."""
        call = self.channel.stream_stream(EXCHANGE)(
            metadata=(("x-barrage-extensions", "source-time"),)
        )
        await call.write(request_bytes(start, interval_ms))
        await call.read()
        await call.read()
        self.calls.append(call)

    async def follow(self, call: Any) -> None:
        while True:
            message = await call.read()
            if message is grpc.aio.EOF:
                return
            self.messages += 1
            self.bytes += len(message)
            if self.messages % SAMPLE_EVERY == 0:
                frame = wire.decode_flight_data(message)
                if frame.metadata:
                    update = wire.decode_wrapper(frame.metadata, wire.WireRevision.R1_0_0)
                    self.delays.append(time.time() - update.source_time_ns / 1e9)

    async def close(self) -> None:
        """Half-close every stream; a burst of cancellations would look like an attack to gRPC."""
        for call in self.calls:
            await call.done_writing()
        await asyncio.gather(*self.tasks)
        await self.channel.close()


def load(pipe: Connection, uri: str) -> None:
    """Words are (count, different, interval_ms); "live", then on the next word the counts."""
    pipe.send("ready")

    async def main() -> None:
        word = await asyncio.to_thread(pipe.recv)
        while word is not None:
            count, is_different, interval_ms = word
            streams = Load(uri.removeprefix("grpc://"))
            await streams.open(count, is_different=is_different, interval_ms=interval_ms)
            pipe.send("live")
            await asyncio.to_thread(pipe.recv)
            await asyncio.sleep(1.0)
            pipe.send(
                {"messages": streams.messages, "bytes": streams.bytes, "delays": streams.delays}
            )
            await streams.close()
            word = await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


def one_load(
    server: Child, client: Child, *, count: int, hertz: float, is_different: bool, seconds: float
) -> dict[str, Any]:
    client.ask((count, is_different, max(10, int(1000 / hertz) // 2)))
    cpu, client_cpu, began = server.cpu_seconds(), client.cpu_seconds(), time.time()
    ticks = server.ask((hertz, seconds))
    elapsed = time.time() - began
    answer = client.ask("done")
    p99 = float(np.percentile(answer["delays"], 99)) if answer["delays"] else float("inf")
    cpu = server.cpu_seconds() - cpu
    return {
        "subscribers": count,
        "updates_expected": ticks * count,
        "updates": answer["messages"],
        "p50_ms": float(np.percentile(answer["delays"], 50)) * 1e3 if answer["delays"] else None,
        "p99_ms": p99 * 1e3,
        "server_cores": cpu / elapsed,
        "load_cores": (client.cpu_seconds() - client_cpu) / elapsed,
        "server_us_per_message": cpu / max(1, answer["messages"]) * 1e6,
        "bytes_per_message": answer["bytes"] / max(1, answer["messages"]),
        "kept_up": p99 < 1 / hertz and answer["messages"] >= 0.99 * ticks * count,
    }


def serve_bare(pipe: Connection) -> None:
    """The baseline: writes as many messages of a size as the request says, nothing else."""

    async def pour(request: bytes, context: Any) -> None:
        size, count = map(int, request.split())
        message = bytes(size)
        for _ in range(count):
            await context.write(message)

    async def main() -> None:
        server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(pour)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("bare.Pour", {"Pour": handler})]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pipe.send(port)
        await asyncio.to_thread(pipe.recv)
        await server.stop(0)

    asyncio.run(main())


def bare_microseconds_per_message(size: int, *, streams: int = 500, count: int = 20) -> float:
    """Server CPU of a bare grpc.aio write with as many streams as a fan-out has."""

    async def read_all(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

            async def one() -> None:
                async for _ in channel.unary_stream("/bare.Pour/Pour")(f"{size} {count}".encode()):
                    pass

            await asyncio.gather(*(one() for _ in range(streams)))

    with child(serve_bare) as server:
        asyncio.run(read_all(server.ready))
        cpu = server.cpu_seconds()
        asyncio.run(read_all(server.ready))
        return (server.cpu_seconds() - cpu) / (streams * count) * 1e6


def run(*, quick: bool = False) -> dict[str, Any]:
    measurements = []
    counts = COUNTS[:2] if quick else COUNTS
    with child(serve) as server, child(load, server.ready) as client:
        for is_different in (False, True):
            for hertz, seconds in ((1.0, 4.0 if quick else 8.0), (10.0, 2.0 if quick else 6.0)):
                runs = []
                for count in counts:
                    runs.append(
                        one_load(
                            server,
                            client,
                            count=count,
                            hertz=hertz,
                            is_different=is_different,
                            seconds=seconds,
                        )
                    )
                    if not runs[-1]["kept_up"]:
                        break
                kept = [answer for answer in runs if answer["kept_up"]]
                best = kept[-1] if kept else runs[0]
                kind = "all different" if is_different else "identical"
                measurements.append(
                    Measurement(
                        line=f"{kind} viewports, {hertz:g} Hz: largest N with p99 under one tick",
                        value=best["subscribers"] if kept else 0,
                        unit="subscribers",
                        detail={"runs": runs},
                    )
                )
                bare = bare_microseconds_per_message(int(best["bytes_per_message"]))
                measurements.append(
                    compared(
                        f"{kind} viewports, {hertz:g} Hz: server CPU per message at that N",
                        best["server_us_per_message"],
                        "µs",
                        baseline="bare grpc.aio write",
                        baseline_value=bare,
                    )
                )
    return result("fan_out", measurements)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
