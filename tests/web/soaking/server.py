"""The server of a page that stays open: ``python -m tests.web.soaking.server``. It prints the
address of its page, and for every line that it reads what only itself knows, as JSON.

Ten times a second rows change, move, come and go; the tables stay as large as they are.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from random import Random
from typing import Any

import pyarrow as pa

from barrage.server import Server, ServerConfig
from barrage.server.serving.spare_memory import Glibc

HERTZ = 10
ROWS = 2_000
EVENTS = 5_000
PER_TICK = 40
JOURNAL_BYTES = 1024 * 1024


class Ticking:
    """The tables, and what happens to them in one tick."""

    def __init__(self, server: Server) -> None:
        self._random = Random(1)
        self._next = ROWS
        self._alive = list(range(ROWS))
        loads = {"id": "int64", "load": "float64", "name": "string", "n": "int64"}
        self._loads = server.create_table("loads", loads, key="id")
        self._loads.upsert(self._rows(self._alive))
        server.publish("ordered", self._loads.sort("-load", "id"))
        server.publish("total", self._loads.agg_by(load="avg(load)", n="sum(n)"))
        events = {"n": "int64", "text": "string"}
        self._events = server.create_table("events", events, kind="ring", capacity=EVENTS)
        self._count = 0

    def _rows(self, ids: list[int]) -> dict[str, list[Any]]:
        draw = self._random
        return {
            "id": ids,
            "load": [round(draw.uniform(0, 100), 3) for _ in ids],
            "name": [f"host {id_ % 97}" for id_ in ids],
            "n": [draw.randrange(1 << 40) for _ in ids],
        }

    def tick(self) -> None:
        draw, alive = self._random, self._alive
        draw.shuffle(alive)
        gone, changed = alive[:5], alive[5 : 5 + PER_TICK]
        come = list(range(self._next, self._next + 5))
        self._next += 5
        self._alive = alive[5:] + come
        self._loads.remove({"id": gone})
        self._loads.upsert(self._rows(changed + come))
        numbers = list(range(self._count, self._count + 5))
        self._count += 5
        self._events.add({"n": numbers, "text": [f"event {n}" for n in numbers]})


def counts(server: Server) -> dict[str, float]:
    """What cannot be seen from outside."""
    loop = server._loop
    assert loop is not None
    rows = server.table("_server").to_arrow().to_pylist()
    told = {row["measure"]: row["value"] for row in rows}
    return {
        "server_heap_bytes": Glibc().used_bytes(),
        "server_arrow_bytes": pa.total_allocated_bytes(),
        "server_blocks": sys.getallocatedblocks(),
        "server_tasks": len(asyncio.all_tasks(loop)),
        "server_threads": threading.active_count(),
        "server_streams": told["streams"],
    }


def main() -> None:
    config = ServerConfig(
        web=True, statistics=True, journal="memory", journal_memory_bytes=JOURNAL_BYTES
    )
    with Server(config=config) as server:
        ticking, stop = Ticking(server), threading.Event()

        def run() -> None:
            while not stop.wait(1 / HERTZ):
                ticking.tick()

        worker = threading.Thread(target=run)
        worker.start()
        print(server.web_uri, flush=True)
        for _ in sys.stdin:
            print(json.dumps(counts(server)), flush=True)
        stop.set()
        worker.join()


if __name__ == "__main__":
    main()
