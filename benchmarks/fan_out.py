"""Fan-out: how many 50-row viewport subscribers of one ticking table are served within one tick.

A keyed table of 10^5 rows x 10 columns in which a tenth of the rows change in every tick, so that
about five of each view do. Views that all differ at 10 Hz and 1 Hz, equal ones at 10 Hz; views that
join within a second while others are there; and scrolling in a table at rest. The load is
:mod:`benchmarks.peers.counting_client`, which costs a few microseconds a message and says how many;
it shares the machine with the server. Kept up is an N whose updates have all come (97.5 %, for the
first and the last tick of a window) with a p99 of the gaps between two updates of a view of at most
one and a half ticks. The baseline of the CPU lines is what a bare grpc.aio server spends to write
one message of the same size.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import psutil
import pyarrow as pa

import barrage
from benchmarks import shapes
from benchmarks.peers import counting_client
from benchmarks.peers.counting_client import request_bytes
from benchmarks.processes import Child, child
from benchmarks.report import Measurement, compared, result

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

ROWS = 100_000
ROWS_SHOWN = 50
COUNTS = (100, 200, 500, 1000, 2000, 4000)
LINES = (
    # Name, hertz, whether views differ, N to be kept up, microseconds an update may cost.
    ("different views, 10 Hz", 10.0, True, 2000, 80.0),
    ("equal views, 10 Hz", 10.0, False, 4000, 35.0),
    ("different views, 1 Hz", 1.0, True, 2000, None),
)
WARM_UP_TICKS = 5
"""Before a window: the first ticks are slow for other reasons than the number of views."""

SLOW_CORES_MAX = 0.35
"""Of the server, for 2000 different views at 1 Hz."""

GROWTH_MAX = 1.3
"""CPU of an update to the most views against that to a hundred."""

JOIN_VIEWS, JOIN_READERS = 2000, 100
JOIN_SECONDS_MAX, READERS_GAP_MS_MAX = 1.5, 300.0
SCROLL_ROWS = 10_000_000
SCROLL_TURNS = 300


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


def serve_at_rest(pipe: Connection, rows: int) -> None:
    """A table that nothing happens to."""
    with barrage.Server() as server:
        server.create_table("rest", data=shapes.batch(0, rows), kind="static")
        pipe.send(server.uri)
        pipe.recv()


def server_cpu_seconds(server: Child) -> float:
    """Of the server and the processes it has started, which must live on."""
    processes = [server.process, *server.process.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in _alive(processes))


def _alive(processes: list[psutil.Process]) -> Iterator[psutil.Process]:
    return (process for process in processes if process.is_running())


def view_requests(count: int, *, hertz: float, is_different: bool) -> list[bytes]:
    """Requests of views that are spread over the table, or all at its beginning."""
    stride = (ROWS - ROWS_SHOWN) // count if is_different else 0
    interval_ms = max(10, int(1000 / hertz) // 2)
    return [
        request_bytes("keyed", view * stride, ROWS_SHOWN, interval_ms=interval_ms)
        for view in range(count)
    ]


@contextmanager
def views(server: Child, client: Child, requests: list[bytes]) -> Iterator[None]:
    """Open for as long as the block lasts."""
    client.ask(("open", server.ready, requests))
    try:
        yield
    finally:
        client.ask(("close",))


def one_load(
    server: Child, client: Child, *, count: int, hertz: float, is_different: bool, seconds: float
) -> dict[str, Any]:
    """One N of one line."""
    with views(server, client, view_requests(count, hertz=hertz, is_different=is_different)):
        client.pipe.send(("watch",))
        server.ask((hertz, WARM_UP_TICKS / hertz))
        # What is late of that counts as well, on a server that does not keep up.
        client.pipe.send("begin")
        cpu, began = server_cpu_seconds(server), time.perf_counter()
        ticks = server.ask((hertz, seconds))
        elapsed = time.perf_counter() - began
        cpu_in_time = server_cpu_seconds(server) - cpu
        counted = client.ask("end")
        cpu = server_cpu_seconds(server) - cpu
    messages, gap = counted["messages"], counted["gap_ms_p99"]
    is_on_time = gap is not None and gap <= 1500 / hertz
    return {
        "subscribers": count,
        "updates_expected": ticks * count,
        "server_cores": cpu_in_time / elapsed,
        "server_us_per_message": cpu / max(1, messages) * 1e6,
        "bytes_per_message": counted["bytes"] / max(1, messages),
        "kept_up": is_on_time and messages >= 0.975 * ticks * count,
        **counted,
    }


def one_line(
    server: Child, client: Child, line: tuple[Any, ...], *, quick: bool
) -> list[Measurement]:
    """All N of one line: the largest that is kept up, its CPU, and how that grows."""
    name, hertz, is_different, goal, cpu_goal = line
    seconds = (3.0 if hertz < 2 else 1.0) if quick else 10.0
    runs = [
        one_load(
            server, client, count=count, hertz=hertz, is_different=is_different, seconds=seconds
        )
        for count in (COUNTS[:2] if quick else COUNTS)
    ]
    kept = [run for run in runs if run["kept_up"]]
    best = kept[-1] if kept else runs[0]
    bare = bare_microseconds_per_message(int(best["bytes_per_message"]))
    first, last = (run["server_us_per_message"] for run in (runs[0], runs[-1]))
    found = [
        Measurement(
            line=f"{name}: largest N kept up",
            value=best["subscribers"] if kept else 0,
            unit="subscribers",
            goal=f"≥ {goal}",
            met=None if quick else bool(kept) and best["subscribers"] >= goal,
            detail={"runs": runs},
        ),
        compared(
            f"{name}: server CPU per update at that N",
            best["server_us_per_message"],
            "µs",
            baseline="bare grpc.aio write",
            baseline_value=bare,
        ),
        Measurement(
            line=f"{name}: CPU per update, {runs[-1]['subscribers']} views against 100",
            value=last / first,
            unit="×",
            goal=f"≤ {GROWTH_MAX}",
            met=last / first <= GROWTH_MAX,
        ),
        Measurement(
            line=f"{name}: CPU of the load per update at that N",
            value=best["client_us_per_message"],
            unit="µs",
        ),
    ]
    if cpu_goal is None:
        slow = next((run for run in runs if run["subscribers"] == goal), runs[-1])
        return [*found, _bounded(
            f"{name}: server at {slow['subscribers']} views", slow["server_cores"], "cores",
            SLOW_CORES_MAX,
        )]  # fmt: skip
    used = _bounded("", best["server_us_per_message"], "µs", cpu_goal)
    return [
        *found,
        _bounded(f"{name}: server CPU per update at that N, goal", used.value, "µs", cpu_goal),
    ]


def _bounded(line: str, value: float, unit: str, most: float) -> Measurement:
    return Measurement(line=line, value=value, unit=unit, goal=f"≤ {most:g}", met=value <= most)


def join(server: Child, client: Child, *, count: int) -> list[Measurement]:
    """Views that join within a second, beside readers of a table that ticks."""
    requests = view_requests(count + JOIN_READERS, hertz=10.0, is_different=True)
    with views(server, client, requests[:JOIN_READERS]):
        client.pipe.send(("join", JOIN_READERS, requests[JOIN_READERS:], 1.0))
        # As long as they may take to join, and every reader is told all the time.
        server.ask((10.0, 4.0))
        answer = client.receive()
    name = f"{count} views that join within a second"
    return [
        _bounded(f"{name}: all have their state", answer["seconds"], "s", JOIN_SECONDS_MAX),
        _bounded(
            f"{name}: longest gap of {JOIN_READERS} readers at 10 Hz",
            answer["readers_gap_ms_max"], "ms", READERS_GAP_MS_MAX,
        ),
    ]  # fmt: skip


def scroll(client: Child, *, quick: bool) -> list[Measurement]:
    """A change of viewport until its state is there: one client without a pause, and a hundred with
    half a second between."""
    rows = SCROLL_ROWS // 100 if quick else SCROLL_ROWS
    draw = np.random.default_rng(7)
    found = []
    with child(serve_at_rest, rows) as server:
        for count, turns, every, bounds in (
            (1, 50 if quick else SCROLL_TURNS, 0.0, ((50, 1.2), (99, 4.0))),
            (100, 3 if quick else 20, 0.5, ((50, None), (99, 12.0))),
        ):
            starts = draw.integers(0, rows - ROWS_SHOWN, (count, turns + 1))
            requests = [
                [request_bytes("rest", int(at), ROWS_SHOWN, interval_ms=100) for at in several]
                for several in starts
            ]
            with views(server, client, [several[0] for several in requests]):
                answer = client.ask(("scroll", [several[1:] for several in requests], every))
            who = "one client" if count == 1 else f"{count} clients, two changes a second each"
            for percentile, most in bounds:
                found.append(
                    Measurement(
                        line=f"scrolling in {rows:,} rows, {who}, p{percentile}",
                        value=answer[f"scroll_ms_p{percentile}"],
                        unit="ms",
                        goal="" if most is None else f"≤ {most:g}",
                        met=None if most is None else answer[f"scroll_ms_p{percentile}"] <= most,
                        detail=answer,
                    )
                )
    return found


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
    with child(counting_client.serve) as client:
        with child(serve) as server:
            for line in LINES:
                measurements += one_line(server, client, line, quick=quick)
            measurements += join(server, client, count=JOIN_VIEWS // 10 if quick else JOIN_VIEWS)
        measurements += scroll(client, quick=quick)
    return result("fan_out", measurements)


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
