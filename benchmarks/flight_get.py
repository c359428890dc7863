"""DoGet of 10^7 rows x 10 columns to Arrow's own client: our server against that of pyarrow.flight
itself, which has the same batches; and a result of ours that is kept, its endpoints read by one
thread, one after the other, against two threads that read in parallel.

Servers and readers have a process each, and rounds alternate. With CPU seconds of both sides. What
a reader's memory is like counts for as much as the server, so each has read nothing else before.
"""

from __future__ import annotations

import json
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

import barrage
from barrage.limits import DEFAULT_LIMITS
from barrage.server import ServerConfig
from benchmarks import shapes
from benchmarks.processes import Child, child
from benchmarks.report import compared, result

BATCH_ROWS = 64 * 1024
"""Arrow's server sends a batch in one message; ours in two of about 3 MiB."""

WARM_UP_ROUNDS = 2


def parts(rows: int) -> list[pa.Table]:
    return [
        shapes.batch(first, min(BATCH_ROWS, rows - first)) for first in range(0, rows, BATCH_ROWS)
    ]


def serve_ours(pipe: Connection, rows: int) -> None:
    with barrage.Server(config=ServerConfig(limits=DEFAULT_LIMITS)) as server:
        table = server.create_table("wide", shapes.SCHEMA, kind="append_only")
        for part in parts(rows):
            table.add(part)
        pipe.send(f"grpc://{server.address}")
        pipe.recv()


def serve_arrow(pipe: Connection, rows: int) -> None:
    table = pa.concat_tables(parts(rows))

    class Server(flight.FlightServerBase):
        def do_get(self, context, ticket):
            return flight.RecordBatchStream(table)

    with Server("grpc://127.0.0.1:0") as server:
        pipe.send(f"grpc://127.0.0.1:{server.port}")
        pipe.recv()
        server.shutdown()


def read(pipe: Connection, uri: str) -> None:
    """Every word is a way to read: "get", or "endpoints" with a number of threads."""
    client = flight.connect(uri)
    pipe.send("ready")
    while (word := pipe.recv()) is not None:
        started, cpu = time.perf_counter(), time.process_time()
        if word == "get":
            rows, size = measured(client.do_get(flight.Ticket(b"s/wide")).read_all())
        else:
            info = client.get_flight_info(flight.FlightDescriptor.for_path("wide"))
            started, cpu = time.perf_counter(), time.process_time()
            rows, size = in_parallel(client, [end.ticket for end in info.endpoints], word)
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        pipe.send({"seconds": seconds, "cpu": cpu, "bytes": size, "rows": rows})


def measured(table: pa.Table) -> tuple[int, int]:
    return len(table), table.nbytes


def in_parallel(
    client: flight.FlightClient, tickets: list[flight.Ticket], thread_count: int
) -> tuple[int, int]:
    waiting, read_parts = list(reversed(tickets)), []

    def work() -> None:
        while waiting:
            try:
                ticket = waiting.pop()
            except IndexError:
                return
            read_parts.append(measured(client.do_get(ticket).read_all()))

    threads = [threading.Thread(target=work) for _ in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rows for rows, _ in read_parts), sum(size for _, size in read_parts)


def round_of(server: Child, reader: Child, word: Any) -> dict[str, Any]:
    before = server.cpu_seconds()
    answer: dict[str, Any] = reader.ask(word)
    answer["server_cpu"] = server.cpu_seconds() - before
    return answer


def rate(answers: list[dict[str, Any]]) -> float:
    """Median megabytes a second."""
    return statistics.median(each["bytes"] / each["seconds"] for each in answers) / 1e6


def costs(answers: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "client_cpu_seconds": statistics.median(each["cpu"] for each in answers),
        "server_cpu_seconds": statistics.median(each["server_cpu"] for each in answers),
        "seconds": statistics.median(each["seconds"] for each in answers),
    }


def run(*, quick: bool = False) -> dict[str, Any]:
    rows, rounds = (1_000_000, 3) if quick else (10_000_000, 7)
    ours: list[dict[str, Any]] = []
    arrow: list[dict[str, Any]] = []
    one: list[dict[str, Any]] = []
    two: list[dict[str, Any]] = []
    with (
        child(serve_ours, rows) as server,
        child(serve_arrow, rows) as arrow_server,
        child(read, server.ready) as reader,
        child(read, arrow_server.ready) as arrow_reader,
        child(read, server.ready) as endpoint_reader,
    ):
        for _ in range(WARM_UP_ROUNDS + rounds):
            ours.append(round_of(server, reader, "get"))
            arrow.append(round_of(arrow_server, arrow_reader, "get"))
            if not quick or rows > DEFAULT_LIMITS.endpoint_rows:
                one.append(round_of(server, endpoint_reader, 1))
                two.append(round_of(server, endpoint_reader, 2))
    assert all(each["rows"] == rows for each in (*ours, *arrow, *one, *two)), "rows are missing"
    ours, arrow, one, two = (each[WARM_UP_ROUNDS:] for each in (ours, arrow, one, two))
    lines = [
        compared(
            f"DoGet of {rows:,} rows x 10 columns",
            rate(ours),
            "MB/s",
            baseline="pyarrow.flight's own server",
            baseline_value=rate(arrow),
            at_least=0.9,
            detail={"ours": costs(ours), "arrow": costs(arrow)},
        )
    ]
    if two:
        lines.append(
            compared(
                "the same in endpoints, two at a time",
                rate(two),
                "MB/s",
                baseline="one at a time",
                baseline_value=rate(one),
                detail={"one": costs(one), "two": costs(two)},
            )
        )
    return result("flight_get", lines)


if __name__ == "__main__":
    print(json.dumps(run(quick="--quick" in sys.argv), indent=2))
