"""Readers that stand still at points of their own of one large table, in one process: what is kept
for them, and what it takes to bring all of them to the present.

No sockets: a reader that is held costs row sets only, and these are what is measured. Times are CPU
time of the engine's thread; what is made beside it is not counted.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from barrage.engine import KeyedTable, Table, UpdateGraph
from barrage.engine.changelog.making import Making, MakingRoom
from barrage.engine.changelog.subscription import SubscriptionSpec
from barrage.engine.operators import derive
from barrage.engine.propagation.held_bytes import HeldBytes
from barrage.engine.propagation.producer import Producer
from barrage.limits import DEFAULT_LIMITS, NANOS_PER_MS
from barrage.model.viewport import Viewport
from benchmarks.processes import child
from benchmarks.report import Measurement

ROWS, ROWS_QUICK = 1_000_000, 50_000
READERS = (1, 64)
CYCLES = 64
CHANGED_DIVISOR = 100
"""One row in so many is written in every cycle."""

SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])
VIEWPORT = Viewport.of(1000, 1050)
TABLES = ("keyed", "filtered", "sorted", "joined")


@dataclass(frozen=True, slots=True)
class Kept:
    """What was kept when all readers stood still, and how they came to the present."""

    held_bytes: int
    resident_bytes: int
    key_set_bytes: int
    resynchronised: int
    disconnected: int
    cycle_ms: float
    release_ms: float
    longest_ms: float


def derived(name: str, source: KeyedTable) -> Table:
    if name == "filtered":
        return derive.where(source, "x < 0.5")
    if name == "sorted":
        return derive.sort(source, "x")
    if name == "joined":
        right = derive.select(derive.where(source, "x < 0.5"), "id", z="y")
        return derive.natural_join(source, right, on=["id"])
    return source


def rows_of(ids: np.ndarray, draw: np.random.Generator) -> pa.Table:
    return pa.table([ids, draw.random(len(ids)), draw.random(len(ids))], schema=SCHEMA)


def stand_still(pipe: Connection, name: str, rows: int, readers: int, is_full: bool) -> None:
    """Hold ``readers`` readers, one after each cycle, then release all of them."""
    draw = np.random.default_rng(7)
    graph = UpdateGraph()
    source = KeyedTable(graph, SCHEMA, key="id")
    source.stage_upsert(rows_of(np.arange(rows), draw))
    graph.run_cycle()
    table = derived(name, source)
    counted = HeldBytes(DEFAULT_LIMITS)
    room = MakingRoom(DEFAULT_LIMITS)
    producer = Producer(table, step=graph.step, held=counted, room=room)
    spec = SubscriptionSpec(
        columns=None,
        viewport=None if is_full else VIEWPORT,
        interval_ns=10 * NANOS_PER_MS,
        is_key_space=is_full,
        encoding=None,
    )
    pipe.send("ready")
    before = psutil.Process().memory_info().rss
    now_ns = 0
    spent = 0.0
    for cycle in range(CYCLES):
        if cycle < readers:
            producer.add(cycle, spec, now_ns)
            producer.propagate(now_ns)
            producer.hold(cycle, now_ns)
        source.stage_upsert(
            rows_of(draw.choice(rows, rows // CHANGED_DIVISOR, replace=False), draw)
        )
        started = time.thread_time()
        result = graph.run_cycle()
        if readers:
            producer.record(result.updates[table], now_ns)
        spent += time.thread_time() - started
        now_ns += 20 * NANOS_PER_MS
    resident = psutil.Process().memory_info().rss - before
    held = producer.held_nbytes
    for number in range(readers):
        producer.release(number)
    longest, released = 0.0, 0.0
    while not longest or producer.next_due_ns() == 0:
        room.begin_turn()
        started = time.thread_time()
        told = producer.propagate(now_ns)
        took = time.thread_time() - started
        longest, released = max(longest, took), released + took
        for making in told:
            if isinstance(making, Making):
                making.deliveries()
                producer.made(making)
    pipe.send(
        Kept(
            held_bytes=held,
            resident_bytes=resident,
            key_set_bytes=table.row_keys.nbytes,
            resynchronised=counted.stats.resynchronised,
            disconnected=counted.stats.disconnected,
            cycle_ms=spent / CYCLES * 1e3,
            release_ms=released * 1e3,
            longest_ms=longest * 1e3,
        )
    )
    pipe.recv()


def kept(name: str, rows: int, readers: int, *, is_full: bool) -> Kept:
    with child(stand_still, name, rows, readers, is_full) as process:
        found: Kept = process.receive()
        return found


def lines(*, quick: bool = False) -> list[Measurement]:
    rows = ROWS_QUICK if quick else ROWS
    measured = []
    for name in TABLES:
        alone = kept(name, rows, 0, is_full=True)
        for readers in READERS:
            for is_full in (True, False):
                found = kept(name, rows, readers, is_full=is_full)
                measured.append(_line(name, rows, readers, is_full, found, alone))
    return measured


def _line(
    name: str, rows: int, readers: int, is_full: bool, found: Kept, alone: Kept
) -> Measurement:
    kind = "full" if is_full else "50-row viewport"
    detail: dict[str, Any] = {
        "bytes per reader": found.held_bytes // readers,
        "resident MiB more than without readers": round(
            (found.resident_bytes - alone.resident_bytes) / 2**20, 1
        ),
        "changes given up": found.resynchronised,
        "readers ended": found.disconnected,
        "cycle with them, ms": round(found.cycle_ms, 2),
        "cycle without, ms": round(alone.cycle_ms, 2),
        "all of them brought to the present, ms": round(found.release_ms, 1),
        "longest step of that, ms": round(found.longest_ms, 1),
    }
    most = DEFAULT_LIMITS.held_table_bytes_max
    key_sets = readers * found.key_set_bytes / 2**20
    has_key_sets = key_sets > 1  # rows without gaps are one range, whose keys cost nothing
    return Measurement(
        line=f"{readers} held {kind} reader{'s' * (readers > 1)}, {name} table of {rows:,} rows, "
        f"{rows // CHANGED_DIVISOR:,} written a cycle",
        value=found.held_bytes / 2**20,
        unit="MiB",
        baseline="its row keys, once a reader" if has_key_sets else "",
        baseline_value=key_sets if has_key_sets else None,
        ratio=found.held_bytes / 2**20 / key_sets if has_key_sets else None,
        goal=f"≤ {most // 2**20} MiB",
        met=found.held_bytes <= most,
        detail=detail,
    )
