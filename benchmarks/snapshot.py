"""A snapshot of 10^7 rows x 10 columns to our client against ``pyarrow.flight`` DoGet of the same
table.

Also what the client and the server hold in memory for it, against the table's Arrow size. Each
side runs in its own process; rounds of the two systems alternate, medians are compared.
"""

from __future__ import annotations

import gc
import json
import statistics
import time
from multiprocessing.connection import Connection
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.flight as flight

import barrage
from benchmarks import shapes
from benchmarks.processes import child
from benchmarks.report import compared, result

BATCH_ROWS = 250_000
WARM_UP_ROUNDS = 3
"""Rounds of either system that are not counted: the first ones mostly take fresh pages from the
system, which the later ones use again. They are reported as ``cold`` in the details."""


def resident_bytes() -> int:
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(psutil.Process().memory_info().rss)


def serve_ours(pipe: Connection, rows: int) -> None:
    """Our server; the table is appended batch by batch, as a producer would."""
    with barrage.Server() as server:
        table = server.create_table("wide", shapes.SCHEMA, kind="append_only")
        table.add(shapes.batch(0, 1000))
        before = resident_bytes()
        arrow_bytes = 0
        for first in range(1000, rows, BATCH_ROWS):
            part = shapes.batch(first, min(BATCH_ROWS, rows - first))
            arrow_bytes += part.nbytes
            table.add(part)
        del part
        pipe.send({"uri": server.uri, "stored": resident_bytes() - before, "arrow": arrow_bytes})
        pipe.recv()


def serve_flight(pipe: Connection, rows: int) -> None:
    """The baseline: pyarrow's own server streaming the same table."""
    table = pa.concat_tables(
        [shapes.batch(first, min(BATCH_ROWS, rows - first)) for first in range(0, rows, BATCH_ROWS)]
    )

    class Server(flight.FlightServerBase):
        def do_get(self, context, ticket):
            return flight.RecordBatchStream(table)

    with Server("grpc://127.0.0.1:0") as server:
        pipe.send(f"grpc://127.0.0.1:{server.port}")
        pipe.recv()
        server.shutdown()


def read_ours(pipe: Connection, uri: str) -> None:
    """Our client: every "read" asks for one snapshot and answers seconds, CPU seconds and bytes;
    "hold" answers the memory that one more snapshot takes."""
    with barrage.connect(uri) as session:
        wide = session.table("wide")
        wide.snapshot(rows=(0, 10))
        before = resident_bytes()
        pipe.send("ready")
        word = pipe.recv()
        while word is not None:
            started, cpu = time.perf_counter(), time.process_time()
            table = wide.snapshot()
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            answer = {"seconds": seconds, "cpu": cpu, "bytes": table.nbytes, "rows": len(table)}
            if word == "hold":
                # Not in the timed rounds: it gives free pages back, which the next round misses.
                answer["held"] = resident_bytes() - before
            pipe.send(answer)
            del table
            word = pipe.recv()


def read_flight(pipe: Connection, uri: str) -> None:
    client = flight.connect(uri)
    pipe.send("ready")
    while pipe.recv() is not None:
        started, cpu = time.perf_counter(), time.process_time()
        table = client.do_get(flight.Ticket(b"wide")).read_all()
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        pipe.send({"seconds": seconds, "cpu": cpu, "bytes": table.nbytes})
        del table


def run(*, quick: bool = False) -> dict[str, Any]:
    rows, rounds = (1_000_000, 3) if quick else (10_000_000, 9)
    ours: list[dict[str, Any]] = []
    baseline: list[dict[str, Any]] = []
    with (
        child(serve_ours, rows) as server,
        child(serve_flight, rows) as flight_server,
        child(read_ours, server.ready["uri"]) as reader,
        child(read_flight, flight_server.ready) as flight_reader,
    ):
        for _ in range(WARM_UP_ROUNDS + rounds):
            server_cpu = server.cpu_seconds()
            ours.append(reader.ask("read"))
            ours[-1]["server_cpu"] = server.cpu_seconds() - server_cpu
            baseline.append(flight_reader.ask("read"))
        held = reader.ask("hold")["held"]
    assert all(answer["rows"] == rows for answer in ours), "a snapshot was not complete"
    cold, ours = ours[:WARM_UP_ROUNDS], ours[WARM_UP_ROUNDS:]
    flight_cold, baseline = baseline[:WARM_UP_ROUNDS], baseline[WARM_UP_ROUNDS:]
    rate = statistics.median(answer["bytes"] / answer["seconds"] for answer in ours) / 1e6
    flight_rate = (
        statistics.median(answer["bytes"] / answer["seconds"] for answer in baseline) / 1e6
    )
    arrow_mb = ours[0]["bytes"] / 1e6
    return result(
        "snapshot",
        [
            compared(
                f"{rows:,} rows x 10 columns to our client",
                rate,
                "MB/s",
                baseline="pyarrow.flight DoGet",
                baseline_value=flight_rate,
                at_least=0.8,
                detail={
                    "cold_seconds": [answer["seconds"] for answer in cold],
                    "flight_cold_seconds": [answer["seconds"] for answer in flight_cold],
                    "seconds": [answer["seconds"] for answer in ours],
                    "flight_seconds": [answer["seconds"] for answer in baseline],
                    "client_cpu_seconds": statistics.median(answer["cpu"] for answer in ours),
                    "server_cpu_seconds": statistics.median(
                        answer["server_cpu"] for answer in ours
                    ),
                },
            ),
            compared(
                "memory the client holds for it",
                held / 1e6,
                "MB",
                baseline="Arrow size",
                baseline_value=arrow_mb,
                at_most=1.3,
            ),
            compared(
                "memory the server stores it in",
                server.ready["stored"] / 1e6,
                "MB",
                baseline="Arrow size",
                baseline_value=server.ready["arrow"] / 1e6,
                at_most=1.5,
            ),
        ],
    )


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
