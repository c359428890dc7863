"""Scrolling: a change of viewport to the complete snapshot, against a bare gRPC round trip of the
same bytes.

50 rows x 10 columns at a random place in an append-only table of 10^8 rows and in a sorted view of
10^6. The baseline is a bidirectional stream on grpc.aio that answers one small request with one
message of as many bytes as our answer; its rounds alternate with ours. Both clients are asyncio in
the same process.
"""

from __future__ import annotations

import asyncio
import json
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc
import numpy as np

import barrage
from benchmarks import shapes
from benchmarks.processes import child
from benchmarks.report import compared, result

ROWS_SHOWN = 50
FILL_ROWS = 1_000_000


def serve(pipe: Connection, big_rows: int, sorted_rows: int) -> None:
    """One process with both tables, and the bare echo service of the baseline on a second port."""
    with barrage.Server() as server:
        big = server.create_table("big", shapes.SCHEMA, kind="append_only")
        for first in range(0, big_rows, FILL_ROWS):
            big.add(shapes.batch(first, min(FILL_ROWS, big_rows - first)))
        base = server.create_table(
            "base", shapes.SCHEMA, kind="append_only", data=shapes.batch(0, sorted_rows)
        )
        server.publish("sorted", base.sort("-last"))
        pipe.send(server.uri)
        pipe.recv()


def serve_bare(pipe: Connection) -> None:
    """Answers every message, which names a size, with that many bytes."""

    async def echo(requests: Any, context: Any) -> None:
        async for request in requests:
            await context.write(bytes(int(request)))

    async def main() -> None:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(echo)
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("bare.Echo", {"Echo": handler})]
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pipe.send(port)
        await asyncio.to_thread(pipe.recv)
        await server.stop(0)

    asyncio.run(main())


async def scroll(uri: str, table: str, bare_port: int, rounds: int) -> dict[str, Any]:
    """Alternate one viewport change and one bare round trip; seconds of each."""
    draw = np.random.default_rng(7)
    ours: list[float] = []
    bare: list[float] = []
    async with (
        barrage.aconnect(uri) as session,
        grpc.aio.insecure_channel(f"127.0.0.1:{bare_port}") as channel,
    ):
        call = channel.stream_stream("/bare.Echo/Echo")()
        handle = session.table(table)
        async with handle.subscribe(viewport=(0, ROWS_SHOWN), interval_ms=100) as ticking:
            await ticking.wait_ready(60)
            size = ticking.table_size
            answer_bytes = ticking.stats.bytes
            for _ in range(rounds):
                start = int(draw.integers(0, size - ROWS_SHOWN))
                before = ticking.stats.bytes
                began = time.perf_counter()
                await ticking.set_viewport((start, start + ROWS_SHOWN))
                await ticking.wait_ready(10)
                ours.append(time.perf_counter() - began)
                answer_bytes = ticking.stats.bytes - before
                began = time.perf_counter()
                await call.write(str(answer_bytes).encode())
                await call.read()
                bare.append(time.perf_counter() - began)
            assert len(ticking.to_arrow()) == ROWS_SHOWN
        await call.done_writing()
    return {"ours": ours, "bare": bare, "answer_bytes": answer_bytes}


def run(*, quick: bool = False) -> dict[str, Any]:
    big_rows, sorted_rows, rounds = (
        (2_000_000, 100_000, 100) if quick else (100_000_000, 1_000_000, 1000)
    )
    measurements = []
    with child(serve, big_rows, sorted_rows) as server, child(serve_bare) as bare:
        for table, rows in (("big", big_rows), ("sorted", sorted_rows)):
            answer = asyncio.run(scroll(server.ready, table, bare.ready, rounds))
            for percentile, bound in ((50, 3), (99, 6)):
                measurements.append(
                    compared(
                        f"viewport change in {table}, {rows:,} rows, p{percentile}",
                        float(np.percentile(answer["ours"], percentile)) * 1e3,
                        "ms",
                        baseline="bare gRPC round trip of the same bytes",
                        baseline_value=float(np.percentile(answer["bare"], percentile)) * 1e3,
                        at_most=bound,
                        detail={"answer_bytes": answer["answer_bytes"], "rounds": rounds},
                    )
                )
    return result("viewport", measurements)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
