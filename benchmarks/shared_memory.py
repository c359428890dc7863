"""Bodies of 1 MB and 64 MB between two processes through shared memory, against ``pyarrow.flight``
DoGet of the same bytes and against memcpy.

The bodies are built in the arena beforehand. What travels per body is its reference and, in
batches, what the consumer has given back: over a Unix socket, the cheapest way there is, and as
the FlightData messages of a grpc.aio stream, which is how Barrage does it. The consumer locks,
checks and maps each body and looks at both of its ends, or also copies it into memory of its own.
One more line has the server copy each body into the arena first.

The goals are for the memory, so they stand at the lines of the socket. Those of the stream are also
compared with the same stream whose messages have nothing behind them, which is their bound.

Rounds of all systems alternate; medians are compared.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.flight as flight

from barrage.limits import Limits
from barrage.transport.shared_memory import Arena, ArenaMapping, LeaseTable, Region
from barrage.wire.dissociated.detached import DetachedFrame
from barrage.wire.dissociated.references import BodyReference
from barrage.wire.flight_data import (
    TAG_HEADER,
    decode_flight_data,
    encode_flight_data,
    encode_varint,
)
from barrage.wire.frame import FlightFrame
from barrage.wire.ipc import encode_record_header
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result

MB = 1_000_000
LIMITS = Limits(body_arena_bytes=640 * MB, body_segment_bytes=65 * MB)
METHOD = "/bench/Bodies"
RELEASED_TOGETHER = 16
RELEASED = struct.Struct("<Q")
LISTENER_BACKLOG = 1
MAPPED, COPIED, NOTHING = "mapped", "copied out", "left alone"
"""What a consumer does with a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many bodies of one size a round moves, and how many may be out at a time."""

    size: int
    prebuilt: int
    window: int
    mapped_count: int
    copied_count: int
    flight_count: int
    at_least_mapped: float
    at_least_copied: float


SHAPES = (
    Shape(
        size=MB,
        prebuilt=64,
        window=64,
        mapped_count=5000,
        copied_count=1500,
        flight_count=500,
        at_least_mapped=15,
        at_least_copied=4,
    ),
    Shape(
        size=64 * MB,
        prebuilt=4,
        window=4,
        mapped_count=2000,
        copied_count=24,
        flight_count=8,
        at_least_mapped=100,
        at_least_copied=8,
    ),
)


@dataclass(frozen=True, slots=True)
class Order:
    """What the server is to send in one round."""

    size: int
    count: int
    window: int
    is_fresh: bool
    """Copied into the arena each time."""


def body_of(size: int, number: int) -> np.ndarray:
    """A body whose both ends tell its number."""
    body = np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)
    body[:8].view(np.int64)[0] = body[-8:].view(np.int64)[0] = number
    return body


def check(buffer: pa.Buffer, size: int) -> None:
    assert buffer.size == size
    ends = np.frombuffer(buffer, dtype=np.int64)
    assert ends[0] == ends[-1], "not one body"


class Bodies:
    """The server's: built in the arena beforehand."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.sources = {shape.size: body_of(shape.size, 1) for shape in SHAPES}
        self.built: dict[int, list[Region]] = {}
        for shape in reversed(SHAPES):
            regions = []
            for number in range(shape.prebuilt):
                region = arena.allocate(shape.size)
                assert region is not None, "no room in /dev/shm"
                np.frombuffer(region.view, dtype=np.uint8)[:] = body_of(shape.size, number)
                regions.append(region)
            self.built[shape.size] = regions

    def region(self, order: Order, number: int) -> Region:
        if order.is_fresh:
            region = self.arena.place([self.sources[order.size]], order.size)
            assert region is not None
            return region
        regions = self.built[order.size]
        return regions[number % len(regions)]


def released_addresses(message: bytes) -> list[int]:
    return [address for (address,) in RELEASED.iter_unpack(message)]


def serve_socket(listener: Listener, bodies: Bodies) -> None:
    with listener.accept() as link:
        while True:
            try:
                order = link.recv()
            except EOFError:
                return
            leases = LeaseTable()
            for number in range(order.count):
                while leases.count >= order.window:
                    leases.release(released_addresses(link.recv_bytes()))
                region = bodies.region(order, number)
                leases.grant(region)
                link.send_bytes(region.reference().encode())
                del region
            while leases.count:
                leases.release(released_addresses(link.recv_bytes()))


