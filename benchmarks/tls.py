"""What TLS costs: the same server with a certificate and without, read in turns in the same run.

A snapshot of all of a table (by Arrow's client, bodies in the messages); a change of viewport to
the complete answer; the server's CPU per update of 200 different views of 50 rows at 10 Hz, all on
one connection; and connecting. TLS 1.3, a P-256 key.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import barrage
from barrage.cli.tls.dev_certificates import DevOptions, make_dev_certificates
from barrage.server import ServerConfig
from benchmarks import shapes
from benchmarks.processes import Child, child
from benchmarks.report import compared, result

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ROWS_SHOWN = 50
KEYED_ROWS = 100_000
VIEWS = 200
HERTZ = 10.0
WARM_UP = 2


def serve(pipe: Connection, rows: int, files: dict[str, str]) -> None:
    """Words are seconds: tick that long, then answer the ticks made."""
    config = ServerConfig(
        host="localhost", tls_cert=files.get("server"), tls_key=files.get("server_key")
    )
    with barrage.Server(config=config) as server:
        wide = server.create_table("wide", shapes.SCHEMA, kind="append_only")
        for first in range(0, rows, 250_000):
            wide.add(shapes.batch(first, min(250_000, rows - first)))
        keyed = server.create_table(
            "keyed", shapes.SCHEMA, key=["id"], data=shapes.batch(0, KEYED_ROWS)
        )
        draw = np.random.default_rng(3)
        changes = []
        for seed in range(20):
            ids = np.sort(draw.choice(KEYED_ROWS, KEYED_ROWS // 10, replace=False))
            part = shapes.batch(0, len(ids), seed=seed + 1)
            changes.append(part.set_column(0, "id", pa.array(ids)))
        pipe.send(server.uri)
        while (seconds := pipe.recv()) is not None:
            started, ticks = time.perf_counter(), int(seconds * HERTZ)
            for tick in range(ticks):
                pause = started + tick / HERTZ - time.perf_counter()
                if pause > 0:
                    time.sleep(pause)
                keyed.upsert(changes[tick % len(changes)])
            pipe.send(ticks)


class Kind:
    """One of the two servers, and what was measured of it."""

    def __init__(self, server: Child, tls: barrage.TLS | None) -> None:
        self.server, self.tls, self.uri = server, tls, server.ready
        self.snapshots: list[float] = []
        self.connects: list[float] = []
        self.moves: list[float] = []
        self.view_cpu = 0.0
        self.view_updates = 0

    def read(self, session: Any, rows: int) -> None:
        started = time.perf_counter()
        table = session.table("wide").snapshot()
        self.snapshots.append(time.perf_counter() - started)
        assert table.num_rows == rows

    def connect(self) -> None:
        started = time.perf_counter()
        with barrage.connect(self.uri, tls=self.tls):
            self.connects.append(time.perf_counter() - started)

    async def move(self, ticking: Any, first: int) -> None:
        started = time.perf_counter()
        await ticking.set_viewport((first, first + ROWS_SHOWN))
        await ticking.wait_ready(60)
        self.moves.append(time.perf_counter() - started)

    async def views(self, seconds: float) -> None:
        """CPU of the server while its views are told of ticks."""
        async with barrage.aconnect(self.uri, tls=self.tls, bodies="inline") as session:
            table = session.table("keyed")
            step = KEYED_ROWS // VIEWS
            shown = [
                await table.subscribe(
                    viewport=(place * step, place * step + ROWS_SHOWN), interval_ms=50
                )
                for place in range(VIEWS)
            ]
            for each in shown:
                await each.wait_ready(60)
            await asyncio.to_thread(self.server.ask, 1.0)
            before = sum(each.stats.updates for each in shown)
            cpu = self.server.cpu_seconds()
            await asyncio.to_thread(self.server.ask, seconds)
            await asyncio.sleep(0.3)
            self.view_cpu = self.server.cpu_seconds() - cpu
            self.view_updates = sum(each.stats.updates for each in shown) - before


def run(*, quick: bool = False) -> dict[str, Any]:
    rows, rounds, seconds = (500_000, 5, 3.0) if quick else (4_000_000, 15, 15.0)
    with tempfile.TemporaryDirectory() as folder:
        made = make_dev_certificates(Path(folder) / "tls", DevOptions())
        files = {name: str(path) for name, path in made.items()}
        with child(serve, rows, {}) as plain, child(serve, rows, files) as secured:
            kinds = [Kind(plain, None), Kind(secured, barrage.TLS(ca=files["ca"]))]
            _read_in_turns(kinds, rows, rounds)
            asyncio.run(_move_in_turns(kinds, 20 * rounds))
            for kind in kinds:
                asyncio.run(kind.views(seconds))
            return result("tls", _lines(kinds, rows))


def _read_in_turns(kinds: list[Kind], rows: int, rounds: int) -> None:
    sessions = [barrage.connect(kind.uri, tls=kind.tls, bodies="inline") for kind in kinds]
    try:
        for _ in range(WARM_UP + rounds):
            for kind, session in zip(kinds, sessions, strict=True):
                kind.read(session, rows)
                kind.connect()
    finally:
        for session in sessions:
            session.close()
    for kind in kinds:
        del kind.snapshots[:WARM_UP], kind.connects[:WARM_UP]


async def _move_in_turns(kinds: list[Kind], rounds: int) -> None:
    first, second = kinds
    draw = np.random.default_rng(7)
    async with (
        barrage.aconnect(first.uri, bodies="inline") as one,
        barrage.aconnect(second.uri, tls=second.tls, bodies="inline") as two,
        one.table("wide").subscribe(viewport=(0, ROWS_SHOWN)) as one_shown,
        two.table("wide").subscribe(viewport=(0, ROWS_SHOWN)) as two_shown,
    ):
        await one_shown.wait_ready(60)
        await two_shown.wait_ready(60)
        for _ in range(rounds):
            place = int(draw.integers(0, 400_000))
            await first.move(one_shown, place)
            await second.move(two_shown, place)


def _lines(kinds: list[Kind], rows: int) -> list[Any]:
    plain, secured = kinds
    cpu = [kind.view_cpu / kind.view_updates * 1e6 for kind in kinds]
    pairs = (
        (f"snapshot of {rows:,} rows x 10 columns", plain.snapshots, secured.snapshots),
        (f"viewport change of {ROWS_SHOWN} rows, p50", plain.moves, secured.moves),
        ("connecting", plain.connects, secured.connects),
    )
    measured = [
        compared(
            f"{name}, TLS",
            statistics.median(second) * 1e3,
            "ms",
            baseline="in the clear",
            baseline_value=statistics.median(first) * 1e3,
            detail={"rounds": len(first), "fastest": [min(first) * 1e3, min(second) * 1e3]},
        )
        for name, first, second in pairs
    ]
    measured.append(
        compared(
            f"server CPU per update of {VIEWS} different views at {HERTZ:g} Hz, TLS",
            cpu[1],
            "µs",
            baseline="in the clear",
            baseline_value=cpu[0],
            detail={"updates": [kind.view_updates for kind in kinds]},
        )
    )
    return measured


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
