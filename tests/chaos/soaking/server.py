"""The server of a soak: ``python -m tests.chaos.soaking.server DATA``. It prints its address, and
for every line that it reads what only itself knows, as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import threading

import pyarrow as pa

from barrage.server import Server, ServerConfig
from barrage.server.serving.spare_memory import Glibc
from tests.chaos.held_up_report import report_path
from tests.helpers.held_up import watch_process

MIB = 1024 * 1024


def counts(server: Server) -> dict[str, int]:
    """What cannot be seen from outside."""
    loop, app = server._loop, server._app
    assert loop is not None
    assert app is not None
    assert app.bodies.arena is not None
    arena = app.bodies.arena.statistics()
    heap = Glibc()
    return {
        "tasks": len(asyncio.all_tasks(loop)),
        "python_threads": threading.active_count(),
        "heap_bytes": heap.used_bytes(),
        "heap_free_bytes": heap.free_bytes(),
        "arrow_bytes": pa.total_allocated_bytes(),
        "arena_bytes": arena.bytes_in_use,
        "arena_bodies": arena.placed_count,
        "blocks": sys.getallocatedblocks(),
    }


def main() -> None:
    watch_process(str(report_path(sys.argv[1])))
    config = ServerConfig(
        data=sys.argv[1],
        bodies="shm",
        journal_segment_bytes=MIB,
        journal_retain_bytes=8 * MIB,
        journal_reserve_bytes=MIB,
    )
    with Server(config=config) as server:
        print(server.address, flush=True)
        for _ in sys.stdin:
            print(json.dumps(counts(server)), flush=True)


if __name__ == "__main__":
    main()
