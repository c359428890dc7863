"""The door of pages against that of gRPC: different views of one ticking table, 10 Hz, each on a
connection of its own, as pages have it.

Updates a second, and what one costs the server's process, for 1000 views of 50 rows by ten columns;
the table and its changes are those of :mod:`benchmarks.fan_out`. Both loads run in the same server,
one after the other; a third has hundreds of gRPC calls on a connection, as a program has that holds
them all. What the loads cost themselves is in the details.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

import barrage
from barrage.server.settings.config import ServerConfig
from benchmarks import shapes
from benchmarks.fan_out import ROWS, WARM_UP_TICKS, server_cpu_seconds, view_requests
from benchmarks.peers import counting_client, counting_sockets
from benchmarks.processes import Child, child
from benchmarks.report import compared, result

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

HERTZ = 10.0


def serve(pipe: Connection) -> None:
    """Words are seconds to tick."""
    with barrage.Server(config=ServerConfig(web=True)) as server:
        table = server.create_table("keyed", shapes.SCHEMA, key=["id"], data=shapes.batch(0, ROWS))
        draw = np.random.default_rng(3)
        changes = []
        for seed in range(20):
            ids = np.sort(draw.choice(ROWS, ROWS // 10, replace=False))
            part = shapes.batch(0, len(ids), seed=seed + 1)
            changes.append(part.set_column(0, "id", pa.array(ids)))
        pipe.send((server.uri, server.web_uri))
        word = pipe.recv()
        while word is not None:
            started = time.perf_counter()
            for tick in range(int(HERTZ * word)):
                pause = started + tick / HERTZ - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                table.upsert(changes[tick % len(changes)])
            pipe.send(int(HERTZ * word))
            word = pipe.recv()


def serve_apart(pipe: Connection) -> None:
    """The load of gRPC with a connection for each call."""
    counting_client.VIEWS_PER_CONNECTION = 1
    counting_client.serve(pipe)


def over_grpc(
    server: Child, client: Child, requests: list[bytes], seconds: float
) -> dict[str, Any]:
    client.ask(("open", server.ready[0], requests))
    client.pipe.send(("watch",))
    server.ask(WARM_UP_TICKS / HERTZ)
    client.pipe.send("begin")
    cpu, began = server_cpu_seconds(server), time.perf_counter()
    ticks = server.ask(seconds)
    elapsed = time.perf_counter() - began
    counted = client.ask("end")
    cpu = server_cpu_seconds(server) - cpu
    client.ask(("close",))
    return told(counted["messages"], ticks, len(requests), cpu=cpu, elapsed=elapsed)


def over_sockets(
    server: Child, client: Child, requests: list[bytes], seconds: float
) -> dict[str, Any]:
    parts = urlsplit(server.ready[1])
    client.ask(("open", (parts.hostname, parts.port), requests))
    server.ask(WARM_UP_TICKS / HERTZ)
    before, _ = client.ask(("count",))
    cpu, began = server_cpu_seconds(server), time.perf_counter()
    ticks = server.ask(seconds)
    elapsed = time.perf_counter() - began
    time.sleep(1.0)  # What is under way.
    after, _ = client.ask(("count",))
    cpu = server_cpu_seconds(server) - cpu
    client.ask(("close",))
    return told(after - before, ticks, len(requests), cpu=cpu, elapsed=elapsed)


def told(messages: int, ticks: int, views: int, *, cpu: float, elapsed: float) -> dict[str, Any]:
    return {
        "per_second": messages / elapsed,
        "cpu_us": cpu / max(messages, 1) * 1e6,
        "share": messages / (ticks * views),
    }


def run(*, quick: bool = False) -> dict[str, Any]:
    count, seconds, rounds = (100, 2.0, 1) if quick else (1000, 8.0, 3)
    requests = view_requests(count, hertz=HERTZ, is_different=True)
    seen: dict[str, list[dict[str, Any]]] = {"pages": [], "apart": [], "together": []}
    with (
        child(serve) as server,
        child(counting_sockets.serve) as pages,
        child(serve_apart) as apart,
        child(counting_client.serve) as together,
    ):
        for _ in range(rounds):
            seen["pages"].append(over_sockets(server, pages, requests, seconds))
            seen["apart"].append(over_grpc(server, apart, requests, seconds))
            seen["together"].append(over_grpc(server, together, requests, seconds))
    middle = {
        name: {key: float(np.median([each[key] for each in found])) for key in found[0]}
        for name, found in seen.items()
    }
    where = f"{count} pages, different views, 10 Hz"
    baseline = "gRPC, a connection for each view, same run"
    return result(
        "web_door",
        [
            compared(
                f"updates a second, {where}",
                middle["pages"]["per_second"],
                "updates/s",
                baseline=baseline,
                baseline_value=middle["apart"]["per_second"],
                at_least=0.95,
                detail=middle,
            ),
            compared(
                f"CPU of the server for one update, {where}",
                middle["pages"]["cpu_us"],
                "µs",
                baseline=baseline,
                baseline_value=middle["apart"]["cpu_us"],
                at_most=1.0,
                detail={"together_us": middle["together"]["cpu_us"]},
            ),
        ],
    )


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
