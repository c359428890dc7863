"""A real Deephaven server with the benchmark's tables. Needs ``deephaven-server`` and Java 17."""

from __future__ import annotations

import sys
import time

from deephaven_server import Server

INTERVAL_MS = 100

server = Server(
    port=int(sys.argv[1]),
    jvm_args=[
        "-Xmx8g",
        "-DAuthHandlers=io.deephaven.auth.AnonymousAuthenticationHandler",
        "-Dhttp.host=127.0.0.1",
        f"-DPeriodicUpdateGraph.targetCycleDurationMillis={INTERVAL_MS}",
        f"-Dbarrage.minUpdateInterval={INTERVAL_MS}",
    ],
    default_jvm_args=[],
)
server.start()

from deephaven import arrow as dharrow  # noqa: E402
from deephaven.execution_context import get_exec_ctx  # noqa: E402
from deephaven.stream import blink_to_append_only  # noqa: E402
from deephaven.stream.table_publisher import table_publisher  # noqa: E402

from benchmarks import shapes  # noqa: E402
from benchmarks.peers.lines import commands, say  # noqa: E402

say(port=int(sys.argv[1]))


def append(name: str, rows_per_cycle: int, cycles: int) -> None:
    """Make a table, wait for the word to start, append on schedule."""
    part = dharrow.to_table(shapes.batch(0, rows_per_cycle))
    blink, publisher = table_publisher(name, part.definition)
    globals()[name] = blink_to_append_only(blink)
    say(created=name)
    next(commands())
    started = time.perf_counter()
    for cycle in range(cycles):
        pause = started + cycle * INTERVAL_MS / 1000 - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        publisher.add(part)
    say(late=time.perf_counter() - started - (cycles - 1) * INTERVAL_MS / 1000)


with get_exec_ctx():
    for verb, name, *arguments in commands():
        if verb == "static":
            globals()[name] = dharrow.to_table(shapes.batch(0, arguments[0]))
            say(rows=arguments[0])
        elif verb == "append":
            append(name, *arguments)
        elif verb == "drop":
            del globals()[name]
            say(dropped=name)
