"""What a journal on disk costs a subscriber: the time from a write to its arrival, beside the same
table with its journal in memory.

Two servers, one of each, tick ten times a second, half a tick apart, so that neither disturbs the
other and both see the same machine. One process subscribes to both. A tick changes 100 rows of a
keyed table of 10^5 rows x 10 columns, or adds 100 rows to a growing one; its first row says when it
was written, just before the call. The goal is of the 99th percentile.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pyarrow as pa

import barrage
from barrage.server import Server
from benchmarks import shapes
from benchmarks.processes import child
from benchmarks.report import Measurement, compared, result

ROWS = 100_000
ROWS_CHANGED = 100
HERTZ = 10
SENT = "sent_ns"
WARM_UP_TICKS = 20
SILENCE_SECONDS = 5.0


def stamped(rows: pa.Table) -> pa.Table:
    """The rows with the time of now in the first of them."""
    sent = np.zeros(rows.num_rows, dtype=np.int64)
    sent[0] = time.monotonic_ns()
    return rows.append_column(SENT, pa.array(sent))


def serve(pipe: Connection, kind: str, journal: str) -> None:
    """Words are (seconds, delay): tick that long, beginning after the delay; answers the ticks."""
    directory = tempfile.mkdtemp(prefix="barrage-latency-")
    changes = [shapes.batch(0, ROWS_CHANGED, seed=seed + 1) for seed in range(20)]
    try:
        with Server(data=directory if journal == "durable" else None, journal=journal) as server:
            key = "id" if kind == "keyed" else None
            first = stamped(shapes.batch(0, ROWS))
            table = server.create_table("t", first.schema, key=key, data=first)
            pipe.send(server.uri)
            while (word := pipe.recv()) is not None:
                seconds, delay = word
                started = time.perf_counter() + delay
                written = []
                for tick in range(int(HERTZ * seconds)):
                    time.sleep(max(0.0, started + tick / HERTZ - time.perf_counter()))
                    rows = changes[tick % len(changes)]
                    write = table.upsert if kind == "keyed" else table.add
                    written.append(write(stamped(rows), wait=False))
                for future in written:
                    future.result()
                pipe.send(len(written))
    finally:
        shutil.rmtree(directory)


def follow(uri: str, delays: list[float]) -> None:
    """Subscribe and note how long each tick took to arrive, until there are no more."""
    with barrage.connect(uri) as session:
        live = session.table("t").subscribe(interval_ms=10)
        live.wait_ready(60)
        updates = live.updates(timeout=SILENCE_SECONDS)
        with contextlib.suppress(TimeoutError):
            for update in updates:
                now_ns = time.monotonic_ns()
                cells = update.modified.get(SENT)
                if cells is None and len(update.added_rows):
                    cells = update.added.column(SENT)
                newest = 0 if cells is None else int(cells.to_numpy().max())
                if newest and not update.is_replacement:
                    delays.append((now_ns - newest) / 1e6)


def measure(kind: str, seconds: float) -> dict[str, list[float]]:
    """Milliseconds of every tick, by the journal's class."""
    ticks = int(HERTZ * seconds) + WARM_UP_TICKS
    delays: dict[str, list[float]] = {"durable": [], "memory": []}
    with child(serve, kind, "durable") as durable, child(serve, kind, "memory") as memory:
        servers = {"durable": durable, "memory": memory}
        followers = [
            threading.Thread(target=follow, args=(server.ready, delays[name]))
            for name, server in servers.items()
        ]
        for thread in followers:
            thread.start()
        time.sleep(2)
        for number, server in enumerate(servers.values()):
            server.pipe.send((ticks / HERTZ, number / HERTZ / 2))
        for server in servers.values():
            server.receive()
        for thread in followers:
            thread.join()
    return {name: each[WARM_UP_TICKS:] for name, each in delays.items()}


def line(kind: str, seconds: float) -> Measurement:
    delays = measure(kind, seconds)
    found = {
        name: {f"p{p}": float(np.percentile(each, p)) for p in (50, 90, 99)}
        for name, each in delays.items()
    }
    what = "keyed rows modified" if kind == "keyed" else "rows added"
    return compared(
        f"10 Hz, {ROWS_CHANGED} {what} a tick, write to arrival, p99, journal on disk",
        found["durable"]["p99"],
        "ms",
        baseline="journal in memory",
        baseline_value=found["memory"]["p99"],
        at_most=1.3,
        detail={"ms": found, "ticks": {name: len(each) for name, each in delays.items()}},
    )


def run(*, quick: bool = False) -> dict[str, Any]:
    seconds = 5 if quick else 60
    return result("journal_latency", [line(kind, seconds) for kind in ("keyed", "append_only")])


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
