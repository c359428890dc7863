"""Deephaven's ticking client (C++ core) as a reader. Needs ``pydeephaven-ticking``."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pydeephaven
from pydeephaven_ticking.table_listener import listen

from benchmarks.peers.lines import commands, say


def read(session: Any, name: str, first_rows: int, expected_rows: int, timeout: float) -> None:
    """Listen until so many rows were delivered; says when the first state was there, then when
    all of them were."""
    seen = 0
    first = threading.Event()
    complete = threading.Event()

    def on_update(update: Any) -> None:
        nonlocal seen
        added = update.added("id")
        seen += len(added["id"]) if added else 0
        if seen >= first_rows:
            first.set()
        if seen >= expected_rows:
            complete.set()

    table = session.open_table(name)
    started = time.perf_counter()
    handle = listen(table, on_update)
    handle.start()
    first.wait(timeout)
    say(first_seconds=time.perf_counter() - started)
    complete.wait(timeout)
    say(at=time.time(), rows=seen)
    handle.stop()


def main() -> None:
    session = pydeephaven.Session(host="127.0.0.1", port=int(sys.argv[1]))
    say(ready=True)
    for command in commands():
        read(session, *command)


if __name__ == "__main__":
    main()
