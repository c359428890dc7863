"""This project's server with the benchmark's tables."""

from __future__ import annotations

import time

import barrage
from barrage.limits import NANOS_PER_MS, Limits
from barrage.server.settings.config import ServerConfig
from benchmarks import shapes
from benchmarks.peers.lines import commands, say

INTERVAL_MS = 100


def main() -> None:
    limits = Limits(interval_ns_default=INTERVAL_MS * NANOS_PER_MS)
    with barrage.Server(port=0, config=ServerConfig(limits=limits)) as server:
        say(port=server.port)
        for verb, name, *arguments in commands():
            if verb == "static":
                (rows,) = arguments
                server.create_table(name, data=shapes.batch(0, rows), kind="append_only")
                say(rows=rows)
            elif verb == "append":
                _append(server, name, *arguments)
            elif verb == "drop":
                server.drop_table(name)
                say(dropped=name)


def _append(server: barrage.Server, name: str, rows_per_cycle: int, cycles: int) -> None:
    """Make a table, wait for the word to start, append on schedule."""
    part = shapes.batch(0, rows_per_cycle)
    table = server.create_table(name, shapes.SCHEMA, kind="append_only")
    say(created=name)
    next(commands())
    started = time.perf_counter()
    for cycle in range(cycles):
        pause = started + cycle * INTERVAL_MS / 1000 - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        table.add(part)
    say(late=time.perf_counter() - started - (cycles - 1) * INTERVAL_MS / 1000)


if __name__ == "__main__":
    main()
