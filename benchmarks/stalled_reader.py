"""One stalled full subscriber on a table ticking 10^5 rows/s: how much the server's memory grows
beyond the table.

Two servers run the same appends one after the other in fresh processes: one with a full subscriber
that stops reading after its first message, one (the baseline) without any subscriber. The growth
that the stalled one costs is the difference; a second subscriber reads on and must have every row
in both.

Then 1 and 64 readers, full and with viewports, that are held at points of their own of keyed,
filtered, sorted and joined tables (:mod:`benchmarks.stalled_points`): what is kept for them in
bytes of row sets.
"""

from __future__ import annotations

import asyncio
import json
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc

import barrage
from barrage import wire
from benchmarks import shapes, stalled_points
from benchmarks.processes import child
from benchmarks.report import Measurement, result

ROWS_PER_SECOND = 100_000
EXCHANGE = "/arrow.flight.protocol.FlightService/DoExchange"
GROWTH_MIB_MAX = 64


def serve(pipe: Connection) -> None:
    """One word: the seconds to tick, with ten appends a second."""
    with barrage.Server() as server:
        table = server.create_table("ticks", shapes.SCHEMA, kind="append_only")
        pipe.send(server.uri)
        seconds = pipe.recv()
        part = shapes.batch(0, ROWS_PER_SECOND // 10)
        started = time.perf_counter()
        for cycle in range(seconds * 10):
            pause = started + cycle / 10 - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            table.add(part)
        pipe.send("appended")
        pipe.recv()


def stall(pipe: Connection, uri: str) -> None:
    """Subscribe to everything, read the schema and the first update, then never read again."""
    request = wire.SubscriptionRequest(
        ticket=b"s/ticks",
        columns=None,
        viewport=None,
        is_reverse=False,
        options=wire.SubscriptionOptions(min_update_interval_ms=100),
        subscription_token=None,
    )
    metadata = wire.encode_wrapper(request, wire.WireRevision.R1_0_0)
    frame = wire.FlightFrame(descriptor=None, header=None, metadata=metadata, body=None)

    async def main() -> None:
        async with grpc.aio.insecure_channel(uri.removeprefix("grpc://")) as channel:
            call = channel.stream_stream(EXCHANGE)()
            await call.write(wire.encode_flight_data(frame))
            await call.read()
            await call.read()
            pipe.send("stalled")
            await asyncio.to_thread(pipe.recv)

    asyncio.run(main())


def grow(seconds: int, *, with_stalled: bool) -> tuple[int, int]:
    """Bytes the server's resident memory grew by, and the rows the reading subscriber held at the
    end."""
    with child(serve) as server, barrage.connect(server.ready) as session:
        with session.table("ticks").subscribe(columns=["id"], interval_ms=100) as ticking:
            ticking.wait_ready(10)
            before = server.resident_bytes()
            if with_stalled:
                with child(stall, server.ready):
                    server.ask(seconds)
                    after = server.resident_bytes()
            else:
                server.ask(seconds)
                after = server.resident_bytes()
            deadline = time.monotonic() + 10
            while len(ticking) < seconds * ROWS_PER_SECOND and time.monotonic() < deadline:
                time.sleep(0.01)
            return after - before, len(ticking)


def run(*, quick: bool = False) -> dict[str, Any]:
    seconds = 10 if quick else 60
    alone, alone_rows = grow(seconds, with_stalled=False)
    stalled, rows = grow(seconds, with_stalled=True)
    assert rows == alone_rows == seconds * ROWS_PER_SECOND, "the reading subscriber missed rows"
    extra_mib = (stalled - alone) / 2**20
    return result(
        "stalled_reader",
        [
            Measurement(
                line=f"a stalled full subscriber, {ROWS_PER_SECOND:,} rows/s for {seconds} s",
                value=extra_mib,
                unit="MiB",
                baseline="growth without it",
                baseline_value=alone / 2**20,
                goal=f"< {GROWTH_MIB_MAX} MiB",
                met=extra_mib < GROWTH_MIB_MAX,
            ),
            *stalled_points.lines(quick=quick),
        ],
    )


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
