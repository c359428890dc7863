"""Reconnect storm: what it costs the server when 200 subscribers come back with one cursor.

A table of 10^6 rows x 10 columns of which a hundredth changed, in twenty steps, while the
connections were cut. The subscribers resume from the version before, all at once, each on a
connection of its own, and get what they missed as one update. Reported is the server's CPU until
everybody has that update, against the CPU of a single subscriber in the same process.

Two shapes. Fifty rows of a sorted view, as a screen shows it: nearly all of the work is to find out
what changed there, which is shared. And the whole table: there the work for one is small, so what
cannot be shared (accepting a connection and a stream, writing the bytes) is most of it; it is held
against one subscriber plus a bare grpc.aio server that does only that.
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
from barrage.model.update import FullUpdate, ViewUpdate
from barrage.proto.resumption import CURSOR_HEADER, RESUMED_HEADER
from barrage.wire.updates.update_assembler import UpdateAssembler
from benchmarks import shapes
from benchmarks.fan_out import serve_bare
from benchmarks.peers.counting_client import EXCHANGE
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result

SUBSCRIBERS = 200
STEPS = 20
ROWS_SHOWN = 50
QUIET_SECONDS = 0.3


def serve(pipe: Connection, rows: int, changed: int) -> None:
    """Announces the address and the cursors before the changes, of the table and of its view."""
    with barrage.Server(journal="memory") as server:
        table = server.create_table("keyed", shapes.SCHEMA, key=["id"], data=shapes.batch(0, rows))
        server.publish("ranked", table.sort("-volume"))
        with barrage.connect(server.uri) as session:
            cursors = {}
            for name in ("keyed", "ranked"):
                with session.table(name).subscribe(viewport=(0, 1), columns=["id"]) as live:
                    live.wait_ready(60)
                    cursors[name] = str(live.cursor)
        draw = np.random.default_rng(5)
        ids = draw.permutation(rows)[:changed]
        for seed, some in enumerate(np.array_split(ids, STEPS)):
            part = shapes.batch(0, len(some), seed=seed + 1)
            table.upsert(part.set_column(0, "id", pa.array(np.sort(some))))
        pipe.send((server.uri, cursors))
        pipe.recv()


def request_bytes(table: str, viewport: bool) -> bytes:
    request = wire.SubscriptionRequest(
        ticket=b"s/" + table.encode(),
        columns=None,
        viewport=barrage.RowSet.of_span(0, ROWS_SHOWN) if viewport else None,
        is_reverse=False,
        options=wire.SubscriptionOptions(min_update_interval_ms=1000, use_deephaven_nulls=True),
        subscription_token=None,
    )
    metadata = wire.encode_wrapper(request, wire.WireRevision.R1_0_0)
    return wire.encode_flight_data(
        wire.FlightFrame(descriptor=None, header=None, metadata=metadata, body=None)
    )


async def resume_one(address: str, table: str, cursor: str, viewport: bool) -> int:
    """One subscriber's whole catch-up; bytes received. It must be an update, not a snapshot."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call = channel.stream_stream(EXCHANGE)(metadata=((CURSOR_HEADER, cursor),))
        await call.write(request_bytes(table, viewport))
        assembler = UpdateAssembler(is_viewport=viewport, use_deephaven_nulls=True)
        assembler.resume(None)
        size, update = 0, None
        while not isinstance(update, FullUpdate | ViewUpdate):
            message = await call.read()
            size += len(message)
            update = assembler.receive_frame(wire.decode_flight_data(message))
        assert not update.is_snapshot
        told = dict(await call.initial_metadata())[RESUMED_HEADER]
        assert told == f"replayed {STEPS}", told
        await call.done_writing()
        return size


async def storm(address: str, table: str, cursor: str, viewport: bool, count: int) -> int:
    """``count`` subscribers at once; bytes received by all."""
    ones = (resume_one(address, table, cursor, viewport) for _ in range(count))
    return sum(await asyncio.gather(*ones))


def load(pipe: Connection) -> None:
    """Words are the arguments of :func:`storm`; answers what it returns."""
    pipe.send("ready")
    while (word := pipe.recv()) is not None:
        pipe.send(asyncio.run(storm(*word)))


def cost(server: Child, client: Child, table: str, *, viewport: bool, count: int) -> dict[str, Any]:
    """Server CPU seconds of ``count`` subscribers that come back, and the bytes they got."""
    uri, cursors = server.ready
    time.sleep(QUIET_SECONDS)
    before, began = server.cpu_seconds(), time.perf_counter()
    size = client.ask((uri.removeprefix("grpc://"), table, cursors[table], viewport, count))
    elapsed = time.perf_counter() - began
    time.sleep(QUIET_SECONDS)
    return {
        "subscribers": count,
        "cpu_seconds": server.cpu_seconds() - before,
        "seconds": elapsed,
        "bytes": size,
    }


async def pour_one(port: int, size: int) -> None:
    """One connection and one message of a bare server."""
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
        async for _ in channel.unary_stream("/bare.Pour/Pour")(f"{size} 1".encode()):
            pass


def bare_cpu_seconds(count: int, size: int) -> float:
    """Server CPU of ``count`` connections that get one message of ``size`` bytes each."""

    async def pour_all(port: int) -> None:
        await asyncio.gather(*(pour_one(port, size) for _ in range(count)))

    with child(serve_bare) as server:
        asyncio.run(pour_all(server.ready))
        time.sleep(QUIET_SECONDS)
        before = server.cpu_seconds()
        asyncio.run(pour_all(server.ready))
        time.sleep(QUIET_SECONDS)
        return server.cpu_seconds() - before


def measured(server: Child, client: Child, table: str, *, viewport: bool) -> dict[str, Any]:
    """One subscriber and a storm, the smaller of two runs each (the first one also warms up)."""
    counts = (1, SUBSCRIBERS)
    found = {}
    for count in counts:
        runs = [cost(server, client, table, viewport=viewport, count=count) for _ in range(2)]
        found[count] = min(runs, key=lambda run: run["cpu_seconds"])
    return {"one": found[1], "storm": found[SUBSCRIBERS]}


def run(*, quick: bool = False) -> dict[str, Any]:
    rows = 100_000 if quick else 1_000_000
    with child(serve, rows, rows // 100) as server, child(load) as client:
        view = measured(server, client, "ranked", viewport=True)
        whole = measured(server, client, "keyed", viewport=False)
    size = whole["storm"]["bytes"] // SUBSCRIBERS
    bare = bare_cpu_seconds(SUBSCRIBERS, size)
    shown: list[Measurement] = [
        compared(
            f"{SUBSCRIBERS} subscribers resume {ROWS_SHOWN} rows of a sorted view, server CPU",
            view["storm"]["cpu_seconds"] * 1e3,
            "ms",
            baseline="one subscriber",
            baseline_value=view["one"]["cpu_seconds"] * 1e3,
            at_most=3.0,
            detail=view,
        ),
        compared(
            f"{SUBSCRIBERS} subscribers resume a whole table, server CPU",
            whole["storm"]["cpu_seconds"] * 1e3,
            "ms",
            baseline="one subscriber, and a bare server that sends the bytes",
            baseline_value=(whole["one"]["cpu_seconds"] + bare) * 1e3,
            at_most=3.0,
            detail={**whole, "bare_cpu_seconds": bare, "bytes_each": size},
        ),
    ]
    return result("reconnect_storm", shown)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
