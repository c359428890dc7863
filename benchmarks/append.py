"""Appends in ten cycles a second to one full subscriber: CPU at 10^6 rows/s, and the highest rate
kept up with.

The server process appends prepared batches of the ten-column table on a fixed schedule; the client
process mirrors the table. "Kept up" means that the client had every row within half a second of
the last append and that the appends kept to their schedule. The baseline of the CPU line is one
core.
"""

from __future__ import annotations

import json
import time
from multiprocessing.connection import Connection
from typing import Any

import barrage
from benchmarks import shapes
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result

CYCLES_PER_SECOND = 10
LAG_SECONDS_MAX = 0.5
RATES = (500_000, 1_000_000, 2_000_000, 3_000_000, 4_000_000, 6_000_000)


def serve(pipe: Connection) -> None:
    """Words are (rows a second, seconds); each gets a fresh table ``t<n>`` and is answered when
    appended."""
    with barrage.Server() as server:
        pipe.send(server.uri)
        word = pipe.recv()
        while word is not None:
            name, rows_per_second, seconds = word
            rows = rows_per_second // CYCLES_PER_SECOND
            part = shapes.batch(0, rows)
            table = server.create_table(name, shapes.SCHEMA, kind="append_only")
            pipe.send("created")
            pipe.recv()
            started = time.perf_counter()
            for cycle in range(seconds * CYCLES_PER_SECOND):
                pause = started + cycle / CYCLES_PER_SECOND - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                table.add(part)
            pipe.send({"late": time.perf_counter() - started - seconds + 1 / CYCLES_PER_SECOND})
            pipe.recv()
            server.drop_table(name)
            pipe.send("dropped")
            word = pipe.recv()


def mirror(pipe: Connection, uri: str) -> None:
    """Words are (table, rows expected); subscribes, answers "live", then the moment all rows were
    there."""
    with barrage.connect(uri) as session:
        pipe.send("ready")
        word = pipe.recv()
        while word is not None:
            name, expected, timeout = word
            with session.table(name).subscribe(interval_ms=100) as ticking:
                ticking.wait_ready(10)
                pipe.send("live")
                deadline = time.monotonic() + timeout
                while len(ticking) < expected and time.monotonic() < deadline:
                    time.sleep(0.005)
                pipe.send(
                    {"at": time.time(), "rows": len(ticking), "updates": ticking.stats.updates}
                )
            word = pipe.recv()


def one_rate(server: Child, client: Child, rate: int, seconds: int) -> dict[str, Any]:
    """Run one rate; answers cores used, lag of the last row and whether it kept up."""
    name = f"t{rate}"
    expected = rate // CYCLES_PER_SECOND * seconds * CYCLES_PER_SECOND
    server.ask((name, rate, seconds))
    client.ask((name, expected, seconds + 30))
    cpu = server.cpu_seconds() + client.cpu_seconds()
    started = time.time()
    done = server.ask("go")
    finished = time.time()
    seen = client.receive()
    cores = (server.cpu_seconds() + client.cpu_seconds() - cpu) / (time.time() - started)
    lag = seen["at"] - finished
    server.ask("drop")
    kept_up = seen["rows"] == expected and lag < LAG_SECONDS_MAX and done["late"] < LAG_SECONDS_MAX
    return {
        "rate": rate,
        "cores": cores,
        "lag": lag,
        "late": done["late"],
        "kept_up": kept_up,
        **seen,
    }


def run(*, quick: bool = False) -> dict[str, Any]:
    seconds = 3 if quick else 10
    answers: list[dict[str, Any]] = []
    with child(serve) as server, child(mirror, server.ready) as client:
        for rate in RATES:
            answers.append(one_rate(server, client, rate, seconds))
            if not answers[-1]["kept_up"]:
                break
    million = next((answer for answer in answers if answer["rate"] == 1_000_000), answers[-1])
    kept = [answer["rate"] for answer in answers if answer["kept_up"]]
    return result(
        "append",
        [
            compared(
                f"CPU of server and client together at {million['rate']:,} rows/s",
                million["cores"],
                "cores",
                baseline="one core",
                baseline_value=1.0,
                at_most=1.0,
                detail={"rates": answers},
            ),
            Measurement(
                line="highest rate kept up with",
                value=max(kept, default=0),
                unit="rows/s",
                goal="≥ 1,000,000 rows/s",
                met=max(kept, default=0) >= 1_000_000,
            ),
        ],
    )


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