async def serve_stream(
    bodies: Bodies, announce: Callable[[int], None], stop: asyncio.Event
) -> None:
    """A grpc.aio server with one method, which moves bytes as our own server does."""

    async def exchange(requests: AsyncIterator[bytes], context: Any) -> None:
        order = Order(*json.loads(await anext(requests)))
        leases = LeaseTable()
        rows = order.size // 8
        header = encode_record_header(rows, (rows, 0), (0, 0, 0, order.size), body_bytes=order.size)
        head = TAG_HEADER + encode_varint(len(header)) + header
        has_room = asyncio.Event()

        async def read() -> None:
            async for request in requests:
                leases.release(released_addresses(decode_flight_data(request).released or b""))
                has_room.set()

        reader = asyncio.create_task(read())
        for number in range(order.count):
            while leases.count >= order.window:
                has_room.clear()
                await has_room.wait()
            region = bodies.region(order, number)
            frame = DetachedFrame(head, (), order.size)
            leases.grant(region)
            await context.write(frame.message(region.reference().encode()))
            del region
        await reader

    handler = grpc.method_handlers_generic_handler(
        METHOD.split("/")[1],
        {METHOD.split("/")[2]: grpc.stream_stream_rpc_method_handler(exchange)},
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    announce(port)
    await stop.wait()
    await server.stop(None)


def serve(pipe: Connection, directory: str) -> None:
    arena = Arena.create(LIMITS)
    bodies = Bodies(arena)
    path = f"{directory}/socket"
    with Listener(path, backlog=LISTENER_BACKLOG) as listener:
        thread = threading.Thread(target=serve_socket, args=(listener, bodies), daemon=True)
        thread.start()

        async def main() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(pipe.fileno(), stop.set)
            await serve_stream(
                bodies,
                lambda port: pipe.send({"name": arena.name, "path": path, "port": port}),
                stop,
            )

        asyncio.run(main())
    arena.close()


def serve_flight(pipe: Connection) -> None:
    """The baseline: one column of the same bytes, one batch per body."""
    batches = {
        shape.size: pa.record_batch({"x": pa.array(body_of(shape.size, 1).view(np.int64))})
        for shape in SHAPES
    }

    class Server(flight.FlightServerBase):
        def do_get(self, context, ticket):
            size, count = json.loads(ticket.ticket)
            batch = batches[size]
            return flight.RecordBatchStream(
                pa.RecordBatchReader.from_batches(batch.schema, [batch] * count)
            )

    with Server("grpc://127.0.0.1:0") as server:
        pipe.send(f"grpc://127.0.0.1:{server.port}")
        pipe.recv()
        server.shutdown()


class Consumer:
    """The client's side of all ways; each method is one timed round and answers bytes per
    second."""

    def __init__(self, places: dict[str, Any], flight_uri: str) -> None:
        self.mapping = ArenaMapping.open(places["name"])
        self.link = Client(places["path"])
        self.target = f"127.0.0.1:{places['port']}"
        self.flight = flight.connect(flight_uri)
        self.copies = {shape.size: body_of(shape.size, 2) for shape in SHAPES}
        self.into = {size: np.ones_like(body) for size, body in self.copies.items()}

    def take(self, reference: BodyReference, use: str, released: list[int]) -> None:
        """What a consumer does with one body. It has done with it when this returns."""
        if use == NOTHING:
            released.append(reference.address)
        elif use == COPIED:
            check(self.mapping.copy(reference), reference.length)
            released.append(reference.address)
        else:
            check(self.mapping.borrow(reference, released.append), reference.length)

    def socket(self, order: Order, use: str) -> float:
        released: list[int] = []
        together = min(RELEASED_TOGETHER, order.window // 2)
        started = time.perf_counter()
        self.link.send(order)
        for number in range(order.count):
            self.take(BodyReference.decode(self.link.recv_bytes()), use, released)
            if len(released) >= together or number == order.count - 1:
                self.link.send_bytes(b"".join(map(RELEASED.pack, released)))
                released.clear()
        return order.size * order.count / (time.perf_counter() - started)

    def stream(self, order: Order, use: str) -> float:
        return asyncio.run(self._stream(order, use))

    async def _stream(self, order: Order, use: str) -> float:
        released: list[int] = []
        together = min(RELEASED_TOGETHER, order.window // 2)
        async with grpc.aio.insecure_channel(self.target) as channel:
            await channel.channel_ready()
            call = channel.stream_stream(METHOD)()
            started = time.perf_counter()
            await call.write(
                json.dumps([order.size, order.count, order.window, order.is_fresh]).encode()
            )
            for number in range(order.count):
                frame = decode_flight_data(await call.read())
                assert frame.body_reference is not None
                self.take(BodyReference.decode(frame.body_reference), use, released)
                if len(released) >= together or number == order.count - 1:
                    message = b"".join(map(RELEASED.pack, released))
                    await call.write(encode_flight_data(FlightFrame(released=message)))
                    released.clear()
            seconds = time.perf_counter() - started
            await call.done_writing()
            assert await call.read() is grpc.aio.EOF
        return order.size * order.count / seconds

    def flight_get(self, order: Order, use: str) -> float:
        del use
        started = time.perf_counter()
        ticket = flight.Ticket(json.dumps([order.size, order.count]).encode())
        for chunk in self.flight.do_get(ticket):
            check(chunk.data.column(0).buffers()[1], order.size)
        return order.size * order.count / (time.perf_counter() - started)

    def memcpy(self, order: Order, use: str) -> float:
        del use
        source, into = self.copies[order.size], self.into[order.size]
        started = time.perf_counter()
        for _ in range(order.count):
            np.copyto(into, source)
        return order.size * order.count / (time.perf_counter() - started)


def consume(pipe: Connection, places: dict[str, Any], flight_uri: str) -> None:
    """Words are (way, order, what to do with the bodies); each is one round."""
    consumer = Consumer(places, flight_uri)
    pipe.send("ready")
    word = pipe.recv()
    while word is not None:
        way, order, use = word
        pipe.send(getattr(consumer, way)(order, use))
        word = pipe.recv()
    consumer.link.close()


PLACED = "copied in by the server, mapped"
SOCKET, STREAM = "references over a Unix socket", "references over a grpc.aio stream"
FLIGHT, MEMCPY = "pyarrow.flight DoGet", "memcpy"
BARE = "the stream's messages alone"


def rounds_of(shape: Shape, consumer: Child, rounds: int) -> dict[str, list[float]]:
    """MB/s of every way in every round, the ways taking turns. The first round is not counted:
    pages are touched for the first time in it."""

    def order(count: int, *, is_fresh: bool = False) -> Order:
        window = 2 if is_fresh and shape.size > MB else shape.window
        return Order(shape.size, count, window, is_fresh)

    ways: dict[str, tuple[str, Order, str]] = {
        f"{MAPPED}, {SOCKET}": ("socket", order(shape.mapped_count), MAPPED),
        f"{COPIED}, {SOCKET}": ("socket", order(shape.copied_count), COPIED),
        f"{PLACED}, {SOCKET}": ("socket", order(shape.copied_count, is_fresh=True), MAPPED),
        f"{MAPPED}, {STREAM}": ("stream", order(shape.mapped_count), MAPPED),
        f"{COPIED}, {STREAM}": ("stream", order(shape.copied_count), COPIED),
        BARE: ("stream", order(shape.mapped_count), NOTHING),
        FLIGHT: ("flight_get", order(shape.flight_count), NOTHING),
        MEMCPY: ("memcpy", order(shape.copied_count), COPIED),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 + rounds):
        for name, way in ways.items():
            found[name].append(consumer.ask(way) / 1e6)
    return {name: values[1:] for name, values in found.items()}


def lines(shape: Shape, found: dict[str, list[float]]) -> list[Measurement]:
    medians = {name: statistics.median(values) for name, values in found.items()}
    size = f"{shape.size // MB} MB bodies"
    goals = {
        f"{MAPPED}, {SOCKET}": shape.at_least_mapped,
        f"{COPIED}, {SOCKET}": shape.at_least_copied,
    }

    def line(name: str, baseline: str) -> Measurement:
        return compared(
            f"{size}, {name}",
            medians[name],
            "MB/s",
            baseline=baseline,
            baseline_value=medians[baseline],
            at_least=goals.get(name) if baseline == FLIGHT else None,
            detail={"rounds": found[name], "baseline_rounds": found[baseline]},
        )

    return [
        *(line(name, FLIGHT) for name in found if name not in (FLIGHT, MEMCPY, BARE)),
        line(f"{COPIED}, {SOCKET}", MEMCPY),
        line(f"{PLACED}, {SOCKET}", MEMCPY),
        line(f"{MAPPED}, {STREAM}", BARE),
    ]


def run(*, quick: bool = False) -> dict[str, Any]:
    rounds = 2 if quick else 9
    measurements = []
    with tempfile.TemporaryDirectory() as directory:
        with (
            child(serve, directory) as server,
            child(serve_flight) as flight_server,
            child(consume, server.ready, flight_server.ready) as consumer,
        ):
            for shape in SHAPES:
                measurements += lines(shape, rounds_of(shape, consumer, rounds))
    return result("shared_memory", measurements)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
